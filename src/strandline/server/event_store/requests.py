"""One request against one store: its arguments checked, the operation run, the answer as bytes.

Pages are cut where they would exceed the limit; what has no pages is refused with the name of what has.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from strandline.errors import HistoryGap, UnknownOp, UsageError
from strandline.persist.backend import AtomicBackend, Inspectable, Outcome
from strandline.persist.durable import OPS, serve
from strandline.persist.event import Conflict, Event, Scalar
from strandline.persist.features.log import PAGE, events
from strandline.persist.value import (
    MAX_SEQ,
    check_at,
    check_key,
    check_limit,
    check_name,
    check_seq,
    decode,
    encode_wire,
)
from strandline.persist.wire import (
    MAX_BODY_BYTES,
    commit_answer,
    conflict_answer,
    event_text,
)

MAX_PAGE: Final = 10_000
_ROOM: Final = MAX_BODY_BYTES - 1024
_RESTARTS: Final = 5


class Call(NamedTuple):
    """A request that is known to be well formed."""

    op: str
    args: list[Any]


def read_request(body: bytes) -> Call:
    """The operation and its arguments, or a UsageError or UnknownOp that says what is wrong with them."""
    try:
        request = decode(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is no request: {error}", hint=_SHAPE) from error
    match request:
        case {"op": op, "args": list() as args} if len(request) == 2:
            if not isinstance(op, str) or op not in _CHECKS:
                raise UnknownOp(op)
            return Call(op, _checked_arguments(op, args))
    raise UsageError(f"the body {request!r:.80} is no request", hint=_SHAPE)


def run(b: AtomicBackend, call: Call) -> bytes:
    """The answer. What raises has written nothing, OutcomeUnknown aside."""
    op, args = call.op, call.args
    if op in _WHOLE:
        items, instead = _WHOLE[op]
        return _whole(op, lambda: items(b, *args), instead)
    if op in _PAGES:
        return _page(_PAGES[op](b, *args))
    if op in {"persist/verify", "persist/quarantine"} and not isinstance(b, Inspectable):
        raise UsageError(f"{type(b).__name__} cannot look at its own rows", hint=f"{op} needs one that can")
    result = serve(b, {"op": op, "args": args})
    if isinstance(result, Conflict) or op == "persist/commit":
        return outcome_answer(result)
    if op == "persist/verify":
        return _whole(op, lambda: map(_text, result), "`strandline persist verify` beside the host")
    return encode_wire({"result": result})


def outcome_answer(outcome: Outcome) -> bytes:
    return conflict_answer(outcome) if isinstance(outcome, Conflict) else commit_answer(outcome)


# Arguments

Check: TypeAlias = Callable[[Any], Any]

_SHAPE: Final = 'a request is {"op": …, "args": […]} in the encoding of the store'


def _checked_arguments(op: str, args: list[Any]) -> list[Any]:
    """The arguments as the store takes them: each check gives back what it was given, or raises."""
    checks = _CHECKS[op]
    if len(args) != len(checks):
        raise UsageError(
            f"{op} takes {len(checks)} arguments, not {len(args)}", hint="see the reference of the wire"
        )
    return [check(arg) for check, arg in zip(checks, args, strict=True)]


def _any(arg: Any) -> Any:
    """Looked at where it is stored."""
    return arg


def _stream(arg: Any) -> str:
    return check_name("stream", arg)


def _type(arg: Any) -> str | None:
    return None if arg is None else check_name("type", arg)


def _bound(arg: Any) -> Scalar | None:
    return None if arg is None else check_at(arg)


def _scanned(arg: Any) -> str:
    """A prefix, or the name that the page before ended with."""
    if type(arg) is not str or "\0" in arg:
        raise UsageError(f"{arg!r:.80} is no start of a name", hint="a str without U+0000, maybe empty")
    return arg


def _int(arg: Any) -> int:
    """A seq or a position; beyond the 64 bits that databases have there is nothing to tell apart."""
    if type(arg) is not int:
        raise UsageError(f"{arg!r:.80} is no int", hint="seqs and positions are")
    return max(-MAX_SEQ, min(arg, MAX_SEQ))


def _seq(arg: Any) -> int:
    return check_seq("seq", arg)


def _flag(arg: Any) -> bool:
    if type(arg) is not bool:
        raise UsageError(f"{arg!r:.80} is neither true nor false", hint="it is a flag")
    return arg


def _seconds(arg: Any) -> float:
    if type(arg) not in (int, float) or not isfinite(arg) or arg < 0:
        raise UsageError(f"{arg!r:.80} is no time to wait", hint="a number of seconds, 0 or more")
    return float(arg)


def _event(arg: Any) -> Event:
    """Whether its seq is the next one is for the store to say."""
    if not isinstance(arg, Event) or type(arg.seq) is not int:
        raise UsageError(f"{arg!r:.80} is no event", hint='{"$event": [stream, seq, type, at, data]}')
    check_name("stream", arg.stream)
    check_name("type", arg.type)
    return arg


def _list(arg: Any) -> list[Any]:
    if not isinstance(arg, list):
        raise UsageError(f"{arg!r:.80} is no list", hint="preconditions and writes are lists")
    return arg


def _once(arg: Any) -> list[str] | None:
    match arg:
        case None | [str(), str()]:
            return arg
    raise UsageError(f"once is {arg!r:.80}", hint="once is null or [scope, key]")


_CHECKS: Final[dict[str, Sequence[Check]]] = {
    "persist/append": (_stream, _event),
    "persist/read": (_stream,),
    "persist/last-seq": (_stream,),
    "persist/streams": (),
    "persist/truncate": (_stream, _int),
    "persist/kv-get": (check_key,),
    "persist/kv-put": (check_key, _any),
    "persist/kv-delete": (check_key,),
    "persist/kv-has?": (check_key,),
    "persist/kv-keys": (),
    "persist/commit": (_list, _list, _once),
    "persist/read-range": (_stream, _int, _int, check_limit, _type, _bound, _bound),
    "persist/event-at": (_stream, _int),
    "persist/truncated-through": (_stream,),
    "persist/global-range": (_int, check_limit),
    "persist/stream-scan": (_scanned, _scanned, check_limit),
    "persist/kv-scan": (_scanned, _scanned, check_limit),
    "persist/wait": (_stream, _int, _seconds),
    "persist/info": (),
    "persist/scrub": (_flag,),
    "persist/verify": (),
    "persist/quarantine": (_stream, _seq, _bound),
}
assert _CHECKS.keys() == OPS.keys(), "what serve can do is what is checked here"


# Answers


def _text(value: Any) -> str:
    return encode_wire(value).decode()


def _range_texts(
    b: AtomicBackend, stream: str, first: int, last: int, limit: int, type_: Any, start: Any, end: Any
) -> Iterator[str]:
    page = b.read_range(stream, first, last, limit=min(limit, MAX_PAGE), type=type_, start=start, end=end)
    return map(event_text, page)


def _global_texts(b: AtomicBackend, first: int, limit: int) -> Iterator[str]:
    for position, event in b.global_range(first, limit=min(limit, MAX_PAGE)):
        if isinstance(event, Event):
            yield f"[{position},{event_text(event)}]"
        else:
            yield _text([position, event.stream, event.seq])


def _stream_texts(b: AtomicBackend, prefix: str, after: str, limit: int) -> Iterator[str]:
    return (_text(list(head)) for head in b.stream_scan(prefix, after=after, limit=min(limit, MAX_PAGE)))


def _key_texts(b: AtomicBackend, prefix: str, after: str, limit: int) -> Iterator[str]:
    return (_text(list(item)) for item in b.kv_scan(prefix, after=after, limit=min(limit, MAX_PAGE)))


_PAGES: Final[dict[str, Callable[..., Iterator[str]]]] = {
    "persist/read-range": _range_texts,
    "persist/global-range": _global_texts,
    "persist/stream-scan": _stream_texts,
    "persist/kv-scan": _key_texts,
}


def _page(texts: Iterable[str]) -> bytes:
    """As many items as fit. The first always does: a value has at most 16 MiB."""
    taken: list[bytes] = []
    size = 0
    for text in texts:
        item = text.encode()
        size += len(item) + 1
        if size > _ROOM:
            break
        taken.append(item)
    return b'{"result":[' + b",".join(taken) + b"]}"


def _read_all(b: AtomicBackend, stream: str) -> Iterator[str]:
    """Every event, by pages; HistoryGap if a truncation overtakes it: together they never were the stream."""
    yield from map(event_text, events(b, stream))


def _all_streams(b: AtomicBackend) -> Iterator[str]:
    after = ""
    while page := b.stream_scan("", after=after, limit=PAGE):
        yield from (_text(head.name) for head in page)
        after = page[-1].name


def _all_keys(b: AtomicBackend) -> Iterator[str]:
    after = ""
    while page := b.kv_scan("", after=after, limit=PAGE):
        yield from (_text(key) for key, _ in page)
        after = page[-1][0]


_WHOLE: Final[dict[str, tuple[Callable[..., Iterator[str]], str]]] = {
    "persist/read": (_read_all, "persist/read-range"),
    "persist/streams": (_all_streams, "persist/stream-scan"),
    "persist/kv-keys": (_all_keys, "persist/kv-scan"),
}


def _whole(op: str, texts: Callable[[], Iterable[str]], instead: str) -> bytes:
    """All of it or a refusal, read by pages all the same, so that no request can fill the host's memory."""
    for restart in range(_RESTARTS):
        taken, size = [], 0
        try:
            for text in texts():
                item = text.encode()
                size += len(item) + 1
                if size > _ROOM:
                    raise UsageError(
                        f"the answer to {op} is over the limit of {MAX_BODY_BYTES:,} bytes",
                        hint=f"use {instead}, which gives pages",
                    )
                taken.append(item)
            return b'{"result":[' + b",".join(taken) + b"]}"
        except HistoryGap:
            if restart == _RESTARTS - 1:
                raise
    raise AssertionError("the last restart returns or raises")
