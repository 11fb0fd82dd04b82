"""Sessions of a Spark Connect server that somebody else runs, checked once before they are used.

The server's conf must have the Iceberg catalog; and its executors must have the same `strandline`, installed
or sent along, since our functions reach the tasks by name.
"""

import os
import re
import socket
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from strandline.config.lake_settings import CATALOG, LakeSettings, SparkSettings
from strandline.errors import UnavailableError, UsageError
from strandline.lake.spark.conf import CACHE_KEY, CATALOG_KEY, catalog_conf, session_conf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DEFAULT_PORT: Final = 15002
_PLACE_KEYS: Final = ("type", "warehouse", "uri")  # of a catalog: together they say which tables it has
REACH_S: Final = 10
MOST_SLOTS: Final = 100_000
CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"  # has pyspark.sql.functions make columns for Connect

# A session that the collector ends takes a lock of pyspark's and waits for threads, which may want that lock
# or have been interrupted by the collector themselves: for ever. So none is ever collected.
_kept: "Final[list[SparkSession]]" = []


class SparkUnreachable(UnavailableError):
    """No Spark Connect server answers at the address."""

    def __init__(self, remote: str, found: str) -> None:
        super().__init__(
            f"no Spark Connect server at {remote}: {found}",
            hint="start the server, or correct `remote` in [spark]; without it Spark runs in this process",
        )
        self.remote = remote


class CatalogMissing(UnavailableError):
    """The Connect server was started without the Iceberg catalog, or with a cached one."""

    def __init__(self, remote: str, found: str) -> None:
        super().__init__(
            f"the Spark Connect server at {remote} cannot use the catalog {CATALOG!r}: {found}",
            hint=f"start the server with Iceberg's jar, {CATALOG_KEY}=org.apache.iceberg.spark.SparkCatalog, "
            f"{CATALOG_KEY}.type, .uri and .warehouse, and {CACHE_KEY}=false",
        )
        self.remote = remote


class CatalogDiffers(UsageError):
    """The Connect server keeps its tables in another place than [lake] says."""

    def __init__(self, remote: str, key: str, found: str, wanted: str) -> None:
        super().__init__(
            f"the Spark Connect server at {remote} has another lake: its {CATALOG_KEY}.{key} is {found!r}, "
            f"and [lake] of this node means {wanted!r}",
            hint=f"correct [lake], or start the server with the {key} of [lake] as {CATALOG_KEY}.{key}; if "
            f"both name one place in different words, set {key} in [lake.conf] as the server has it",
        )
        self.remote, self.key, self.found, self.wanted = remote, key, found, wanted


class ExecutorsDiffer(UnavailableError):
    """The executors do not have the `strandline` that this process has."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(
            f"Spark's executors have {found}, this process has strandline {wanted}",
            hint=f"install strandline=={wanted} where Spark's Python workers run, or send it along",
        )
        self.found, self.wanted = found, wanted


def is_connect(session: "SparkSession") -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def clone(session: "SparkSession") -> "SparkSession":
    """A session of its own on the server, with the conf that this one has."""
    connected: Any = session  # classic sessions, which the type knows, have no cloneSession
    cloned: SparkSession = connected.cloneSession()
    _kept.append(cloned)
    _bound_retries(cloned)
    return cloned


def end_clone(session: "SparkSession") -> None:
    """As `stop` ends a session, which a clone has not got."""
    connected: Any = session
    connected.client.release_session()
    connected.client.close()


def is_alive(session: "SparkSession") -> bool:
    """Whether the server answers and still has the session: it forgets those that were idle for long, and
    all when it starts anew."""
    connected: Any = session
    if connected.is_stopped:
        return False
    connected.client.set_retry_policies([])  # one try: whoever asks has a remedy of their own
    try:
        connected.conf.get(CATALOG_KEY, None)
    except Exception:  # noqa: BLE001  # whichever it is, there is no answer
        return False
    finally:
        _bound_retries(session)
    return True


def _bound_retries(session: "SparkSession") -> None:
    """Half a minute of them: the client itself would try to reach a dead server for ten."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    connected: Any = session
    connected.client.set_retry_policies([DefaultPolicy(max_retries=8, max_backoff=5_000)])


def slots(session: "SparkSession") -> int:
    """The server's default parallelism, which only it knows: in how many tasks it cuts a range."""
    from pyspark.sql import functions as F  # noqa: N812

    spread = session.range(MOST_SLOTS).select(F.spark_partition_id().alias("task")).agg(F.max("task"))
    last: int = spread.collect()[0][0]
    return last + 1


def address(remote: str) -> str:
    """`remote` without what may follow it, a token among it: fit to be shown."""
    return remote.partition("/;")[0]


