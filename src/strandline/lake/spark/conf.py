"""What Spark is told, as one mapping made from the settings. The user's conf wins over ours."""

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from strandline.config.lake_settings import CATALOG, LakeSettings, SparkSettings
from strandline.errors import UsageError

EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
LOOPBACK: Final = "127.0.0.1"
CATALOG_KEY: Final = f"spark.sql.catalog.{CATALOG}"
CACHE_KEY: Final = f"{CATALOG_KEY}.cache-enabled"
_MAY_BE_SECRET: Final = re.compile(r"^spark\.(sql|hadoop)\.|password|secret|token|credential", re.IGNORECASE)


def spark_conf(lake: LakeSettings, spark: SparkSettings) -> dict[str, str]:
    """All that classic Spark is told, but for its jars and its log."""
    conf = {
        "spark.app.name": "strandline",
        "spark.master": spark.master,
        "spark.driver.memory": "2g",
        "spark.ui.port": "0",  # the UI stays on, on a free port
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/strandline-unused",  # else a folder where we are
        **session_conf(spark),
        **catalog_conf(lake),
    }
    if is_local(spark):
        conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        # Spark's 200 are for clusters: on one machine a small shuffle would take seconds of starting tasks.
        conf["spark.sql.shuffle.partitions"] = str(max(4, 2 * (os.cpu_count() or 1)))
    if fixed_ports(spark):
        conf["spark.port.maxRetries"] = "0"  # who fixes a port wants that one, not silently the next
    conf |= spark.conf
    conf["spark.sql.extensions"] = joined(EXTENSIONS, spark.conf.get("spark.sql.extensions"))
    _check_exact(conf)
    return conf


def session_conf(spark: SparkSettings) -> dict[str, str]:
    """What holds for a session of either kind."""
    return {
        "spark.sql.session.timeZone": spark.session_timezone,
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Else Spark 4.1 makes one task of parts that have one each: what is to go side by side goes in a row.
        "spark.sql.unionOutputPartitioning": "false",
    }


def catalog_conf(lake: LakeSettings) -> dict[str, str]:
    """The Iceberg catalog. With its cache on, one session would miss what another staged."""
    settings = {"type": lake.catalog, "warehouse": lake.warehouse, "cache-enabled": "false"}
    if lake.warehouse.startswith("s3://"):
        settings["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    if lake.catalog == "jdbc":
        settings |= _jdbc_conf(lake.uri)
    elif lake.uri:
        settings["uri"] = lake.uri
    prefixed = {f"{CATALOG_KEY}.{key}": value for key, value in {**settings, **lake.conf}.items()}
    return {CATALOG_KEY: "org.apache.iceberg.spark.SparkCatalog", **prefixed}


def _jdbc_conf(uri: str) -> dict[str, str]:
    """Schema V1 is what PyIceberg makes too, so either may be the first to open the catalog."""
    schema = {"jdbc.schema-version": "V1"}
    if "://" not in uri:
        return {**schema, "uri": f"jdbc:sqlite:{uri}?busy_timeout=30000"}
    return {**schema, **_postgres_conf(uri)}


def _postgres_conf(uri: str) -> dict[str, str]:
    """A URL of libpq in the words of JDBC, which has the user and the password beside it."""
    url = urlsplit(uri)
    more = dict(parse_qsl(url.query))
    named = {"user": url.username, "password": url.password}
    login = {key: unquote(value) if value else more.pop(key, "") for key, value in named.items()}
    host, port = more.pop("host", ""), more.pop("port", "")
    place = url.netloc.rpartition("@")[2] or (f"{host}:{port}" if port else host)
    if not place or place.startswith(("/", ":")):
        raise UsageError(
            f"the catalog's URL has no host ({host or 'none'} is named): Java reaches Postgres by TCP alone",
            hint="name the host, as in postgresql://user@host:port/database",
        )
    query = f"?{urlencode(more)}" if more else ""
    conf = {"uri": f"jdbc:postgresql://{place}{url.path}{query}"}
    return conf | {f"jdbc.{key}": value for key, value in login.items() if value}


def is_local(spark: SparkSettings) -> bool:
    """Whether the tasks run in the Java beside us."""
    return spark.remote is None and spark.conf.get("spark.master", spark.master).startswith("local")


def fixed_ports(spark: SparkSettings) -> dict[str, str]:
    return {key: value for key, value in spark.conf.items() if key.endswith(".port") and value != "0"}


def open_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """What may be on a command line, which every user of the machine can read: nothing that may be secret."""
    return {key: value for key, value in conf.items() if not _MAY_BE_SECRET.search(key)}


def joined(*parts: str | None) -> str:
    return ",".join(part for part in parts if part)


def _check_exact(conf: Mapping[str, str]) -> None:
    if conf[CACHE_KEY].lower() != "false":
        raise UsageError(
            f"{CACHE_KEY} is {conf[CACHE_KEY]!r}, it must be 'false': a cache hides what others staged",
            hint="take it out of the conf",
        )
