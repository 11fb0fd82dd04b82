"""An epoch's records against what a destination says that it holds: pure, nothing is asked here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.audit.account import Epoch, Posted
from strandline.sinks.sink import Holdings, Stored
from strandline.state.sink_progress import Intent

DROPPED = "dropped"  # how a dead letter was settled that was not sent after all

FaultKind = Literal[
    # In a sink's own records, and between them and its destination
    "hole",  # the line went over it, and no record says what became of it
    "settled_twice",  # two records settle it, and nobody moved the line back
    "missing",  # recorded as delivered, and the destination does not have it
    "overlap",  # two objects have it by their names
    "stranger",  # the destination has it, and no record explains it
    "rows_differ",
    "digest_differs",
    "name_differs",  # an object whose name says another range than its receipt
    "control_unreadable",
    "history_gap",  # events that would tell are gone
    # In a ledger, and between it and its table
    "not_dense",  # numbers that were given out twice, or never
    "not_settled",  # below V, and no entry says what became of it
    "segment_damaged",  # rows that have not landed, and cannot
    "seq_twice",  # two rows of one number
    "row_missing",  # landed, and not in the table
    "row_unexpected",  # in the table, and no entry says that it landed
    "behind_line",  # in the table, below the line, and not among what was delivered
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A range `(lo, hi]` that is not as it must be. `epoch` is None where no sink is at fault."""

    kind: FaultKind
    lo: int
    hi: int
    text: str
    epoch: int | None = None
    target: str = ""


@dataclass(slots=True)
class Compared:
    """What was found of one epoch."""

    faults: list[Fault] = field(default_factory=list)
    unrecorded: int = 0  # objects or ranges of tries that were cut short
    elsewhere: int = 0  # units that went to the destination that it had before
    untold: int = 0  # objects that tell neither their rows nor their digest


def compare(
    number: int, epoch: Epoch, holdings: Holdings, *, bound_at: int = 0, others: RangeSet | None = None
) -> Compared:
    """`bound_at` is when the instance got the destination it has; `others` is what other instances with the
    same one have delivered."""
    comparing = _Comparing(number, epoch, bound_at, others or RangeSet())
    if any(each.target for each in holdings.stored):
        comparing.objects(holdings.stored)
    else:
        comparing.ranges(holdings.stored)
    for name in holdings.strangers:
        comparing.fault("stranger", Range(0, 0), "its name is no unit's", name)
    return comparing.found


class _Comparing:
    def __init__(self, number: int, epoch: Epoch, bound_at: int, others: RangeSet) -> None:
        self._number, self._epoch, self._bound_at, self._others = number, epoch, bound_at, others
        self.found = Compared()

    def fault(self, kind: FaultKind, range_: Range, text: str, target: str = "") -> None:
        self.found.faults.append(Fault(kind, range_.lo, range_.hi, text, self._number, target))

    # A destination that keeps ranges

    def ranges(self, stored: Sequence[Stored]) -> None:
        there = RangeSet.of(Range(each.lo, each.hi) for each in stored)
        owned = list(self._here())
        self.found.elsewhere += len(self._epoch.posted) - len(owned)
        sent = RangeSet.of([*(each.range for each in owned), *self._epoch.known])
        for each in sent.ranges:
            for hole in there.holes(each):
                self.fault("missing", hole, "it was acknowledged, and the destination does not have it")
        explained = RangeSet.of([*self._posted_ranges(), *sent.ranges, *self._others.ranges])
        maybe = RangeSet.of(self._maybe())
        for each in there.ranges:
            for more in explained.holes(each):
                self.found.unrecorded += len(maybe.within(more))
                for strange in maybe.holes(more):
                    self.fault("stranger", strange, "the destination has it, and it was not sent from here")

    def _posted_ranges(self) -> Iterator[Range]:
        return (each.range for each in self._epoch.posted)

    def _maybe(self) -> Iterator[Range]:
        """Ranges that a try may have sent without a record."""
        yield from (each.range for each in self._epoch.letters.values())
        yield from (each.range for each in self._epoch.void if each.is_repeat)
        yield from (Range(intent.lo, intent.hi) for intent in self._epoch.unsure)

    def _here(self) -> Iterator[Posted]:
        """The units that went to the destination of now."""
        return (each for each in self._epoch.posted if each.at >= self._bound_at)

    # A destination that keeps objects

    def objects(self, stored: Sequence[Stored]) -> None:
        by_name = {each.target: each for each in stored}
        for posted in self._epoch.posted:
            there = by_name.get(posted.receipt.target)
            if there is not None:
                self._same(posted, there)
            elif posted.at < self._bound_at:
                self.found.elsewhere += 1
            else:
                self.fault("missing", posted.range, "its object is not there", posted.receipt.target)
        self._overlaps(stored)
        receipts = {each.receipt.target for each in self._epoch.posted}
        for each in stored:
            if each.target in receipts:
                continue
            if self._may_be_ours(each):
                self.found.unrecorded += 1
            else:
                seqs = Range(each.lo, each.hi)
                self.fault("stranger", seqs, "no receipt names this object", each.target)

    def _same(self, posted: Posted, there: Stored) -> None:
        receipt, seqs = posted.receipt, posted.range
        if there.hi != seqs.hi or there.lo > seqs.lo:
            text = f"its receipt says ({seqs.lo}, {seqs.hi}], its name ({there.lo}, {there.hi}]"
            self.fault("name_differs", seqs, text, receipt.target)
        if there.rows is None and there.digest is None:
            self.found.untold += 1
        if there.rows is not None and there.rows != receipt.rows:
            text = f"its receipt says {receipt.rows:,} rows, the object has {there.rows:,}"
            self.fault("rows_differ", seqs, text, receipt.target)
        elif there.digest and receipt.digest and there.digest != receipt.digest:
            text = f"its receipt says SHA-256 {receipt.digest:.12}…, the object has {there.digest:.12}…"
            self.fault("digest_differs", seqs, text, receipt.target)

    def _overlaps(self, stored: Sequence[Stored]) -> None:
        for before, after in pairwise(sorted(stored, key=lambda each: (each.lo, each.hi, each.target))):
            both = Range(before.lo, before.hi).meets(Range(after.lo, after.hi))
            if both is not None:
                self.fault("overlap", both, f"{before.target} has it too, by its name", after.target)

    def _may_be_ours(self, there: Stored) -> bool:
        """Whether a try that was cut short, or another instance, can have written this object."""
        seqs = Range(there.lo, there.hi)
        return (
            there.hi in self._others
            or any(is_unit_of(intent, there) for intent in self._epoch.unsure)
            or any(
                each.is_repeat and seqs.meets(each.range) is not None and is_unit_of(each.intent, there)
                for each in self._epoch.void
            )
        )


def is_unit_of(intent: Intent, there: Stored) -> bool:
    """Whether an object has the name of one of the units that an intent is cut into."""
    if there.hi not in Range(intent.lo, intent.hi):
        return False
    lo = intent.lo + (there.hi - 1 - intent.lo) // intent.limits.unit_rows * intent.limits.unit_rows
    hi = min(lo + intent.limits.unit_rows, intent.hi)
    return (there.lo, there.hi) == (intent.chain_hi if lo == intent.lo else lo, hi)
