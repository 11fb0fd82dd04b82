"""The one place where Spark is started. A process has one session: on classic Spark in a Java beside it
(classic.py), or on a Connect server that somebody else runs (connect.py)."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strandline.errors import UnavailableError, UsageError
from strandline.lake import connect
from strandline.lake.classic import Classic, open_classic
from strandline.lake.settings import LakeSettings, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK: Final = "4.1."


@dataclass(frozen=True, slots=True)
class _Started:
    settings: tuple[LakeSettings, SparkSettings]
    session: "SparkSession"
    classic: Classic | None = None


_lock: Final = threading.Lock()
_started: Final[list[_Started]] = []  # at most one


def start_spark(
    lake: LakeSettings, spark: SparkSettings, *, tell: Callable[[str], None] | None = None
) -> "SparkSession":
    """The one session of this process, started if it is not; the same again for the same settings.

    `tell` hears what takes time, before it does. Raises JavaMissing, JarsUnresolved, PortTaken or
    SparkNotStarted, for a Connect server SparkUnreachable, CatalogMissing or ExecutorsDiffer; nothing is left
    running then, and the next call tries again.
    """
    with _lock:
        if _started:
            return _again(_started[0], (lake, spark))
        _need_pyspark()
        _started.append(_start(lake, spark, tell or _tell_nobody))
        return _started[0].session


def stop_spark(session: "SparkSession") -> None:
    """End the session that `start_spark` gave, and the Java behind it; another one may be started then."""
    with _lock:
        if not _started or _started[0].session is not session:
            raise UsageError("this session was not started by start_spark, or is stopped already")
        started = _started.pop()
        if started.classic is None:
            connect.close_session(session)
        else:
            started.classic.close()


def is_connect(session: "SparkSession") -> bool:
    return connect.is_connect(session)


def own_session(session: "SparkSession") -> "SparkSession":
    """A session of its own on the same Spark: what is set on it (`spark.wap.id`) nobody else sees."""
    return connect.clone(session) if is_connect(session) else session.newSession()


def slots(session: "SparkSession") -> int:
    """How many tasks Spark runs at once. On Connect that is a small job: ask once, not for every plan."""
    return connect.slots(session) if is_connect(session) else session.sparkContext.defaultParallelism


def _start(lake: LakeSettings, spark: SparkSettings, tell: Callable[[str], None]) -> _Started:
    if spark.remote is None:
        classic = open_classic(lake, spark, tell)
        return _Started((lake, spark), classic.session, classic)
    tell(f"connecting to Spark at {connect.address(spark.remote)}")
    return _Started((lake, spark), connect.open_session(spark.remote, spark))


def _again(started: _Started, settings: tuple[LakeSettings, SparkSettings]) -> "SparkSession":
    if started.settings != settings:
        raise UsageError(
            "this process has a Spark session with other settings, and it can have only one",
            hint="use the session that it has, or stop_spark(session) first",
        )
    return started.session


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
