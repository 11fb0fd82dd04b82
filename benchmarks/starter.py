"""A process that does something for the first time, and says in ms what took how long. It prints one JSON
object.

    python -m benchmarks.starter append HOME       a node: import, open and append 1,000 rows, append again
    python -m benchmarks.starter write FOLDER      the same by pyarrow alone: write and sync Parquet files
    python -m benchmarks.starter flush HOME        a node with rows pending: Spark, a flush, a second flush
    python -m benchmarks.starter spark HOME        the same by Spark alone, started with the same settings
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

ROWS: Final = 1_000
SOURCE: Final = "web-1"


class Laps:
    """Times since the lap before, in ms."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, name: str | None) -> None:
        """`None` is off the clock."""
        now = time.perf_counter()
        if name is not None:
            self.found[name] = (now - self._at) * 1000
        self._at = now


def append(home: Path, laps: Laps) -> None:
    import strandline
    from benchmarks.log_rows import rows

    laps.lap(None)
    _ = strandline.open
    laps.lap("import")
    given = rows(ROWS)
    laps.lap(None)
    with strandline.open(home) as node:
        node.append("lines", given, source=SOURCE)
        laps.lap("the first")
        node.append("lines", given, source=SOURCE)
        laps.lap("the second")


def write(folder: Path, laps: Laps) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    laps.lap("import")
    from benchmarks.how_fast_is_an_append_of_rows import write_synced
    from benchmarks.log_rows import rows

    given = rows(ROWS)
    folder.mkdir(exist_ok=True)
    laps.lap(None)
    for name in ("the first", "the second"):
        write_synced(pa.Table.from_pylist(given), folder / f"{time.time_ns()}.parquet")
        laps.lap(name)


def flush(home: Path, laps: Laps) -> None:
    import strandline
    from benchmarks.log_rows import arrow_rows
    from benchmarks.steps import noted
    from strandline.lake.spark.session import stop_spark

    given = arrow_rows(ROWS)
    with strandline.open(home) as node:
        node.append("lines", given, source=SOURCE)
        laps.lap(None)
        spark = node.spark
        laps.lap("Spark is up")
        began = time.perf_counter()
        with noted() as steps:
            node.flush("lines")
        laps.lap("the first")
        spans = steps.spans_ms(began, time.perf_counter())
        node.append("lines", given, source=SOURCE)
        laps.lap(None)
        node.flush("lines")
        laps.lap("the second")
        laps.found |= {f"of the first, {name}": ms for name, ms in spans.items() if ms >= 1}
        stop_spark(spark)


def spark(home: Path, laps: Laps) -> None:
    import strandline
    from benchmarks.bare_tables import append_bare, made_table
    from benchmarks.log_rows import arrow_rows
    from strandline.lake.spark.session import stop_spark

    given = arrow_rows(ROWS)
    with strandline.open(home) as node:
        laps.lap(None)
        session = node.spark
        laps.lap("Spark is up")
        table = "strandline.bare.cold"
        if not (home / "made").exists():
            (home / "made").touch()
            made_table(session, "cold")
        laps.lap(None)
        for name in ("the first", "the second"):
            append_bare(session.createDataFrame(given), table)
            laps.lap(name)
        stop_spark(session)


if __name__ == "__main__":
    measured = Laps()
    {"append": append, "write": write, "flush": flush, "spark": spark}[sys.argv[1]](
        Path(sys.argv[2]), measured
    )
    print(json.dumps(measured.found))
