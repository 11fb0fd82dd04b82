"""Sessions on a Connect server, and what is refused before one is used."""

import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import UsageError
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import (
    CatalogDiffers,
    CatalogMissing,
    ExecutorsDiffer,
    SparkUnreachable,
    check_executors,
    close_session,
    open_session,
    plain_place,
)
from strandline.lake.spark.session import own_session
from tests.lake.spark.test_session import told_by
from tests.spark_sessions import ConnectServer

LAKE = LakeSettings("/warehouse", uri="/catalog.db")


def open_with(server: ConnectServer, **conf: str) -> SparkSession:
    settings = {key.replace("_", ".").replace("..", "-"): value for key, value in conf.items()}
    return open_session(server.remote, SparkSettings(remote=server.remote, conf=settings), server.lake)


def test_start_spark_gives_a_session_of_the_server(connect_server: ConnectServer, tmp_path: Path) -> None:
    assert told_by("connect", tmp_path, f"{connect_server.remote}/;user_id=me") == [
        f"connecting to Spark at {connect_server.remote}",
        "connect: True, slots: 2, same: True",
        "again: 3",
    ]


def test_no_session_is_left_to_the_collector(
    connect_server: ConnectServer, connect_spark: SparkSession
) -> None:  # it could wait for ever in pyspark's own lock
    session = open_with(connect_server)
    ended = [weakref.ref(session), weakref.ref(own_session(session))]
    close_session(session)

    del session
    gc.collect()

    assert None not in [each() for each in ended]


def test_a_server_that_caches_its_catalog_is_refused(
    connect_server: ConnectServer, connect_spark: SparkSession
) -> None:
    with pytest.raises(CatalogMissing, match="cache-enabled is not false") as caught:
        open_with(connect_server, spark_sql_catalog_strandline_cache__enabled="true")

    assert "cache-enabled=false" in str(caught.value.hint)


def test_a_server_whose_catalog_does_not_work_is_refused(
    connect_server: ConnectServer, connect_spark: SparkSession
) -> None:
    with pytest.raises(CatalogMissing, match=r"cannot use the catalog 'strandline': .*NoSuchCatalog"):
        open_with(connect_server, spark_sql_catalog_strandline="org.example.NoSuchCatalog")


@pytest.mark.parametrize(
    ("lake", "key"),
    [
        (lambda lake: replace(lake, warehouse="/other/warehouse"), "warehouse"),
        (lambda lake: replace(lake, uri="/other/catalog.db"), "uri"),
        (lambda lake: replace(lake, catalog="rest", uri="http://127.0.0.1:1"), "type"),
    ],
    ids=["warehouse", "uri", "type"],
)
def test_a_server_with_another_lake_is_refused_at_once(
    connect_server: ConnectServer,
    connect_spark: SparkSession,
    lake: Callable[[LakeSettings], LakeSettings],
    key: str,
) -> None:  # each flush would end as not published, with a hint that does not help
    other = lake(connect_server.lake)

    with pytest.raises(CatalogDiffers) as caught:
        open_session(connect_server.remote, SparkSettings(remote=connect_server.remote), other)

    error = caught.value
    name = {"type": "catalog"}.get(key, key)
    found, wanted = getattr(connect_server.lake, name), getattr(other, name)
    assert (error.key, error.found, error.wanted) == (key, found, wanted)
    assert found in error.message
    assert wanted in error.message
    assert str(error.hint).startswith(f"correct [lake], or start the server with the {key} of [lake]")


def test_a_session_that_is_given_the_catalog_of_its_lake_is_taken(
    connect_server: ConnectServer, connect_spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakeSettings(str(tmp_path / "warehouse"), uri=str(tmp_path / "catalog.db"))
    settings = SparkSettings(remote=connect_server.remote, conf=catalog_conf(lake))

    close_session(open_session(connect_server.remote, settings, lake))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/warehouse", "file:///data/warehouse/"),
        ("/data/warehouse", "file:/data/warehouse"),
        ("s3://lake/tables", "s3a://lake/tables/"),
        ("jdbc:sqlite:/data/catalog.db?busy_timeout=30000", "jdbc:sqlite:/data/catalog.db"),
        ("jdbc:postgresql://host/db?user=a&password=hush", "jdbc:postgresql://host:5432/db"),
        ("https://me:hush@catalog/api", "https://catalog/api/"),
    ],
)
def test_one_place_in_other_words_is_one_place_and_secrets_are_not_shown(one: str, other: str) -> None:
    assert plain_place(one) == plain_place(other)
    assert "hush" not in plain_place(one)


def test_a_conf_that_only_the_server_can_set_is_named(
    connect_server: ConnectServer, connect_spark: SparkSession
) -> None:
    with pytest.raises(UsageError, match=r"does not let a session set spark.driver.memory") as caught:
        open_with(connect_server, spark_driver_memory="8g")

    assert "where the server is started" in str(caught.value.hint)


def test_executors_with_another_strandline_are_refused(
    each_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_executors(each_spark)
    other = tmp_path / "strandline-99.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: strandline\nVersion: 99.0\n")
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), *sys.path]
    )  # this process has 99.0 now, the tasks do not

    with pytest.raises(
        ExecutorsDiffer, match=r"executors have strandline \S+, this process has strandline 99.0"
    ):
        check_executors(each_spark)


def test_a_server_that_is_not_there_is_named_without_its_token() -> None:
    with pytest.raises(SparkUnreachable, match=r"no Spark Connect server at sc://127.0.0.1:1:") as caught:
        open_session(
            "sc://127.0.0.1:1/;token=hush", SparkSettings(remote="sc://127.0.0.1:1/;token=hush"), LAKE
        )

    error = pickle.loads(pickle.dumps(caught.value))
    assert error.remote == "sc://127.0.0.1:1"
    assert "hush" not in repr((error, error.hint, error.__dict__))


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="must look like sc://host:port"):
        open_session("http://127.0.0.1:1", SparkSettings(remote="http://127.0.0.1:1"), LAKE)
