"""The sweep of segments: their bytes go once all their rows have landed or are lost, and that for a while.

    sweep/segments    {"position", "waiting"}

It walks the global order once, as far as that had come a grace period ago, and looks at what ledgers say has
landed there: what is new costs, what is old does not. A segment of which only some rows have landed waits
(`waiting`), and stops no other.

Of a segment that may go first the key becomes "dead", then its bytes go, then the key, and only then the walk
is noted: after a crash it comes by again and goes on with what it finds. Nobody can name such a segment
again: an append that repeats itself expects a ledger that has moved on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final

import msgspec

from strandline.base.failpoint import reach
from strandline.base.ranges import Range, RangeSet, pairs_of, ranges_of
from strandline.ingest.append import segment_key
from strandline.maintenance.sweeps.age_index import reached
from strandline.persist import (
    ABSENT,
    Compacted,
    Conflict,
    Delete,
    Event,
    ExpectKey,
    Put,
    global_events,
    global_pos,
)
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import decode_source
from strandline.state.context import Site
from strandline.state.entries_by_range import spooled_in
from strandline.state.flush_plan import FlushPlan, open_plan, readable
from strandline.state.lease import Lease, LeaseLost
from strandline.state.strand_entries import ControlUnreadable, Flushed, Lost, entry_of

SCOPE: Final = "sweep"  # of the lease
NAMED: Final = "named"
DEAD: Final = "dead"
ANY_AGE: Final = datetime.max.replace(tzinfo=UTC)
_KEY: Final = "sweep/segments"
_PAGE: Final = 2_000  # events between two notes of how far the walk is
CHUNK: Final = 500  # keys of one transaction


@dataclass(frozen=True, slots=True)
class Swept:
    """What went, and how many segments wait because some of their rows have not landed."""

    segments: int = 0
    bytes: int = 0
    waiting: int = 0


class _Waiting(msgspec.Struct, frozen=True):
    """What is known to be settled of a segment of `of` rows, by source."""

    dataset: str
    size: int
    of: int
    settled: dict[str, list[list[int]]] = {}

    def with_(self, source: str, rows: Range) -> "_Waiting":
        known = RangeSet(ranges_of(self.settled.get(source, ())))
        grown = pairs_of(known.with_(rows).ranges)
        return msgspec.structs.replace(self, settled={**self.settled, source: grown})

    @property
    def is_whole(self) -> bool:
        return sum(hi - lo for ranges in self.settled.values() for lo, hi in ranges) >= self.of


class _State(msgspec.Struct, frozen=True):
    position: int = 0
    waiting: dict[str, _Waiting] = {}


def swept_through(site: Site) -> int:
    """How far in the global order the sweep has come: what lies behind it nobody asks for again here."""
    return _kept(site.b.kv_get(_KEY)).position


def sweep_segments(site: Site, lease: Lease, *, grace_s: float) -> Swept:
    """Remove the segments whose last row was recorded as landed or lost at least `grace_s` ago."""
    stored = site.b.kv_get(_KEY)
    sweep, until = _Sweep(site, lease, _kept(stored)), reached(site, grace_s)
    while sweep.go_on(until):
        value = msgspec.to_builtins(sweep.state)
        seen = ExpectKey(_KEY, ABSENT if stored is None else stored)
        if isinstance(site.b.commit([lease.guard, seen], [Put(_KEY, value)]), Conflict):
            raise LeaseLost(lease.scope)
        stored = value
        reach("sweep.walked")
    return replace(sweep.swept, waiting=len(sweep.state.waiting))


def sweep_dataset(site: Site, lease: Lease, dataset: str) -> Swept:
    """Remove the segments of one dataset that have landed whole, without a grace period. The walk of the
    others stays where it is, and finds these gone."""
    sweep = _Sweep(site, lease, _kept(site.b.kv_get(_KEY)), only=dataset)
    while sweep.go_on(global_pos(site.b)):
        pass
    return sweep.swept


@dataclass(slots=True)
class _Sweep:
    """One walk, under its lease; of one dataset `only`, if it is named."""

    site: Site
    lease: Lease
    state: _State
    only: str | None = None
    swept: Swept = field(default_factory=Swept)

    def go_on(self, until: int) -> bool:
        """Walk a page, and remove what has landed whole; whether anything has changed."""
        found, position = dict(self.state.waiting), self.state.position
        for place, event in self._page(until):
            position = place
            # What was erased says nothing of its segments any more: they stay.
            if isinstance(event, Event) and event.stream.startswith("strand/"):
                self._take(found, event)
        before, self.state = self.state, _State(position, self._removed(found))
        return self.state != before

    def _page(self, until: int) -> Iterator[tuple[int, Event | Compacted]]:
        first, last = self.state.position + 1, min(until, self.state.position + _PAGE)
        if first <= last:
            yield from takewhile(lambda each: each[0] <= last, global_events(self.site.b, first=first))

    def _take(self, found: dict[str, _Waiting], event: Event) -> None:
        dataset, _, encoded = event.stream.removeprefix("strand/").partition("/")
        if event.type not in ("flushed", "lost") or self.only not in (None, dataset):
            return
        source = decode_source(encoded)
        for rows in _settled(event):
            for entry in spooled_in(self.site.b, event.stream, rows):
                cid, part = entry.segment.cid, rows.meets(Range(entry.lo, entry.hi))
                assert part is not None
                known = found.get(cid) or _Waiting(dataset, entry.segment.size, entry.of)
                found[cid] = known.with_(source, part)

    def _removed(self, found: dict[str, _Waiting]) -> dict[str, _Waiting]:
        """What is left once that has gone which has landed whole, and which no open plan names."""
        planned = set(self._planned({each.dataset for each in found.values()}))
        whole = {
            cid: each.size
            for cid, each in found.items()
            if each.is_whole and cid not in planned and self.only in (None, each.dataset)
        }
        for chunk in chunks(whole):
            self._remove({cid: whole[cid] for cid in chunk})
        return {cid: each for cid, each in found.items() if cid not in whole}

    def _planned(self, datasets: Iterable[str]) -> Iterator[str]:
        """A store that was restored may have a plan open whose rows its table has."""
        for dataset in datasets:
            for number, event in self.site.standing.numbers(dataset).open.items():
                plan = open_plan(self.site.b, dataset, number, event)
                if isinstance(plan, FlushPlan):
                    for strands in (plan.strands, *plan.versions.values()):
                        for share in strands.values():
                            yield from (piece.segment.cid for piece in share.pieces)

    def _remove(self, chunk: Mapping[str, int]) -> None:
        keys = {cid: self.site.b.kv_get(segment_key(cid)) for cid in chunk}
        for cid, value in keys.items():
            if value not in (None, NAMED, DEAD):
                raise ControlUnreadable(segment_key(cid), None, f"{value!r:.80} is neither named nor dead")
        there = {cid: value for cid, value in keys.items() if value is not None}  # others are gone already
        if not there:
            return
        expected = [ExpectKey(segment_key(cid), value) for cid, value in there.items()]
        self._commit(expected, [Put(segment_key(cid), DEAD) for cid in there])
        reach("sweep.doomed")
        for cid in there:
            self.site.content.remove_older(cid, ANY_AGE)
            reach("sweep.bytes")
        self._commit([], [Delete(segment_key(cid)) for cid in there])
        reach("sweep.removed")
        count, size = len(there), sum(chunk[cid] for cid in there)
        self.swept = Swept(self.swept.segments + count, self.swept.bytes + size)

    def _commit(self, expected: Sequence[Expectation], writes: Sequence[Write]) -> None:
        if isinstance(self.site.b.commit([self.lease.guard, *expected], writes), Conflict):
            raise LeaseLost(self.lease.scope)


def chunks(keys: Iterable[str]) -> Iterator[list[str]]:
    every = list(keys)
    for first in range(0, len(every), CHUNK):
        yield every[first : first + CHUNK]


def _kept(value: Any) -> _State:
    with readable(_KEY, None):
        return _State() if value is None else msgspec.convert(value, _State)


def _settled(event: Event) -> tuple[Range, ...]:
    entry = entry_of(event)
    if isinstance(entry, Flushed):
        return entry.ranges
    assert isinstance(entry, Lost)
    return (Range(entry.lo, entry.hi),)
