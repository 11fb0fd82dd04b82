"""How long does it take to merge small files, against Spark's bare rewrite; how often is a row rewritten in
its life; and what does a walk cost that finds nothing to do?"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import DataFrame

from benchmarks.bare_tables import SOURCE
from benchmarks.frame import Bench, Case, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import arrow_rows
from strandline.config.lake_settings import CATALOG
from strandline.lake.jobs.table_schema import SEQ, table_name
from strandline.maintenance.api import Keeping
from strandline.maintenance.compaction.files_to_merge import FULL
from strandline.maintenance.compaction.merge import LandedRewrite
from strandline.maintenance.table_upkeep import Maintained, UpkeepAsked
from strandline.node.node import Node
from strandline.rows.dataset import Dataset
from strandline.state.dataset_versions import declared

QUESTION = "How fast is a compaction?"
FILES: Final = 1_000
ROWS_EACH: Final = (200, 900)  # all in one bucket of seqs
FLUSHES: Final = 250
FLUSHED: Final = 1_000  # rows of each
FILLS: Final = 10  # flushes fill a bucket of seqs
FEW: Final = 3  # files of a tier: so a bucket goes through all tiers, just before it is full
STRANDS: Final = 1_000
BARE: Final = "bare Spark"
_ASKED: Final = UpkeepAsked(expire=False, force=True)


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    files = bench.scaled(FILES)
    for rows in ROWS_EACH:
        contenders = {"ours": _ours(node, files, rows), BARE: _bare(node, files, rows)}
        note = "Ours compares the rows before and after, and lands them on a branch."
        bench.run(Case(f"{files:,} files of {rows:,} rows", "s", contenders, [BARE], note=note), at_most=3)
    _ask_how_often(bench, node)
    _ask_for_nothing(bench, node)


# Many small files


def _ours(node: Node, files: int, rows: int) -> Callable[[], float]:
    rounds = iter(range(1_000))

    def measure() -> float:
        dataset = f"compaction-{rows}-{next(rounds)}"
        _scatter(node, dataset, files, rows)

        def act() -> None:
            done = node.keeping.maintain(dataset, _ASKED)[dataset]
            assert isinstance(done, Maintained), done
            assert [run.files_in for run in done.walk.runs] == [files], done

        return timed(act)

    return measure


def _bare(node: Node, files: int, rows: int) -> Callable[[], float]:
    rounds = iter(range(1_000))

    def measure() -> float:
        dataset = f"compaction-bare-{rows}-{next(rounds)}"
        _scatter(node, dataset, files, rows)
        called = table_name(dataset).removeprefix(f"{CATALOG}.")
        query = (
            f"CALL {CATALOG}.system.rewrite_data_files(table => '{called}', strategy => 'sort', "
            f"sort_order => '{SEQ}', options => map('rewrite-all', 'true'))"
        )

        def act() -> None:
            assert node.spark.sql(query).collect()[0][0] == files

        return timed(act)

    return measure


def _scatter(node: Node, dataset: str, files: int, rows: int) -> None:
    """A dataset of that many files: appended and flushed once, and cut by hand, since as many flushes would
    take minutes."""
    node.append(dataset, arrow_rows(files * rows, 0), source=SOURCE)
    node.flush(dataset)
    table = table_name(dataset)
    found: DataFrame = node.spark.table(table)
    cut = found.withColumn("_cut", found[SEQ] - 1 - (found[SEQ] - 1) % rows)
    placed = cut.selectExpr("*", f"cast(_cut div {rows} as int) as _task").repartitionById(files, "_task")
    writer = placed.drop("_cut", "_task").sortWithinPartitions(SEQ).writeTo(table)
    writer.option("distribution-mode", "none").overwritePartitions()


# A long history


def _ask_how_often(bench: Bench, node: Node) -> None:
    flushes, dataset = bench.scaled(FLUSHES), "compaction-history"
    made = Dataset(dataset, seq_bucket=FILLS * FLUSHED, version=1)
    node.site.b.commit([], [declared(made, node.site.clock.now_us())])
    keeping = _with_small_tiers(node)

    def measure() -> dict[str, float]:
        runs: list[LandedRewrite] = []
        for number in range(flushes):
            node.append(dataset, arrow_rows(FLUSHED, number * FLUSHED), source=SOURCE)
            node.flush(dataset)
            done = keeping.maintain(dataset, UpkeepAsked(expire=False))[dataset]
            assert isinstance(done, Maintained), done
            runs += done.walk.runs
        assert {run.level for run in runs} == {1, 2, FULL}, runs
        files = keeping.rewriter.files(node.site.known(dataset).dataset).files
        assert sum(file.rows for file in files) == flushes * FLUSHED, files
        return {
            "bytes": sum(run.bytes_out for run in runs) / sum(file.bytes for file in files),
            "rows": sum(run.rows for run in runs) / (flushes * FLUSHED),
        }

    note = (
        "What rewrites have written, over what the table holds at the end. A walk after every flush, tiers "
        f"of {FEW} files, and a bucket that is full after {FILLS} flushes: nearly every row goes through "
        "both tiers, and once more as its bucket is full."
    )
    title = f"{flushes:,} flushes of {FLUSHED:,} rows"
    bench.run(Case(title, "times rewritten", {"ours": measure}, note=note), is_once=True)


def _with_small_tiers(node: Node) -> Keeping:
    compaction = type(node.config.compaction)(file_count=FEW)
    return Keeping(msgspec.structs.replace(node.config, compaction=compaction), node.site, lambda: node.spark)


# Nothing to do


def _ask_for_nothing(bench: Bench, node: Node) -> None:
    strands, dataset = bench.scaled(STRANDS), "compaction-idle"
    for number in range(strands):
        node.append(dataset, [{"n": number}], source=f"s-{number:04}")
    node.flush(dataset)
    node.keeping.maintain(dataset)

    def measure(*, is_idle: bool) -> float:
        if not is_idle:
            node.append(dataset, [{"n": 0}], source="s-0000")
            node.flush(dataset)
        began = time.perf_counter()
        done = node.keeping.maintain(dataset)[dataset]
        took = time.perf_counter() - began
        assert isinstance(done, Maintained), done
        assert (done.walk.is_idle, done.walk.runs, done.walk.due) == (is_idle, (), 0), done
        return took * 1_000

    contenders = {
        "nothing has changed": partial(measure, is_idle=True),
        "a row has landed": partial(measure, is_idle=False),
    }
    note = (
        "Where nothing has changed since the last walk, files are not even listed. Where a row has landed, "
        "outside the time that is taken, all are looked at, and none is due."
    )
    title = f"a walk over {strands:,} strands with nothing to do"
    bench.run(Case(title, "ms", contenders, note=note))


if __name__ == "__main__":
    main({QUESTION: ask})
