"""`strandline status --watch`: drawn anew on a terminal, a line of JSON each time in a pipe."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import strandline
from strandline.cli import cli

COMMAND = [sys.executable, "-m", "strandline", "status", "--watch", "--every", "100ms"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "strandline.toml").write_text("version = 1\n")
    append(tmp_path, 3)
    return tmp_path


def append(home: Path, rows: int) -> None:
    with strandline.open(home) as node:
        node.append("logs", [{"n": n} for n in range(rows)], source="web-1")


@contextmanager
def watching(home: Path, *more: str) -> "Iterator[subprocess.Popen[str]]":
    command = [*COMMAND, "--home", str(home), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_in_a_pipe_each_look_is_a_line_of_json_and_ctrl_c_ends_it_well(home: Path) -> None:
    """L-OBS-1, L-OBS-7, L-CLI-2, -3: what was appended meanwhile is in the next line."""
    with watching(home, "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        append(home, 2)
        later = next(
            found for line in process.stdout if (found := json.loads(line))["datasets"][0]["pending_rows"] > 3
        )
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)

    assert (first["datasets"][0]["pending_rows"], later["datasets"][0]["pending_rows"]) == (3, 5)
    assert later["at"] > first["at"]
    assert (process.returncode, errors) == (0, "")


def test_on_a_terminal_it_is_drawn_anew_in_the_same_place_and_ctrl_c_ends_it_well(home: Path) -> None:
    """L-OBS-1, L-CLI-2."""
    master, slave = pty.openpty()
    command = [*COMMAND, "--home", str(home)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env) as process:
        os.close(slave)
        shown = read_until(master, rb"logs +1 +3 ")
        append(home, 2)
        shown += read_until(master, rb"logs +1 +5 ")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    os.close(master)

    assert b"\x1b[1A" in shown, "the cursor went back up"
    assert b"Traceback" not in shown
    assert shown.count(b"PENDING") > 1


def read_until(master: int, pattern: bytes, *, within_s: float = 60) -> bytes:
    shown, until = b"", time.monotonic() + within_s
    while not re.search(pattern, shown):
        ready, _, _ = select.select([master], [], [], max(until - time.monotonic(), 0))
        assert ready, f"not shown within {within_s} s: {shown!r}"
        shown += os.read(master, 65536)
    return shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--watch"], "draws on a terminal"),
        (["--every", "2s"], "add --watch"),
        (["--watch", "--json", "--every", "soon"], "is no interval"),
        (["--watch", "--json", "--every", "1ms"], "is no interval"),
        (["--watch", "--json", "--at", "2026-01-01"], "--at tells of one time"),
    ],
)
def test_a_watch_that_cannot_be_is_refused(home: Path, words: list[str], said: str) -> None:
    """L-CLI-2."""
    ended = CliRunner().invoke(cli, ["status", "--home", str(home), *words])

    assert ended.exit_code == 2
    assert said in ended.stderr
