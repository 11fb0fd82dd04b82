"""Runs an application on a socket until it is told to end."""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final, Protocol

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strandline.errors import StoreUnavailable, UnavailableError, UsageError

GRACE_S: Final = 5
_KEEP_ALIVE_S: Final = (
    75  # longer than clients rest between two requests, so that they seldom meet a closed end
)
_MAX_CONNECTIONS: Final = 1000
_MAX_HEAD_BYTES: Final = 256 * 1024
# How many containers are made before the garbage collector looks at them. Those of a request live until it is
# answered and go by themselves then: looking every 700, as usual, finds nothing and takes a tenth of a batch.
_COLLECTED_AFTER: Final = 100_000
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Application(Protocol):
    """What is served."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def stop(self) -> None:
        """The end is near: what waits answers now. Called in a signal handler."""

    def close(self) -> None:
        """Nobody asks any more."""


async def _crowded(_scope: Any, _receive: Any, send: Any) -> None:
    """What a connection too many is answered, in the form of all our errors. It is closed after that."""
    told = {
        "error": "crowded",
        "message": "there are too many connections",
        "hint": "ask again, on a new one",
    }
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(told)})


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 whose patience ends: a head, or the rest of a body that was answered before it was read, must
    come in time, and a head may be so long. Bodies that are being read are the application's. A connection
    too many is told so."""

    patience_s: float = _KEEP_ALIVE_S
    max_connections: int = _MAX_CONNECTIONS
    _end: asyncio.TimerHandle | None = None
    _has_head: bool = False
    _head_bytes: int = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
        self.access_log = False  # whatever logging is set up to: a query may hold a secret
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.app = _crowded
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._has_head and self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head is too long.")
        self._watch()

    def on_headers_complete(self) -> None:
        self._has_head = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_head, self._head_bytes = False, 0  # what was read of the next head goes uncounted
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            if self._end is None:  # what drips in moves no deadline
                self._end = self.loop.call_later(self.patience_s, self.transport.close)
        else:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


class _Server(uvicorn.Server):
    """A server that leaves signals to us: it would end the process by the signal, its store left open. It
    looks ten times a second whether it is over."""

    def __init__(self, config: uvicorn.Config, is_over: Callable[[], bool] = lambda: False) -> None:
        super().__init__(config)
        self._is_over = is_over

    async def on_tick(self, counter: int) -> bool:
        return self._is_over() or await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; port 0 is one that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named; without it an answer takes 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(512)
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, OverflowError) as error:
        raise UnavailableError(
            f"cannot listen on {host} port {port}: {error}", hint="choose another --port, or 0 for a free one"
        ) from error


def address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`; UsageError where it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address", hint="host:port, such as 127.0.0.1:8080 or [::1]:8080")
    return host.strip("[]"), int(port)


def url_of(listening: socket.socket, *, scheme: str = "http") -> str:
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def server_config(app: Application, *, tls: tuple[str, str] | None = None) -> uvicorn.Config:
    """How applications are served; `tls` names the files of a certificate and of its key."""
    certificate, key = tls or (None, None)
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        proxy_headers=False,  # nobody asks who is behind a proxy
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()  # it reads the certificate
    except OSError as error:
        raise UsageError(
            f"the certificate or its key cannot be used: {error.strerror or error}",
            hint="name PEM files that belong together, readable by this user",
        ) from error
    return config


def serve_until_signal(
    app: Application,
    listening: socket.socket,
    when_ready: Callable[[], None],
    *,
    tls: tuple[str, str] | None = None,
    why_spent: Callable[[], str | None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT: what is under way gets GRACE_S, then the application is closed.

    Whatever hangs beyond that is cut off, as a crash would do: what was acknowledged is stored. Where
    `why_spent` comes to tell that the store is to be opened again it ends too, with StoreUnavailable: whoever
    watches over the process starts it anew.
    """

    def stop() -> None:
        app.stop()
        _cut_off_after(2 * GRACE_S)

    def is_over() -> bool:
        if why_spent() is None:
            return False
        stop()
        return True

    config = server_config(app, tls=tls)
    server = _Server(config, is_over)

    def end(_number: int, _frame: Any) -> None:
        server.force_exit = server.should_exit  # a second signal does not wait
        server.should_exit = True
        stop()

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    _, *older = thresholds = gc.get_threshold()
    try:
        gc.set_threshold(_COLLECTED_AFTER, *older)
        when_ready()
        server.run(sockets=[listening])
    finally:
        gc.set_threshold(*thresholds)
        app.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if (why := why_spent()) is not None:
        raise StoreUnavailable(
            f"the store cannot be used any more: {why}", hint="start this again: it opens the store anew"
        )


def _cut_off_after(seconds: float) -> None:
    def cut_off() -> None:
        print(f"still busy {seconds:g} s after the signal: cut off", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, cut_off)
    timer.daemon = True
    timer.start()
