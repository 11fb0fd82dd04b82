"""The store over HTTP: the requests and answers of durable.py as bytes, for the client and the host alike.

    POST {url}/v1/persist            HTTP/1.1, connections are kept
    Authorization: Bearer …          if there is a token
    X-Strandline-Scratch: name       only at a host for tests, which keeps an empty store for each name

A request and its answers, in the encoding of value.py:

    {"args":["cart-1"],"op":"persist/last-seq"}
    {"result":3}
    {"result":[["cart-1",3,1700000000,2]]}      a commit: of each run of appends stream, first seq, at, length
    {"repeat":true,"result":[…]}                                    a commit whose idempotency key was known
    {"conflict":[2,3,"STALE","cart-1"]}                             expected, actual, reason, name
    {"compacted":["cart-1",2],"conflict":["k",null,"KEY_REUSED","cart-1"]}    `actual` is a Compacted
    {"details":{"hint":…},"error":"not_storable","message":…}       with 4xx or 5xx: raised as that class
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from strandline.errors import KINDS, OutcomeUnknown, ProtocolError, StrandlineError, UsageError, rebuild_error
from strandline.persist.backend import Delete, ExpectSeq, Outcome, Redact, Truncate
from strandline.persist.core.block import Block, PutText
from strandline.persist.core.commit import Repeated, events_of, marker_runs
from strandline.persist.core.prepare import Prepared
from strandline.persist.event import Compacted, Conflict, Event
from strandline.persist.value import decode, encode_wire

PATH: Final = "/v1/persist"
SCRATCH_HEADER: Final = "X-Strandline-Scratch"
MAX_BODY_BYTES: Final = 64 * 1024 * 1024

_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e]+")


def check_token(token: object) -> str:
    """`token` itself, if it can stand in a header."""
    return header_value("token", token)


def header_value(what: str, value: object) -> str:
    if type(value) is str and _HEADER_SAFE.fullmatch(value):
        return value
    raise UsageError(  # it does not show the value: it may be a secret
        f"the {what} is empty or has a character that no header takes",
        hint="use printable ASCII without spaces",
    )


# Answers


def read_answer(status: int, text: bytes) -> Any:
    """What an answer says: a result or a Conflict, or it is raised. Anything else is a ProtocolError."""
    try:
        answer = decode(text)
    except (ValueError, RecursionError) as error:
        raise _no_answer(status, text) from error
    match answer:
        case {"result": result} if status == 200 and len(answer) == 1:
            return result
        case {"repeat": True, "result": list() as runs} if status == 200 and len(answer) == 2:
            return Repeated(runs)
        case {
            "conflict": [expected, actual, ("STALE" | "EXISTS" | "KEY_REUSED") as reason, str() as name]
        } if status == 200:
            match answer.get("compacted"):
                case [str() as stream, int() as seq]:
                    actual = Compacted(stream, seq)
            return Conflict(expected, actual, reason, name)
        case {"error": str() as kind, "message": str() as message, "details": dict() as details} if (
            status >= 400
        ):
            raise _error_of(status, kind, message, details)
    raise _no_answer(status, text)


def conflict_answer(conflict: Conflict) -> bytes:
    actual, answer = conflict.actual, {}
    if isinstance(actual, Compacted):
        answer["compacted"], actual = [actual.stream, actual.seq], None
    answer["conflict"] = [conflict.expected, actual, conflict.reason, conflict.name]
    return encode_wire(answer)


def error_answer(error: StrandlineError) -> bytes:
    details = {name: _sendable(fact) for name, fact in error.facts.items()}
    return encode_wire({"error": error.kind, "message": _sendable(error.message), "details": details})


def commit_answer(events: Sequence[Event]) -> bytes:
    """Who asked has the rest of the events. It is shorter than the request was."""
    answer: dict[str, Any] = {"result": marker_runs(events)}
    if isinstance(events, Repeated):
        answer["repeat"] = True
    return encode_wire(answer)


def commit_outcome(answer: Any, prepared: Prepared) -> Outcome:
    """What a commit comes to, from what read_answer gave."""
    if isinstance(answer, Conflict):
        return answer
    try:
        events = events_of(prepared, answer)
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(
            f"a commit was answered with {answer!r:.80}", hint="look at what is stored"
        ) from error
    return Repeated(events) if isinstance(answer, Repeated) else events


def event_text(event: Event) -> str:
    """An event as `encode` writes it; its data, mostly without special forms, by the quick encoder."""
    names = [encode_wire(part).decode() for part in (event.stream, event.seq, event.type, event.at)]
    return '{"$event":[' + ",".join(names) + "," + encode_wire(event.data).decode() + "]}"


def _sendable(fact: Any) -> Any:
    fact = list(fact) if isinstance(fact, tuple) else fact
    try:
        encode_wire([fact])
    except StrandlineError:
        return ascii(fact)
    return fact


def _error_of(status: int, kind: str, message: str, details: Mapping[str, Any]) -> StrandlineError:
    if kind in KINDS:
        try:
            error = rebuild_error(KINDS[kind], (message,), details)
        except TypeError:
            return ProtocolError(f"the host answered {status} {kind}: {message}")
        if isinstance(error, OutcomeUnknown):
            error.once = tuple(error.once) if error.once else None  # a tuple travels as a list
        return error
    return ProtocolError(
        f"the host answered {status} {kind}: {message}",
        hint="look at the host's log; a write may or may not have been stored",
    )


def _no_answer(status: int, text: bytes) -> ProtocolError:
    shown = text[:80].decode(errors="replace")
    what = f"status {status} and {shown!r}" if text else f"status {status} and no body"
    if 300 <= status < 400:
        return ProtocolError(
            f"the host answered with {what}", hint="redirects are not followed: give that URL"
        )
    return ProtocolError(
        f"the host answered with {what}", hint="see that the URL leads to `strandline persist serve`"
    )


# Requests


def commit_body(prepared: Prepared) -> bytes:
    """The request of a commit, of what `prepare` has encoded: the very bytes that encode_wire would give."""
    expected = [
        f'["seq",{_text(expectation.stream)},{expectation.seq}]'
        if isinstance(expectation, ExpectSeq)
        else f'["key",{_text(expectation.key)},{_ABSENT if text is None else text}]'
        for expectation, text in zip(prepared.preconditions, prepared.expected_texts, strict=True)
    ]
    once = "null" if prepared.once is None else _text(list(prepared.once))
    writes = ",".join(_write_texts(prepared))
    return f'{{"args":[[{",".join(expected)}],[{writes}],{once}],"op":"persist/commit"}}'.encode()


_ABSENT: Final = '{"$absent":[]}'


def _write_texts(prepared: Prepared) -> Iterable[str]:
    for step in prepared.steps:
        if isinstance(step, PutText):
            yield f'["put",{_text(step.key)},{step.text}]'
        elif isinstance(step, Block):
            yield from _append_texts(step)
        elif type(step) is Delete:
            yield _text(["delete", step.key])
        elif type(step) is Truncate:
            yield _text(["truncate", step.stream, step.n])
        elif type(step) is Redact:
            yield _text(["redact", step.stream, step.seq, list(step.path)])


def _append_texts(block: Block) -> Iterator[str]:
    start, before = f'["append",{_text(block.stream)},', ""
    last_type, last_at = None, None
    for type_, at, text, is_global in zip(block.types, block.ats, block.texts, block.globally, strict=True):
        if type_ is not last_type or at is not last_at:  # most have both in common with the one before
            last_type, last_at = type_, at
            before = f"{start}{_text(type_)},{_text(at)},"
        yield f"{before}{text},true]" if is_global else f"{before}{text},false]"


def _text(value: Any) -> str:
    return encode_wire(value).decode()
