"""Rows that were never numbered come in once (L-SCH-12), with real Spark."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.errors import NotFoundError
from strandline.ingest.legacy_import import FolderNested, ImportChanged, file_names
from strandline.node.node import Node
from strandline.persist import kv_items, kv_put
from strandline.state.strand_entries import ControlUnreadable
from tests.node.test_node import open_here


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:
    with open_here(tmp_path / "node") as opened:
        yield opened


def write(path: Path, *numbers: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    return path


def numbers_of(node: Node, dataset: str) -> list[int]:
    return sorted(row["n"] for row in node.read(dataset, columns=["n"], refresh="never").collect())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with one base name."""
    write(tmp_path / "old" / "day=1" / "part.parquet", 1, 2)
    write(tmp_path / "old" / "day=2" / "part.parquet", 3, 4)
    return tmp_path / "old"


def imported(node: Node, dataset: str, folder: Path) -> int:
    return node.import_rows(dataset, str(folder), kind="parquet", source="old").rows


def test_a_repeat_brings_the_files_that_are_new_and_no_other(node: Node, folder: Path) -> None:  # L-SCH-12
    assert imported(node, "grows", folder) == 4
    assert node.import_rows("grows", str(folder), kind="parquet", source="old").is_repeat

    write(folder / "day=2" / "more.parquet", 5)
    assert imported(node, "grows", folder) == 1

    assert numbers_of(node, "grows") == [1, 2, 3, 4, 5]
    copy = folder.parent / "elsewhere" / "old"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)  # with times of its own
    os.utime(copy / "day=1" / "part.parquet", (1, 1))
    assert node.import_rows("grows", str(copy), kind="parquet", source="old").is_repeat
    assert numbers_of(node, "grows") == [1, 2, 3, 4, 5]


def test_a_file_that_changed_is_refused_and_nothing_is_imported(node: Node, folder: Path) -> None:
    """L-SCH-12: as many rows, as many bytes, another value."""
    imported(node, "changes", folder)
    size = (folder / "day=1" / "part.parquet").stat().st_size
    write(folder / "day=1" / "part.parquet", 1, 7)
    os.utime(folder / "day=1" / "part.parquet", (2_000_000_000, 2_000_000_000))
    write(folder / "day=3" / "new.parquet", 8)
    assert (folder / "day=1" / "part.parquet").stat().st_size == size

    with pytest.raises(ImportChanged) as told:
        imported(node, "changes", folder)

    assert told.value.names == ("old/day=1/part.parquet",)
    assert numbers_of(node, "changes") == [1, 2, 3, 4]
    (folder / "day=1" / "part.parquet").unlink()
    assert imported(node, "changes", folder) == 1
    assert numbers_of(node, "changes") == [1, 2, 3, 4, 8]


def test_an_import_that_was_released_is_no_import(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SEQ-6, L-SCH-12
    with monkeypatch.context() as broken:
        broken.setattr(type(node.tables), "stage", dies)
        with pytest.raises(Died):
            imported(node, "released", folder)
    for table in node.spark.sql("SHOW TABLES IN strandline.scratch").collect():
        node.spark.sql(f"DROP TABLE strandline.scratch.`{table['tableName']}`")

    assert imported(node, "released", folder) == 4

    assert numbers_of(node, "released") == [1, 2, 3, 4]
    events = [event.type for event in node.site.b.read("flush/released")]
    assert events == ["loading", "released", "loading", "landed"]


class Died(Exception):
    pass


def dies(*_: object, **__: object) -> None:
    raise Died


def test_an_import_that_was_cut_short_is_finished_by_a_repeat(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SCH-12
    with monkeypatch.context() as broken:
        broken.setattr(type(node.tables), "stage", dies)
        with pytest.raises(Died):
            imported(node, "resumed", folder)

    assert imported(node, "resumed", folder) == 4

    assert numbers_of(node, "resumed") == [1, 2, 3, 4]
    assert not node.spark.sql("SHOW TABLES IN strandline.scratch").collect()


def test_files_that_spark_would_pass_over_refuse_the_import(node: Node, tmp_path: Path) -> None:  # G-3
    write(tmp_path / "flat" / "a.parquet", 1)
    write(tmp_path / "flat" / "older" / "b.parquet", 2)
    write(tmp_path / "mixed" / "day=1" / "a.parquet", 1)
    write(tmp_path / "mixed" / "older" / "b.parquet", 2)

    with pytest.raises(FolderNested, match=r"older/b\.parquet"):
        node.import_rows("nested", str(tmp_path / "flat"), kind="parquet")
    with pytest.raises(NotFoundError, match="Conflicting directory structures"):
        node.import_rows("nested", str(tmp_path / "mixed"), kind="parquet")

    assert "nested" not in node.datasets()


def test_a_table_that_has_another_snapshot_by_now_is_refused(node: Node) -> None:  # L-SCH-12
    node.spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.legacy")
    node.spark.sql("CREATE TABLE strandline.legacy.moving (n BIGINT) USING iceberg")
    node.spark.sql("INSERT INTO strandline.legacy.moving VALUES (1), (2)")
    node.import_rows("moving", "strandline.legacy.moving", kind="iceberg", source="old")
    node.spark.sql("INSERT INTO strandline.legacy.moving VALUES (3)")

    with pytest.raises(ImportChanged):
        node.import_rows("moving", "strandline.legacy.moving", kind="iceberg", source="old")

    assert numbers_of(node, "moving") == [1, 2]


def test_a_mark_that_cannot_be_read_stops_the_import(node: Node, folder: Path) -> None:  # L-CTL-4
    imported(node, "spoiled", folder)
    key = next(key for key, _ in kv_items(node.site.b, prefix="imported/spoiled/"))
    kv_put(node.site.b, key, {"name": 7})

    with pytest.raises(ControlUnreadable):
        imported(node, "spoiled", folder)


@pytest.mark.parametrize(
    ("folder", "path", "name"),
    [
        ("/data/old", "file:///data/old/x/part-0.parquet", "old/x/part-0.parquet"),
        ("/data/old/", "file:/data/old/part-0.parquet", "old/part-0.parquet"),
        (
            "/data/an old one",
            "file:///data/an%20old%20one/a%252Fb=1/p.parquet",
            "an old one/a%2Fb=1/p.parquet",
        ),
        ("s3a://bucket/old", "s3a://bucket/old/p.parquet", "old/p.parquet"),
        ("s3a://bucket", "s3a://bucket/p.parquet", "bucket/p.parquet"),
        ("/data/old/p.parquet", "file:///data/old/p.parquet", "old/p.parquet"),
        ("/data/*/p.parquet", "file:///data/old/p.parquet", "/data/old/p.parquet"),
    ],
)
def test_a_file_is_named_by_its_folder_and_its_path_inside(folder: str, path: str, name: str) -> None:
    assert file_names(folder, [path]) == {path: name}
