"""Files below a table that a killed job left: a purge removes them, or names them (L-POL-3)."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from strandline.cli.verbs.purge import _left as told_left
from strandline.flush import publish
from strandline.lake.jobs.purge import SparkPurger
from strandline.lake.ports.purge import FileListing
from strandline.maintenance.purge import PurgeResult, purge
from tests.maintenance.calm import Crash
from tests.maintenance.house import House
from tests.maintenance.test_purge import SECRET, _crash, bytes_under, table_folder, values


@pytest.fixture
def purged(house: House) -> Callable[..., PurgeResult]:
    def run(**options: Any) -> PurgeResult:
        purger = SparkPurger(lambda: house.spark, house.lake)
        return purge(house.site, purger, house.dataset, flush=house.flush, **options)

    return run


def orphan(house: House) -> Path:
    """A file with rows in it that a killed task left: a copy of one of the table's."""
    (file, *_) = table_folder(house).joinpath("data").rglob("*.parquet")
    return Path(shutil.copy(file, file.with_name(f"left-{uuid4().hex}.parquet")))


def test_files_that_a_killed_job_left_go_however_young_they_are(
    each_house: House,
) -> None:  # L-POL-3, on classic Spark and on Connect
    house = each_house
    house.land(2, note=SECRET)
    left = orphan(house)
    house.land(2, note="harmless")
    purger = SparkPurger(lambda: house.spark, house.lake)

    done = purge(house.site, purger, house.dataset, where=f"note = '{SECRET}'", flush=house.flush)

    assert (done.rows, done.files.removed, done.is_whole) == (2, 1, True)
    assert not left.exists()
    assert values(house) == [3, 4]
    assert SECRET.encode() not in bytes_under(table_folder(house))


def test_files_that_an_open_flush_may_be_writing_are_named_and_stay(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch
) -> None:  # L-POL-3
    house.land(2, note=SECRET)
    left = orphan(house)
    house.append(1)
    purger = SparkPurger(lambda: house.spark, house.lake)

    def begin() -> None:
        with monkeypatch.context() as patched, suppress(Crash):
            patched.setattr(publish, "reach", lambda name: _crash() if name == "land.stage" else None)
            house.flush()

    done = purge(house.site, purger, house.dataset, where=f"note = '{SECRET}'", flush=begin)

    assert left.exists()
    assert (done.rows, done.files.count, done.is_whole) == (2, 1, False)
    assert done.files.left[0].endswith(left.name)
    assert "is open, and may be writing them" in done.files.reason
    assert any(left.name in line for line in told_left(done))
    house.clock.forward(hours=1)
    assert purged(where=f"note = '{SECRET}'").files.removed == 1
    assert not left.exists()


def test_nothing_is_removed_if_the_listing_lacks_a_file_that_the_table_names(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch
) -> None:  # L-POL-3: paths that cannot be compared would make every file look left
    house.land(2)
    monkeypatch.setattr(
        SparkPurger, "list_files", lambda *_: FileListing((str(orphan(house)), "/else/where.parquet"))
    )

    done = purged(where="n = 1")

    assert (done.rows, done.files.removed, done.is_whole) == (1, 0, False)
    assert "the listing lacks" in done.files.reason
    assert values(house) == [2]


def test_files_that_cannot_be_listed_are_told(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(2)
    house.sql("ALTER TABLE {table} SET TBLPROPERTIES ('write.data.path' = 'nowhere://bucket/data')")

    done = purged(source="nobody")

    assert (done.files.removed, done.is_whole) == (0, False)
    assert "cannot be listed" in done.files.reason
