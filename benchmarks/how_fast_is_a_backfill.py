"""How long does a backfill take of which most is there already, against a bare anti-join in Spark?"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from benchmarks.bare_tables import SOURCE, append_bare, made_table
from benchmarks.frame import Bench, Case, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import arrow_rows
from strandline.backfill.run import Order, run
from strandline.node.node import Node
from strandline.rows.dataset import Dataset, Identity
from strandline.sources.files import Files
from strandline.sources.provider import Window
from strandline.state.dataset_versions import declared
from strandline.storage.objects import open_objects

QUESTION = "How fast is a backfill?"
ROWS: Final = 1_000_000
KNOWN: Final = 0.9
BARE: Final = "bare Spark"
_NOTE: Final = """\
Nine rows of ten are in the table. Bare Spark anti-joins a Parquet file with the table and appends the rest;
beside a live writer, or run twice after a crash, that writes rows twice. By chunks the rows come through
append, up to 250,000 at a time; as a frame, which is how a large Parquet file goes, through load."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    count = bench.scaled(ROWS)
    known = int(count * KNOWN)
    contenders: dict[str, Callable[[], float]] = {}
    for name, frame_bytes in (("ours, as a frame", 1), ("ours, by chunks", 2**40)):
        contenders[name] = _ours(node, bench.folder, count, known, frame_bytes)
    contenders[BARE] = _bare(node, bench.folder, count, known)
    bench.run(Case(f"{count:,} rows, {known:,} known", "s", contenders, [BARE], note=_NOTE), at_most=3)


def _ours(node: Node, folder: Path, count: int, known: int, frame_bytes: int) -> Callable[[], float]:
    rounds = iter(range(1_000))

    def measure() -> float:
        number = next(rounds)
        dataset = f"backfill-{'frame' if frame_bytes == 1 else 'chunks'}-{number}"
        _declare(node, dataset)
        node.append(dataset, arrow_rows(known, 0), source=SOURCE)
        node.flush(dataset)
        files = folder / dataset
        files.mkdir()
        pq.write_table(arrow_rows(count, 0), files / "all.parquet")
        provider = Files(
            open_objects(files),
            files,
            dataset,
            SOURCE,
            ("*.parquet",),
            None,
            frame_bytes,
            lambda name: node.site.schema(name).dataset,
        )
        order = Order(dataset, Window(), quiesce_s=0)

        def act() -> None:
            result = run(node.site, node.backfills, provider, order)
            assert (result.status, result.tally.written) == ("done", count - known)
            node.flush(dataset)

        return timed(act)

    return measure


def _declare(node: Node, dataset: str) -> None:
    made = Dataset(dataset, identity=Identity("n"), collapse=True, dedupe_on_flush=True, version=1)
    node.site.b.commit([], [declared(made, node.site.clock.now_us())])


def _bare(node: Node, folder: Path, count: int, known: int) -> Callable[[], float]:
    rounds = iter(range(1_000))
    path = folder / "backfill-bare.parquet"

    def measure() -> float:
        pq.write_table(arrow_rows(count, 0), path)
        table = made_table(node.spark, f"backfill_{next(rounds)}")
        append_bare(node.spark.read.parquet(str(path)).where(f"n < {known}"), table)
        given = node.spark.read.parquet(str(path)).selectExpr("*", f"'{SOURCE}' as source")
        there = node.spark.table(table).select("source", "n")
        return timed(lambda: append_bare(given.join(there, on=["source", "n"], how="left_anti"), table))

    return measure


if __name__ == "__main__":
    main({QUESTION: ask})
