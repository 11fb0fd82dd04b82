"""Wakes those who wait for a stream, here and in other processes, by NOTIFY: a hint, they look again anyway.

The thread outlives every failure: it says that it may have missed something, and begins anew.

A notification takes a lock on the whole cluster at its commit, so none is sent with a commit of ours: a
thread sends them after it, at most one in 20 ms, that names the streams by checksum. The thread and its
connection are made when first needed. A crash before it sends leaves waiters to their next look.
"""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Final
from zlib import crc32

import psycopg

from strandline.persist.backends.postgres.connection import Connection

_LEAST_GAP_S: Final = 0.02
_RETRY_S: Final = 0.5
_MOST_NAMES: Final = 500
_EVERYTHING: Final = "*"


class Bell:
    """One a backend object."""

    def __init__(self, connect: Callable[[], Connection], channel: str) -> None:
        self._connect, self._channel = connect, channel
        self._lock = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = {}
        self._pending: set[str] = set()
        self._is_wanted = self._is_closed = self._is_poked = False
        self._listens = threading.Event()
        self._thread: threading.Thread | None = None
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)

    def ring(self, streams: Iterable[str]) -> None:
        """Say that these streams have grown."""
        names = {_short(stream) for stream in streams}
        with self._lock:
            if not names or self._is_closed:
                return
            self._wake(names)
            self._pending |= names
            self._poke()

    @contextmanager
    def watch(self, stream: str, *, timeout_s: float) -> Iterator[threading.Event]:
        """An event that is set when `stream` may have grown. Once entered, other processes are heard."""
        name, woken = _short(stream), threading.Event()
        with self._lock:
            self._waiting.setdefault(name, set()).add(woken)
            self._is_wanted = True
            if not self._listens.is_set() and not self._is_closed:
                self._poke()
        try:
            self._listens.wait(timeout_s)
            yield woken
        finally:
            with self._lock:
                self._waiting[name].discard(woken)
                if not self._waiting[name]:
                    del self._waiting[name]

    def close(self) -> None:
        """Send what is pending and end the thread."""
        with self._lock:
            self._is_closed = True
            self._wake({_EVERYTHING})
            self._listens.set()
            if self._thread is not None and not self._is_poked:
                self._is_poked = True
                self._outer.send(b"!")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._inner.close()
        self._outer.close()

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            for woken in self._waiting.get(name, ()):
                woken.set()
            if name == _EVERYTHING:
                for everyone in self._waiting.values():
                    for woken in everyone:
                        woken.set()

    def _poke(self) -> None:
        """Under the lock: have the thread look, making it if need be."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="strandline-bell", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # There is no thread to be had, as when the interpreter ends: waiters look for themselves.
                self._pending.clear()
                return
            self._thread = thread
        if not self._is_poked:
            self._is_poked = True
            self._outer.send(b"!")

    # The thread

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._is_done():
            try:
                if connection is None:
                    connection = self._connect()
                    connection.execute("set synchronous_commit = off")  # a hint need not be durable
                self._serve(connection)
            except Exception:  # noqa: BLE001  # a thread that died would leave its waiters to their polls
                # Whatever was sent meanwhile is missed: all look for themselves, now and until we listen
                # again.
                self._forget()
                if connection is not None:
                    connection.close()
                connection = None
                self._sleep(_RETRY_S)
        if connection is not None:
            with suppress(psycopg.Error):
                self._send(connection)
            connection.close()

    def _is_done(self) -> bool:
        with self._lock:
            return self._is_closed

    def _forget(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._listens.clear()
            self._pending.clear()
            self._wake({_EVERYTHING})

    def _serve(self, connection: Connection) -> None:
        """Until closed: send, listen, hand on."""
        while not self._is_done():
            if self._is_wanted and not self._listens.is_set():
                connection.execute(f'listen "{self._channel}"')
                with self._lock:
                    self._listens.set()
                    self._wake({_EVERYTHING})
            self._send(connection)
            # The gap is slept out with the poke still up, so that commits in it cost nothing.
            self._hear(connection, _LEAST_GAP_S)
            with self._lock:
                self._is_poked = False
                with suppress(BlockingIOError):
                    self._inner.recv(64)
                if self._pending or self._is_closed or (self._is_wanted and not self._listens.is_set()):
                    continue
            self._hear(connection, None)

    def _send(self, connection: Connection) -> None:
        with self._lock:
            names, self._pending = self._pending, set()
        if names:
            payload = " ".join(names) if len(names) <= _MOST_NAMES else _EVERYTHING
            connection.execute("select pg_notify(%s, %s)", [self._channel, payload])

    def _hear(self, connection: Connection, timeout_s: float | None) -> None:
        """Hand on what is notified, for that long; without a limit until something else is to be done."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        heard, poked = connection.fileno(), self._inner.fileno()
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(heard, select.POLLIN)
        if until is None:
            poll.register(poked, select.POLLIN)
        while until is None or time.monotonic() < until:
            left_ms = None if until is None else max(0.0, until - time.monotonic()) * 1000
            readable = {fileno for fileno, _ in poll.poll(left_ms)}
            if heard in readable:
                for notice in connection.notifies(timeout=0):
                    with self._lock:
                        self._wake(notice.payload.split(" "))
            if poked in readable or self._is_closed:
                return

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_done() and time.monotonic() < until:
            time.sleep(0.02)


@lru_cache(maxsize=1024)
def _short(stream: str) -> str:
    return f"{crc32(stream.encode()):x}"
