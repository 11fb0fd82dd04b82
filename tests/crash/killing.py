"""Starts child.py, listens to it, and kills it."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.conftest import Place

WAIT_S: Final = 60
CHILD: Final = Path(__file__).with_name("child.py")


class Child:
    """One process on a store. What it says is read as it comes, so that a kill loses no acknowledgement."""

    def __init__(self, place: Place, *, failpoint: str = "", is_ready: bool = True) -> None:
        command = [sys.executable, str(CHILD), place.target, json.dumps(place.options)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "STRANDLINE_FAILPOINT": failpoint},
        )
        self._said = b""
        self.acknowledged = 0
        if is_ready:
            try:
                self.wait_ready()
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def wait_ready(self) -> None:
        line = self._line(time.monotonic() + WAIT_S)
        assert line == "ready", f"the child said {line!r}: {self._complaint()}"

    def open(self, place: Place) -> None:
        """Go on with another store."""
        self.begin_open(place)
        self.wait_ready()

    def begin_open(self, place: Place) -> None:
        """Go on with another store, which is open when it is ready."""
        self.tell("open", target=place.target, options=place.options)
        self.acknowledged = 0

    def tell(self, act: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([act, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def listen(self, *, until: int | None = None, wait_s: float = WAIT_S) -> int:
        """The last acknowledgement: number `until`, which must come, or the last before the act or the child
        ended."""
        deadline = time.monotonic() + wait_s
        while until is None or self.acknowledged < until:
            line = self._line(deadline)
            if line is None or line == "done":
                break
            self.acknowledged = int(line)
        reached = until is None or self.acknowledged >= until
        assert reached, f"the child ended at {self.acknowledged} of {until}: {self._complaint()}"
        return self.acknowledged

    def ended_by_kill(self) -> bool:
        """Whether it died of SIGKILL, rather than of an error or not at all."""
        code = self._process.wait(WAIT_S)
        assert code in (0, -signal.SIGKILL), f"the child failed with {code}: {self._complaint()}"
        return code == -signal.SIGKILL

    def kill(self) -> int:
        """Kill it, and give the last acknowledgement that it made."""
        self._process.kill()
        self._process.wait(WAIT_S)
        if self._process.stdout is not None and not self._process.stdout.closed:
            self.listen()
        return self.acknowledged

    def kill_at_work(self) -> int:
        """As `kill`, of a child that must be alive until then."""
        acknowledged = self.kill()
        assert self.ended_by_kill(), "the child ended by itself, and nobody was killed"
        return acknowledged

    def end(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(WAIT_S) == 0, self._complaint()

    def _line(self, deadline: float) -> str | None:
        """The next line, None at the end."""
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            left_s = max(deadline - time.monotonic(), 0)
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                raise AssertionError(f"the child says nothing more after {self._said!r}")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                return None
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        self._process.kill()
        return self._process.stderr.read().decode(errors="replace")[-3000:]
