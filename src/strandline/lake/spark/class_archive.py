"""The class archive of Spark's Java: with it Spark starts in two thirds of the time.

Most of a start is Java reading, checking and linking some fifteen thousand classes. It can write them to a
file as it ends (`-XX:ArchiveClassesAtExit`) and map that file the next time. The file is one of one Java and
one pyspark at one place; Java checks that itself, and starts without where it does not fit. One that is cut
short it does not survive: so the file is synced before it has its name.

It is made by a Spark of its own that does a little of everything, when jars are fetched or when asked for.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.lake.spark.java import Java, cache_folder

MAKE_S: Final = 300
UNUSED_S: Final = 7 * 24 * 3600  # 170 MB each: those of a pyspark that is gone go when another is made
PATTERN: Final = "spark-*.jsa"
OPTIONS_KEY: Final = "spark.driver.extraJavaOptions"
_SAID_BY_USER: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_PLACES: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def archive_file(java: Java) -> Path:
    """Where the archive of this Java with this pyspark is, or would be."""
    spec = find_spec("pyspark")
    place = spec.origin if spec else ""
    release = java.home / "release"
    told = release.read_bytes() if release.is_file() else b""
    key = sha256(b"\0".join([str(java.home).encode(), told, str(place).encode()])).hexdigest()[:12]
    return cache_folder() / f"spark-{key}.jsa"


def can_archive(java: Java) -> bool:
    """Whether this Java has an archive of its own classes, which ours adds to. One that was cut down has
    none."""
    return (java.home / "lib" / "server" / "classes.jsa").is_file()


def archive_options(java: Java, conf: Mapping[str, str]) -> list[str]:
    """What Java is told of its archive: nothing where there is none, or where the user says so himself."""
    file = archive_file(java)
    said = " ".join([conf.get(OPTIONS_KEY, ""), *(os.environ.get(place, "") for place in _PLACES)])
    if any(each in said for each in _SAID_BY_USER) or not file.is_file():
        return []
    with suppress(OSError):  # a cache that cannot be written is as good: its files are just not swept by age
        os.utime(file)
    return [f"-XX:SharedArchiveFile={file}"]


def make_archive(java: Java, conf: Mapping[str, str], log: IO[bytes]) -> bool:
    """Make it, in a process of its own whose talk goes to `log`; False if it could not be made. Two that make
    it at once make the same."""
    file = archive_file(java)
    jars = {key: value for key, value in conf.items() if key.startswith("spark.jars.")}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _unfinished(file) as unfinished:
            subprocess.run(
                [sys.executable, "-m", __name__, str(unfinished), *(f"{key}={jars[key]}" for key in jars)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=MAKE_S,
                check=True,
            )
            with unfinished.open("rb") as written:
                os.fsync(written.fileno())
            _sweep(file)
            unfinished.replace(file)
    except (OSError, subprocess.SubprocessError) as error:
        log.write(f"no class archive was made: {error}\n".encode())
        return False
    return True


@contextmanager
def _unfinished(file: Path) -> Iterator[Path]:
    """Java writes it; what is whole is moved to its place."""
    unfinished = file.with_name(f"{file.stem}.{os.getpid()}.part")
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def _sweep(file: Path) -> None:
    for other in file.parent.glob(PATTERN):
        if other != file and time.time() - other.stat().st_mtime > UNUSED_S:
            other.unlink(missing_ok=True)


def _train(archive: str, conf: Mapping[str, str]) -> None:
    """Start Spark, do a little of what nodes do, and have Java write what it loaded as it ends."""
    from strandline.lake.spark.classic import open_classic

    with tempfile.TemporaryDirectory(prefix="strandline-", ignore_cleanup_errors=True) as folder:
        lake = LakeSettings(warehouse=f"{folder}/warehouse", uri=f"{folder}/catalog.db")
        options = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={archive}"  # it runs for seconds
        spark = SparkSettings("local[1]", conf={**conf, OPTIONS_KEY: options}, log=f"{folder}/log")
        opened = open_classic(lake, spark, print)
        table = "strandline.training.numbers"
        for statement in (
            "CREATE NAMESPACE strandline.training",
            f"CREATE TABLE {table} (number bigint, name string) USING iceberg PARTITIONED BY (name)",
            f"INSERT INTO {table} SELECT id, CAST(id % 3 AS string) FROM range(100)",
            f"SELECT name, count(*), max(number) FROM {table} WHERE number > 7 GROUP BY name ORDER BY name",
            f"DELETE FROM {table} WHERE number = 9",
            "CALL strandline.system.expire_snapshots('training.numbers', TIMESTAMP '1970-01-01 00:00:00')",
        ):
            opened.session.sql(statement).collect()
        opened.session.table(table).mapInArrow(
            lambda batches: batches, "number bigint, name string"
        ).collect()
        opened.close(MAKE_S)


if __name__ == "__main__":
    _train(sys.argv[1], dict(each.split("=", 1) for each in sys.argv[2:]))
