"""The one commit behind every write: expectations, seqs, pointers and idempotency markers, decided in one
place.

`prepare` (prepare.py) validates and encodes a whole commit once, before any lock is taken. `decide` then
runs it against a `Transaction`, the few things that a backend must do inside one. `GroupCommit`
(group_commit.py) lets the callers of one process share a transaction: each is decided in turn as if alone,
and each is answered after that transaction is durable.

A marker, the value under `$once/<scope>/<key>`:

    {"digest": "<sha-256 of the writes without their ats>", "runs": [[stream, first seq, at, count], …]}
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from strandline.errors import NotFoundError, SequenceError, UsageError
from strandline.persist.backend import (
    Append,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Outcome,
    Redact,
    Truncate,
)
from strandline.persist.core.block import (
    Block,
    PutText,
    block_of,
    event_crc,
    is_same_at,
    put_text,
)
from strandline.persist.core.prepare import Prepared, check_appendable
from strandline.persist.event import ABSENT, Compacted, Conflict, Event, Scalar, Storable, make_event
from strandline.persist.value import (
    check_at,
    check_name,
    decode,
    encode,
)

KEPT_COMMIT_MARKERS: Final = 100_000


class Repeated(list[Event]):
    """The events of a commit whose `once` was known: nothing was written now."""


class Transaction(Protocol):
    """What `decide` needs inside one transaction. Reads see the writes made before them."""

    def head(self, stream: str) -> tuple[int, int]:
        """(last seq, truncated through); (0, 0) for a stream never appended to."""

    def text(self, key: str) -> str | None:
        """The encoded value of a key, None if it is absent."""

    def row(self, stream: str, seq: int) -> tuple[str, Scalar, str] | None:
        """(type, at, text) of a stored event."""

    def add(self, block: Block, first: int) -> None:
        """Store a block under seqs from `first` on, set the mark, and point at those that are `globally`."""

    def put(self, step: PutText) -> None: ...

    def delete(self, key: str) -> None: ...

    def truncate(self, stream: str, n: int) -> None:
        """Set the truncation point, which is above the present one and not above the mark."""

    def rewrite(self, stream: str, seq: int, text: str, sum_: int) -> None:
        """Put another encoded data in the place of a stored event's."""

    def keep_marker(self, scope: str, step: PutText) -> None:
        """Put a marker; of the scope `$commit` only the newest KEPT_COMMIT_MARKERS stay."""


def decide(tx: Transaction, prepared: Prepared) -> Outcome:
    """Run one commit inside `tx`: answer a known `once`, check the preconditions, then write.

    It raises, or returns a Conflict, before its first write, so that a group of commits needs no savepoints.
    """
    if prepared.once is not None and (text := tx.text(prepared.once_key)) is not None:
        return _repeat(tx, prepared, decode(text))
    for expectation, expected in zip(prepared.preconditions, prepared.expected_texts, strict=True):
        if (conflict := _unmet(tx, expectation, expected)) is not None:
            return conflict
    redactions = _redactions(tx, prepared)
    marks: dict[str, int] = {}
    events: list[Event] = []
    appends = (write for write in prepared.writes if type(write) is Append)
    for step in prepared.steps:
        if type(step) is Block:
            mark = marks[step.stream] if step.stream in marks else tx.head(step.stream)[0]
            tx.add(step, mark + 1)
            events += step.events(mark + 1, appends)
            marks[step.stream] = mark + len(step)
        elif type(step) is PutText:
            tx.put(step)
        elif type(step) is Delete:
            tx.delete(step.key)
        elif type(step) is Truncate:
            mark, truncated = tx.head(step.stream)
            if truncated < min(step.n, mark):
                tx.truncate(step.stream, min(step.n, mark))
        else:
            tx.rewrite(*redactions.pop(0))
    if prepared.once is not None:
        value = {"digest": prepared.digest, "runs": marker_runs(events)}
        tx.keep_marker(prepared.once[0], put_text(prepared.once_key, value))
    return events


