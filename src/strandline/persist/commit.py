"""The one commit behind every write: expectations, seqs, pointers and idempotency markers, decided in one
place.

`prepare` validates and encodes a whole commit once, before any lock is taken. `decide` then runs it against a
`Transaction`, the few things that a backend must do inside one. `GroupCommit` (group_commit.py) lets the
callers of one process share a transaction: each is decided in turn as if alone, and each is answered after
that transaction is durable.

A marker, the value under `$once/<scope>/<key>`:

    {"digest": "<sha-256 of the writes without their ats>", "runs": [[stream, first seq, at, count], …]}
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast
from zlib import crc32

from strandline.errors import NotFoundError, NotStorable, SequenceError, UsageError
from strandline.persist.backend import (
    Append,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Once,
    Outcome,
    Put,
    Redact,
    Truncate,
    Write,
)
from strandline.persist.event import ABSENT, Compacted, Conflict, Event, Scalar, Storable, make_event
from strandline.persist.reserved import (
    COMMIT_SCOPE,
    FLOOR,
    GLOBAL,
    HOLD,
    ONCE,
    SNAPSHOT,
    SNAPSHOT_OF,
    reserved_key,
)
from strandline.persist.value import (
    MAX_COMMIT_BYTES,
    MAX_SEQ,
    check_at,
    check_key,
    check_name,
    check_seq,
    decode,
    encode,
)

KEPT_COMMIT_MARKERS: Final = 100_000
MAX_RUN: Final = 2**16
_RUN: Final = 2**40 - 87  # above all else that a sum adds up, and odd: one flipped bit makes no other length


class Row(NamedTuple):
    """An event ready to be stored: `text` is its data encoded, `crc` its checksum but for the seq."""

    type: str
    at: Scalar
    text: str
    crc: int
    globally: bool


_new: Final = tuple.__new__  # of a class of tuples, at a third of the price of calling it


class PutText(NamedTuple):
    """A value ready to be stored."""

    key: str
    text: str
    crc: int


Step: TypeAlias = "tuple[str, list[Row]] | PutText | Delete | Truncate | Redact"


def event_crc(stream: str, type_: str, at: Scalar, data: bytes) -> int:
    """The checksum of an event without its seq; what is stored is this plus the seq, so that a server can
    add it."""
    return crc32(data, _crc_before_data(stream, type_, at))


def _crc_before_data(stream: str, type_: str, at: Scalar) -> int:
    stamp = '"' + at if type(at) is str else repr(at)
    return crc32(f"{stream}\0{type_}\0{stamp}\0".encode())


def key_crc(key: str, text: bytes) -> int:
    return crc32(text, crc32(f"{key}\0".encode()))


def pointer_sum(position: int, stream: str, seq: int, at: Scalar) -> int:
    """The checksum of a pointer: additive in what is given out inside the commit, as an event's is in its
    seq."""
    stamp = '"' + at if type(at) is str else repr(at)
    return crc32(f"{GLOBAL}\0{stream}\0{stamp}".encode()) + 3 * seq + position


def run_sum(position: int, stream: str, seq: int, at: Scalar, count: int) -> int:
    """The checksum of a run of pointers: that of its last one, and how many they are."""
    return pointer_sum(position, stream, seq, at) + (count - 1) * _RUN


def run_length(sum_: int, last_sum: int) -> int:
    """How many pointers a run says that it has, from its checksum and that of its last one; 0 if it is
    damaged."""
    more, rest = divmod(sum_ - last_sum, _RUN)
    return 0 if rest or not 0 <= more < MAX_RUN else more + 1


def put_text(key: str, value: Storable) -> PutText:
    text = encode(value)
    return PutText(key, text.decode(), key_crc(key, text))


def row_of(stream: str, type_: str, at: Scalar, data: Storable) -> Row:
    """A checked event, outside the walk of `prepare`."""
    text = encode(data)
    return Row(type_, at, text.decode(), event_crc(stream, type_, at, text), False)


@dataclass(slots=True)
class Prepared:
    """A commit that is known to be storable: names checked, values encoded, appends to one stream joined to
    blocks."""

    preconditions: Sequence[Expectation]
    expected_texts: list[str | None]  # beside each precondition: the encoded value that a key must have
    writes: Sequence[Write]
    steps: list[Step]
    size: int
    once: Once | None
    once_key: str
    digest: str


def prepare(
    preconditions: Iterable[Expectation],
    writes: Iterable[Write],
    once: Once | None = None,
    *,
    is_sent: bool = False,
) -> Prepared:
    """Check and encode everything, or raise before anything is written. What `is_sent` has no digest: whoever
    gets it makes that."""
    preconditions, writes = list(preconditions), list(writes)
    expected_texts = [_expected_text(expectation) for expectation in preconditions]
    steps: list[Step] = []
    hashed: list[bytes] = []
    size, is_hashed = 0, once is not None and not is_sent
    stream: Any = prepare  # what no event has
    block = cast("list[Row]", None)
    type_: Any = prepare
    at: Any = None
    globally: Any = None
    for write in writes:
        if type(write) is Append:
            if write[0] != stream:
                stream, block, type_ = _check_appendable(write[0]), [], prepare
                steps.append((stream, block))
            if write[1] is not type_ or write[2] is not at or write[4] is not globally:
                # Most events of a batch have these three in common with the one before.
                type_, at, globally = check_name("type", write[1]), check_at(write[2]), write[4]
                if type(globally) is not bool:
                    raise UsageError(f"globally is {globally!r:.80}", hint="True or False")
                before, label = _crc_before_data(stream, type_, at), len(stream) + len(type_)
                identity = f"append\0{stream}\0{type_}\0{globally}\0".encode()
            data = encode(write[3])
            size += len(data) + label
            block.append(_new(Row, (type_, at, data.decode(), crc32(data, before), globally)))
            if is_hashed:
                hashed.append(identity + data)
        else:
            stream = prepare
            step, said = _prepare_other(write)
            size += len(said)
            steps.append(step)
            if is_hashed:
                hashed.append(_identity(write, said))
    if size > MAX_COMMIT_BYTES:
        raise NotStorable(
            f"a commit of {size:,} bytes is over the limit of {MAX_COMMIT_BYTES:,}",
            hint="split it into several",
        )
    if once is None:
        return Prepared(preconditions, expected_texts, writes, steps, size, None, "", "")
    scope, key = _check_once(once, steps)
    # No part can hold two NULs in a row: JSON escapes them.
    digest = sha256(b"\0\0".join(filter(None, hashed))).hexdigest() if is_hashed else ""
    return Prepared(
        preconditions,
        expected_texts,
        writes,
        steps,
        size,
        (scope, key),
        reserved_key(ONCE, scope, key),
        digest,
    )


def _check_appendable(stream: object) -> str:
    name = check_name("stream", stream)
    if name == GLOBAL:
        raise UsageError(
            "stream '$global' takes no events of its own", hint="append to another stream with globally=True"
        )
    return name


def _expected_text(expectation: Expectation) -> str | None:
    if isinstance(expectation, ExpectSeq):
        check_name("stream", expectation.stream)
        check_seq("an expected seq", expectation.seq)
        return None
    if not isinstance(expectation, ExpectKey):
        raise UsageError(f"{expectation!r:.80} is no precondition", hint="use ExpectSeq or ExpectKey")
    check_key(expectation.key)
    return None if expectation.value is ABSENT else encode(expectation.value).decode()


def _prepare_other(write: Write) -> tuple[Step, bytes]:
    match write:
        case Put(key, value):
            step = put_text(check_key(key), value)
            return step, f"put\0{key}\0{step.text}".encode()
        case Delete(key):
            check_key(key)
            return write, f"delete\0{key}".encode()
        case Truncate(stream, n):
            check_name("stream", stream)
            if type(n) is not int:
                raise UsageError(f"truncation point {n!r:.80} is no int", hint="give the last seq to remove")
            return Truncate(stream, max(0, min(n, MAX_SEQ))), f"truncate\0{stream}\0{n}".encode()
        case Redact(stream, seq, path):
            check_name("stream", stream)
            check_seq("seq", seq, least=1)
            if not all(type(step) in (str, int) for step in path):
                raise UsageError(
                    f"path {path!r:.80} is no list of keys and indexes", hint="such as ['name', 0]"
                )
            return Redact(stream, seq, list(path)), b"redact\0" + encode([stream, seq, list(path)])
    raise UsageError(f"{write!r:.80} is no write", hint="use Append, Put, Delete, Truncate or Redact")


def _identity(write: Write, identity: bytes) -> bytes:
    """What a repeat must have in common with the first: what the caller said, not what the store adds to it.

    The store's own bookkeeping beside a snapshot or a cursor depends on what is there at the time.
    """
    if isinstance(write, (Put, Delete)) and write.key.startswith(
        (FLOOR + "/", SNAPSHOT_OF + "/", HOLD + "/")
    ):
        return b""
    if isinstance(write, Put) and write.key.startswith(SNAPSHOT + "/") and isinstance(write.value, dict):
        return f"put\0{write.key}\0".encode() + encode(write.value.get("state"))
    return identity


def _check_once(once: Once, steps: list[Step]) -> Once:
    if not (isinstance(once, (tuple, list)) and len(once) == 2):
        raise UsageError(f"once is {once!r:.80}", hint="once is (scope, key)")
    scope, key = check_name("stream", once[0]), check_name("idempotency key", once[1])
    if scope != COMMIT_SCOPE and not any(type(step) is tuple and step[0] == scope for step in steps):
        raise UsageError(
            f"once names the scope {scope!r}, to which the commit appends nothing",
            hint=f"the scope is a stream that the commit appends to, or {COMMIT_SCOPE!r}",
        )
    return scope, key


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

    def add(self, stream: str, first: int, rows: Sequence[Row]) -> None:
        """Store a block under consecutive seqs, set the mark, and point at those that are `globally`."""

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
        if type(step) is tuple:
            stream, rows = cast("tuple[str, list[Row]]", step)
            mark = marks[stream] if stream in marks else tx.head(stream)[0]
            tx.add(stream, mark + 1, rows)
            events += [
                make_event(stream, seq, row[0], row[1], write[3])
                for seq, row, write in zip(count(mark + 1), rows, appends, strict=False)
            ]
            marks[stream] = mark + len(rows)
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


def pointer_runs(rows: Sequence[Row], most: int) -> Iterator[tuple[int, int, Scalar]]:
    """(index of the first, count, at) of rows that are in the global order one after the other, with the same
    time; `most` of them at a time."""
    count = 0
    for index, row, after in zip(range(len(rows)), rows, [*rows[1:], None], strict=True):
        if not row[4]:
            continue
        count, at = count + 1, row[1]
        goes_on = after is not None and after[4] and (after[1] is at or is_same_at(after[1], at))
        if not goes_on or count == most:
            yield index + 1 - count, count, at
            count = 0


def is_same_at(left: Scalar, right: Scalar) -> bool:
    """1 is not 1.0, 0.0 is not -0.0."""
    return left is right or (type(left) is type(right) and repr(left) == repr(right))


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
    tx.add(
        _check_appendable(stream), event.seq, [row_of(stream, check_name("type", event.type), at, event.data)]
    )
