"""How long does a load of a DataFrame take, against Spark writing it into the same kind of table?"""

from typing import Final

import pyarrow.parquet as pq

from benchmarks.bare_tables import SOURCE, append_bare, made_table
from benchmarks.frame import Bench, Case, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import arrow_rows

QUESTION = "How fast is a load?"
ROWS: Final = 1_000_000
FILES: Final = 4
BARE: Final = "bare Spark"
_NOTE: Final = """\
The input is a folder of Parquet. A load judges each value and writes the rows twice: once to give each its
place, so that a retried task numbers it alike, then with its seq and the SHA-256 of its content into the
table. After a crash the bare write would be done twice or not at all."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    folder = bench.folder / "load-input"
    folder.mkdir()
    count = bench.scaled(ROWS)
    for number in range(FILES):
        rows = arrow_rows(count // FILES, number * count // FILES)
        pq.write_table(rows, folder / f"{number}.parquet")
    table = made_table(node.spark, "load")
    given = node.spark.read.parquet(str(folder))
    contenders = {
        "ours": lambda: timed(lambda: node.load("load", given, source=SOURCE)),
        BARE: lambda: timed(lambda: append_bare(given, table)),
    }
    bench.run(Case(f"{count:,} rows", "s", contenders, [BARE], note=_NOTE), at_most=5)


if __name__ == "__main__":
    main({QUESTION: ask})
