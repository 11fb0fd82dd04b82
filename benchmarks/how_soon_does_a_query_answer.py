"""How soon does `strandline sql` answer beside a daemon, against one that starts a Spark of its own?"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import strandline
from benchmarks.bare_tables import SOURCE
from benchmarks.frame import NODE_SETTINGS, Bench, Case, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import arrow_rows
from strandline.config.config import FILE_NAME

QUESTION = "How soon does a query answer?"
ROWS: Final = 100_000
QUERY: Final = "SELECT level, count(*) AS rows FROM logs GROUP BY level"
ALONE: Final = "with a Spark of its own"
_NOTE: Final = """\
The whole command, from the shell to its end, over a table of {rows:,} rows. Beside a daemon the query runs in
the daemon's Spark, which is warm, and the command imports none."""


def ask(bench: Bench) -> None:
    rows = bench.scaled(ROWS)
    served, alone = bench.folder / "query-served", bench.folder / "query-alone"
    for home in (served, alone):
        home.mkdir()
        (home / FILE_NAME).write_text(NODE_SETTINGS, encoding="utf-8")
        with strandline.open(home) as node:
            node.append("logs", arrow_rows(rows, 0), source=SOURCE)
        _answered(home)  # the first lands the rows
    with _daemon(served):
        contenders: dict[str, Callable[[], float]] = {
            "beside a daemon": lambda: timed(lambda: _answered(served)),
            ALONE: lambda: timed(lambda: _answered(alone)),
        }
        case = Case("strandline sql", "s", contenders, [ALONE], note=_NOTE.format(rows=rows))
        bench.run(case, at_most=5)


def _answered(home: Path) -> None:
    command = [sys.executable, "-m", "strandline", "sql", QUERY, "--json", "--home", str(home)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    *found, end = (json.loads(line) for line in done.stdout.splitlines())
    assert end["end"]["rows"] == len(found) > 0, end


@contextmanager
def _daemon(home: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "strandline", "up", "--home", str(home), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "it did not start"
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main({QUESTION: ask})
