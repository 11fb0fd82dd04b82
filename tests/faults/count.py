"""What was tried and what came of it: a count, as the page of faults shows it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]


@dataclass
class Count:
    """One fault: how often it was tried, and each time that a promise was broken. `made_of` says which seeds
    the cases come from, or what else; `cases` names them where the page lists each."""

    name: str
    made_of: str
    tried: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0
    cases: list[list[str]] = field(default_factory=list)

    def add(self, what: str, times: int = 1) -> None:
        self.tried[what] = self.tried.get(what, 0) + times

    @contextmanager
    def timed(self) -> Iterator["Count"]:
        started = time.monotonic()
        yield self
        self.seconds = round(time.monotonic() - started, 1)


def in_another_process(module: str, **arguments: Any) -> Count:
    """Run `main(**arguments)` of a module of this folder in a process of its own."""
    command = [sys.executable, "-m", f"tests.faults.{module}", json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr[-4000:]}"
    return Count(**json.loads(done.stdout.splitlines()[-1]))


def answer(count: Count) -> None:
    """What a module that was run by `in_another_process` says at its end."""
    print(json.dumps(asdict(count)))
