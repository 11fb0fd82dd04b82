"""How long does a process take that only imports the event store?

Compiled modules are kept in a folder of the run, which the first round fills: what is installed has them.
"""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.frame import Bench, Case, Contender, main, percentile

QUESTION = "How fast is an import?"


def ask(bench: Bench) -> None:
    started = partial(_started, bench.scaled(10), bench.folder / "compiled")
    contenders = {
        "import strandline.persist": started("import strandline.persist"),
        "the same with the SQLite backend": started("import strandline.persist.backends.sqlite"),
        "import sqlite3, json": started("import sqlite3, json"),
        "bare interpreter": started("pass"),
        "import eventsourcing.sqlite": started("import eventsourcing.sqlite"),
    }
    against = ["import sqlite3, json", "bare interpreter"]
    bench.run(Case("A process from start to end", "ms", contenders, against))


def _started(times: int, compiled: Path, program: str) -> Contender:
    """A contender: the median time, in ms, of processes that run `program`."""

    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = str(compiled)

    def run() -> float:
        took_ms = []
        for _ in range(times):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], env=variables, check=True)
            took_ms.append((time.perf_counter() - began) * 1000)
        return percentile(took_ms, 50) if len(took_ms) > 1 else took_ms[0]

    return run


if __name__ == "__main__":
    main({QUESTION: ask})
