"""A store behind HTTP: every method is one request to a host that `strandline persist serve` runs.

The bytes are in wire.py. Lost answers: a commit carries an idempotency key, drawn here if the caller
brought none, so it is repeated until the retries are used up and has one effect. A conflict that a repeat
meets is told once the first try, should it still be on its way, can have no effect; under a key that the
caller brought it is told at once, as that key stays the caller's to use. Reads are repeated too. A write
without a key is repeated only while it surely never left. What remains is OutcomeUnknown if a write may have
arrived, StoreUnavailable if it did not.
"""

import os
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

from strandline.base.failpoint import reach
from strandline.errors import (
    NotStorable,
    OutcomeUnknown,
    ProtocolError,
    StoreUnavailable,
    StrandlineError,
    UnavailableError,
    UsageError,
)
from strandline.persist.backend import Delete, Expectation, ExpectSeq, Once, Outcome, Write
from strandline.persist.core.commit import Repeated
from strandline.persist.core.prepare import Prepared, prepare
from strandline.persist.durable import IoBackend, Request
from strandline.persist.event import Conflict, Event, Storable
from strandline.persist.reserved import COMMIT_SCOPE
from strandline.persist.value import (
    MAX_SEQ,
    check_at,
    check_key,
    check_name,
    check_seq,
    check_timeout,
    encode,
    encode_wire,
)
from strandline.persist.wire import (
    MAX_BODY_BYTES,
    PATH,
    SCRATCH_HEADER,
    check_token,
    commit_body,
    commit_outcome,
    header_value,
    read_answer,
)

if TYPE_CHECKING:
    import urllib3

WAIT_SLICE_S: Final = 20.0  # proxies cut what is silent for longer

_WRITES: Final = frozenset(
    {
        "persist/append",
        "persist/truncate",
        "persist/kv-put",
        "persist/kv-delete",
        "persist/quarantine",
    }
)
_SLOW: Final = frozenset({"persist/verify", "persist/scrub"})  # they read or write all there is
_SLOW_FACTOR: Final = 20
_MOST_TIMEOUT_S: Final = 1_000_000  # a socket takes no more than some millions
_KEPT_CONNECTIONS: Final = 64
_FIRST_PAUSE_S: Final = 0.2
_GATEWAY: Final = frozenset({429, 502, 503, 504})
_MISSING: Final = 'pip install "strandline[remote]"'


class _Lost(Exception):
    """One attempt that brought no answer; `sent` unless the request surely never left."""

    def __init__(
        self, why: str, *, sent: bool, after_s: float | None = None, error: StrandlineError | None = None
    ) -> None:
        super().__init__(why)
        self.why, self.sent, self.after_s, self.error = why, sent, after_s, error


class _Doubtful(NamedTuple):
    """A conflict that a repeat met, whose first try may have arrived or not."""

    conflict: Conflict


