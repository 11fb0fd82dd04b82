"""The one place where Spark is started. A process has one Spark: classic, in a Java beside it (classic.py),
or a Connect server that somebody else runs (connect.py). Each lake has a session of its own on it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import StrandlineError, UnavailableError, UsageError
from strandline.lake.spark import classic, connect, jars
from strandline.lake.spark.classic import Classic, open_classic
from strandline.lake.spark.conf import CATALOG_KEY, catalog_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK: Final = "4.1."


class SparkGone(UnavailableError):
    """Spark ended while something was asked of it."""

    def __init__(self, said: str) -> None:
        first = (said.splitlines() or ["no answer"])[0][:200]
        super().__init__(
            f"Spark is gone: its Java, or its Connect server, has ended ({first})",
            hint="the same call starts it anew, or connects again; its log says why it ended",
        )


@dataclass(frozen=True, slots=True)
class _Started:
    spark: SparkSettings
    session: "SparkSession"
    classic: Classic | None
    sessions: "list[tuple[LakeSettings, SparkSession]]"


_lock: Final = threading.Lock()
_started: Final[list[_Started]] = []  # at most one

_idle: "dict[SparkSession, list[SparkSession]]" = {}


def start_spark(
    lake: LakeSettings, spark: SparkSettings, *, tell: Callable[[str], None] | None = None
) -> "SparkSession":
    """The session of this process for a lake; Spark is started if it is not, or if it has died. The same
    settings give the same session.

    `tell` hears what takes time, before it does. Raises JavaMissing, JarsUnresolved, PortTaken or
    SparkNotStarted, for a Connect server SparkUnreachable, CatalogMissing or ExecutorsDiffer; nothing is left
    running then, and the next call tries again.
    """
    with _lock:
        if _started and not is_alive(_started[0].session):
            _bury(_started.pop())
        if _started:
            return _again(_started[0], lake, spark)
        _need_pyspark()
        _started.append(_start(lake, spark, tell or _tell_nobody))
        quiet_pyspark()
        return _started[0].session


def stop_spark(session: "SparkSession") -> None:
    """End the Spark behind a session that `start_spark` gave, with all its sessions; another may be started
    then."""
    with _lock:
        if not _started or all(each is not session for _, each in _started[0].sessions):
            raise UsageError("this session was not started by start_spark, or is stopped already")
        started = _started.pop()
        if started.classic is None:
            for _, each in reversed(started.sessions):
                end_idle_sessions(each)
                connect.close_session(each)
        else:
            started.classic.close()


def is_alive(session: "SparkSession") -> bool:
    """Whether Spark would answer: its Java runs, or its server is there and knows the session. It costs
    microseconds, on Connect a small request."""
    return connect.is_alive(session) if is_connect(session) else classic.is_alive(session)


@contextmanager
def named_if_gone(session: "SparkSession") -> Iterator[None]:
    """An error inside is SparkGone, if Spark has gone."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StrandlineError) and not isinstance(error, UnavailableError):
            raise
        if is_alive(session):
            raise
        raise SparkGone(str(error)) from error


def is_connect(session: "SparkSession") -> bool:
    return connect.is_connect(session)


def own_session(session: "SparkSession") -> "SparkSession":
    """A session of its own on the same Spark: what is set on it (`spark.wap.id`) nobody else sees."""
    if is_connect(session):
        return connect.clone(session)
    own = session.newSession()  # it has the settings that Spark was started with, not those of `session`
    for key, value in session.conf.getAll.items():
        if key.startswith(CATALOG_KEY):
            own.conf.set(key, value)
    return own


def idle_sessions(session: "SparkSession") -> "list[SparkSession]":
    """Sessions of its own that someone made and needs no more: take one off, or put one back. A new one costs
    a tenth of a second."""
    return _idle.setdefault(session, [])


def end_idle_sessions(session: "SparkSession") -> None:
    """Before a Connect session ends: the process would look for its server once more for each of them."""
    idle = _idle.pop(session, [])
    if is_connect(session) and connect.is_alive(session):
        for own in idle:
            connect.end_clone(own)


def slots(session: "SparkSession") -> int:
    """How many tasks Spark runs at once. On Connect that is a small job: ask once, not for every plan."""
    return connect.slots(session) if is_connect(session) else session.sparkContext.defaultParallelism


def _start(lake: LakeSettings, spark: SparkSettings, tell: Callable[[str], None]) -> _Started:
    if spark.remote is None:
        opened = open_classic(lake, spark, tell)
        return _Started(spark, opened.session, opened, [(lake, opened.session)])
    tell(f"connecting to Spark at {connect.address(spark.remote)}")
    session = connect.open_session(spark.remote, spark, lake)
    return _Started(spark, session, None, [(lake, session)])


def _bury(started: _Started) -> None:
    if started.classic is not None:
        started.classic.bury()
        return
    for _, each in reversed(started.sessions):
        connect.close_session(each)


def _again(started: _Started, lake: LakeSettings, spark: SparkSettings) -> "SparkSession":
    """The session of that lake. Its log goes where that of the first does: Java writes one."""
    if replace(spark, log=None) != replace(started.spark, log=None):
        raise UsageError(
            "this process runs a Spark with other settings, and it can run only one",
            hint="give both nodes the same [spark] settings, or stop_spark(session) first",
        )
    for known, session in started.sessions:
        if known == lake and is_alive(session):
            return session
    started.sessions[:] = [each for each in started.sessions if each[0] != lake]
    known_jars = {each for known, _ in started.sessions for each in jars.coordinates(known)}
    if started.classic is not None and not known_jars.issuperset(jars.coordinates(lake)):
        raise UsageError(
            "this lake needs jars that the Spark of this process was started without",
            hint="open its node first, or stop_spark(session) and open it then",
        )
    session = own_session(started.session)
    for key, value in catalog_conf(lake).items():
        session.conf.set(key, value)
    started.sessions.append((lake, session))
    return session


def quiet_pyspark() -> None:
    """It logs each failed query on stderr, beside the error that it raises."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _need_pyspark() -> None:
    remedy = "pip install 'strandline[lake]'"
    try:
        from pyspark import __version__ as found
    except ImportError as error:
        raise UnavailableError(f"tables need Spark, and it is not installed: {error}", hint=remedy) from error
    if not found.startswith(PYSPARK):
        raise UnavailableError(
            f"pyspark is {found}, and Iceberg's runtime is made for {PYSPARK}x", hint=remedy
        )


def _tell_nobody(_: str) -> None: ...