def open_session(remote: str, spark: SparkSettings, lake: LakeSettings) -> "SparkSession":
    """Return a checked session on the server at `remote`. It is closed if something is wrong with it, such as
    a catalog that is not that of `lake`: there each flush would stage rows that nobody here can find."""
    _reach(remote)
    session = new_session(remote)
    try:
        _configure(session, spark)
        _check_lake(session, address(remote), lake)
        if not spark.is_own:
            _check_catalog(session, address(remote))
            check_executors(session)
    except Exception:
        close_session(session)
        raise
    return session


def close_session(session: "SparkSession") -> None:
    connected: Any = session
    connected.release_session_on_close = is_alive(session)  # else there is nothing to release, and no one
    session.stop()
    os.environ.pop(CONNECT_MODE, None)


def _reach(remote: str) -> None:
    """Fail in seconds: the client itself would try for many minutes."""
    url = urlsplit(remote)
    if url.scheme != "sc" or not url.hostname:
        raise UsageError(f"remote must look like sc://host:port, not like {address(remote)}")
    try:
        socket.create_connection((url.hostname, url.port or DEFAULT_PORT), REACH_S).close()
    except OSError as error:
        raise SparkUnreachable(address(remote), str(error)) from error


def new_session(remote: str) -> "SparkSession":
    """A session on the server, as it is."""
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:
        raise UnavailableError(
            f"Spark Connect needs packages that are not installed: {error}",
            hint="pip install 'strandline[connect]'",
        ) from error
    os.environ[CONNECT_MODE] = "1"
    builder: Any = ConnectSession.builder
    session: SparkSession = builder.remote(remote).create()
    _kept.append(session)
    _bound_retries(session)
    return session


def _configure(session: "SparkSession", spark: SparkSettings) -> None:
    from pyspark.errors import PySparkException

    for key, value in {**session_conf(spark), **spark.conf}.items():
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            raise UsageError(
                f"the Spark Connect server does not let a session set {key}",
                hint="set it where the server is started, and take it out of the conf of [spark]",
            ) from error


def _check_catalog(session: "SparkSession", remote: str) -> None:
    from pyspark.errors import PySparkException

    if session.conf.get(CATALOG_KEY, None) is None:
        raise CatalogMissing(remote, f"{CATALOG_KEY} is not set")
    if (session.conf.get(CACHE_KEY, None) or "true").lower() != "false":
        raise CatalogMissing(remote, f"{CACHE_KEY} is not false, so a session misses what others staged")
    try:
        session.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
    except PySparkException as error:
        raise CatalogMissing(remote, str(error).strip().splitlines()[0]) from error


def _check_lake(session: "SparkSession", remote: str, lake: LakeSettings) -> None:
    """Raise CatalogDiffers if the catalog of the session is not that of `lake`. A key that the session does
    not have is left to the server's own defaults."""
    wanted = catalog_conf(lake)
    for key in _PLACE_KEYS:
        name = f"{CATALOG_KEY}.{key}"
        has, means = session.conf.get(name, None), wanted.get(name)
        if has is not None and means is not None and plain_place(has) != plain_place(means):
            raise CatalogDiffers(remote, key, plain_place(has), plain_place(means))


def plain_place(text: str) -> str:
    """Return a warehouse, URI or type in the one form that is compared and shown: without options, secrets,
    default ports and other things that do not change which place it is."""
    plain = re.sub(r"^(jdbc:)?sqlite:/*", "/", text.partition("?")[0].strip())
    plain = re.sub(r"^file:/+", "/", plain)
    plain = re.sub(r"^s3[an]://", "s3://", plain)
    plain = re.sub(r"//[^/@]*@", "//", plain)
    plain = re.sub(r"^(jdbc:postgresql://[^/:]+):5432(?=/|$)", r"\1", plain)
    return plain.rstrip("/")


def check_executors(session: "SparkSession") -> None:
    """Have one task say which `strandline` it would import."""
    from pyspark.errors import PySparkException

    def told(batches: "Iterable[pa.RecordBatch]") -> "Iterable[pa.RecordBatch]":
        # Local, so that it goes by value: by name it could not even be loaded where strandline is missing.
        import importlib.metadata

        import pyarrow as pa

        for _ in batches:
            try:
                import strandline  # noqa: F401

                found = f"strandline {importlib.metadata.version('strandline')}"
            except ImportError:
                found = "no strandline"
            yield pa.RecordBatch.from_pylist([{"found": found}])

    wanted = version("strandline")
    try:
        rows = session.range(1).repartition(1).mapInArrow(told, "found string").collect()
    except PySparkException as error:
        raise ExecutorsDiffer(
            f"a Python that fails ({str(error).strip().splitlines()[0]})", wanted
        ) from error
    if rows[0].found != f"strandline {wanted}":
        raise ExecutorsDiffer(rows[0].found, wanted)
