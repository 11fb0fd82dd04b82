"""`strandline up` as a person runs it: a process, signals, HTTP, commands beside it, a kill (L-CLI-1, -4)."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.daemon.presence import daemon_of

SETTINGS = """\
version = 1

[spool]
max_age_s = 1

[sinks.archive]
type = "blob"
destination = "local"
dir = "archive"
encoder = "jsonl"

[spark.conf]
"spark.driver.memory" = "512m"
"""
HISTORY = """
[backfill.old]
type = "files"
path = "old"
dataset = "history"
source = "api-0"
on_start = true
quiesce_s = 0
"""
EVERYTHING = "select message from logs union all select message from history"


class Up:
    """A daemon in a process of its own, and what it says."""

    def __init__(self, home: Path) -> None:
        self.home = home
        command = [sys.executable, "-m", "strandline", "up", "--home", str(home), "--json"]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: Queue[dict[str, Any]] = Queue()
        self._unheard: list[dict[str, Any]] = []
        self._thread = Thread(target=self._listen)
        self._thread.start()
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.url = json.loads(first)["listening"] if first else ""

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.put(json.loads(line) if line.startswith("{") else {"what": "text", "text": line})

    def heard(self, what: str, name: str | None = None, *, within_s: float = 120) -> dict[str, Any]:
        """The next thing of that kind that it says, or has said and nobody asked for."""
        until = time.monotonic() + within_s
        while True:
            for news in self._unheard:
                if news["what"] == what and name in (None, news["name"]):
                    self._unheard.remove(news)
                    return news
            try:
                self._unheard.append(self.said.get(timeout=max(until - time.monotonic(), 0)))
            except Empty:
                pytest.fail(f"it did not say {what!r} within {within_s} s, but {self._unheard}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(60)
        self._thread.join()
        for each in (self.process.stdout, self.process.stderr):
            assert each is not None
            each.close()
        return code


@contextmanager
def up(home: Path) -> Iterator[Up]:
    daemon = Up(home)
    try:
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.end(signal.SIGKILL)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "strandline.toml").write_text(SETTINGS, encoding="utf-8")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def without_java(*words: str, home: Path) -> str:
    """What a command prints that can start no Spark."""
    done = subprocess.run(
        [sys.executable, "-m", "strandline", *words, "--home", str(home)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
    )
    assert done.returncode == 0, done
    return done.stdout


def post(daemon: Up, token: str, rows: list[dict[str, Any]], key: str) -> Any:
    request = urllib.request.Request(
        f"{daemon.url}/v1/append/logs?source=api-1",
        json.dumps(rows).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": key},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_a_daemon_takes_rows_in_lands_them_and_is_taken_up_after_a_kill(home: Path) -> None:
    """L-SPOOL-11, L-CLI-4, L-CTL-5, L-BF-13: it brings history in once, and commands use its Spark."""
    (home / "strandline.toml").write_text(f"{SETTINGS}{HISTORY}", encoding="utf-8")
    (home / "old").mkdir()
    (home / "old" / "a.jsonl").write_text('{"message": "of old"}\n{"message": "older"}\n', encoding="utf-8")
    token = run("server", "token", "new", "api", "--home", str(home)).stdout.strip()
    with up(home) as daemon:
        post(daemon, token, [{"message": "one"}], "1")
        landed = daemon.heard("flush", "logs")
        assert (landed["facts"]["rows"], landed["error"]) == (1, "")
        brought = daemon.heard("backfill", "old")
        assert (brought["facts"]["written"], brought["error"]) == (2, "")
        assert daemon.heard("flush", "history")["facts"]["rows"] == 2

        presence = daemon_of(home)
        assert presence is not None
        assert (presence.pid, presence.url) == (daemon.process.pid, daemon.url)
        assert (home / "run" / "daemon.json").stat().st_mode & 0o077 == 0

        second = subprocess.run(
            [sys.executable, "-m", "strandline", "up", "--home", str(home), "--listen", "127.0.0.1:0"],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (second.returncode, f"pid {daemon.process.pid}" in second.stderr) == (3, True), second

        found = without_java("sql", EVERYTHING, home=home)
        assert all(text in found for text in ("one", "of old", "older")), found
        assert without_java("read", "history", "--format", "jsonl", home=home).count("old") == 2

        post(daemon, token, [{"message": "two"}], "2")
        daemon.process.kill()
        daemon.end(signal.SIGKILL)

    assert daemon_of(home) is None
    assert Path(presence.desk).exists()
    with up(home) as again:
        assert not Path(presence.desk).parent.exists()
        taken_up = again.heard("flush", "logs")
        assert (taken_up["facts"].get("rows"), taken_up["error"]) == (1, "")
        assert post(again, token, [{"message": "two"}], "2")["is_repeat"] is True
        assert again.end() == 0

    assert not (home / "run" / "daemon.json").exists()
    stood = json.loads(run("status", "--json", "--home", str(home)).stdout)
    last = {each["dataset"]: (each["pending_rows"], each["last_flush"]) for each in stood["datasets"]}
    assert last == {"logs": (0, 2), "history": (0, 1)}
    assert stood["backfills"]["old"]["backfill_written"] == 2


def test_a_daemon_reads_its_configuration_again_and_tells_systemd(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1, L-CLI-1
    with heard_by_systemd(home / "notify", monkeypatch) as told, up(home) as daemon:
        file = home / "strandline.toml"
        file.write_text(SETTINGS.replace("archive]", "other]").replace('"archive"', '"other"'))
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.heard("reload")["facts"] == {"sinks": 1}

        file.write_text("version = 1\n[spool]\nmax_age = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        assert "max_age" in daemon.heard("reload")["error"]

        file.write_text(f'{SETTINGS}[store]\nurl = "elsewhere.db"\n')
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.heard("reload")["error"] == "[store] changed: that needs a restart"
        began = time.monotonic()
        assert daemon.end(signal.SIGINT) == 0
        assert time.monotonic() - began < 15, "within seconds, on a machine that has other things to do"

    said = Counter(text.partition("=")[0] for text in told)
    assert said.pop("WATCHDOG") > 0
    assert said == {"READY": 4, "RELOADING": 3, "STOPPING": 1}
    assert all("MONOTONIC_USEC=" in text for text in told if text.startswith("RELOADING"))


@contextmanager
def heard_by_systemd(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A socket where systemd's would be; what came there, in order, is whole after the block."""
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:

        def listen() -> None:
            while text := listening.recv(4096):
                told.append(text.decode())

        listening.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        thread = Thread(target=listen)
        thread.start()
        try:
            yield told
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", str(path))
            thread.join()


def test_a_daemon_ends_where_its_store_has_to_be_opened_again(home: Path) -> None:  # P-DUR-9
    """Whoever watches over it starts it anew; it does not go on for ever with a store that refuses."""
    token = run("server", "token", "new", "api", "--home", str(home)).stdout.strip()
    with up(home) as daemon:
        shutil.copy(home / "strandline.db", home / "another.db")
        (home / "another.db").replace(home / "strandline.db")

        with pytest.raises(urllib.error.HTTPError) as refused:
            post(daemon, token, [{"message": "one"}], "1")
        refused.value.close()
        assert daemon.ended() == 1

    assert refused.value.code == 503
    ended = "".join(news["text"] for news in daemon.said.queue if news["what"] == "text")
    assert "the store cannot be used any more" in ended


def test_every_command_is_listed_once() -> None:  # L-CLI-1
    names = cli.list_commands(None)  # type: ignore[arg-type]  # it looks at no context
    assert "up" in names
    assert len(set(names)) == len(names)
