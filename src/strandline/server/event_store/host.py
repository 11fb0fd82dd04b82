"""The event store over HTTP: `POST /v1/persist` takes the requests of persist/durable.py.

Operations run in threads; small commits of many callers share one, and a transaction (committer.py). Long
polls run in slices in threads of their own: however many there are, they never keep a commit waiting.
`GET /healthz` tells that the store answers. ASGI by hand: to find one of two paths a framework takes longer
than a request does.
"""

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from strandline.errors import (
    CorruptionError,
    HeldError,
    HistoryGap,
    NotFoundError,
    ProtocolError,
    SequenceError,
    SnapshotMismatch,
    StrandlineError,
    UnavailableError,
    UnknownOp,
    UsageError,
)
from strandline.persist.value import encode_wire
from strandline.persist.wire import (
    MAX_BODY_BYTES,
    PATH,
    SCRATCH_HEADER,
    check_token,
    error_answer,
)
from strandline.server.event_store.committer import Committer
from strandline.server.event_store.open_stores import Stores
from strandline.server.event_store.requests import Call, read_request, run

THREADS: Final = 64
WAIT_THREADS: Final = 64
LONGEST_WAIT_S: Final = 25.0
LONGEST_READ_S: Final = 300.0
_SLICE_S: Final = 1.0
_CROWDED_SLICE_S: Final = 0.05
_SCRATCH: Final = SCRATCH_HEADER.lower().encode()

# By group, what the caller does next; the first that fits.
_STATUS: Final[tuple[tuple[type[StrandlineError], int], ...]] = (
    (UnknownOp, 404),
    (UsageError, 400),
    (NotFoundError, 404),
    (SequenceError, 409),
    (HistoryGap, 409),
    (SnapshotMismatch, 409),
    (HeldError, 409),
    (UnavailableError, 503),
    (ProtocolError, 502),
    (CorruptionError, 500),
)

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


def persist_app(stores: Stores, *, token: str | None = None) -> "PersistHost":
    """An ASGI application over what `stores` opens. Without a token it answers everyone who reaches it."""
    return PersistHost(stores, None if token is None else check_token(token))


class PersistHost:
    """The application. To end it: `stop` has the long polls answer, `close` lets go of threads and stores."""

    def __init__(self, stores: Stores, token: str | None) -> None:
        self._stores = stores
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._threads = ThreadPoolExecutor(THREADS, "persist")
        self._committer = Committer(stores, self._threads)
        self._wait_threads = ThreadPoolExecutor(WAIT_THREADS, "persist-wait")
        self._waiting = 0
        self._is_stopping = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            told = await self._told(scope, receive)
        except _Gone:
            return
        except Exception as error:  # noqa: BLE001  # whatever it is, the caller gets an answer
            told = _error(error)
        await send({"type": "http.response.start", "status": told.status, "headers": told.headers})
        await send({"type": "http.response.body", "body": told.body})

    async def _told(self, scope: Any, receive: Any) -> "_Told":
        path, headers = scope["path"], dict(scope["headers"])
        if path == PATH:
            _allow(scope, "POST")
            self._authorize(headers.get(b"authorization", b""))
            body = await _read_body(headers, receive)
            scratch = headers.get(_SCRATCH)
            return await self._respond(None if scratch is None else scratch.decode("latin-1"), body)
        if path == "/healthz":
            _allow(scope, "GET", "HEAD")
            if not self._stores.is_scratch:  # it tells nothing, so it needs no token
                await self._in_thread(self._threads, self._look)
            return _told(b'{"status":"ok"}')
        raise _Refused(404, NotFoundError(f"there is nothing at {path}", hint=f"the store is at {PATH}"))

    def stop(self) -> None:
        """Have long polls answer now; may be called from a signal handler."""
        self._is_stopping.set()

    def close(self) -> None:
        self._is_stopping.set()
        self._threads.shutdown(cancel_futures=True)
        self._wait_threads.shutdown(cancel_futures=True)
        self._stores.close()

    async def _respond(self, scratch: str | None, body: bytes) -> "_Told":
        if self._committer.takes(body):
            return _told(await self._committer.answer(scratch, body))
        call, answer = await self._in_thread(self._threads, partial(self._run, scratch, body))
        if answer is None:
            return _told(await self._wait(scratch, *call.args))
        return _told(answer)._replace(let_go=call)

    def _run(self, scratch: str | None, body: bytes) -> tuple[Call, bytes | None]:
        """What was asked, and the answer; None if it is one that waits."""
        call = read_request(body)
        if call.op == "persist/wait":
            return call, None
        with self._stores.use(scratch) as store:
            return call, run(store, call)

    async def _wait(self, scratch: str | None, stream: str, after: int, timeout_s: float) -> bytes:
        until = asyncio.get_running_loop().time() + min(timeout_s, LONGEST_WAIT_S)
        self._waiting += 1
        try:
            while True:
                longest_s = _SLICE_S if self._waiting <= WAIT_THREADS else _CROWDED_SLICE_S
                left_s = max(0.0, until - asyncio.get_running_loop().time())
                slice_s = 0.0 if self._is_stopping.is_set() else min(left_s, longest_s)
                work = partial(self._wait_slice, scratch, stream, after, slice_s)
                mark = await self._in_thread(self._wait_threads, work)
                if mark > after or left_s <= slice_s or self._is_stopping.is_set():
                    return encode_wire({"result": mark})
        finally:
            self._waiting -= 1

    def _wait_slice(self, scratch: str | None, stream: str, after: int, slice_s: float) -> int:
        with self._stores.use(scratch) as store:
            return store.wait(stream, after, timeout_s=slice_s)

    def _look(self) -> None:
        with self._stores.use(None) as store:
            store.last_seq("healthz")

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _authorize(self, given: bytes) -> None:
        if self._authorization is not None and not hmac.compare_digest(given, self._authorization):
            error = UsageError("the token is missing or wrong", hint="pass the token that the host was given")
            raise _Refused(401, error, (b"www-authenticate", b"Bearer"))


