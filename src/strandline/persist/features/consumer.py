"""Durable consumers: a named cursor in the store over one stream or the global order. They see every commit.

    $consumer/<name>                   {"name", "stream", "seq", "lineage"}
    $hold/<stream>/$consumer%2F<name>  the same cursor as a hold, so that compaction waits for it

At least once: what was not acknowledged comes again, with its seq to deduplicate by. Exactly once where the
cursor moves in the commit that stores the result (MoveCursor).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from strandline.errors import HistoryGap, LineageMismatch, NotFoundError, UsageError
from strandline.persist.backend import AtomicBackend, Backend, Delete, Expectation, ExpectKey, Put, Write
from strandline.persist.core.lift import atomic
from strandline.persist.event import ABSENT, Compacted, Conflict, Event
from strandline.persist.features.gaps import global_page, refuse_gap
from strandline.persist.features.hold import hold_delete, hold_put, lowering
from strandline.persist.features.kv import kv_items
from strandline.persist.features.log import PAGE
from strandline.persist.reserved import CONSUMER, GLOBAL, LINEAGE, reserved_key
from strandline.persist.value import MAX_SEQ, check_limit, check_name, check_seq, check_timeout


@dataclass(slots=True)
class Consumer:
    """A holder of a named cursor. `seq` is where this holder knows it to be; the store's own decides."""

    backend: Backend
    name: str
    stream: str
    lineage: str
    seq: int

    @property
    def stored(self) -> dict[str, Any]:
        return {"name": self.name, "stream": self.stream, "seq": self.seq, "lineage": self.lineage}


@dataclass(frozen=True, slots=True)
class MoveCursor:
    """A write of `commit`: acknowledge up to `seq`; a Conflict if another holder has moved the cursor."""

    consumer: Consumer
    seq: int


class ConsumerStatus(NamedTuple):
    name: str
    stream: str
    seq: int
    lag: int


def consumer(b: Backend, name: str, stream: str, *, start: int | None = None) -> Consumer:
    """Make the cursor `name`, or resume it; `start` sets it: what follows that seq comes next.

    Resuming after a restore is a LineageMismatch until `start` says where to go on.
    """
    check_name("stream", stream)
    store, lineage = atomic(b), str(atomic(b).info()["lineage"])
    key = _key(name)
    while True:
        kept = b.kv_get(key)
        if kept is not None and kept["stream"] != stream:
            raise UsageError(
                f"consumer {name!r} follows stream {kept['stream']!r}, not {stream!r}",
                hint="choose another name, or consumer_drop the old one first",
            )
        if kept is not None and start is None:
            if kept["lineage"] != lineage:
                raise LineageMismatch(name, cursor=kept["lineage"], store=lineage)
            return Consumer(b, name, stream, lineage, kept["seq"])
        made = Consumer(b, name, stream, lineage, _check_start(store, stream, start))
        lowers = lowering(store, stream)
        expected = [ExpectKey(key, ABSENT if kept is None else kept), *lowers[0]]
        outcome = store.commit(expected, [*_puts(made), *lowers[1]])
        if not isinstance(outcome, Conflict):
            return made


def poll(c: Consumer, *, limit: int = PAGE, timeout_s: float = 0) -> list[Any]:
    """What follows the cursor: events, or of `$global` pairs of position and event. Waits when there is
    nothing.

    Raises HistoryGap if what follows was removed in spite of the hold, EventCorrupt if it is missing.
    """
    store = atomic(c.backend)
    until = time.monotonic() + check_timeout(timeout_s)
    _check_lineage(store, c)
    while check_limit(limit):
        page = _global_page(store, c, limit) if c.stream == GLOBAL else _page(store, c, limit)
        left_s = until - time.monotonic()
        if page or left_s <= 0:
            return page
        store.wait(c.stream, c.seq, timeout_s=left_s)
    return []


def ack(c: Consumer, seq: int) -> int | Conflict:
    """Move the cursor to `seq`; a Conflict if another holder has moved it, and then `consumer` resumes from
    there."""
    store = atomic(c.backend)
    if seq == c.seq:
        return seq
    _check_lineage(store, c)
    move = MoveCursor(c, seq)
    made = move_cursor(store, move)
    if isinstance(made, Conflict):
        return made
    outcome = store.commit(*made)
    if isinstance(outcome, Conflict):
        return _moved(c, outcome.actual)
    advance(move)
    return seq


def consumers(b: Backend) -> list[ConsumerStatus]:
    """Every cursor with its lag in events."""
    kept = [value for _, value in kv_items(b, prefix=CONSUMER + "/", reserved=True)]
    return [
        ConsumerStatus(
            value["name"], value["stream"], value["seq"], b.last_seq(value["stream"]) - value["seq"]
        )
        for value in kept
    ]


