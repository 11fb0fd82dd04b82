"""A ledger folded to a few numbers: how far its strand is numbered, landed and visible, and what is pending.

It is as large as the strand has holes, however many rows it has: the pending segments themselves are read
from the ledger when a flush is planned (pending_rows.py).
"""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from strandline.base.ranges import Range, RangeSet
from strandline.state.strand_entries import (
    Entry,
    Flushed,
    Held,
    Landed,
    Lost,
    Raised,
    Released,
    Removed,
    Reserved,
    Spooled,
)

MOST_PRUNED: Final = 64


class Pruned(NamedTuple):
    """So many rows of a range `(lo, hi]` that retention took away."""

    lo: int
    hi: int
    rows: int


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A range that waits for its segment to be put back or given up."""

    segment: str
    lo: int
    hi: int
    reason: str


@dataclass(frozen=True, slots=True)
class StrandState:
    """`settled` holds every seq that is flushed, landed, released, lost or raised over."""

    hi: int = 0
    settled: RangeSet = field(default_factory=RangeSet)
    pending_rows: int = 0
    pending_bytes: int = 0
    next: int = 1  # the ledger event at which pending rows begin, or will
    holds: tuple[DamagedRange, ...] = ()
    changed_at: int = 0
    empty: RangeSet = field(default_factory=RangeSet)  # released or lost: no row will ever be there
    bare: int = 0  # up to here no row is left, as rows were removed
    removed_rows: int = 0  # by retention, purge and compaction
    pruned: tuple[Pruned, ...] = ()  # by retention, the newest of them; older ones are one
    raised: int = 0  # up to here numbers were given out before the store was restored

    @property
    def front(self) -> int:
        """The highest seq that retention has pruned."""
        return max((each.hi for each in self.pruned), default=0)

    def vacant_through(self, seq: int) -> int:
        """The seq behind `seq` up to which no row is, nor will be."""
        after = max(seq, self.bare)
        return self.empty.through(after)

    @property
    def visible_through(self) -> int:
        """V: no row can appear at or below it any more."""
        return self.settled.through(0)


def with_entry(strand_state: StrandState, entry: Entry, at: int) -> StrandState:
    match entry:
        case Spooled():
            return replace(
                strand_state,
                hi=entry.hi,
                pending_rows=strand_state.pending_rows + entry.hi - entry.lo,
                pending_bytes=strand_state.pending_bytes + entry.bytes,
                changed_at=at,
            )
        case Reserved():
            return replace(strand_state, hi=entry.hi, changed_at=at)
        case Raised():
            settled = strand_state.settled.with_(Range(entry.lo, entry.hi))
            return replace(strand_state, hi=entry.hi, settled=settled, changed_at=at, raised=entry.hi)
        case Landed():
            settled = strand_state.settled.with_(Range(entry.lo, entry.hi))
            return replace(strand_state, settled=settled, changed_at=at)
        case Released():
            gap = Range(entry.lo, entry.hi)
            return replace(
                strand_state,
                settled=strand_state.settled.with_(gap),
                empty=strand_state.empty.with_(gap),
                changed_at=at,
            )
        case Flushed():
            settled = strand_state.settled
            for each in entry.ranges:
                settled = settled.with_(each)
            return _landed(strand_state, settled, entry.rows, entry.bytes, entry.next, at)
        case Lost():
            settled = strand_state.settled.with_(Range(entry.lo, entry.hi))
            after = _landed(strand_state, settled, entry.hi - entry.lo, entry.bytes, entry.next, at)
            return replace(after, empty=strand_state.empty.with_(Range(entry.lo, entry.hi)))
        case Held():
            hold = DamagedRange(entry.segment, entry.lo, entry.hi, entry.reason)
            others = tuple(each for each in strand_state.holds if (each.lo, each.hi) != (hold.lo, hold.hi))
            return replace(strand_state, holds=(*others, hold), changed_at=at)
        case Removed():
            pruned = strand_state.pruned
            if entry.by == "retention":
                pruned = with_pruned(pruned, Pruned(entry.lo, entry.hi, entry.rows))
            return replace(
                strand_state,
                bare=max(strand_state.bare, entry.bare),
                removed_rows=strand_state.removed_rows + entry.rows,
                pruned=pruned,
                changed_at=at,
            )


def with_pruned(pruned: tuple[Pruned, ...], new: Pruned) -> tuple[Pruned, ...]:
    """The newest stay apart; the two oldest become one where there are too many."""
    if len(pruned) < MOST_PRUNED:
        return (*pruned, new)
    first, second, *rest = pruned
    oldest = Pruned(min(first.lo, second.lo), max(first.hi, second.hi), first.rows + second.rows)
    return (oldest, *rest, new)


def pruned_past(pruned: tuple[Pruned, ...], since: int) -> int:
    """How many rows behind `since` were pruned, at most: in the midst of a range nobody knows which."""
    return sum(min(each.rows, each.hi - max(each.lo, since)) for each in pruned if each.hi > since)


def _landed(
    strand_state: StrandState, settled: RangeSet, rows: int, bytes_: int, next_: int, at: int
) -> StrandState:
    pending = strand_state.pending_rows - rows
    return replace(
        strand_state,
        settled=settled,
        pending_rows=pending,
        pending_bytes=max(strand_state.pending_bytes - bytes_, 0) if pending else 0,
        next=max(strand_state.next, next_),
        holds=tuple(each for each in strand_state.holds if not settled.covers(Range(each.lo, each.hi))),
        changed_at=at,
    )
