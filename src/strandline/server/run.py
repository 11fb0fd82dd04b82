"""Runs an application on a socket until it is told to end."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final

import uvicorn

from strandline.errors import UnavailableError
from strandline.server.persist_host import PersistHost

GRACE_S: Final = 5
_KEEP_ALIVE_S: Final = (
    75  # longer than clients rest between two requests, so that they seldom meet a closed end
)
_MAX_CONNECTIONS: Final = 1000
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """A server that leaves signals to us: it would end the process by the signal, its store left open."""

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


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def serve_until_signal(app: PersistHost, listening: socket.socket, when_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT: what is under way gets GRACE_S, then the store is closed.

    Whatever hangs beyond that is cut off, as a crash would do: what was acknowledged is stored.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=_MAX_CONNECTIONS,
        server_header=False,
    )
    server = _Server(config)

    def end(_number: int, _frame: Any) -> None:
        server.force_exit = server.should_exit  # a second signal does not wait
        server.should_exit = True
        app.stop()
        _cut_off_after(2 * GRACE_S)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        when_ready()
        server.run(sockets=[listening])
    finally:
        app.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _cut_off_after(seconds: float) -> None:
    def cut_off() -> None:
        print(f"still busy {seconds:g} s after the signal: cut off", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, cut_off)
    timer.daemon = True
    timer.start()
