"""A node on the Spark of the run, and providers that yield what a test has in mind."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline
from strandline.backfill import check_known, frame, write
from strandline.backfill.result import BackfillResult
from strandline.backfill.run import Order, run
from strandline.config.config import FILE_NAME
from strandline.lake.jobs.table_schema import table_name
from strandline.node.node import Node
from strandline.sources.provider import Chunk, Item, Window

SETTINGS = """version = 1
[spark]
master = "local[2]"
conf = { "spark.driver.memory" = "1g" }
[datasets.parts]
columns = { id = "string", message = "string", place = "bigint", n = "bigint" }
identity = { key = "id", legacy = ["message", "place"] }
[datasets.twice]
columns = { id = "string", n = "bigint" }
identity = { key = "id" }
duplicates = "keep"
"""


def open_here(home: Path, settings: str = "") -> Node:
    home.mkdir(exist_ok=True)
    (home / FILE_NAME).write_text(SETTINGS + settings)
    return strandline.open(home)


@dataclass
class Given:
    """A provider of chunks that a test names, by item."""

    chunks: Mapping[str, Sequence[Chunk]]
    dataset: str = "parts"
    source: str | None = "a"
    modified: Mapping[str, datetime] = field(default_factory=dict)
    before: Callable[[str, int], None] = lambda _, __: None  # called before a chunk is yielded

    def items(self, window: Window) -> Iterator[Item]:
        for id_ in self.chunks:
            modified = self.modified.get(id_)
            if window.has(modified):
                yield Item(id_, self.dataset, self.source, modified)

    def rows(self, item: Item) -> Iterator[Chunk]:
        for ordinal, chunk in enumerate(self.chunks[item.id]):
            self.before(item.id, ordinal)
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def parts(*ids: int) -> list[dict[str, Any]]:
    return [{"id": f"k{id_}", "n": id_} for id_ in ids]


def given(*ids: int, **options: Any) -> Given:
    """One item of one chunk."""
    return Given({"item": [parts(*ids)]}, **options)


def backfill(node: Node, provider: Any, **options: Any) -> BackfillResult:
    order = Order("test", options.pop("window", Window()), **options)
    return run(node.site, node.backfills, provider, order)


def table(node: Node, dataset: str = "parts", columns: str = "source, n") -> list[tuple[Any, ...]]:
    """What has landed, after a flush of everything."""
    node.flush(dataset)
    return sorted(
        tuple(row) for row in node.spark.sql(f"SELECT {columns} FROM {table_name(dataset)}").collect()
    )


def numbers(node: Node, dataset: str = "parts") -> list[int]:
    return [row[1] for row in table(node, dataset)]


def left_out(result: BackfillResult) -> tuple[int, int, int, int]:
    """Committed, spooled, in chunk, chunk known."""
    tally = result.tally
    return tally.committed, tally.spooled, tally.in_chunk, tally.chunk_known


def hook(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object], *, times: int = 1) -> None:
    """Have `act` run at a named place of the check, for the first so many times that it is passed."""
    left = [times]

    def reach(passed: str) -> None:
        if passed == name and left[0]:
            left[0] -= 1
            act()

    for module in (check_known, write, frame):
        monkeypatch.setattr(module, "reach", reach)


def parquet_of(path: Path, ids: list[int], shop: str = "a") -> None:
    """A file that is another version with another number of rows, and was not changed a moment ago."""
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "shop": [shop] * len(ids)}), path)
    at = time.time() - 3600 + len(ids)
    os.utime(path, (at, at))