class RemoteBackend(IoBackend):
    """See AtomicBackend for what it promises; `timeout_s` is that of one request, which `retries` may repeat.

    `create` is for the host to decide and does nothing here. No request is made before the first operation.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30,
        retries: int = 3,
        create: bool = True,  # noqa: ARG002  # every backend takes it
        scratch: str | None = None,
    ) -> None:
        super().__init__(self._carry)
        self.url = _checked_url(url)
        if type(timeout_s) not in (int, float) or not 0 < timeout_s <= _MOST_TIMEOUT_S:  # NaN is neither
            raise UsageError(
                f"timeout_s is {timeout_s!r:.80}",
                hint=f"timeout_s is a number above 0, at most {_MOST_TIMEOUT_S:,}",
            )
        if type(retries) is not int or retries < 0:
            raise UsageError(f"retries is {retries!r:.80}", hint="retries is an int of 0 or more")
        self._timeout_s, self._retries = float(timeout_s), retries
        self._headers = {"Content-Type": "application/json", "User-Agent": "strandline"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {check_token(token)}"
        if scratch is not None:
            self._headers[SCRATCH_HEADER] = header_value("scratch name", scratch)
        self._path = (urlsplit(self.url).path or "") + PATH
        # Keys that are drawn here begin with these: side by side at the host (decision 18).
        self._drawn, self._numbers = token_hex(16), count()
        self._pool: urllib3.HTTPConnectionPool | None = _connections(self.url)
        self._pid = os.getpid()

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        writes = list(writes)
        is_drawn = once is None and bool(writes)
        if is_drawn:  # without writes there is nothing to do twice, and no marker to leave
            once = (COMMIT_SCOPE, f"{self._drawn}{next(self._numbers):012x}{token_hex(8)}")
        prepared = prepare(preconditions, writes, once, is_sent=True)
        body = commit_body(prepared)
        _refuse_long(len(body))
        is_write = bool(writes) or once is not None
        reach("commit.prepared")
        answer = self._exchange("persist/commit", body, self._timeout_s, prepared.once, is_write=is_write)
        if isinstance(answer, _Doubtful):
            answer = self._settled(answer.conflict, prepared, body) if is_drawn else answer.conflict
        reach("commit.acknowledged")
        return commit_outcome(answer, prepared)

    def _settled(self, conflict: Conflict, prepared: Prepared, body: bytes) -> Any:
        """What a commit comes to whose repeat met a conflict: its first try, which left no marker, may still
        be on its way, and be met by what it expects when it arrives. So its key is used up first, for
        nothing."""
        if _is_for_good(conflict, prepared):
            return conflict
        # It deletes what never is there, which no other commit does: so it is of another digest than any.
        closing = commit_body(prepare([], [Delete(COMMIT_SCOPE)], prepared.once, is_sent=True))
        try:
            closed = self._exchange("persist/commit", closing, self._timeout_s, prepared.once, is_write=True)
            if not isinstance(closed, Conflict):
                return conflict
            # The key was known: the first try has arrived in between, and a repeat gives its answer.
            answer = self._exchange("persist/commit", body, self._timeout_s, prepared.once, is_write=True)
        except UnavailableError as error:
            raise OutcomeUnknown(error.message, once=prepared.once) from error
        if isinstance(answer, _Doubtful):
            raise OutcomeUnknown("the answer was lost again and again", once=prepared.once)
        return list(answer) if isinstance(answer, Repeated) else answer

    # The basic writes are checked here, before anything is sent

    def append(self, stream: str, event: Event) -> int:
        check_name("stream", stream)
        check_name("type", event.type)
        check_at(event.at)
        check_seq("seq", event.seq, least=-MAX_SEQ)  # whether it is the next one, the host knows
        encode(event.data)
        return super().append(stream, event)

    def truncate_through(self, stream: str, n: int) -> None:
        check_name("stream", stream)
        super().truncate_through(stream, n)

    def kv_put(self, key: str, value: Storable) -> None:
        check_key(key)
        encode(value)
        super().kv_put(key, value)

    def kv_delete(self, key: str) -> None:
        check_key(key)
        super().kv_delete(key)

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        until = time.monotonic() + check_timeout(timeout_s)
        while True:
            left_s = until - time.monotonic()
            mark = super().wait(stream, after, timeout_s=max(0.0, min(left_s, WAIT_SLICE_S)))
            if mark > after or left_s <= WAIT_SLICE_S:
                return mark

    def close(self) -> None:
        """Let go of the connections. Closing twice is fine; using it afterwards is a UsageError."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    def _carry(self, request: Request) -> Any:
        op, timeout_s = request["op"], self._timeout_s
        if op in _SLOW:
            timeout_s *= _SLOW_FACTOR
        elif op == "persist/wait":
            timeout_s += request["args"][2]
        body = encode_wire(request)
        _refuse_long(len(body))
        return self._exchange(op, body, timeout_s, None, is_write=op in _WRITES)

    def _exchange(self, op: str, body: bytes, timeout_s: float, once: Once | None, *, is_write: bool) -> Any:
        """The answer to a request, sent as often as is safe and allowed."""
        pool = self._open_pool()
        is_repeatable = once is not None or not (is_write or op in _SLOW)
        until, may_be_stored = time.monotonic() + timeout_s, False
        for attempt in range(1, self._retries + 2):
            try:
                answer = self._attempt(pool, body, timeout_s, is_repeatable)
                return _after_a_loss(answer) if may_be_stored else answer
            except _Lost as lost:
                may_be_stored |= lost.sent and is_write
                pause_s = _pause_s(attempt) if lost.after_s is None else lost.after_s
                is_too_late = lost.after_s is not None and time.monotonic() + pause_s > until
                if attempt > self._retries or is_too_late or (lost.sent and not is_repeatable):
                    self._give_up(op, lost, attempt, may_be_stored, once)
                time.sleep(pause_s)
            except UnavailableError as error:
                if not may_be_stored:
                    raise
                # This attempt wrote nothing; of the one before, whose answer was lost, that says nothing.
                self._give_up(op, _Lost(error.message, sent=True), attempt, may_be_stored, once)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(
        self, pool: "urllib3.HTTPConnectionPool", body: bytes, timeout_s: float, is_repeatable: bool
    ) -> Any:
        status, retry_after_s, text = self._post(pool, body, timeout_s)
        try:
            return read_answer(status, text)
        except ProtocolError as error:
            if status in _GATEWAY:  # something between us and the host: it is as good as no answer
                why = f"status {status}"
                raise _Lost(why, sent=status != 429, after_s=retry_after_s) from error
            raise
        except OutcomeUnknown as error:
            if is_repeatable:
                raise _Lost(error.message, sent=True, after_s=retry_after_s) from error
            raise
        except UnavailableError as error:
            if retry_after_s is not None:
                raise _Lost(error.message, sent=False, after_s=retry_after_s, error=error) from error
            raise

    def _post(
        self, pool: "urllib3.HTTPConnectionPool", body: bytes, timeout_s: float
    ) -> tuple[int, float | None, bytes]:
        from urllib3.exceptions import HTTPError, LocationParseError

        try:
            response = pool.urlopen(
                "POST",
                self._path,
                body=body,
                headers=self._headers,
                retries=False,
                redirect=False,
                timeout=timeout_s,
                preload_content=False,
                decode_content=False,
            )
            text = response.read(MAX_BODY_BYTES + 1)
            if len(text) > MAX_BODY_BYTES:
                response.close()
                raise ProtocolError(
                    f"{self.url} answered with over {MAX_BODY_BYTES:,} bytes",
                    hint="look at what the URL leads to",
                )
            response.release_conn()
        except LocationParseError as error:  # some hosts are looked at only when they are connected to
            raise _malformed(error) from error
        except (HTTPError, OSError) as error:
            raise _Lost(_why(error), sent=not _is_unsent(error)) from error
        return response.status, _retry_after_s(response.headers), text

    def _give_up(
        self, op: str, lost: _Lost, attempts: int, may_be_stored: bool, once: Once | None
    ) -> NoReturn:
        tries = f"{attempts} tries" if attempts > 1 else "one try"
        message = f"{op} has no answer from {self.url} after {tries}: {lost.why}"
        if may_be_stored:
            raise OutcomeUnknown(message, once=once) from lost
        if lost.error is not None:
            raise lost.error from lost
        raise StoreUnavailable(message, hint="see that the host runs and that the URL leads to it") from lost

    def _open_pool(self) -> "urllib3.HTTPConnectionPool":
        pool = self._pool
        if pool is None:
            raise UsageError(f"the store at {self.url} is closed", hint="open it again")
        if self._pid != os.getpid():
            raise UsageError(
                f"the store at {self.url} was opened by another process", hint="open one after the fork"
            )
        return pool


