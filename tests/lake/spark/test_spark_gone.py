"""A Spark that dies: the verb that was under way says so, and the next one starts it anew."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.spark_sessions import SERVER, free_port

ROOT: Final = Path(__file__).parents[3]
CHILD: Final = ["-m", "tests.lake.spark.gone_child"]
ENDS_S: Final = 300


def lines_of(done: bytes) -> list[Any]:
    return [json.loads(line) for line in done.splitlines()]


def test_a_java_that_is_killed_is_named_and_started_anew(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *CHILD, "classic", tmp_path],
        cwd=ROOT,
        capture_output=True,
        timeout=ENDS_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr.decode()[-3000:]
    died, flushed, scanned, summed, is_first = lines_of(done.stdout)
    assert died["kind"] == "spark_gone"
    assert died["is_retryable"]
    assert "starts it anew" in died["hint"]
    assert [flushed, scanned, summed, is_first] == [
        {"result": 2},
        {"result": [1, 2]},
        {"result": 3},
        {"result": False},
    ]


class Server:
    """A Connect server that can be killed, on the lake of a node."""

    def __init__(self, home: Path) -> None:
        self._home, self.port = home, str(free_port())

    def start(self) -> None:
        with (self._home / "server.out").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, SERVER, self._home, self.port],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", (self._home / "server.out").read_text()[-2000:]

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # the group of its own that it was started in
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.slow
def test_a_connect_server_that_dies_is_named_and_found_again(tmp_path: Path) -> None:
    server = Server(tmp_path)
    settings = f'version = 1\n[spark]\nremote = "sc://127.0.0.1:{server.port}"\n'
    (tmp_path / "strandline.toml").write_text(settings)
    server.start()
    with subprocess.Popen(
        [sys.executable, *CHILD, "connect", tmp_path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        before = said(child.stdout)
        server.kill()
        go_on(child.stdin)
        flush, read = said(child.stdout), said(child.stdout)
        server.start()
        go_on(child.stdin)
        out, err = child.communicate(timeout=ENDS_S)
    server.kill()

    assert before == {"result": 1}
    assert {flush["kind"], read["kind"]} <= {"spark_gone", "spark_unreachable"}
    assert flush["is_retryable"]
    assert read["is_retryable"]
    assert child.returncode == 0, err.decode()[-3000:]
    assert lines_of(out) == [{"result": 1}, {"result": [1, 2]}]


def said(pipe: IO[bytes]) -> Any:
    return json.loads(pipe.readline())


def go_on(pipe: IO[bytes]) -> None:
    pipe.write(b"\n")
    pipe.flush()
