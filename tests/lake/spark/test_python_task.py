"""What a Python task of ours leaves behind in its worker."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.lake.spark.python_task import Batches, lean


def importers() -> int:
    return sum(isinstance(each, zipimporter) for each in sys.path_importer_cache.values())


def counted(batches: Batches) -> Iterator[pa.RecordBatch]:
    """How many importers of archives there are, as the task begins."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"found": pa.array([importers()], pa.int64())})


def test_importers_of_archives_go_and_come_back_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as made:
        made.writestr("first_in_zip.py", "here = 1")
        made.writestr("second_in_zip.py", "here = 2")
    monkeypatch.syspath_prepend(str(tmp_path / "some.zip"))
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    import first_in_zip  # type: ignore[import-not-found]

    batch = pa.RecordBatch.from_pydict({"n": [1]})
    (told,) = lean(counted)([batch])

    assert told.column(0).to_pylist() != [0]
    assert importers() == 0
    import second_in_zip  # type: ignore[import-not-found]

    assert (first_in_zip.here, second_in_zip.here) == (1, 2)


def test_a_worker_that_is_used_again_has_none_to_look_at(spark: SparkSession) -> None:
    for _ in range(4):  # there are two workers
        spark.range(2).repartition(2).mapInArrow(lean(counted), "found long").collect()
    again = spark.range(2).repartition(2).mapInArrow(lean(counted), "found long").collect()

    assert {row.found for row in again} == {0}
