"""The backend contract as requests: `{"op": …, "args": […]}`, encoded here, run by `serve`, sent by a
transport.

`io_backend(transport)` is a backend whose every method is one request; `serve(disk, request)` is the
reference host. Between them may stand nothing (`mock_durable`) or HTTP (backends/remote.py). A missing
answer is an error, never a default: a host that drops what it does not know would lose every write in
silence.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

from strandline.errors import ProtocolError, UnknownOp, UsageError
from strandline.persist.backend import (
    Append,
    Backend,
    Commit,
    Damage,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Once,
    Outcome,
    Put,
    Redact,
    StreamHead,
    Truncate,
    Write,
)
from strandline.persist.core.lift import atomic
from strandline.persist.event import Compacted, Conflict, Event, Scalar, Storable

Request: TypeAlias = dict[str, Any]
Transport: TypeAlias = Callable[[Request], Any]


def req_append(stream: str, event: Event) -> Request:
    return {"op": "persist/append", "args": [stream, event]}


def req_read(stream: str) -> Request:
    return {"op": "persist/read", "args": [stream]}


def req_last_seq(stream: str) -> Request:
    return {"op": "persist/last-seq", "args": [stream]}


def req_streams() -> Request:
    return {"op": "persist/streams", "args": []}


def req_truncate(stream: str, n: int) -> Request:
    return {"op": "persist/truncate", "args": [stream, n]}


def req_kv_get(key: str) -> Request:
    return {"op": "persist/kv-get", "args": [key]}


def req_kv_put(key: str, value: Storable) -> Request:
    return {"op": "persist/kv-put", "args": [key, value]}


def req_kv_delete(key: str) -> Request:
    return {"op": "persist/kv-delete", "args": [key]}


def req_kv_has(key: str) -> Request:
    return {"op": "persist/kv-has?", "args": [key]}


def req_kv_keys() -> Request:
    return {"op": "persist/kv-keys", "args": []}


def req_commit(preconditions: Sequence[Expectation], writes: Sequence[Write], once: Once | None) -> Request:
    expected = [_expectation_as_list(expectation) for expectation in preconditions]
    made = [_write_as_list(write) for write in writes]
    return {"op": "persist/commit", "args": [expected, made, list(once) if once else None]}


def _expectation_as_list(expectation: Expectation) -> list[Any]:
    match expectation:
        case ExpectSeq(stream, seq):
            return ["seq", stream, seq]
        case ExpectKey(key, value):
            return ["key", key, value]
    raise UsageError(f"{expectation!r:.80} is no precondition", hint="use ExpectSeq or ExpectKey")


def _write_as_list(write: Write) -> list[Any]:
    match write:
        case Append(stream, type_, at, data):
            return ["append", stream, type_, at, data, write.globally]
        case Put(key, value):
            return ["put", key, value]
        case Delete(key):
            return ["delete", key]
        case Truncate(stream, n):
            return ["truncate", stream, n]
        case Redact(stream, seq, path):
            return ["redact", stream, seq, list(path)]
    raise UsageError(f"{write!r:.80} is no write", hint="use Append, Put, Delete, Truncate or Redact")


def _expectation_of(item: Any) -> Expectation:
    match item:
        case ["seq", stream, seq]:
            return ExpectSeq(stream, seq)
        case ["key", key, value]:
            return ExpectKey(key, value)
    raise UsageError(f"{item!r:.80} is no precondition", hint='["seq", stream, n] or ["key", key, value]')


def _write_of(item: Any) -> Write:
    # Most are appends, and matching takes twice as long.
    if type(item) is list and len(item) == 6 and item[0] == "append" and type(item[5]) is bool:
        return Append(
            item[1], item[2], item[3], item[4], globally=item[5]
        )  # most are; matching takes twice as long
    match item:
        case ["put", key, value]:
            return Put(key, value)
        case ["delete", key]:
            return Delete(key)
        case ["truncate", stream, n]:
            return Truncate(stream, n)
        case ["redact", stream, seq, list() as path]:
            return Redact(stream, seq, path)
    raise UsageError(f"{item!r:.80} is no write", hint='such as ["append", stream, type, at, data, globally]')


def _serve_append(b: Any, stream: str, event: Event) -> int:
    return b.append(stream, event) or event.seq


def commit_of(preconditions: list[Any], writes: list[Any], once: list[str] | None) -> Commit:
    """What a request asks to commit."""
    made = [_write_of(item) for item in writes]
    expected = [_expectation_of(item) for item in preconditions]
    return expected, made, cast("Once", tuple(once)) if once else None


def _serve_commit(b: Any, preconditions: list[Any], writes: list[Any], once: list[str] | None) -> Outcome:
    expected, made, key = commit_of(preconditions, writes, once)
    outcome: Outcome = b.commit(expected, made, once=key)
    return outcome


def _serve_read_range(
    b: Any, stream: str, first: int, last: int, limit: int, type_: Any, start: Any, end: Any
) -> list[Event]:
    return list(b.read_range(stream, first, last, limit=limit, type=type_, start=start, end=end))


def _serve_global_range(b: Any, first: int, limit: int) -> list[list[Any]]:
    """An event that is gone is `[position, stream, seq]`, one that is there `[position, event]`."""
    return [
        [position, event] if isinstance(event, Event) else [position, event.stream, event.seq]
        for position, event in b.global_range(first, limit=limit)
    ]


def _done(_: Any) -> bool:
    return True


# By wire name: what runs on an AtomicBackend. Writes are acknowledged, so that silence is never taken for
# success.
OPS: Final[dict[str, Callable[..., Any]]] = {
    "persist/append": _serve_append,
    "persist/read": lambda b, stream: b.read(stream),
    "persist/last-seq": lambda b, stream: b.last_seq(stream),
    "persist/streams": lambda b: b.streams(),
    "persist/truncate": lambda b, stream, n: _done(b.truncate_through(stream, n)),
    "persist/kv-get": lambda b, key: b.kv_get(key),
    "persist/kv-put": lambda b, key, value: _done(b.kv_put(key, value)),
    "persist/kv-delete": lambda b, key: _done(b.kv_delete(key)),
    "persist/kv-has?": lambda b, key: b.kv_has(key),
    "persist/kv-keys": lambda b: b.kv_keys(),
    "persist/commit": _serve_commit,
    "persist/read-range": _serve_read_range,
    "persist/event-at": lambda b, stream, seq: b.event_at(stream, seq),
    "persist/truncated-through": lambda b, stream: b.truncated_through(stream),
    "persist/global-range": _serve_global_range,
    "persist/stream-scan": lambda b, prefix, after, limit: [
        list(head) for head in b.stream_scan(prefix, after=after, limit=limit)
    ],
    "persist/kv-scan": lambda b, prefix, after, limit: [
        list(item) for item in b.kv_scan(prefix, after=after, limit=limit)
    ],
    "persist/wait": lambda b, stream, after, timeout_s: b.wait(stream, after, timeout_s=timeout_s),
    "persist/info": lambda b: b.info(),
    "persist/scrub": lambda b, rewrite: _done(b.scrub(rewrite=rewrite)),
    "persist/verify": lambda b: [list(damage) for damage in b.verify()],
    "persist/quarantine": lambda b, stream, seq, at: _done(b.quarantine(stream, seq, at)),
}

MAY_BE_NONE: Final = frozenset({"persist/kv-get", "persist/event-at"})


def serve(disk: Backend, request: Request) -> Any:
    """The reference host: run one request on any backend. An unknown op raises, it never returns a
    default."""
    op, args = request.get("op"), request.get("args")
    if not isinstance(op, str) or op not in OPS:
        raise UnknownOp(op)
    if set(request) != {"op", "args"} or not isinstance(args, list):
        raise UsageError(f"request {request!r:.120} is malformed", hint='a request is {"op": …, "args": […]}')
    run = OPS[op]
    try:
        return run(atomic(disk), *args)
    except TypeError as error:
        if len(args) != run.__code__.co_argcount - 1:
            raise UsageError(
                f"{op} takes {run.__code__.co_argcount - 1} arguments, not {len(args)}",
                hint="see the reference of the wire",
            ) from error
        raise


class IoBackend:
    """An AtomicBackend whose every method is one request. It holds no state: all of that is on the host's
    side."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _ask(self, op: str, *args: Any) -> Any:
        return self._send({"op": op, "args": list(args)})

    def _send(self, request: Request) -> Any:
        answer = self._transport(request)
        if answer is None and request["op"] not in MAY_BE_NONE:
            raise ProtocolError(
                f"{request['op']} was not answered",
                hint="the host does not handle it: nothing may have been stored",
            )
        return answer

    def _expect(self, kind: type | tuple[type, ...], request: Request) -> Any:
        answer = self._send(request)
        if not isinstance(answer, kind) or (isinstance(answer, bool) and kind is int):
            raise ProtocolError(f"{request['op']} was answered with {type(answer).__name__} {answer!r:.80}")
        return answer

    def _acknowledged(self, request: Request) -> None:
        if self._send(request) is not True:
            raise ProtocolError(f"{request['op']} was not acknowledged", hint="nothing may have been stored")

    def append(self, stream: str, event: Event) -> int:
        seq = self._expect(int, req_append(stream, event))
        if seq != event.seq:
            raise ProtocolError(f"event {event.seq} of {stream!r} was acknowledged as {seq!r:.80}")
        return event.seq

    def read(self, stream: str) -> list[Event]:
        return _events(self._expect(list, req_read(stream)))

    def last_seq(self, stream: str) -> int:
        return int(self._expect(int, req_last_seq(stream)))

    def streams(self) -> list[str]:
        return list(self._expect(list, req_streams()))

    def truncate_through(self, stream: str, n: int) -> None:
        self._acknowledged(req_truncate(stream, n))

    def kv_get(self, key: str) -> Storable:
        return self._send(req_kv_get(key))

    def kv_put(self, key: str, value: Storable) -> None:
        self._acknowledged(req_kv_put(key, value))

    def kv_delete(self, key: str) -> None:
        self._acknowledged(req_kv_delete(key))

    def kv_has(self, key: str) -> bool:
        return bool(self._expect(bool, req_kv_has(key)))

    def kv_keys(self) -> list[str]:
        return list(self._expect(list, req_kv_keys()))

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        return self._outcome(self._send(req_commit(preconditions, writes, once)), writes)

    def _outcome(self, answer: Any, writes: Sequence[Write]) -> Outcome:
        if isinstance(answer, Conflict):
            return answer
        if not isinstance(answer, list):
            raise ProtocolError(f"persist/commit was answered with {type(answer).__name__} {answer!r:.80}")
        events = _events(answer)
        if len(events) != sum(isinstance(write, Append) for write in writes):
            raise ProtocolError(
                f"a commit was answered with {len(events)} events", hint="look at what is stored"
            )
        return events

    def read_range(
        self,
        stream: str,
        first: int,
        last: int,
        *,
        limit: int,
        type: str | None = None,
        start: Scalar | None = None,
        end: Scalar | None = None,
    ) -> Iterator[Event]:
        request = {"op": "persist/read-range", "args": [stream, first, last, limit, type, start, end]}
        return iter(_events(self._expect(list, request)))

    def event_at(self, stream: str, seq: int) -> Event | None:
        event = self._ask("persist/event-at", stream, seq)
        return None if event is None else _events([event])[0]

    def truncated_through(self, stream: str) -> int:
        return int(self._expect(int, {"op": "persist/truncated-through", "args": [stream]}))

    def global_range(self, first: int, *, limit: int) -> Iterator[tuple[int, Event | Compacted]]:
        for item in self._expect(list, {"op": "persist/global-range", "args": [first, limit]}):
            match item:
                case [int() as position, Event() as event]:
                    yield position, event
                case [int() as position, str() as stream, int() as seq]:
                    yield position, Compacted(stream, seq)
                case _:
                    raise ProtocolError(f"persist/global-range was answered with {item!r:.80}")

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        found = self._expect(list, {"op": "persist/stream-scan", "args": [prefix, after, limit]})
        return [StreamHead(*_parts("persist/stream-scan", item, 3)) for item in found]

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        found = self._expect(list, {"op": "persist/kv-scan", "args": [prefix, after, limit]})
        return [(key, value) for key, value in (_parts("persist/kv-scan", item, 2) for item in found)]

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        return int(self._expect(int, {"op": "persist/wait", "args": [stream, after, timeout_s]}))

    def info(self) -> dict[str, Any]:
        return dict(self._expect(dict, {"op": "persist/info", "args": []}))

    def scrub(self, *, rewrite: bool = False) -> None:
        self._acknowledged({"op": "persist/scrub", "args": [rewrite]})

    def verify(self) -> list[Damage]:
        found = self._expect(list, {"op": "persist/verify", "args": []})
        return [Damage(*_parts("persist/verify", item, 4)) for item in found]

    def quarantine(self, stream: str, seq: int, at: Scalar) -> None:
        self._acknowledged({"op": "persist/quarantine", "args": [stream, seq, at]})

    def close(self) -> None:
        """It holds nothing."""


def io_backend(transport: Transport) -> IoBackend:
    return IoBackend(transport)


def mock_transport(disk: Backend) -> Transport:
    """`serve` bound to a disk in this process."""
    return lambda request: serve(disk, request)


def mock_durable(disk: Backend) -> IoBackend:
    return IoBackend(mock_transport(disk))


def _events(answer: list[Any]) -> list[Event]:
    if not all(isinstance(event, Event) for event in answer):
        raise ProtocolError(f"events were expected, not {answer!r:.80}")
    return cast("list[Event]", answer)


def _parts(op: str, item: Any, count: int) -> list[Any]:
    if not isinstance(item, list) or len(item) != count:
        raise ProtocolError(f"{op} was answered with {item!r:.80}")
    return item
