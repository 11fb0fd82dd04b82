"""The query server: commands on this machine have the daemon of their owner run a query, in its warm Spark.

A socket in a folder of its own that only the owner can enter, so whoever comes is the owner, of whom values
are taken as they are (pickled). A connection is one query:

    ->  (version, Query, whether the Arrow schema is wanted)
    <-  ("found", columns, ages, schema or None), then ("page", rows) …, then ("end",)
        ("failed", error)   instead of any of them, and the last

Who lets go of the connection ends the query: its Spark jobs are cancelled.
"""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import version
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.errors import StrandlineError, UnavailableError
from strandline.node.query import Query, QueryResult, Row, ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.node.node import Node

_PREFIX: Final = "strandline-desk-"
_LOOK_S: Final = 0.2  # how often it is looked whether the other side is still there
_IDLE_SESSIONS: Final = 4
_GONE: Final = (EOFError, OSError)


class DeskFailed(UnavailableError):
    """The daemon ended, or failed, while it ran a query."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the daemon did not finish the query: {why}",
            hint="ask again; where no daemon runs a Spark of its own is started",
        )


class QueryServer:
    """Of one daemon; `path` is where it is. `close` ends it, not the queries that are under way."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # of the owner alone
        self.path = self._folder / "desk"
        self._listener = Listener(str(self.path), "AF_UNIX", backlog=16)
        self._idle: list[tuple[SparkSession, SparkSession]] = []  # the node's then, and one of its own
        self._is_closed = False
        threading.Thread(target=self._listen, name="desk", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):  # wakes who listens
            Client(str(self.path), "AF_UNIX").close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                continue  # who came has left already
            threading.Thread(target=self._attend, args=(connection,), name="desk-query", daemon=True).start()

    def _attend(self, connection: Connection) -> None:
        with connection, suppress(*_GONE):
            try:
                asker, query, wants_schema = connection.recv()
                if asker != version("strandline"):
                    raise DeskFailed(f"it is of version {version('strandline')}")
                self._answer(connection, query, wants_schema=wants_schema)
            except StrandlineError as error:
                connection.send(("failed", error))
            except Exception as error:  # noqa: BLE001  # whatever it is, who asked is told
                connection.send(("failed", DeskFailed(f"{type(error).__name__}: {error}"[:1000])))

    def _answer(self, connection: Connection, query: Query, *, wants_schema: bool) -> None:
        from strandline.lake.spark.cancel_jobs import Jobs

        session = self._take_session()
        jobs, done = Jobs(session), threading.Event()
        watching = threading.Thread(target=_watch, args=(connection, jobs, done), daemon=True)
        watching.start()
        try:
            with jobs.running():
                found = ask(self._node, query, session=session)
                connection.send(
                    ("found", found.columns, found.ages, found.arrow_schema() if wants_schema else None)
                )
                for page in found.pages:
                    connection.send(("page", page))
            connection.send(("end",))
        finally:
            done.set()
            watching.join()
        if len(self._idle) < _IDLE_SESSIONS:  # only after a success: one that failed may be the reason
            self._idle.append((self._node.spark, session))

    def _take_session(self) -> "SparkSession":
        """One whose views are of this query alone."""
        from strandline.lake.spark.session import own_session

        now = self._node.spark
        while self._idle:
            of, session = self._idle.pop()
            if of is now:
                return session
        return own_session(now)


def _watch(connection: Connection, jobs: Any, done: threading.Event) -> None:
    """Cancel the jobs if the other side lets go: it says nothing more, so that only its end can come."""
    while not done.is_set():
        with suppress(*_GONE):
            if not connection.poll(_LOOK_S):
                continue
        if not done.is_set():
            jobs.cancel()
        return


def forget(socket: str) -> None:
    """Remove what a daemon that was killed has left."""
    folder = Path(socket).parent
    if folder.name.startswith(_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


# The other side


def asked_at(socket: str, query: Query, *, wants_schema: bool) -> QueryResult | None:
    """Return what the daemon with that socket found, or None if no daemon listens there."""
    try:
        connection = Client(socket, "AF_UNIX")
    except OSError:
        return None
    try:
        connection.send((version("strandline"), query, wants_schema))
        _, columns, ages, schema = _received(connection)
    except BaseException:
        connection.close()
        raise
    return QueryResult(columns, ages, _pages(connection), lambda: schema)


def _pages(connection: Connection) -> Iterator[list[Row]]:
    with closing(connection):
        while (said := _received(connection))[0] == "page":
            yield said[1]


def _received(connection: Connection) -> Any:
    try:
        said = connection.recv()
    except _GONE as error:
        raise DeskFailed("it ended") from error
    if said[0] == "failed":
        raise said[1]
    return said