def marker_runs(events: Sequence[Event]) -> list[list[Storable]]:
    """What a marker remembers of the events: consecutive ones of a stream with one `at` are one run."""
    runs: list[list[Storable]] = []
    run, stream, at = cast("list[Storable]", None), None, cast("Scalar", None)
    for event in events:
        if event.stream == stream and (event.at is at or is_same_at(event.at, at)):
            run[3] += 1
        else:
            stream, at = event.stream, event.at
            run = [stream, event.seq, at, 1]
            runs.append(run)
    return runs


def _unmet(tx: Transaction, expectation: Expectation, expected: str | None) -> Conflict | None:
    if type(expectation) is ExpectSeq:
        actual = tx.head(expectation.stream)[0]
        if actual != expectation.seq:
            return Conflict(expectation.seq, actual, "STALE", expectation.stream)
        return None
    assert isinstance(expectation, ExpectKey)
    found = tx.text(expectation.key)
    if found == expected:
        return None
    return Conflict(expectation.value, ABSENT if found is None else decode(found), "STALE", expectation.key)


def _repeat(tx: Transaction, prepared: Prepared, marker: dict[str, Any]) -> Outcome:
    assert prepared.once is not None
    if marker["digest"] == prepared.digest:
        return Repeated(events_of(prepared, marker["runs"]))
    actual: Event | Compacted | None = None
    if marker["runs"]:
        stream, seq = marker["runs"][0][:2]
        row = tx.row(stream, seq)
        actual = Compacted(stream, seq) if row is None else Event(stream, seq, row[0], row[1], decode(row[2]))
    scope, key = prepared.once
    return Conflict(key, actual, "KEY_REUSED", scope)


def events_of(prepared: Prepared, runs: Sequence[Sequence[Any]]) -> list[Event]:
    """The events of a commit, from what is remembered or told of it and the caller's own data: also after
    truncation. ValueError where there are more or fewer."""
    appends = [write for write in prepared.writes if type(write) is Append]
    if sum(run[3] for run in runs) != len(appends):
        raise ValueError(f"not the runs of {len(appends)} events")
    places = ((stream, seq, at) for stream, first, at, n in runs for seq in range(first, first + n))
    return [
        make_event(stream, seq, write[1], at, write[3])
        for (stream, seq, at), write in zip(places, appends, strict=True)
    ]


def _redactions(tx: Transaction, prepared: Prepared) -> list[tuple[str, int, str, int]]:
    """The new text of every redacted event, all found before the first write; one event may be redacted
    twice."""
    texts: dict[tuple[str, int], tuple[str, Scalar, str]] = {}
    redactions = []
    for step in prepared.steps:
        if type(step) is Redact:
            place = (step.stream, step.seq)
            row = texts.get(place) or tx.row(*place)
            if row is None:
                raise NotFoundError(
                    f"event {step.seq} of stream {step.stream!r} is not stored, so it cannot be redacted",
                    hint="it may be truncated or erased, or belong to the same commit",
                )
            type_, at, text = row
            data = encode(redacted(decode(text), step.path))
            texts[place] = (type_, at, data.decode())
            redactions.append((*place, data.decode(), event_crc(step.stream, type_, at, data) + step.seq))
    return redactions


def redacted(data: Storable, path: Sequence[str | int]) -> Storable:
    """`data` with None at `path`."""
    if not path:
        return None
    here, *rest = path
    if isinstance(data, dict) and type(here) is str and here in data:
        return {**data, here: redacted(data[here], rest)}
    if isinstance(data, list) and type(here) is int and 0 <= here < len(data):
        return [*data[:here], redacted(data[here], rest), *data[here + 1 :]]
    raise UsageError(
        f"path {list(path)!r} leads nowhere in a {type(data).__name__}: {data!r:.40}",
        hint="name keys and indexes that exist",
    )


def append_with_seq(tx: Transaction, stream: str, event: Event) -> None:
    """The basic `append`: the event brings its seq, which must be the next one."""
    if event.stream != stream:
        raise UsageError(
            f"an event of stream {event.stream!r} is no event of {stream!r}", hint="name one of them"
        )
    mark = tx.head(stream)[0]
    if type(event.seq) is not int or event.seq != mark + 1:
        raise SequenceError(stream, seq=event.seq, last_seq=mark)
    at = check_at(event.at)
    tx.add(block_of(check_appendable(stream), check_name("type", event.type), at, event.data), event.seq)
