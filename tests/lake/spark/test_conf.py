"""What Spark is told, from the settings."""

import pytest

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import UsageError
from strandline.lake.spark import jars
from strandline.lake.spark.conf import EXTENSIONS, catalog_conf, open_conf, spark_conf

SQLITE = LakeSettings(warehouse="/data/warehouse", uri="/data/catalog.db")
POSTGRES = LakeSettings(
    warehouse="/data/warehouse", uri="postgresql://me:p%40ss@db:5433/lake?sslmode=require"
)


def of_catalog(lake: LakeSettings) -> dict[str, str]:
    return {
        key.removeprefix("spark.sql.catalog.strandline."): value for key, value in catalog_conf(lake).items()
    }


def test_a_path_is_a_sqlite_catalog_that_waits_for_its_lock() -> None:
    conf = of_catalog(SQLITE)

    assert conf["type"] == "jdbc"
    assert conf["uri"] == "jdbc:sqlite:/data/catalog.db?busy_timeout=30000"
    assert conf["warehouse"] == "/data/warehouse"
    assert conf["cache-enabled"] == "false"
    assert jars.coordinates(SQLITE) == [jars.ICEBERG, jars.SQLITE]


def test_a_postgres_url_is_split_into_place_user_and_password() -> None:
    conf = of_catalog(POSTGRES)

    assert conf["uri"] == "jdbc:postgresql://db:5433/lake?sslmode=require"
    assert (conf["jdbc.user"], conf["jdbc.password"]) == ("me", "p@ss")
    assert jars.coordinates(POSTGRES) == [jars.ICEBERG, jars.POSTGRES]


def test_a_postgres_url_may_name_its_host_behind_as_libpq_lets_it() -> None:
    lake = LakeSettings("/data/warehouse", uri="postgresql:///lake?host=db&port=5433&user=me&password=p%40ss")

    conf = of_catalog(lake)

    assert conf["uri"] == "jdbc:postgresql://db:5433/lake"
    assert (conf["jdbc.user"], conf["jdbc.password"]) == ("me", "p@ss")


@pytest.mark.parametrize("uri", ["postgresql://me@/lake?host=%2Frun%2Fpostgresql", "postgresql:///lake"])
def test_a_postgres_behind_a_socket_is_refused_rather_than_another_one_found(uri: str) -> None:
    with pytest.raises(UsageError, match="Java reaches Postgres by TCP alone"):
        catalog_conf(LakeSettings("/data/warehouse", uri=uri))


def test_other_catalogs_go_through_to_iceberg_as_they_are() -> None:
    lake = LakeSettings(
        "s3://lake", "rest", "https://catalog:8181", conf={"credential": "x", "io-impl": "My"}
    )

    conf = of_catalog(lake)

    assert conf["type"] == "rest"
    assert conf["uri"] == "https://catalog:8181"
    assert conf["credential"] == "x"
    assert conf["io-impl"] == "My"


def test_an_s3_warehouse_brings_icebergs_own_client() -> None:
    lake = LakeSettings("s3://lake/warehouse", uri="/data/catalog.db")

    assert of_catalog(lake)["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert jars.coordinates(lake) == [jars.ICEBERG, jars.SQLITE, jars.ICEBERG_AWS]


@pytest.mark.parametrize(
    ("warehouse", "conf", "is_bucket"),
    [
        ("rows", {}, True),  # the server's name for it: where a table is shows when it is made
        ("rows", {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}, True),
        ("rows", {"io-impl": "org.apache.iceberg.io.ResolvingFileIO"}, True),
        ("rows", {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}, False),
        ("rows", {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO", "s3.endpoint": "http://s3"}, False),
        ("s3://rows", {}, True),
        ("gs://rows", {}, False),
        ("file:/rows", {}, False),
        ("/rows", {}, False),
    ],
)
def test_a_rest_catalog_brings_icebergs_own_client_unless_its_files_are_elsewhere(
    warehouse: str, conf: dict[str, str], is_bucket: bool
) -> None:
    lake = LakeSettings(warehouse, "rest", conf={"uri": "https://catalog:8181", **conf})

    assert jars.coordinates(lake) == [jars.ICEBERG, *([jars.ICEBERG_AWS] if is_bucket else [])]


def test_a_hive_catalog_with_keys_of_s3_brings_icebergs_own_client() -> None:
    lake = LakeSettings("/rows", "hive", conf={"s3.endpoint": "http://s3"})

    assert jars.coordinates(lake) == [jars.ICEBERG, jars.ICEBERG_AWS]


def test_the_users_conf_wins_and_lists_are_added_to_ours() -> None:
    user = {"spark.driver.memory": "8g", "spark.sql.extensions": "x.Mine", "spark.sql.ansi.enabled": "false"}

    conf = spark_conf(SQLITE, SparkSettings("local[3]", session_timezone="Europe/Paris", conf=user))

    assert conf["spark.driver.memory"] == "8g"
    assert conf["spark.sql.ansi.enabled"] == "false"
    assert conf["spark.sql.extensions"] == f"{EXTENSIONS},x.Mine"
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.sql.session.timeZone"] == "Europe/Paris"


@pytest.mark.parametrize("where", ["lake", "spark"])
def test_the_catalogs_cache_cannot_be_switched_on(where: str) -> None:
    in_lake = {"cache-enabled": "true"} if where == "lake" else {}
    in_spark = {"spark.sql.catalog.strandline.cache-enabled": "true"} if where == "spark" else {}
    lake = LakeSettings("/data/warehouse", uri="/data/catalog.db", conf=in_lake)

    with pytest.raises(UsageError, match="cache-enabled is 'true', it must be 'false'"):
        spark_conf(lake, SparkSettings(conf=in_spark))


def test_a_local_master_listens_on_loopback_alone_and_a_cluster_where_it_can_be_reached() -> None:
    local, cluster = (
        spark_conf(SQLITE, SparkSettings(master)) for master in ("local[*]", "spark://head:7077")
    )

    assert local["spark.driver.bindAddress"] == local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in cluster
    assert "spark.driver.host" not in cluster


def test_a_port_that_the_user_fixes_is_not_silently_another() -> None:
    fixed = spark_conf(SQLITE, SparkSettings(conf={"spark.ui.port": "4040"}))

    assert fixed["spark.port.maxRetries"] == "0"
    assert "spark.port.maxRetries" not in spark_conf(SQLITE, SparkSettings())


def test_no_password_is_for_the_command_line() -> None:
    secrets = {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.ssl.keyPassword": "hush"}

    shown = open_conf(spark_conf(POSTGRES, SparkSettings(conf=secrets)))

    assert not {"p@ss", "hush"}.intersection(shown.values())
    assert shown["spark.driver.memory"] == "2g"
