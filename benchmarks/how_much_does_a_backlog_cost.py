"""Does the appending process grow with the rows that wait for a flush? Does it start slower?"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.appender import BATCH
from benchmarks.frame import Bench, Case, main

QUESTION = "How much does a backlog cost?"
FEW: Final = 100_000
MANY: Final = 10_000_000


def ask(bench: Bench) -> None:
    few, many = bench.scaled(FEW), bench.scaled(MANY) // (5 if bench.is_quick else 1)
    homes = {few: bench.folder / "backlog-few", many: bench.folder / "backlog-many"}
    run("fill", homes[few], few)
    note = f"Appends of {BATCH:,} rows and no flush."
    filled = {"the appending process": lambda: run("fill", homes[many], few, many)}
    bench.run(Case("Memory held", "MiB", filled, note=note), is_once=True)
    started = {f"{rows:,} rows pending": partial(run, "first", home) for rows, home in homes.items()}
    note = "Imports are not on the clock."
    bench.run(Case("After a restart", "ms", started, [f"{few:,} rows pending"], note=note))


def run(*words: object) -> dict[str, float]:
    """What a process of benchmarks.appender says."""
    command = [sys.executable, "-m", "benchmarks.appender", *map(str, words)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main({QUESTION: ask})
