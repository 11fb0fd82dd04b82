"""The Spark sessions of a test run, each started by the first test that asks for it and kept to the end.

`spark` is classic, in this process; `connect_spark` is a session on a Connect server in a process of its own;
`each_spark` runs a test on both: on one of them in `make test`, half of the tests on either, and on the other
in the slow suite. Each lake is in a temporary folder, and tests share it: give a table a name
of its own. Tests that ask for classic Spark go to one xdist worker (`--dist loadgroup`), those of Connect to
one too, so that each is started once.
"""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pytest
from pyspark.errors.exceptions.connect import SparkConnectException

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.lake.spark import connect
from strandline.lake.spark import session as spark_session
from strandline.lake.spark.connect import CONNECT_MODE, new_session, open_session
from strandline.lake.spark.session import end_idle_sessions, is_connect, start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOCKETS: Final = (
    "ignore:unclosed <socket.socket:ResourceWarning"  # pyspark leaves those of collect() to the collector
)
# Spark's launcher reads it. The Javas of the tests end before what the second compiler makes fast has paid
# for its making: without it a start takes half the processor time, and small jobs two thirds. Of their small
# heaps one thread collects the garbage for less than many do. With the first compiler alone Java has a fifth
# of the room for compiled code, which Spark fills in minutes: it throws away and compiles again from then on.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
KINDS: Final = ("classic", "connect")
SERVER: Final = Path(__file__).with_name("connect_server.py")
SERVER_ENDS_S: Final = 60


def pytest_configure() -> None:
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if JAVA_OPTIONS not in given:  # a worker of xdist has it already
        os.environ["SPARK_SUBMIT_OPTS"] = f"{JAVA_OPTIONS} {given}".rstrip()
    # Tests that fork do so in a process that may hold a Connect session. What gRPC does in the child of a
    # fork crashes it once in some hundred times, and no child of ours uses gRPC.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
            item.add_marker(pytest.mark.filterwarnings(SOCKETS))
        if (kind := _each(item)) and kind != KINDS[crc32(_name(item).encode()) % 2]:
            item.add_marker(pytest.mark.slow)


def _group(item: pytest.Item) -> str | None:
    asked = set(getattr(item, "fixturenames", ()))
    each = _each(item)
    if "spark" in asked or each == "classic":
        return "spark"
    return "connect" if each == "connect" or asked & {"connect_server", "connect_spark"} else None


def _each(item: pytest.Item) -> str | None:
    """The kind of a test that runs on each."""
    found: str | None = getattr(getattr(item, "callspec", None), "params", {}).get("each_spark")
    return found


def _name(item: pytest.Item) -> str:
    """Without its parameters: cases of one test keep together."""
    return item.nodeid.partition("[")[0]


@pytest.fixture(scope="session")
def spark_lake(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    """Where the tables of `spark` are."""
    folder = tmp_path_factory.mktemp("lake")
    return LakeSettings(warehouse=str(folder / "warehouse"), uri=str(folder / "catalog.db"))


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> SparkSettings:
    """How `spark` is started: `start_spark(spark_lake, spark_settings)` is that session again."""
    log = str(tmp_path_factory.mktemp("spark") / "spark.log")
    return SparkSettings("local[2]", conf={"spark.driver.memory": "1g"}, log=log)


@pytest.fixture(scope="session")
def spark(spark_lake: LakeSettings, spark_settings: SparkSettings) -> "Iterator[SparkSession]":
    """The classic session of the run."""
    session = start_spark(spark_lake, spark_settings)
    yield session
    stop_spark(session)


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A server in a process of its own, and where its tables are."""

    remote: str
    lake: LakeSettings


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    folder = tmp_path_factory.mktemp("connect")
    port = free_port()
    with (folder / "child.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, SERVER, folder, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    with server, server.stdout, server.stdin:
        if server.stdout.readline() != b"ready\n":
            pytest.fail(f"the Connect server did not start:\n{(folder / 'child.log').read_text()[-2000:]}")
        lake = LakeSettings(warehouse=str(folder / "warehouse"), uri=str(folder / "catalog.db"))
        yield ConnectServer(f"sc://127.0.0.1:{port}", lake)
        server.stdin.close()
        server.wait(SERVER_ENDS_S)


def free_port() -> int:
    """Below those that the machine gives out: nobody gets it by chance before its server, which takes seconds
    to start, listens there."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def _connect_session(connect_server: ConnectServer) -> "Iterator[SparkSession]":
    mode = os.environ.get(CONNECT_MODE)
    session = open_session(
        connect_server.remote, SparkSettings(remote=connect_server.remote), connect_server.lake
    )
    if mode is None:
        del os.environ[CONNECT_MODE]  # on in the tests of Connect alone: see connect_spark
    yield session
    end_idle_sessions(session)
    session.stop()


@pytest.fixture
def connect_spark(_connect_session: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> "SparkSession":
    """The Connect session of the run. While a test has it, `pyspark.sql.functions` are those of Connect."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    return _connect_session


@contextmanager
def lake_session(server: ConnectServer, conf: Mapping[str, str]) -> "Iterator[SparkSession]":
    """A session on the server, with the catalog of another lake than the server's own.

    The clones that it had end with it, also those that a crash in a test left: the process would look for
    their server when it ends.
    """
    session = new_session(server.remote)
    kept = len(connect._kept)
    try:
        for key, value in conf.items():
            session.conf.set(key, value)
        yield session
    finally:
        spark_session._idle.pop(session, None)
        for clone in connect._kept[kept:]:
            with suppress(SparkConnectException):  # most have ended with their node
                connect.end_clone(clone)
        session.stop()


@pytest.fixture(params=KINDS)
def each_spark(request: pytest.FixtureRequest) -> "SparkSession":
    """The test runs twice: on classic Spark, then on Connect."""
    session: SparkSession = request.getfixturevalue(
        "spark" if request.param == "classic" else "connect_spark"
    )
    return session


@pytest.fixture
def each_spark_lake(request: pytest.FixtureRequest, each_spark: "SparkSession") -> LakeSettings:
    """Where the tables of `each_spark` are."""
    if is_connect(each_spark):
        server: ConnectServer = request.getfixturevalue("connect_server")
        return server.lake
    lake: LakeSettings = request.getfixturevalue("spark_lake")
    return lake
