"""Where objects may be kept: memory, a folder, and an S3 server on loopback.

The server is moto's (see moto_server.py), in a process of its own: it speaks S3 over HTTP, multipart uploads
and conditional puts included, and keeps everything in memory. `STRANDLINE_TEST_S3_ENDPOINT` names another one
to test against instead; it has a bucket `strandline`, its keys come from the environment, as obstore's do.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from strandline.storage import ContentStore, open_content
from strandline.storage.objects import MemoryObjects, ObjectInfo, Objects, open_objects

KINDS: Final = ("memory", "folder", "s3")
READY_S: Final = 60
BUCKET: Final = "strandline"


@dataclass(frozen=True, slots=True)
class Place:
    """Where objects are, in a form that another process can open."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self) -> Objects:
        return open_objects(self.url, **self.options)

    def content(self) -> ContentStore:
        return open_content(self.url, **self.options)


def s3_options(endpoint: str) -> dict[str, Any]:
    keys = {} if "AWS_ACCESS_KEY_ID" in os.environ else {"access_key_id": "test", "secret_access_key": "test"}
    return {"endpoint": endpoint, "region": "us-east-1", **keys}


class S3Server:
    """moto's server. It starts on a free port and is stopped by its own process, never by name."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "moto.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("moto_server.py"))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.endpoint = self._read_endpoint()
        bucket = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(bucket, timeout=READY_S) as answer:
            assert answer.status == 200

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(READY_S)

    def _read_endpoint(self) -> str:
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            for line in self._log.read_text().splitlines():
                if line.startswith("listening on "):
                    return line.removeprefix("listening on ")
            time.sleep(0.05)  # for a process to start: there is nothing to wait on but what it prints
        self._process.kill()
        raise AssertionError(f"moto's server did not come up:\n{self._log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if endpoint := os.environ.get("STRANDLINE_TEST_S3_ENDPOINT"):
        yield endpoint
        return
    server = S3Server(tmp_path_factory.mktemp("moto"))
    yield server.endpoint
    server.stop()


@pytest.fixture
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Place]:
    """A fresh place of a kind."""

    def make(kind: str) -> Place:
        if kind == "folder":
            return Place(str(tmp_path / "objects"))
        assert kind == "s3"
        endpoint = request.getfixturevalue("s3_endpoint")
        return Place(f"s3://{BUCKET}/{uuid4().hex}", s3_options(endpoint))

    return make


@pytest.fixture(params=KINDS)
def objects(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Objects:
    return MemoryObjects() if request.param == "memory" else place_of(request.param).open()


@pytest.fixture(params=["folder", "s3"])
def durable_place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


def info_of(objects: Objects, name: str) -> ObjectInfo:
    found = objects.head(name)
    assert found is not None, f"{name} is not there"
    return found


def renew_later(objects: Objects, name: str, renew: Callable[[], object]) -> None:
    """Renew until the time of `name` has moved: a bucket's times are whole seconds."""
    before = info_of(objects, name).modified
    until = time.monotonic() + 10
    while info_of(objects, name).modified <= before:
        assert time.monotonic() < until, f"{name} stays as old as it was"
        renew()
