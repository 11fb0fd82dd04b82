"""A wire on loopback between a sender and a real server, which a test can cut, stall or answer for.

It speaks HTTP/1.1 to both sides and changes nothing that it passes on, so that what is at its end is the real
receiver, or the real S3. What it does with a request is what `judge` says of it.
"""

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal
from urllib.parse import urlsplit

TIMEOUT_S: Final = 30
_RESET: Final = struct.pack("ii", 1, 0)  # linger, for no time: the other side sees a reset
_OWN: Final = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class Crossing:
    """A request on its way. `body` is empty until it is read: a cut in the middle leaves it there."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def range(self) -> tuple[int, int]:
        lo, _, hi = self.headers["X-Strandline-Range"].partition("-")
        return int(lo), int(hi)


@dataclass(frozen=True, slots=True)
class Pass:
    """To the server and back. `answer` says whether the sender hears of it: else it sees a reset, after the
    server has done what it was asked. `gate` is waited for before."""

    answer: Literal["told", "lost"] = "told"
    gate: threading.Event | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Half of the body is read, then the connection is reset. The server hears nothing."""


@dataclass(frozen=True, slots=True)
class Say:
    """An answer that the server did not give."""

    status: int
    body: bytes = b'{"error": "busy"}'
    headers: Mapping[str, str] = field(default_factory=dict)


Act = Pass | Cut | Say


class Wire:
    """`target` may be changed while it works: a server that comes back has another port."""

    def __init__(self, target: str) -> None:
        self.target, self.url = target, ""
        self.crossings: list[Crossing] = []
        self.judge: Callable[[Crossing], Act] = lambda _: Pass()
        self.in_flight = self.most = 0
        self.arrived = threading.Event()
        self._lock = threading.Lock()

    def posts(self) -> list[tuple[int, int]]:
        """The ranges of the units that were sent, whatever became of them."""
        return [each.range for each in self.crossings if each.method == "POST"]

    def judged(self, crossing: Crossing) -> Act:
        with self._lock:
            self.crossings.append(crossing)
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self.arrived.set()
            return self.judge(crossing)

    def ended(self) -> None:
        with self._lock:
            self.in_flight -= 1

    def passed_on(self, crossing: Crossing, body: bytes) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """What the server answers; None where there is no server."""
        connection = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=TIMEOUT_S)
        try:
            headers = {name: value for name, value in crossing.headers.items() if name.lower() not in _OWN}
            connection.request(
                crossing.method, crossing.path, body, {**headers, "Content-Length": str(len(body))}
            )
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wire: Wire

    def _any(self) -> None:
        crossing = Crossing(self.command, self.path, dict(self.headers.items()))
        act = self.wire.judged(crossing)
        try:
            self._do(crossing, act)
        finally:
            self.wire.ended()

    def _do(self, crossing: Crossing, act: Act) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size // 2 if isinstance(act, Cut) else size)
        if isinstance(act, Say):
            self._answer(act.status, list(act.headers.items()), act.body)
            return
        if isinstance(act, Cut):
            self._reset()
            return
        if act.gate is not None:
            assert act.gate.wait(TIMEOUT_S)
        answer = self.wire.passed_on(crossing, body)
        if answer is None or act.answer == "lost":
            self._reset()
        else:
            self._answer(*answer)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in _OWN:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any  # noqa: N815  # as the library names them

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def wire_to(target: str) -> Iterator[Wire]:
    wire = Wire(target)
    handler = type("Handler", (_Handler,), {"wire": wire})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that goes away is no news
    wire.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        thread.join(TIMEOUT_S)
        server.server_close()
