"""What only a process without a Spark of its own can show; run as `start_child.py <act> <folder> …`."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import StrandlineError
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.session import is_connect, slots, start_spark, stop_spark


def lake_in(folder: Path) -> LakeSettings:
    return LakeSettings(warehouse=str(folder / "warehouse"), uri=str(folder / "catalog.db"))


def spark_in(folder: Path, **conf: str) -> SparkSettings:
    """Local Spark with a cache of jars in `folder`, which are fetched by the Ivy settings beside it."""
    ivy = {"spark.jars.ivy": str(folder / "ivy"), "spark.jars.ivySettings": str(folder.parent / "ivy.xml")}
    conf = {"spark.driver.memory": "1g", **ivy, **{key.replace("_", "."): conf[key] for key in conf}}
    return SparkSettings("local[1]", conf=conf, log=str(folder / "spark.log"))


def tell(what: str) -> None:
    print(json.dumps(what), flush=True)


def first(folder: Path, *confs: str) -> None:
    """Start where nothing is cached, stop, fail to start with each of these confs, start again with other
    settings, and wait to be killed."""
    secret = f"hunter2-{uuid.uuid4().hex}"  # nobody else on this machine shows it
    session = start_spark(lake_in(folder), spark_in(folder, spark_hadoop_secret=secret), tell=tell)
    shown = subprocess.run(["ps", "-Aww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    tell(f"rows: {_write(session)}, secret is shown: {secret in shown}")
    stop_spark(session)
    for conf in confs:
        fail(folder, conf)
    session = start_spark(lake_in(folder), spark_in(folder, spark_app_name="again"), tell=tell)
    tell(f"rows: {session.table('strandline.datasets.first').count()}, {session.conf.get('spark.app.name')}")
    sys.stdin.read()


def _write(session: Any) -> int:
    session.sql("CREATE NAMESPACE strandline.datasets")
    session.sql("CREATE TABLE strandline.datasets.first (id BIGINT) USING iceberg")
    session.range(3).writeTo("strandline.datasets.first").append()
    rows: int = session.table("strandline.datasets.first").mapInArrow(lambda rows: rows, "id BIGINT").count()
    return rows


def outgrown(folder: Path, warehouse: str, uri: str, s3: str) -> None:
    """A warehouse in a bucket, a catalog in Postgres."""
    settings = SparkSettings("local[1]", conf={"spark.driver.memory": "1g"}, log=str(folder / "spark.log"))
    session = start_spark(LakeSettings(warehouse, uri=uri, conf=json.loads(s3)), settings)
    tell(f"rows: {_write(session)}")
    stop_spark(session)


def listing(folder: Path) -> None:
    """Start, have Java list the classes that it loads and from where, and stop."""
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Xlog:class+load:file={folder / 'classes'} "
        f"-Xlog:cds,class+path=info:file={folder / 'sharing'}",
    }
    settings = SparkSettings("local[1]", conf=conf, log=str(folder / "spark.log"))
    session = start_spark(lake_in(folder), settings)
    tell(f"rows: {session.range(3).count()}")
    stop_spark(session)


def fail(folder: Path, conf: str) -> None:
    """Try to start with this conf, and say what came of it."""
    try:
        start_spark(lake_in(folder), spark_in(folder, **json.loads(conf)))
    except StrandlineError as error:
        told = {"kind": error.kind, "message": str(error), "hint": error.hint, **error.facts}
        print(json.dumps(told), flush=True)
    else:
        tell("started")


def bare(folder: Path) -> None:
    """Without pyspark."""
    sys.modules["pyspark"] = None  # type: ignore[assignment]  # what Python itself takes for "not installed"
    fail(folder, "{}")


def connect(folder: Path, remote: str) -> None:
    lake = lake_in(folder)  # another than the server's, so the session is told
    settings = lake, SparkSettings(remote=remote, conf=catalog_conf(lake))
    session = start_spark(*settings, tell=tell)
    tell(
        f"connect: {is_connect(session)}, slots: {slots(session)}, same: {start_spark(*settings) is session}"
    )
    stop_spark(session)
    tell(f"again: {start_spark(*settings).range(3).count()}")


if __name__ == "__main__":
    acts: dict[str, Callable[..., None]] = {
        "first": first,
        "outgrown": outgrown,
        "listing": listing,
        "bare": bare,
        "connect": connect,
    }
    acts[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
