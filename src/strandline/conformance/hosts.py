"""Hosts that a certification starts, kills and starts again: a Postgres, and `strandline persist serve`.

Suites run in processes of their own, which may be killed; so the hosts belong to the process that certifies,
and a fixture asks it, over a socket, for a crash.

    with local_postgres() as factory:
        certify(factory)
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import UnavailableError

if TYPE_CHECKING:
    from strandline.conformance.fixture import FixtureFactory

TIMEOUT_S: Final = 60.0
_ANNOUNCED: Final = "listening on "


@dataclass(frozen=True, slots=True)
class HostAddress:
    """How a fixture, in whatever process, reaches the crasher of its host; and where its stores are."""

    socket: str
    key: bytes
    store: str = ""


def crash_host(address: HostAddress) -> None:
    """Kill the host with SIGKILL and have it started again; returns when it takes requests."""
    with Client(address.socket, authkey=address.key) as connection:
        connection.send("crash")
        if not connection.poll(TIMEOUT_S):
            raise UnavailableError("the host did not come back", hint="look at what it has written")
        if (answer := connection.recv()) != "done":
            raise UnavailableError(
                f"the host did not come back: {answer}", hint="look at what it has written"
            )


class HostCrasher:
    """Crashes a host on request, for as long as the block lasts."""

    def __init__(self, crash: Callable[[], object], store: str = "") -> None:
        self._crash = crash
        self._folder = tempfile.TemporaryDirectory(prefix="slkeep-")
        key = os.urandom(16)
        self._listener = Listener(str(Path(self._folder.name) / "socket"), authkey=key)
        self.address = HostAddress(str(self._listener.address), key, store)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._is_over = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        with (
            suppress(OSError, EOFError, AuthenticationError),
            Client(self.address.socket, authkey=self.address.key),
        ):
            """A last caller, so that accept() returns."""
        self._thread.join(TIMEOUT_S)
        self._listener.close()
        self._folder.cleanup()

    def _serve(self) -> None:
        while not self._is_over:
            with suppress(OSError, EOFError, AuthenticationError), self._listener.accept() as connection:
                if connection.recv() == "crash":
                    connection.send(self._crashed())

    def _crashed(self) -> str:
        try:
            self._crash()
        except (OSError, UnavailableError) as error:
            return str(error) or type(error).__name__
        return "done"


class HostProcess:
    """`strandline persist serve --scratch` over SQLite files, in a child process that keeps its port."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._said = store.with_name(f"{store.name}.log")

    def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "strandline", "persist", "serve", "--scratch"]
        command += ["--store", str(self.store), "--port", port]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")}
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=said,
                stdin=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=variables,
            )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if not first.startswith(_ANNOUNCED):
            self.kill()
            raise UnavailableError(
                f"the host did not start: {first.strip()} {self._said.read_text(errors='replace')[-500:]}",
                hint="look at the message",
            )
        self.url = first.removeprefix(_ANNOUNCED).strip()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()

    def crash(self) -> None:
        self.kill()
        self.start()


@contextmanager
def local_postgres(settings: Mapping[str, str] | None = None) -> "Iterator[FixtureFactory]":
    """A Postgres of its own, with these `settings` of postgresql.conf, as long as the block lasts."""
    from strandline.conformance.shipped_fixtures import PostgresFixture

    with ScratchPostgres(settings=settings) as server:

        def crash() -> None:
            server.kill()
            server.start()

        with HostCrasher(crash) as crasher:
            yield partial(PostgresFixture, server.url, crasher.address)


@contextmanager
def local_remote() -> "Iterator[FixtureFactory]":
    """A host of its own, over SQLite files, as long as the block lasts."""
    from strandline.conformance.shipped_fixtures import RemoteFixture

    with tempfile.TemporaryDirectory(prefix="slhost-") as folder:
        host = HostProcess(Path(folder) / "host.db")
        host.start()
        try:
            with HostCrasher(host.crash, str(host.store)) as crasher:
                yield partial(RemoteFixture, host.url, crasher.address)
        finally:
            host.kill()


@contextmanager
def local_sqlite() -> "Iterator[FixtureFactory]":
    """Files in a folder of their own, as long as the block lasts."""
    from strandline.conformance.shipped_fixtures import SqliteFixture

    with tempfile.TemporaryDirectory(prefix="slsqlite-") as folder:
        yield partial(SqliteFixture, folder)
