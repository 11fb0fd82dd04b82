"""Lifts a backend of the ten basic operations to an AtomicBackend, so that no facet has two ways.

What it adds is a lock. It holds for one process, and a crash in the middle of a commit may leave a part of
it: a backend that must do better has `commit` itself. Ten operations cannot change a stored event, so it
refuses to redact.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, cast

from strandline.errors import UsageError
from strandline.persist.backend import (
    AtomicBackend,
    Backend,
    Expectation,
    Once,
    Outcome,
    Redact,
    StreamHead,
    Write,
)
from strandline.persist.core.block import Block, PutText
from strandline.persist.core.commit import decide
from strandline.persist.core.prepare import prepare
from strandline.persist.event import Compacted, Event, Scalar, Storable
from strandline.persist.reserved import GLOBAL
from strandline.persist.value import MAX_SEQ, check_limit, decode, encode, is_within

FORMAT = 1
_POLL_S = 0.01
_locks: dict[int, Any] = {}  # by id of the backend: one that compares by value need not be hashable
_locking = threading.Lock()


def atomic(b: Backend) -> AtomicBackend:
    """`b` itself if it decides and writes in one step, else an adapter before it, all of which share one
    lock."""
    if hasattr(b, "commit"):
        return cast("AtomicBackend", b)
    with _locking:
        if id(b) not in _locks:
            _locks[id(b)] = threading.RLock()
            weakref.finalize(b, _locks.pop, id(b), None)
        return LiftedBackend(b, _locks[id(b)])


class LiftedBackend:
    """See AtomicBackend; `basic` is what it stands before."""

    def __init__(self, basic: Backend, lock: Any) -> None:
        self.basic = basic
        self._lock = lock

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        prepared = prepare(preconditions, writes, once)
        if any(type(step) is Redact for step in prepared.steps):
            raise UsageError(
                f"{type(self.basic).__name__} has the ten basic operations only and cannot redact",
                hint="give it `commit`, or erase the stream",
            )
        with self._lock:
            return decide(self, prepared)

    # The Transaction of commit.py

    def head(self, stream: str) -> tuple[int, int]:
        return self.last_seq(stream), self.truncated_through(stream)

    def text(self, key: str) -> str | None:
        return encode(self.basic.kv_get(key)).decode() if self.basic.kv_has(key) else None

    def row(self, stream: str, seq: int) -> tuple[str, Scalar, str] | None:
        event = self.event_at(stream, seq)
        return (event.type, event.at, encode(event.data).decode()) if event else None

    def add(self, block: Block, first: int) -> None:
        stream = block.stream
        columns = zip(block.types, block.ats, block.texts, block.globally, strict=True)
        for seq, (type_, at, text, is_global) in enumerate(columns, first):
            self.basic.append(stream, Event(stream, seq, type_, at, decode(text)))
            if is_global:
                pointer = {"stream": stream, "seq": seq}
                self.basic.append(GLOBAL, Event(GLOBAL, self.last_seq(GLOBAL) + 1, "pointer", at, pointer))

    def put(self, step: PutText) -> None:
        self.basic.kv_put(step.key, decode(step.text))

    def delete(self, key: str) -> None:
        self.basic.kv_delete(key)

    def truncate(self, stream: str, n: int) -> None:
        self.basic.truncate_through(stream, n)

    def rewrite(self, stream: str, seq: int, text: str, sum_: int) -> None:  # noqa: ARG002  # refused
        raise AssertionError("a commit with a redaction was refused")

    def keep_marker(self, scope: str, step: PutText) -> None:  # noqa: ARG002  # all are kept
        self.put(step)

    # Basic operations

    def append(self, stream: str, event: Event) -> int:
        with self._lock:
            return self.basic.append(stream, event)

    def read(self, stream: str) -> list[Event]:
        return list(self.basic.read(stream))

    def last_seq(self, stream: str) -> int:
        return self.basic.last_seq(stream)

    def streams(self) -> list[str]:
        return sorted(self.basic.streams())

    def truncate_through(self, stream: str, n: int) -> None:
        with self._lock:
            self.basic.truncate_through(stream, n)

    def kv_get(self, key: str) -> Storable:
        return self.basic.kv_get(key)

    def kv_put(self, key: str, value: Storable) -> None:
        with self._lock:
            self.basic.kv_put(key, value)

    def kv_delete(self, key: str) -> None:
        with self._lock:
            self.basic.kv_delete(key)

    def kv_has(self, key: str) -> bool:
        return self.basic.kv_has(key)

    def kv_keys(self) -> list[str]:
        return sorted(self.basic.kv_keys())

    # Extended reads, each by reading the whole: ten operations offer no seek

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
        wanted = (
            event
            for event in self.read(stream)
            if first <= event.seq <= last
            and (type is None or event.type == type)
            and is_within(event.at, start, end)
        )
        return iter([event for event, _ in zip(wanted, range(check_limit(limit)), strict=False)])

    def event_at(self, stream: str, seq: int) -> Event | None:
        return next(self.read_range(stream, seq, seq, limit=1), None)

    def truncated_through(self, stream: str) -> int:
        with self._lock:
            stored = self.read(stream)
            return stored[0].seq - 1 if stored else self.last_seq(stream)

    def global_range(self, first: int, *, limit: int) -> Iterator[tuple[int, Event | Compacted]]:
        pointers = list(self.read_range(GLOBAL, first, MAX_SEQ, limit=limit))
        places = [(pointer.seq, pointer.data["stream"], pointer.data["seq"]) for pointer in pointers]
        return iter([(pos, self.event_at(name, seq) or Compacted(name, seq)) for pos, name, seq in places])

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        names = [name for name in self.streams() if name > after and name.startswith(prefix)]
        return [StreamHead(name, *self.head(name)) for name in names[: check_limit(limit)]]

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        keys = [key for key in self.kv_keys() if key > after and key.startswith(prefix)]
        return [(key, self.kv_get(key)) for key in keys[: check_limit(limit)]]

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        while (mark := self.last_seq(stream)) <= after and time.monotonic() < until:
            time.sleep(min(_POLL_S, timeout_s))
        return mark

    def info(self) -> dict[str, Any]:
        public = [name for name in self.streams() if not name.startswith("$")]
        return {
            "backend": type(self.basic).__name__,
            "lineage": self._lineage(),
            "format": FORMAT,
            "streams": len(public),
            "events": sum(map(self.last_seq, public)),
            "bytes": 0,
        }

    def _lineage(self) -> str:
        """Ten operations keep no lineage: one made on first use is kept in kv."""
        with self._lock:
            if not self.basic.kv_has("$lineage"):
                self.basic.kv_put("$lineage", os.urandom(16).hex())
            return str(self.basic.kv_get("$lineage"))

    def scrub(self, *, rewrite: bool = False) -> None:
        """Ten operations say nothing of files."""

    def close(self) -> None:
        if hasattr(self.basic, "close"):
            self.basic.close()
