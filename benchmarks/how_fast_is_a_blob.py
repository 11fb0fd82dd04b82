"""How long does it take to deliver rows as Parquet objects, against Spark writing the same Parquet?"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.bare_tables import SOURCE
from benchmarks.delivering import delivered, land, rewound, with_sinks
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.how_fast_is_a_flush import timed
from strandline.node.node import Node

QUESTION = "How fast is a blob?"
ROWS: Final = 1_000_000
OBJECTS: Final = 4
DATASET: Final = "blobs"
SPARK: Final = "Spark by itself"
IN_ORDER: Final = "Spark by itself, in order"
_NOTE: Final = """\
All read one source from the same table with the same session, and write its columns with snappy into a folder
on the same disk. Ours has its rows in order, the bounds of each object fixed before it is written, each
object synced to the disk, its SHA-256 taken, and every object there once whatever is killed. Spark by itself
writes a file for each part of the table that a task reads, and syncs nothing; *in order* it shuffles rows to
as many files as ours has objects, and sorts each."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    rows = bench.scaled(ROWS)
    land(node, DATASET, rows)
    folder = bench.folder / "blobs"
    with with_sinks(node, _table(folder / "ours", rows)) as sender:
        contenders: dict[str, Contender] = {
            "ours": _ours(sender, rows),
            SPARK: _spark(node, folder / "spark", rows, _as_it_is),
            IN_ORDER: _spark(node, folder / "ordered", rows, _in_order),
        }
        case = Case(f"{rows:,} rows, {OBJECTS} objects", "rows/s", contenders, [SPARK, IN_ORDER], note=_NOTE)
        bench.run(case, at_most=5)


def _table(folder: Path, rows: int) -> str:
    return f"""
[sinks.{DATASET}]
type = "blob"
destination = "local"
dir = "{folder}"
include = ["{DATASET}"]
max_object_rows = {rows // OBJECTS}
"""


def _ours(node: Node, rows: int) -> Contender:
    def run() -> float:
        rewound(node, DATASET)
        return rows / timed(lambda: delivered(node, DATASET, rows))

    return run


def _spark(node: Node, folder: Path, rows: int, shaped: Callable[[DataFrame], DataFrame]) -> Contender:
    rounds = count()

    def run() -> float:
        to = folder / str(next(rounds))
        found = node.read(DATASET, source=SOURCE, refresh="never")
        took_s = timed(lambda: shaped(found).write.parquet(str(to), compression="snappy"))
        assert sum(pq.read_metadata(each).num_rows for each in to.glob("*.parquet")) == rows
        return rows / took_s

    return run


def _as_it_is(found: DataFrame) -> DataFrame:
    return found


def _in_order(found: DataFrame) -> DataFrame:
    """`n` rises with the seq."""
    return found.repartitionByRange(OBJECTS, "n").sortWithinPartitions("n")


if __name__ == "__main__":
    main({QUESTION: ask})
