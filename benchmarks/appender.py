"""A process that appends, and says what that took. It prints one JSON object.

python -m benchmarks.appender fill HOME ROWS…    append until so many rows are pending; MiB held at each
python -m benchmarks.appender first HOME         ms of the first append in a new process, and of the second
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

import strandline
from benchmarks.bare_tables import SOURCE
from benchmarks.log_rows import arrow_rows
from benchmarks.processes import resident_mib

BATCH: Final = 1_000
DATASET: Final = "backlog"
SETTINGS: Final = 'version = 1\n\n[spool]\nmax_bytes = "64GiB"\n'


def fill(home: Path, stops: list[int]) -> dict[str, float]:
    home.mkdir()
    (home / "strandline.toml").write_text(SETTINGS, encoding="utf-8")
    batch = arrow_rows(BATCH)  # the same again and again: what it is made of must not count
    held: dict[str, float] = {}
    with strandline.open(home) as node:
        done = 0
        for stop in stops:
            while done < stop:
                node.append(DATASET, batch, source=SOURCE)
                done += BATCH
            pa.default_memory_pool().release_unused()
            held[f"{stop:,} rows pending"] = resident_mib()
    found = [*held.values()]
    return {**held, "growth": found[-1] - found[0]}


def first(home: Path) -> dict[str, float]:
    batch = arrow_rows(BATCH)
    began = time.perf_counter()
    with strandline.open(home) as node:
        marks = [began]
        for _ in range(2):
            node.append(DATASET, batch, source=SOURCE)
            marks.append(time.perf_counter())
    return {
        "open and first append": (marks[1] - marks[0]) * 1000,
        "second append": (marks[2] - marks[1]) * 1000,
    }


if __name__ == "__main__":
    kind, place, *counts = sys.argv[1:]
    print(json.dumps(fill(Path(place), [*map(int, counts)]) if kind == "fill" else first(Path(place))))
