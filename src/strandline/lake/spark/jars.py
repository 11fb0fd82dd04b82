"""The jars that Spark needs for Iceberg: named by coordinates, fetched once, then started from their files.

Spark's own resolver (Ivy) fetches them into `<ivy folder>/jars`. A session that is started by coordinates
puts every jar on the Python path of each task, which doubles the cost of one; so they are for fetching only,
and every session is started by file. Once the files are there nothing asks the network.
"""

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from strandline.config.lake_settings import LakeSettings
from strandline.errors import UnavailableError

ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
ICEBERG_AWS: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
SQLITE: Final = "org.xerial:sqlite-jdbc:3.53.4.0"
POSTGRES: Final = "org.postgresql:postgresql:42.7.14"

_BUCKET_IO: Final = ("org.apache.iceberg.aws.s3.S3FileIO", "org.apache.iceberg.io.ResolvingFileIO")

RESOLVE_S: Final = 1800  # the AWS bundle alone is 60 MB, and lines are slow


class JarsUnresolved(UnavailableError):
    """Jars that are not cached could not be fetched."""

    def __init__(self, coordinates: Sequence[str], folder: Path, log: str) -> None:
        super().__init__(
            f"the jars {', '.join(coordinates)} are not in {folder} and could not be fetched; see {log}",
            hint="start once with a network, or copy that folder from a machine that did; to fetch from a "
            "mirror set spark.jars.repositories or spark.jars.ivySettings in the conf of [spark]",
        )
        self.coordinates, self.folder, self.log = tuple(coordinates), str(folder), log


def coordinates(lake: LakeSettings) -> list[str]:
    """What this lake needs beside Spark itself."""
    needed = [ICEBERG]
    if lake.catalog == "jdbc":
        needed.append(POSTGRES if "://" in lake.uri else SQLITE)
    if _may_be_in_bucket(lake):
        needed.append(ICEBERG_AWS)
    return needed


def _may_be_in_bucket(lake: LakeSettings) -> bool:
    """Whether Iceberg may have to reach the tables as objects of S3.

    With a REST catalog `warehouse` is the server's name for it. Where a table is shows only when it is made,
    and a running Spark takes no further jars. So such a catalog counts, unless its conf names another way to
    the files.
    """
    if lake.warehouse.startswith("s3://") or lake.catalog == "glue":
        return True
    if io := lake.conf.get("io-impl"):
        return io in _BUCKET_IO
    if any(key.startswith("s3.") for key in lake.conf):
        return True
    is_name = not lake.warehouse.startswith("/") and ":" not in lake.warehouse
    return lake.catalog == "rest" and is_name


def ivy_folder(conf: Mapping[str, str]) -> Path:
    """Where the resolver keeps what it fetched: Spark's own default, unless the user's conf names another."""
    return Path(conf.get("spark.jars.ivy") or Path.home() / ".ivy2.5.2")


def jar_file(ivy: Path, coordinate: str) -> Path:
    """Where the resolver puts the jar of a coordinate."""
    group, name, version = coordinate.split(":")
    return ivy / "jars" / f"{group}_{name}-{version}.jar"


def missing(ivy: Path, wanted: Sequence[str]) -> list[str]:
    """Those whose file is not there, or is half a file: a fetch may have been killed while it wrote."""
    return [coordinate for coordinate in wanted if not zipfile.is_zipfile(jar_file(ivy, coordinate))]


def fetch(wanted: Sequence[str], conf: Mapping[str, str], log: IO[bytes]) -> None:
    """Have Spark's resolver fetch these; its talk goes to `log`.

    The gateway that spark-submit starts once it has resolved ends by itself when its input does, at once.
    """
    ivy = ivy_folder(conf)
    for coordinate in wanted:
        jar_file(ivy, coordinate).unlink(missing_ok=True)  # the resolver would leave half a file as it is
    with tempfile.TemporaryDirectory(prefix="strandline-") as folder:
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(Path(folder) / "unused")}
        try:
            subprocess.run(
                _fetch_command(wanted, conf),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                timeout=RESOLVE_S,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise JarsUnresolved(wanted, ivy / "jars", log.name) from error


def _fetch_command(wanted: Sequence[str], conf: Mapping[str, str]) -> list[str]:
    from pyspark.find_spark_home import _find_spark_home

    spark_home: Any = _find_spark_home  # pyspark leaves it untyped
    settings = {key: value for key, value in conf.items() if key.startswith("spark.jars.")}
    settings |= {"spark.jars.ivy": str(ivy_folder(conf)), "spark.jars.packages": ",".join(wanted)}
    command = [str(Path(spark_home()) / "bin" / "spark-submit"), "--master", "local[1]"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    return [*command, "pyspark-shell"]
