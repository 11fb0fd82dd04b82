"""examples/fastapi_app.py, by a real server on loopback: what was answered is kept, whatever ends it."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import urllib3
from pyspark.sql import SparkSession

import strandline
from examples import fastapi_app
from examples.fastapi_app import SETTINGS
from tests.examples.nodes import home_in

ENDS_S: Final = 60
CLIENTS: Final = 4
ANSWERS: Final = 60


class Server:
    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self._process, self._url = process, url
        self._http = urllib3.PoolManager(maxsize=CLIENTS, retries=False, timeout=ENDS_S)

    def get(self, path: str, request_id: str) -> urllib3.BaseHTTPResponse:
        return self._http.request("GET", self._url + path, headers={"X-Request-Id": request_id})

    def end(self, signal_: signal.Signals) -> int:
        self._process.send_signal(signal_)
        return self._process.wait(ENDS_S)

    def close(self) -> None:
        self._http.clear()
        self._process.kill()


@contextmanager
def served(home: Path) -> Iterator[Server]:
    command = [sys.executable, fastapi_app.__file__, str(home), "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while (found := re.search(r"http://127.0.0.1:\d+", said)) is None:
            line = process.stderr.readline()
            assert line, f"it did not come up: {said}"
            said += line
        rest = threading.Thread(target=process.stderr.read)  # what it logs must not fill the pipe
        rest.start()
        server = Server(process, found[0])
        try:
            yield server
        finally:
            server.close()
            rest.join(ENDS_S)


def kept(home: Path) -> list[tuple[str, str, int]]:
    """What is in the table of that node: request id, path, status."""
    with strandline.open(home) as node:
        node.flush("requests")
        rows = node.sql("SELECT request_id, path, status FROM requests ORDER BY request_id, path").collect()
        return [tuple(row) for row in rows]


def test_each_request_is_a_row_and_one_tried_again_is_the_same_row(
    spark: SparkSession, tmp_path: Path
) -> None:  # L-SPOOL-15, L-STAMP-4
    home = home_in(tmp_path / "web", SETTINGS)
    with served(home) as server:
        answers = [
            server.get(path, request_id)
            for path, request_id in (("/hello/ada", "r1"), ("/hello/bob", "r2"), ("/nobody", "r3"))
        ]
        again = server.get("/hello/ada", "r1")
        code = server.end(signal.SIGTERM)

    assert [(each.status, each.headers["X-Request-Id"]) for each in answers] == [
        (200, "r1"),
        (200, "r2"),
        (404, "r3"),
    ]
    assert again.json() == {"hello": "ada"}
    assert code == -signal.SIGTERM  # uvicorn ends in order, and then by the signal that it got
    assert kept(home) == [("r1", "/hello/ada", 200), ("r2", "/hello/bob", 200), ("r3", "/nobody", 404)]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_what_was_answered_is_kept_whatever_ends_the_server(
    spark: SparkSession, tmp_path: Path, end: signal.Signals
) -> None:  # L-SPOOL-15, invariant 2
    home = home_in(tmp_path / "web", SETTINGS)
    sent, answered, is_enough = list[str](), list[str](), threading.Event()

    def ask(client: int, server: Server) -> None:
        for number in range(100_000):
            request_id = f"{client}-{number}"
            sent.append(request_id)
            try:
                status = server.get(f"/hello/{client}", request_id).status
            except urllib3.exceptions.HTTPError:
                return  # it is gone
            assert status == 200
            answered.append(request_id)
            if len(answered) >= ANSWERS:
                is_enough.set()

    with served(home) as server:
        clients = [threading.Thread(target=ask, args=(client, server)) for client in range(CLIENTS)]
        for each in clients:
            each.start()
        assert is_enough.wait(ENDS_S)
        server.end(end)
        for each in clients:
            each.join(ENDS_S)

    found = [request_id for request_id, _, _ in kept(home)]
    assert len(found) == len(set(found))
    assert set(answered) <= set(found) <= set(sent)


def test_a_request_that_cannot_be_kept_is_told_so(tmp_path: Path) -> None:  # L-SPOOL-12
    home = home_in(tmp_path / "web", SETTINGS + '\n[spool]\nmax_bytes = "1KiB"\nflush_bytes = "1KiB"\n')
    with served(home) as server:
        statuses = [server.get("/hello/ada", f"r{number}").status for number in range(3)]
        refused = server.get("/hello/ada", "r3")

    assert statuses[0] == 200
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert "not flushed yet" in refused.json()["detail"]
