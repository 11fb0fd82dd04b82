"""How long do the first append and the first flush of a process take, and what takes it?"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.frame import Bench, Case, main

QUESTION = "How long is a cold start?"
WRITES = ("the first", "the second")


def ask(bench: Bench) -> None:
    folder = bench.folder
    home = folder / "cold"
    appends: dict[str, Callable[[], Any]] = {
        "ours": lambda: started("append", home),
        "pyarrow by hand": lambda: started("write", folder / "cold-by-hand"),
    }
    note = "1,000 rows each, as dicts. `import` is strandline.open, or pyarrow.parquet."
    bench.run(Case("Append in a new process", "ms", appends, ["pyarrow by hand"], note=note))
    if bench.node() is None:
        return
    spans: dict[str, float] = {}

    def flush(**environment: str) -> dict[str, float]:
        found = started("flush", home, **environment)
        spans.clear()
        spans.update({name: ms for name, ms in found.items() if name.startswith("of the first")})
        return {name: ms for name, ms in found.items() if name not in spans}

    flushes: dict[str, Callable[[], Any]] = {
        "ours, without the class archive": lambda: flush(JAVA_TOOL_OPTIONS="-Xshare:auto"),  # Java's default
        "ours": flush,
        "bare Spark": lambda: started("spark", folder / "cold-bare"),
    }
    note = (
        "1,000 rows each; all are Spark started by us, from the class archive unless it says without. "
        "A second write has a warm Java and no table to make."
    )
    bench.run(Case("Flush in a new process", "ms", flushes, ["bare Spark"], note=note), at_most=3)
    note = "The last of the rounds above: the time from each place that a flush names on its way to the next."
    bench.run(
        Case("What takes the time of a first flush", "ms", {"ours": lambda: spans}, note=note), is_once=True
    )


def started(*words: object, **environment: str) -> dict[str, float]:
    """What a process of benchmarks.starter says."""
    command = [sys.executable, "-m", "benchmarks.starter", *map(str, words)]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, **environment}
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main({QUESTION: ask})
