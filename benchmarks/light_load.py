"""Many connections to a host, kept busy by one thread that does as little as can be: requests are encoded
before the clock runs, and of an answer only its status and its length are read."""

import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final
from urllib.parse import urlsplit

_HEAD_ENDS: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def keep_busy(url: str, path: str, count: int, bodies: Callable[[int], list[bytes]]) -> float:
    """Requests per second: each of `count` connections posts its bodies, one when the one before is answered.
    Anything but a 200 ends it."""
    to = urlsplit(url)
    head = f"POST {path} HTTP/1.1\r\nHost: {to.netloc}\r\nContent-Type: application/json\r\n"
    queues = [[_request(head, body) for body in bodies(number)] for number in range(count)]
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for queue in queues:
            connection = stack.enter_context(socket.create_connection((to.hostname or "", to.port or 80)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(connection, selectors.EVENT_READ, _Turn(connection, iter(queue)))
        began = time.perf_counter()
        busy = sum(each.data.send() for each in list(ready.get_map().values()))
        while busy:
            for key, _ in ready.select():
                busy -= key.data.receive()
        return sum(map(len, queues)) / (time.perf_counter() - began)


def _request(head: str, body: bytes) -> bytes:
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Turn:
    """One connection: what it still has to send, and the answer that it waits for."""

    def __init__(self, connection: socket.socket, requests: Iterator[bytes]) -> None:
        self._connection, self._requests, self._answer = connection, requests, b""

    def send(self) -> bool:
        """Whether there was one more to send."""
        request = next(self._requests, None)
        if request is not None:
            self._connection.sendall(request)
        return request is not None

    def receive(self) -> bool:
        """Whether that was the last answer."""
        said = self._connection.recv(65536)
        self._answer += said
        head, ends, body = self._answer.partition(_HEAD_ENDS)
        length = _LENGTH.search(head + b"\r\n") if ends else None
        assert said, f"cut off after {self._answer!r:.200}"
        if length is None or len(body) < int(length[1]):
            return False
        assert head.startswith(b"HTTP/1.1 200 "), self._answer[:200]
        assert body.startswith(b'{"result"'), body[:200]
        self._answer = b""
        return not self.send()
