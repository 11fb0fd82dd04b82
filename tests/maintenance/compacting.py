"""What tests of compaction share: a house with datasets as they need them, and crashes at named places."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline.config.keys import CompactionSection
from strandline.ingest.append import append
from strandline.lake.jobs.rewrite import SparkRewriter
from strandline.lake.ports.rewrite import DataFile
from strandline.maintenance.compaction import merge
from strandline.maintenance.table_upkeep import Maintained, UpkeepAsked, maintain
from strandline.persist import read
from strandline.rows.dataset import Column, Dataset, Identity
from tests.maintenance.house import House

SETTINGS = CompactionSection(file_count=3, max_tick_s=600)
COMPACT = UpkeepAsked(expire=False)
FORCE = UpkeepAsked(expire=False, force=True)


class Crash(BaseException):
    """The process ends here."""


def crash() -> None:
    raise Crash


def at_point(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Any]) -> None:
    """Once, when a rewrite comes by a place."""
    left = [act]

    def reach(found: str) -> None:
        if found == name and left:
            left.pop()()

    monkeypatch.setattr(merge, "reach", reach)


def declare(house: House, **more: Any) -> None:
    """The dataset of the house, as it would be configured."""
    declared = Dataset(house.dataset, **more)
    house.site.declared = lambda name: declared if name == house.dataset else None


def keyed(house: House, **more: Any) -> None:
    """Rows of equal `id` are one row, once they meet in a compaction: nothing stops them at the door."""
    columns = (Column("id", "bigint"), Column("v", "string"))
    declare(house, columns=columns, identity=Identity("id"), collapse=True, **more)


def put(house: House, *ids: int | None, source: str = "web-1", v: str = "x") -> None:
    append(house.site, house.dataset, [{"id": each, "v": v} for each in ids], source=source)
    house.flush()


def rewriter(house: House) -> SparkRewriter:
    return SparkRewriter(lambda: house.spark, house.lake)


def compact(house: House, asked: UpkeepAsked = COMPACT, settings: CompactionSection = SETTINGS) -> Maintained:
    return maintain(house.site, rewriter(house), settings, house.dataset, asked)


def no_spark(house: House) -> SparkRewriter:
    """One that cannot start Spark."""

    def refuse() -> Any:
        raise AssertionError("Spark was asked")

    return SparkRewriter(refuse, house.lake)


def files(house: House) -> list[DataFile]:
    found = rewriter(house).files(house.site.known(house.dataset).dataset).files
    return sorted(found, key=lambda each: (str(each.bin.place), each.bin.first, each.lo))


def rows(house: House) -> list[Any]:
    """Every row with all its columns, in order."""
    return house.sql("SELECT * FROM {table} ORDER BY source, _sl_seq")


def events(house: House) -> list[str]:
    return [each.type for each in read(house.site.b, f"maintain/{house.dataset}")]


def branches(house: House) -> list[str]:
    return [row[0] for row in house.sql("SELECT name FROM {table}.refs") if row[0] != "main"]


def paths(house: House) -> list[Path]:
    return [Path(each.removeprefix("file:")) for each in sorted(house.files())]


def seqs_of(path: Path) -> list[int]:
    """In the order of the file."""
    found: list[int] = pq.ParquetFile(path).read(["_sl_seq"]).column("_sl_seq").to_pylist()
    return found