class _Gone(Exception):
    """Whoever asked has left: nobody reads an answer."""


class _Refused(Exception):
    """A request that is not looked at; what it is told has a status of its own."""

    def __init__(self, status: int, error: StrandlineError, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(status)
        self.status, self.error, self.headers = status, error, headers


def _allow(scope: Any, *methods: str) -> None:
    if scope["method"] not in methods:
        error = UsageError(
            f"{scope['method']} {scope['path']}: Method Not Allowed", hint=f"{methods[0]} is what it takes"
        )
        raise _Refused(405, error, (b"allow", ", ".join(methods).encode()))


async def _read_body(headers: dict[bytes, bytes], receive: Any) -> bytes:
    """The body; what is too long is refused before it is read."""
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_long(int(declared))
    chunks, size, is_more = [], 0, True
    try:
        async with asyncio.timeout(LONGEST_READ_S):
            while is_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                chunks.append(message.get("body", b""))
                is_more = message.get("more_body", False)
                size += len(chunks[-1])
                if size > MAX_BODY_BYTES:
                    raise _too_long(size)
    except TimeoutError:
        raise _Refused(408, UsageError("the body did not come in time", hint="send it again")) from None
    return b"".join(chunks)


def _too_long(size: int) -> _Refused:
    error = UsageError(
        f"a request of {size:,} bytes is over the limit of {MAX_BODY_BYTES:,}", hint="split it into several"
    )
    return _Refused(413, error, (b"connection", b"close"))


# Answers


class _Told(NamedTuple):
    """An answer, and what is let go after it is sent: to free all that a long request holds takes a while,
    for which nobody should wait."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    let_go: object = None


def _told(body: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> _Told:
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return _Told(status, [*own, *headers], body)


def _error(error: Exception) -> _Told:
    """What the caller is told. Of an error that is none of ours, that it happened: the log has the inside."""
    if isinstance(error, _Refused):
        return _told(error_answer(error.error), error.status, *error.headers)
    if isinstance(error, StrandlineError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return _told(error_answer(error), status)
    _log.error("a request failed", exc_info=error)
    answer = {"error": "internal", "message": f"the host failed with {type(error).__name__}", "details": {}}
    return _told(encode_wire(answer), 500)