def consumer_drop(b: Backend, name: str) -> None:
    """End a consumer; its hold goes with it."""
    kept = b.kv_get(_key(name))
    if kept is None:
        raise NotFoundError(
            f"there is no consumer {name!r}", hint="`strandline persist consumers` lists them"
        )
    atomic(b).commit([], [Delete(_key(name)), hold_delete(kept["stream"], _hold_name(name))])


def move_cursor(
    b: AtomicBackend, move: MoveCursor, *, is_repeat: bool = False
) -> tuple[list[Expectation], list[Write]] | Conflict:
    """A MoveCursor in terms of the backend: it rests on the cursor being where this holder knows it.

    As a repeat of what was done already it is never a Conflict, and cannot be done anew from another place.
    """
    c = move.consumer
    if not isinstance(c, Consumer):
        raise UsageError(f"MoveCursor of {c!r:.80}", hint="it takes what consumer(b, name, stream) returned")
    check_seq("seq", move.seq)
    moved = Consumer(c.backend, c.name, c.stream, c.lineage, move.seq)
    if is_repeat:
        return [ExpectKey(_key(c.name), ABSENT)], _puts(moved)
    kept = b.kv_get(_key(c.name))
    if kept != c.stored:
        return _moved(c, ABSENT if kept is None else kept)
    if move.seq <= c.seq:
        return Conflict(move.seq, c.seq, "STALE", c.name)
    if move.seq > (last := b.last_seq(c.stream)):
        raise UsageError(
            f"consumer {c.name!r} acknowledges seq {move.seq} of {c.stream!r}, whose last seq is {last}",
            hint="acknowledge what poll gave",
        )
    return [ExpectKey(_key(c.name), c.stored)], _puts(moved)


def advance(move: MoveCursor) -> None:
    """The commit is done: this holder knows it."""
    move.consumer.seq = max(move.consumer.seq, move.seq)  # a repeat does not take it back


def _page(b: AtomicBackend, c: Consumer, limit: int) -> list[Event]:
    page = list(b.read_range(c.stream, c.seq + 1, MAX_SEQ, limit=limit))
    if page and page[0].seq == c.seq + 1:
        return list(_run(page, c.seq + 1))
    mark = b.last_seq(c.stream)  # read after the page: what came in between is not missing
    if page or b.truncated_through(c.stream) > c.seq:
        refuse_gap(b, c.stream, page, c.seq, mark)
    if mark > c.seq and not list(b.read_range(c.stream, c.seq + 1, MAX_SEQ, limit=1)):
        refuse_gap(b, c.stream, [], c.seq, mark)
    return []


def _run(page: list[Event], seq: int) -> Iterator[Event]:
    """The events up to the first gap, which the next poll then meets."""
    for event in page:
        if event.seq != seq:
            return
        yield event
        seq += 1


def _global_page(b: AtomicBackend, c: Consumer, limit: int) -> list[tuple[int, Event]]:
    """The events up to the first one that is gone."""
    found: list[tuple[int, Event]] = []
    for position, event in global_page(b, c.seq + 1, limit):
        if isinstance(event, Compacted):
            if not found:
                raise HistoryGap(event.stream, prior_seq=event.seq - 1, truncated_through=event.seq)
            break
        found.append((position, event))
    return found


def _check_lineage(b: AtomicBackend, c: Consumer) -> None:
    """The store behind an open connection may have been restored meanwhile."""
    lineage = b.kv_get(LINEAGE)
    if lineage not in (None, c.lineage):
        raise LineageMismatch(c.name, cursor=c.lineage, store=str(lineage))


def _check_start(b: AtomicBackend, stream: str, start: int | None) -> int:
    seq = check_seq("start", 0 if start is None else start)
    if seq > (last := b.last_seq(stream)):
        raise UsageError(
            f"start {seq} is past the last seq {last} of {stream!r}", hint="start at or below it"
        )
    return seq


def _puts(c: Consumer) -> list[Write]:
    return [Put(_key(c.name), c.stored), hold_put(c.stream, _hold_name(c.name), c.seq)]


def _moved(c: Consumer, actual: Any) -> Conflict:
    return Conflict(c.seq, actual["seq"] if isinstance(actual, dict) else actual, "STALE", c.name)


def _key(name: str) -> str:
    return reserved_key(CONSUMER, check_name("consumer", name))


def _hold_name(name: str) -> str:
    return f"{CONSUMER}/{name}"
