"""A command whose stderr is a terminal, as a person has it."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str  # as the terminal got it


def on_terminal(*args: str) -> Done:
    """Run `strandline` with these arguments; stdout is a pipe."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "strandline", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(slave)
        shown = _read(master)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    return Done(process.returncode, printed, shown)


def _read(master: int) -> str:
    """All that is written to it, until its other end is closed, which Linux tells by EIO."""
    shown = b""
    with suppress(OSError):
        while block := os.read(master, 65536):
            shown += block
    os.close(master)
    return shown.decode(errors="replace")
