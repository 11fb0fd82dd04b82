"""Retention holds: who still needs which events, so that compaction waits for them.

A hold at seq n says that events above n are needed. Snapshots of a stream and cursors of consumers are
holds too. A hold on `$global` at a position needs, in every stream, the events that the positions above it
point at.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from strandline.persist.backend import (
    AtomicBackend,
    Backend,
    Delete,
    Expectation,
    ExpectKey,
    Put,
    Truncate,
    Write,
)
from strandline.persist.core.lift import atomic
from strandline.persist.event import ABSENT, Conflict
from strandline.persist.features.kv import kv_items
from strandline.persist.features.log import PAGE
from strandline.persist.reserved import FLOOR, GLOBAL, HOLD, guard, reserved_key, reserved_prefix
from strandline.persist.value import check_name, check_seq


class Hold(NamedTuple):
    """A registered hold and its lag, the number of events that it has still to see."""

    name: str
    seq: int
    lag: int


def hold(b: Backend, stream: str, name: str, seq: int) -> None:
    """Set or move the hold `name`: compaction keeps what is above `seq`."""
    check_name("stream", stream)
    guard("hold", check_name("hold", name))
    check_seq("seq", seq)
    store = atomic(b)
    while True:
        lowers = lowering(store, stream)
        kept = b.kv_get(reserved_key(HOLD, stream, name))
        if kept is not None and kept["seq"] <= seq:
            lowers = ([], [])
        expected = ExpectKey(reserved_key(HOLD, stream, name), ABSENT if kept is None else kept)
        writes = [hold_put(stream, name, seq), *lowers[1]]
        if not isinstance(store.commit([expected, *lowers[0]], writes), Conflict):
            return


def hold_drop(b: Backend, stream: str, name: str) -> None:
    check_name("stream", stream)
    guard("hold", check_name("hold", name))
    atomic(b).commit([], [hold_delete(stream, name)])


def holds(b: Backend, stream: str) -> list[Hold]:
    """The holds of a stream, consumers' cursors (`$consumer/<name>`) included, with their lags."""
    last = b.last_seq(check_name("stream", stream))
    return [Hold(name, seq, max(last - seq, 0)) for name, seq in _registered(b, stream)]


def hold_put(stream: str, name: str, seq: int) -> Put:
    return Put(reserved_key(HOLD, stream, name), {"name": name, "seq": seq, "stream": stream})


def hold_delete(stream: str, name: str) -> Delete:
    return Delete(reserved_key(HOLD, stream, name))


def lowering(b: AtomicBackend, stream: str) -> tuple[list[Expectation], list[Write]]:
    """What goes with every write that may lower the floor of `stream`: a new hold, cursor or snapshot, or
    the end of a snapshot. It and a truncation that is being decided meet at one key, so that one of them
    looks again."""
    key = reserved_key(FLOOR, stream)
    kept = b.kv_get(key)
    return [ExpectKey(key, ABSENT if kept is None else kept)], [Put(key, (kept or 0) + 1)]


def truncate_unheld(b: AtomicBackend, stream: str, covered: Callable[[], int]) -> None:
    """Truncate through what `covered` tells, or as far as holds allow; anew if one of them came in
    between."""
    while True:
        expected, writes = lowering(b, stream)
        if stream != GLOBAL:
            expected = [*expected, *lowering(b, GLOBAL)[0]]
        floor = hold_floor(b, stream, at_most=covered())
        if floor <= b.truncated_through(stream):
            return
        if not isinstance(b.commit(expected, [Truncate(stream, floor), *writes]), Conflict):
            return


def hold_floor(b: AtomicBackend, stream: str, *, at_most: int) -> int:
    """The highest seq up to `at_most` that no hold needs."""
    floor = min([at_most, *(seq for _, seq in _registered(b, stream))])
    if stream != GLOBAL and floor > 0:
        positions = [seq for _, seq in _registered(b, GLOBAL)]
        if positions:
            floor = min(floor, _first_pointed_at(b, stream, after=min(positions), at_most=floor) - 1)
    return max(floor, 0)


def _first_pointed_at(b: AtomicBackend, stream: str, *, after: int, at_most: int) -> int:
    """The lowest seq of `stream` that a position above `after` names; it costs what that reader has still
    to read."""
    position = after + 1
    while page := list(b.global_range(position, limit=PAGE)):
        for _, event in page:
            if event.stream == stream and event.seq <= at_most:
                return event.seq
        position = page[-1][0] + 1
    return at_most + 1


def _registered(b: Backend, stream: str) -> Iterator[tuple[str, int]]:
    for _, value in kv_items(b, prefix=reserved_prefix(HOLD, stream), reserved=True):
        yield value["name"], value["seq"]
