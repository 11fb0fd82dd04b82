"""An HTTP server on loopback that answers as a test tells it to, and remembers what it was asked."""

import gzip
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: tuple[str, int]

    def plain(self) -> bytes:
        """The body before it was packed."""
        packing = self.headers.get("Content-Encoding", "none")
        if packing == "gzip":
            return gzip.decompress(self.body)
        return _unpacked(self.body) if packing == "zstd" else self.body

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.plain().splitlines()]

    @property
    def range(self) -> tuple[int, int]:
        lo, _, hi = self.headers["X-Strandline-Range"].partition("-")
        return int(lo), int(hi)


def _unpacked(body: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(body), "zstd").read())


@dataclass(frozen=True, slots=True)
class Reply:
    """What it says. `drop` has it close the connection in place of an answer."""

    status: int = 202
    body: bytes | dict[str, Any] = field(default_factory=lambda: {"duplicate": False})
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False


class Scripted:
    """`answer` is called for each request, one after another."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Reply] = lambda _: Reply()
        self.url = ""

    def ranges(self) -> list[tuple[int, int]]:
        return [each.range for each in self.asked]

    def say(self, *replies: Reply) -> None:
        """These answers in order, then as usual."""
        left = list(replies)
        self.answer = lambda _: left.pop(0) if left else Reply()


@contextmanager
def scripted(tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    script = Scripted()
    turn = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = dict(self.headers.items())
            asked = Asked(self.command, self.path, headers, body, self.client_address)
            with turn:
                script.asked.append(asked)
                reply = script.answer(asked)
            if reply.drop:
                self.close_connection = True
                return
            said = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            if reply.status != 204:
                self.wfile.write(said)

        do_GET = do_POST = _any  # noqa: N815  # as the library names them

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that goes away is no news
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()
