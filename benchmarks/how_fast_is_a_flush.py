"""How long does a flush take, against Spark writing the same rows into the same kind of table?"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.bare_tables import SOURCE, append_bare, made_table
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.log_rows import arrow_rows
from strandline.config.lake_settings import CATALOG
from strandline.lake.jobs.stamp import stamped
from strandline.lake.jobs.table_schema import AT, FLUSH, SEQ, create_statement, own_columns
from strandline.node.node import Node

QUESTION = "How fast is a flush?"
MANY: Final = 1_000_000
FEW: Final = 1_000
BATCH: Final = 10_000
FROM_FILES: Final = "bare Spark, from the segments"
SAME_COLUMNS: Final = "bare Spark, the same columns"
FROM_MEMORY: Final = "bare Spark, from memory"
_NOTE: Final = """\
Bare is one Iceberg append of the same rows by the same session into a table with the same partitions and
properties; after a crash it would be done twice or not at all. A flush checks each segment, gives each row
its seq and the SHA-256 of its content, stages, publishes and records. With *the same columns* Spark computes
that digest too, and has a number to put where the seq goes; else the table has the columns of the producer
alone."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    many = bench.scaled(MANY)
    rows = Spooled(node, "flush_many", many)
    contenders = {
        "ours": rows.flush,
        SAME_COLUMNS: rows.bare_with_stamps("flush_many_stamped"),
        FROM_FILES: rows.bare_from_files(made_table(node.spark, "flush_many")),
    }
    against = [SAME_COLUMNS, FROM_FILES]
    bench.run(Case(f"{many:,} rows", "s", contenders, against, note=_NOTE), at_most=5)
    rows = Spooled(node, "flush_few", FEW)
    contenders = {
        "ours": rows.flush,
        FROM_MEMORY: rows.bare_from_memory(made_table(node.spark, "flush_few_memory")),
        FROM_FILES: rows.bare_from_files(made_table(node.spark, "flush_few_files")),
    }
    against = [FROM_MEMORY, FROM_FILES]
    bench.run(Case(f"{FEW:,} rows", "s", contenders, against, note=_NOTE))


class Spooled:
    """A dataset, and the segments that its last flush has landed: the bare contenders write those."""

    def __init__(self, node: Node, dataset: str, rows: int) -> None:
        self._node, self._dataset, self._rows = node, dataset, rows
        self._first = 0
        self._segments: list[str] = []

    def flush(self) -> float:
        """Append, off the clock; then flush."""
        self._segments = []
        for first in range(self._first, self._first + self._rows, BATCH):
            batch = arrow_rows(min(BATCH, self._rows), first)
            cid = self._node.append(self._dataset, batch, source=SOURCE).segment
            assert cid is not None
            digest = cid.removeprefix("sha256-")
            self._segments.append(f"{self._node.config.content_url}/sha256/{digest[:2]}/{digest}")
        self._first += self._rows
        return timed(lambda: self._node.flush(self._dataset))

    def bare_from_files(self, table: str) -> Contender:
        spark = self._node.spark
        return lambda: timed(lambda: append_bare(spark.read.parquet(*self._segments), table))

    def bare_with_stamps(self, name: str) -> Contender:
        """The table that we would make, written without a plan, a stage or a record."""
        spark, table = self._node.spark, f"{CATALOG}.bare.{name}"
        made = False

        def run() -> float:
            nonlocal made
            dataset = self._node.site.known(self._dataset).dataset
            if not made:
                spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.bare")
                spark.sql(create_statement(dataset, table, 2))
                made = True
            own = [column.name for column in own_columns(dataset)]
            return timed(lambda: stamped(self._numbered(own), dataset).writeTo(table).append())

        return run

    def _numbered(self, own: list[str]) -> DataFrame:
        rows = self._node.spark.read.parquet(*self._segments)
        at = f"timestamp'2026-01-01 00:00:00' as {AT}"
        return rows.selectExpr(*own, "source", f"n as {SEQ}", at, f"1L as {FLUSH}")

    def bare_from_memory(self, table: str) -> Contender:
        def run() -> float:
            rows = pq.read_table(Path(self._segments[0]))
            return timed(lambda: append_bare(self._node.spark.createDataFrame(rows), table))

        return run


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main({QUESTION: ask})
