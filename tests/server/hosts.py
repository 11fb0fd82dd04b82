"""A real host in a process of its own, a proxy that cuts, and a server that talks nonsense."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

READY_S = 60


class HostProcess:
    """`strandline persist serve`, on one port for its whole life, however often it is killed."""

    def __init__(self, store: str | Path, *options: str, token: str | None = None) -> None:
        self._store, self._options, self._token = str(store), options, token
        self._port = 0
        self.process = self._started()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def restart(self) -> None:
        """After a kill."""
        self.process = self._started()

    def end(self) -> int:
        code = self.process.wait(READY_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def terminate(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        elif self.process.stdout is not None:
            self.process.stdout.close()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "strandline", "persist", "serve"]
        command += ["--store", self._store, "--port", str(self._port), *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE")}
        if self._token is not None:
            environment["STRANDLINE_TOKEN"] = self._token
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        self._port = int(line.rpartition(":")[2])
        return process


class Proxy:
    """Hands requests on to a host and counts them; the next `cut_answers` answers never reach the client.

    The answer is awaited first, so what it speaks of is stored. The next `cut_requests` requests never reach
    the host.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.accepted = self.requests = 0
        self.cut_answers = self.cut_requests = 0
        self.cut_every = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        with suppress(OSError):  # what makes accept() return
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._open:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted += 1
            self._open.append(client)
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        host: socket.socket | None = None
        with suppress(OSError):
            while request := read_message(client):
                if self._is_cut("cut_requests"):
                    break
                if host is None:
                    host = socket.create_connection(("127.0.0.1", self._upstream))
                    host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                host.sendall(request)
                answer = read_message(host)
                if not answer or self._is_cut("cut_answers"):
                    break
                client.sendall(answer)
        client.close()
        if host is not None:
            host.close()

    def _is_cut(self, what: str) -> bool:
        with self._lock:
            left: int = getattr(self, what)
            if what == "cut_requests":
                self.requests += 1
            elif self.cut_every and self.requests % self.cut_every == 0:
                return True
            if left > 0:
                setattr(self, what, left - 1)
            return left > 0


def read_message(connection: socket.socket) -> bytes:
    """One request or answer with its body; empty when the other side is gone."""
    text = b""
    while b"\r\n\r\n" not in text:
        more = connection.recv(65536)
        if not more:
            return b""
        text += more
    head, _, body = text.partition(b"\r\n\r\n")
    sizes = [
        line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    ]
    left = (int(sizes[0]) if sizes else 0) - len(body)
    parts = [text]
    while left > 0:
        more = connection.recv(min(left, 1 << 20))
        if not more:
            return b""
        parts.append(more)
        left -= len(more)
    return b"".join(parts)


@contextmanager
def scripted_server(answers: Sequence[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Gives each request the next of `answers`, as raw bytes, then closes; the requests it got."""
    listening = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def run() -> None:
        for answer in answers:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client, suppress(OSError):
                got.append(read_message(client))
                client.sendall(answer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", got
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def http_answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_for_line(process: "subprocess.Popen[str]", timeout_s: float = READY_S) -> str:
    assert process.stdout is not None
    until = time.monotonic() + timeout_s
    while not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
        raise AssertionError("no line in time")
    return process.stdout.readline()
