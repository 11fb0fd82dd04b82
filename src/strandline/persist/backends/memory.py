"""The reference backend: everything in dictionaries under one lock, gone with the process.

It keeps what a durable one keeps, in the same encoding, so that values come back as copies and `verify` has
checksums to look at; a durable backend differs only in surviving.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from strandline.errors import EventCorrupt, UsageError
from strandline.persist.audit import audit, quarantine_writes, refuse_lost, refuse_unless_empty
from strandline.persist.backend import Damage, Expectation, Once, Outcome, Record, StreamHead, Write
from strandline.persist.core.block import Block, PutText, event_crc, key_crc, pointer_sum, put_text
from strandline.persist.core.commit import KEPT_COMMIT_MARKERS, append_with_seq, decide
from strandline.persist.core.prepare import prepare
from strandline.persist.event import Compacted, Conflict, Event, Scalar, Storable, make_event
from strandline.persist.reserved import COMMIT_SCOPE, GLOBAL, LINEAGE, ONCE, reserved_prefix
from strandline.persist.value import MAX_SEQ, check_key, check_limit, decode, encode, is_within

FORMAT = 1

_Row: TypeAlias = tuple[str, Scalar, str, int]  # type, at, text, checksum


class _Stream:
    """The rows of a stream by seq, and the two marks that are not derived from them."""

    __slots__ = ("last_seq", "rows", "truncated_through")

    def __init__(self) -> None:
        self.rows: dict[int, _Row] = {}
        self.last_seq = self.truncated_through = 0


class MemoryBackend:
    """See AtomicBackend for what it promises. One object is one store."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._keys: dict[str, tuple[str, int]] = {}  # text, checksum
        self._commit_markers: list[str] = []
        self._lineage = os.urandom(16).hex()
        self._counts = {"commits": 0, "conflicts": 0}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pid = os.getpid()
        self._is_closed = False

    def _held(self) -> AbstractContextManager[bool]:
        if os.getpid() != self._pid:
            raise UsageError("the store was opened by a parent process", hint="open one after a fork")
        if self._is_closed:
            raise UsageError("the store is closed", hint="open another")
        return self._lock  # itself, not the condition around it, which takes it in Python

    # Writing

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        prepared = prepare(preconditions, writes, once)
        with self._held():
            outcome = decide(self, prepared)
            self._counts["conflicts" if isinstance(outcome, Conflict) else "commits"] += 1
            self._changed.notify_all()
        return outcome

    def append(self, stream: str, event: Event) -> int:
        with self._held():
            append_with_seq(self, stream, event)
            self._changed.notify_all()
        return event.seq

    def truncate_through(self, stream: str, n: int) -> None:
        with self._held():
            mark, truncated = self.head(stream)
            if truncated < min(n, mark):
                self.truncate(stream, min(n, mark))

    def kv_put(self, key: str, value: Storable) -> None:
        with self._held():
            self.put(put_text(check_key(key), value))

    def kv_delete(self, key: str) -> None:
        with self._held():
            self.delete(check_key(key))

    # The Transaction of core/commit.py: what follows is only called under the lock

    def head(self, stream: str) -> tuple[int, int]:
        found = self._streams.get(stream)
        return (found.last_seq, found.truncated_through) if found else (0, 0)

    def text(self, key: str) -> str | None:
        return self._keys[key][0] if key in self._keys else None

    def row(self, stream: str, seq: int) -> tuple[str, Scalar, str] | None:
        found = self._streams[stream].rows.get(seq) if stream in self._streams else None
        return found[:3] if found else None

    def add(self, block: Block, first: int) -> None:
        target = self._streams.setdefault(block.stream, _Stream())
        columns = zip(block.types, block.ats, block.texts, block.crcs, block.globally, strict=True)
        for seq, (type_, at, text, crc, is_global) in enumerate(columns, first):
            target.rows[seq] = (type_, at, text, crc + seq)
            if is_global:
                order = self._streams.setdefault(GLOBAL, _Stream())
                order.last_seq += 1
                order.rows[order.last_seq] = _pointer_row(order.last_seq, block.stream, seq, at)
        target.last_seq = first + len(block) - 1

    def put(self, step: PutText) -> None:
        self._keys[step.key] = (step.text, step.crc)

    def delete(self, key: str) -> None:
        self._keys.pop(key, None)

    def truncate(self, stream: str, n: int) -> None:
        target = self._streams[stream]
        for seq in range(target.truncated_through + 1, n + 1):
            target.rows.pop(seq, None)
        target.truncated_through = n

    def rewrite(self, stream: str, seq: int, text: str, sum_: int) -> None:
        if row := self._streams[stream].rows.get(seq):  # else the same commit has truncated it
            self._streams[stream].rows[seq] = (row[0], row[1], text, sum_)

    def keep_marker(self, scope: str, step: PutText) -> None:
        self.put(step)
        if scope == COMMIT_SCOPE:
            self._commit_markers.append(step.key)
            if len(self._commit_markers) > KEPT_COMMIT_MARKERS:
                self.delete(self._commit_markers.pop(0))

    # Reading

    def last_seq(self, stream: str) -> int:
        with self._held():
            return self.head(stream)[0]

    def truncated_through(self, stream: str) -> int:
        with self._held():
            return self.head(stream)[1]

    def read(self, stream: str) -> list[Event]:
        return list(self.read_range(stream, 1, MAX_SEQ, limit=MAX_SEQ))

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
        check_limit(limit)
        page: list[Event] = []
        with self._held():
            if (found := self._streams.get(stream)) is None:
                return iter(page)
            for seq in range(max(first, found.truncated_through + 1), min(last, found.last_seq) + 1):
                if len(page) >= limit:
                    break
                row = found.rows.get(seq)
                if row and (type is None or row[0] == type) and is_within(row[1], start, end):
                    page.append(self._event(stream, seq, row))
        return iter(page)

    def event_at(self, stream: str, seq: int) -> Event | None:
        with self._held():
            found = self._streams.get(stream)
            row = found.rows.get(seq) if found else None
            return self._event(stream, seq, row) if row else None

    def global_range(self, first: int, *, limit: int) -> Iterator[tuple[int, Event | Compacted]]:
        with self._held():
            pointers = list(self.read_range(GLOBAL, first, MAX_SEQ, limit=limit))
            places = [(pointer.seq, pointer.data["stream"], pointer.data["seq"]) for pointer in pointers]
            return iter([(pos, self._event_or_gone(name, seq)) for pos, name, seq in places])

    def _event_or_gone(self, stream: str, seq: int) -> Event | Compacted:
        event = self.event_at(stream, seq)
        if event is None:
            refuse_lost(self, stream, seq)
        return event or Compacted(stream, seq)

    def streams(self) -> list[str]:
        with self._held():
            return sorted(self._streams)

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        with self._held():
            if limit == 1 and prefix > after and prefix in self._streams:
                return [StreamHead(prefix, *self.head(prefix))]  # nothing with this prefix sorts before it
            names = [name for name in self.streams() if name > after and name.startswith(prefix)]
            return [StreamHead(name, *self.head(name)) for name in names[: check_limit(limit)]]

    def kv_get(self, key: str) -> Storable:
        with self._held():
            if key == LINEAGE:
                return self._lineage
            return self._value(key) if key in self._keys else None

    def kv_has(self, key: str) -> bool:
        with self._held():
            return key in self._keys

    def kv_keys(self) -> list[str]:
        with self._held():
            return sorted(self._keys)

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        with self._held():
            keys = [key for key in self.kv_keys() if key > after and key.startswith(prefix)]
            return [(key, self._value(key)) for key in keys[: check_limit(limit)]]

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        with self._held():
            self._changed.wait_for(lambda: self.last_seq(stream) > after, timeout_s)
            return self.last_seq(stream)

    def _event(self, stream: str, seq: int, row: tuple[str, Scalar, str, int]) -> Event:
        type_, at, text, sum_ = row
        if event_crc(stream, type_, at, text.encode()) + seq != sum_:
            raise EventCorrupt(stream, seq, "its checksum does not match")
        return make_event(stream, seq, type_, at, decode(text))

    def _value(self, key: str) -> Storable:
        text, crc = self._keys[key]
        if key_crc(key, text.encode()) != crc:
            raise EventCorrupt(key, None, "its checksum does not match")
        return decode(text)

    # Upkeep

    def info(self) -> dict[str, Any]:
        with self._held():
            public = [stream for name, stream in self._streams.items() if not name.startswith("$")]
            rows = [row[2] for stream in self._streams.values() for row in stream.rows.values()]
            return {
                "backend": "memory",
                "lineage": self._lineage,
                "format": FORMAT,
                "streams": len(public),
                "events": sum(stream.last_seq for stream in public),
                "bytes": sum(map(len, rows)) + sum(len(text) for text, _ in self._keys.values()),
                **self._counts,
            }

    def verify(self) -> list[Damage]:
        return audit(self.dump(raw=True))

    def quarantine(self, stream: str, seq: int, at: Scalar) -> None:
        with self._held():
            row = self._streams[stream].rows.get(seq) if stream in self._streams else None
            writes = quarantine_writes(self, stream, seq, at, row)
            self.commit([], writes)
            self._streams[stream].rows.pop(seq, None)

    def dump(self, *, raw: bool = False) -> Iterator[Record]:  # noqa: ARG002  # it is all the same here
        with self._held():
            records = [Record("meta", ("lineage", self._lineage)), Record("meta", ("format", FORMAT))]
            records += [Record("key", (key, *self._keys[key])) for key in sorted(self._keys)]
            for head in self.stream_scan("", after="", limit=MAX_SEQ):
                records.append(Record("stream", tuple(head)))
                if head.name != GLOBAL:
                    rows = sorted(self._streams[head.name].rows.items())
                    records += [Record("event", (head.name, seq, *row)) for seq, row in rows]
            for pointer in self.read(GLOBAL):
                place = (pointer.data["stream"], pointer.data["seq"], pointer.at)
                records.append(Record("pointer", (pointer.seq, *place, pointer_sum(pointer.seq, *place))))
        return iter(records)

    def load(self, records: Iterable[Record]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        with self._held():
            refuse_unless_empty(self)
            filled = MemoryBackend()
            for kind, body in records:
                counts[kind] = counts.get(kind, 0) + 1
                if kind == "key":
                    filled._keys[body[0]] = body[1:]
                    if body[0].startswith(reserved_prefix(ONCE, COMMIT_SCOPE)):
                        filled._commit_markers.append(body[0])
                elif kind == "stream":
                    stream = filled._streams.setdefault(body[0], _Stream())
                    stream.last_seq, stream.truncated_through = body[1:]
                elif kind == "event":
                    filled._streams[body[0]].rows[body[1]] = body[2:]
                elif kind == "pointer":
                    position, name, seq, at, _ = body
                    filled._streams[GLOBAL].rows[position] = _pointer_row(position, name, seq, at)
            self._keys, self._streams = filled._keys, filled._streams
            self._commit_markers = filled._commit_markers
        return counts

    def scrub(self, *, rewrite: bool = False) -> None:
        """Nothing is kept of what was removed."""

    def close(self) -> None:
        """The store goes with the object."""
        self._is_closed = True


def _pointer_row(position: int, stream: str, seq: int, at: Scalar) -> _Row:
    text = encode({"stream": stream, "seq": seq})
    return "pointer", at, text.decode(), event_crc(GLOBAL, "pointer", at, text) + position
