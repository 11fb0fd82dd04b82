"""How much of a table does a read of its newest rows open, when much is old and when little is?"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bare_tables import SOURCE
from benchmarks.frame import Bench, Case, Contender, Measure, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import MESSAGE, arrow_rows
from strandline.base.ranges import Range
from strandline.lake.jobs.scan import ScanRange
from strandline.lake.spark.scan_meter import ScanMeter
from strandline.node.node import Node

QUESTION = "How much does a read open?"
OLD: Final = (10_000, 5_000_000)
NEW: Final = 1_000


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    few, many = (bench.scaled(old) if old == OLD[-1] else old for old in OLD)
    aged = {f"{old:,} old rows": Aged(node, f"read_{old}", old) for old in (few, many)}
    against = [f"{few:,} old rows"]
    note = f"By Iceberg's own counters of a scan, and by `explain`. Rows read: {NEW:,}."
    files: dict[str, Contender] = {name: each.files for name, each in aged.items()}
    sizes: dict[str, Contender] = {name: each.bytes for name, each in aged.items()}
    times: dict[str, Contender] = {name: each.seconds for name, each in aged.items()}
    bench.run(Case("Files opened", "files", files, against, note=note), is_once=True)
    bench.run(Case("Sizes of the files opened", "bytes", sizes, against, note=note), is_once=True)
    bench.run(Case(f"The newest {NEW:,} rows", "s", times, against))


def old_rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows of the columns that `log_rows` has, made by Spark."""
    message = f"rpad(concat(sha2(cast(id as string), 512), sha2(cast(-id as string), 256)), {MESSAGE}, '.')"
    return spark.range(count).selectExpr(
        "cast(timestamp_millis(id) as string) as ts",
        "elt(1 + cast(id % 3 as int), 'debug', 'info', 'warn') as level",
        f"{message} as message",
        "id as n",
    )


class Aged:
    """A table whose old rows came by one load, and its newest by a flush, behind a token."""

    def __init__(self, node: Node, dataset: str, old: int) -> None:
        self._node, self._dataset, self._old = node, dataset, old
        node.load(dataset, old_rows(node.spark, old), source=SOURCE)
        self._strand, self._all = node.end(dataset, source=SOURCE), node.end(dataset)
        node.append(dataset, arrow_rows(NEW, old), source=SOURCE)
        node.flush(dataset)

    def files(self) -> Measure:
        return self._counted(lambda found: found[0])

    def bytes(self) -> Measure:
        return self._counted(lambda found: found[1])

    def seconds(self) -> Measure:
        node, dataset = self._node, self._dataset
        return {
            "read of one source": timed(lambda: self._read_strand().toArrow()),
            "read of all": timed(lambda: self._read_all().toArrow()),
            "scan by pages": timed(lambda: list(node.scan(dataset, source=SOURCE, since=self._strand))),
            "explain": timed(lambda: node.explain(dataset, source=SOURCE, since=self._strand)),
        }

    def _read_strand(self) -> DataFrame:
        return self._node.read(self._dataset, source=SOURCE, since=self._strand)

    def _read_all(self) -> DataFrame:
        return self._node.read(self._dataset, since=self._all)

    def _page(self) -> DataFrame:
        schema = self._node.site.known(self._dataset).dataset
        piece = ScanRange(SOURCE, Range(self._old, self._old + NEW))
        return self._node.reader.page_query(schema, [piece], max_rows=NEW)

    def _counted(self, pick: Callable[[tuple[int, int]], int]) -> dict[str, float]:
        meter = ScanMeter(self._node.spark)
        asked = {
            "read of one source": self._read_strand(),
            "read of all": self._read_all(),
            "scan by pages": self._page(),
        }
        found: dict[str, tuple[int, int]] = {}
        for name, query in asked.items():
            table, counters = meter.counted(query, DataFrame.toArrow)
            assert table.num_rows == NEW, (name, table.num_rows)
            assert counters.files_opened is not None, "Spark does not tell what a scan has read"
            assert counters.bytes is not None
            found[name] = counters.files_opened, counters.bytes
        strand = self._node.explain(self._dataset, source=SOURCE, since=self._strand)
        every = self._node.explain(self._dataset, since=self._all)
        found |= {
            "explain, one source": (strand.files_opened, strand.bytes),
            "explain, all": (every.files_opened, every.bytes),
        }
        return {name: float(pick(each)) for name, each in found.items()}


if __name__ == "__main__":
    main({QUESTION: ask})
