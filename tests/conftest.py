"""One way to open every kind of store: `open_backend(kind, folder)`, and `place_of` for other processes.

The Postgres is a throw-away server, started by the first test that needs it and gone at the end. The remote
is a real host in a process of its own over SQLite stores: one that tests share, and `host_of(folder)` for
those that kill it. What the machine lacks is skipped aloud; with CI=true it fails.
"""

import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import pytest
from hypothesis import settings

from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import StrandlineError
from strandline.persist import open_store
from strandline.persist.backend import AtomicBackend, Outcome
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.core.prepare import Prepared

# A shell that runs the tests in the background has them ignore SIGINT, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.phase_times", "tests.spark_sessions")

settings.register_profile("shared machine", deadline=None)  # a slow moment of the machine is no failure
settings.load_profile("shared machine")

KINDS: Final = ("memory", "sqlite", "postgres", "remote")
DURABLE_KINDS: Final = ("sqlite", "postgres", "remote")
HOST_READY_S: Final = 30
# Kills take nothing that was written, synced or not. Only power does: `tests.faults` cuts that.
UNSYNCED: Final = {"fsync": "off"}

_MODULES: Final = {
    "postgres": ("strandline.persist.backends.postgres",),
    "remote": ("strandline.persist.backends.remote", "strandline.cli", "strandline.server"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is, in a form that another process can open."""

    target: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> AtomicBackend:
        return open_store(self.target, **self.options, **options)


class Host:
    """`strandline persist serve` over one SQLite store, in a process that can be killed and started again."""

    def __init__(self, folder: Path, *, scratch: bool = False) -> None:
        self.folder = folder
        self.store = folder / "host.db"
        self.url = ""
        self._options = ["--scratch"] if scratch else []
        self._log = folder / "host.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, failpoint: str = "") -> None:
        """Start it where it was before, so that clients find it again; `failpoint` is where it will die."""
        assert self._process is None, "start() of a host that runs"
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "strandline", "persist", "serve"]
        command += ["--store", str(self.store), "--port", port, *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "STRANDLINE_FAILPOINT": failpoint, "PYTHONUNBUFFERED": "1"},
            )
        self.url = self._read_url()

    def kill(self) -> None:
        """Kill it as a crash would; one that is dead already is fine."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(HOST_READY_S)
            assert process.stdout is not None
            process.stdout.close()

    def died(self, timeout_s: float = 30) -> bool:
        """Whether it has ended by itself within that time."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll() is not None

    def _read_url(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        until, said = time.monotonic() + HOST_READY_S, b""
        while b"\n" not in said.partition(b"listening on ")[2]:
            left_s = max(until - time.monotonic(), 0)
            is_readable = bool(select.select([self._process.stdout], [], [], left_s)[0])
            more = os.read(self._process.stdout.fileno(), 4096) if is_readable else b""
            if not more:
                self.kill()
                log = self._log.read_text(errors="replace")[-2000:]
                pytest.fail(f"the host did not come up; it said {said!r} and logged:\n{log}")
            said += more
        return said.partition(b"listening on ")[2].split()[0].decode()


_hosts: dict[Path, Host] = {}
_servers: list[ScratchPostgres] = []
_shared_hosts: list[Host] = []


def open_backend(kind: str, folder: Path) -> AtomicBackend:
    """The store of this kind in `folder`, made if it is not there; opened again, it is the same store."""
    return open_store() if kind == "memory" else place_of(kind, folder).open()


def place_of(kind: str, folder: Path) -> Place:
    """Where the durable store of this kind in `folder` is."""
    if kind == "sqlite":
        return Place(str(folder / "store.db"))
    require(kind)
    if kind == "postgres":
        return Place(postgres().url, {"schema": _name_of(folder)})
    assert kind == "remote", f"there is no kind {kind!r}"
    return Place(_shared_host().url, {"scratch": _name_of(folder)})


def _name_of(folder: Path) -> str:
    return "s" + sha256(str(folder).encode()).hexdigest()[:16]


def _shared_host() -> Host:
    """A host with a store for each name, for the tests that do not kill it: starting one takes a second."""
    if not _shared_hosts:
        host = Host(Path(tempfile.mkdtemp(prefix="strandline-host-")), scratch=True)
        host.start()
        _shared_hosts.append(host)
    return _shared_hosts[0]


def host_of(folder: Path, *, failpoint: str = "") -> Host:
    """A host of its own over the store in `folder`, started if it is not: it may be killed.

    `failpoint` is where it will die by itself, once.
    """
    require("remote")
    if folder not in _hosts:
        host = Host(folder)
        host.start(failpoint=failpoint)
        _hosts[folder] = host
    return _hosts[folder]


def postgres(settings: Mapping[str, str] = UNSYNCED) -> ScratchPostgres:
    """The one throw-away server of this run, with the `settings` of the first who asked."""
    if not _servers:
        server = scratch_postgres(settings)
        server.start()
        _servers.append(server)
    return _servers[0]


def scratch_postgres(settings: Mapping[str, str] | None = None) -> ScratchPostgres:
    """A server of one's own, which syncs unless told otherwise; `with` starts it."""
    require("postgres")
    try:
        return ScratchPostgres(settings=settings)
    except StrandlineError as error:
        lacks(f"{error}")


def lacks(what: str) -> NoReturn:
    """This machine cannot run the test."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have every backend: {what}")
    pytest.skip(what)


def require(kind: str) -> None:
    """Skip the test, aloud, where this machine cannot run a store of this kind."""
    for module in _MODULES[kind]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            lacks(f"no {kind} backend: {error}")


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The URL of a throw-away Postgres that the whole run shares: make a schema of your own in it."""
    return postgres().url


@pytest.fixture
def group_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commits each transaction has of the SQLite stores that are opened from now on."""
    found: list[int] = []
    run_group = SqliteBackend._commit_group

    def noted(self: SqliteBackend, group: list[Prepared]) -> list[Outcome | BaseException]:
        found.append(len(group))
        return run_group(self, group)

    monkeypatch.setattr(SqliteBackend, "_commit_group", noted)
    return found


@pytest.fixture(autouse=True)
def _end_hosts() -> Iterator[None]:
    yield
    while _hosts:
        _hosts.popitem()[1].kill()


def pytest_sessionfinish() -> None:
    while _servers:
        _servers.pop().close()
    while _shared_hosts:
        host = _shared_hosts.pop()
        host.kill()
        shutil.rmtree(host.folder)


def as_any(value: object) -> Any:
    """For calls that are wrong on purpose."""
    return cast("Any", value)
