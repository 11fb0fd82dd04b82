"""How fast are batches of 10,000 rows stored, against writing and syncing the same Parquet by hand?"""

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import strandline
from benchmarks.bare_tables import SOURCE
from benchmarks.frame import Bench, Case, Measure, main
from benchmarks.log_rows import arrow_rows, rows

QUESTION = "How fast is an append of rows?"
BATCH: Final = 10_000
_NOTE: Final = """\
By hand a batch is one Parquet file, written with the defaults of pyarrow, file and folder synced. Ours judges
each row, numbers them, and commits that to the store too (a second sync); a repeat under the same request id
would change nothing."""


def ask(bench: Bench) -> None:
    by_hand = bench.folder / "by-hand"
    by_hand.mkdir()
    names = count()

    def write(table: pa.Table) -> None:
        write_synced(table, by_hand / f"{next(names)}.parquet")

    with strandline.open(bench.folder / "appends") as node:

        def append(given: Any) -> None:
            node.append("lines", given, source=SOURCE)

        contenders = {
            "ours": feed(bench, append, append),
            "pyarrow by hand": feed(bench, lambda given: write(pa.Table.from_pylist(given)), write),
        }
        case = Case(
            f"Batches of {BATCH:,} rows",
            "rows/s",
            contenders,
            ["pyarrow by hand"],
            is_durable=False,
            note=_NOTE,
        )
        bench.run(case)


def write_synced(table: pa.Table, path: Path) -> None:
    """What one would do by hand for rows that must survive a power cut."""
    with path.open("wb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def feed(
    bench: Bench, store_dicts: Callable[[Any], object], store_arrow: Callable[[Any], object]
) -> Callable[[], Measure]:
    """A contender that stores some batches as dicts, then as Arrow tables; making them is not on its
    clock."""
    batches = bench.scaled(20)

    def run() -> Measure:
        dicts = [rows(BATCH, number * BATCH) for number in range(batches)]
        tables = [arrow_rows(BATCH, number * BATCH) for number in range(batches)]
        return {"dicts": _rate(store_dicts, dicts), "Arrow": _rate(store_arrow, tables)}

    return run


def _rate(store: Callable[[Any], object], batches: list[Any]) -> float:
    began = time.perf_counter()
    for batch in batches:
        store(batch)
    return len(batches) * BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    main({QUESTION: ask})