def _after_a_loss(answer: Any) -> Any:
    """What an answer says if one before it was lost: a repeat may be of our own first try."""
    if isinstance(answer, Repeated):
        return list(answer)
    if isinstance(answer, Conflict) and answer.reason != "KEY_REUSED":
        return _Doubtful(answer)
    return answer


def _is_for_good(conflict: Conflict, prepared: Prepared) -> bool:
    """Whether no try can be met by what it expects any more: a stream is past it, and never goes back."""
    return (
        all(type(expectation) is ExpectSeq for expectation in prepared.preconditions)
        and conflict.actual > conflict.expected
    )


def _refuse_long(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise NotStorable(
            f"a request of {size:,} bytes is over the limit of {MAX_BODY_BYTES:,}",
            hint="split it into several",
        )


# Opening


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise _malformed(error) from error
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise UsageError("the URL of a store carries a user or a password", hint="pass the token as token=…")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(
            f"URL of a store {url!r:.120} is not http(s)://host[:port][/path]",
            hint="such as http://127.0.0.1:7411; it takes no query and no fragment",
        )
    return url.rstrip("/")


def _connections(url: str) -> "urllib3.HTTPConnectionPool":
    try:
        import urllib3
    except ImportError as error:
        raise UsageError("a store over HTTP needs urllib3, which is not installed", hint=_MISSING) from error
    # It opens more connections than it keeps rather than make callers wait for those that long-poll.
    try:
        return urllib3.connection_from_url(url, maxsize=_KEPT_CONNECTIONS, block=False)
    except urllib3.exceptions.LocationParseError as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> UsageError:
    return UsageError(f"URL of a store is malformed: {error}", hint="such as http://127.0.0.1:7411")


# Failures


def _is_unsent(error: Exception) -> bool:
    """Whether the request surely never left: there was no connection, or it was not the right host's."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, SSLError

    if isinstance(error, SSLError):
        return bool(error.args) and isinstance(error.args[0], ssl.SSLCertVerificationError)
    return isinstance(error, (NewConnectionError, ConnectTimeoutError))


def _why(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _pause_s(attempt: int) -> float:
    """Twice as long each time, and not the same for all who lost the same host."""
    longest_s: float = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), 5.0)
    return longest_s * random.uniform(0.5, 1.0)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds of Retry-After; a date is not looked at, the usual pause serves."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 9 else None
