"""The stream of a sink on a strand as an account: what settles each range, epoch by epoch.

The line of the same stream claims that all up to it is done. The account keeps the evidence apart from the
claim, so that one can be held against the other, and both against the destination.

    crossed   where the line went          receipts, known, void, letters, passed   what lets it go there
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from strandline.base.ranges import Range, RangeSet, ranges_of
from strandline.persist import Event
from strandline.rows.dataset import Strand
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.sink_progress import Intent, SinkProgress, UnitReceipt, sink_stream, with_event
from strandline.state.strand_entries import ControlUnreadable

_MOVES: Final = ("delivered", "lettered", "passed")


@dataclass(frozen=True, slots=True)
class Posted:
    """A unit that is done, when that was recorded, and the rows of it that a policy kept here."""

    receipt: UnitReceipt
    at: int
    withheld: tuple[Range, ...] = ()

    @property
    def range(self) -> Range:
        return Range(self.receipt.lo, self.receipt.hi)


@dataclass(frozen=True, slots=True)
class Void:
    """A range that had no row to send. On a repeat an earlier try may have sent some all the same."""

    range: Range
    intent: Intent
    is_repeat: bool
    withheld: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenUpRange:
    """A range that was given up, and how that was settled since: "" if it was not."""

    range: Range
    rows: int
    how: str = ""


@dataclass(slots=True)
class Epoch:
    """What is recorded of one epoch."""

    crossed: RangeSet = field(default_factory=RangeSet)
    posted: list[Posted] = field(default_factory=list)
    known: list[Range] = field(default_factory=list)
    void: list[Void] = field(default_factory=list)
    letters: dict[int, GivenUpRange] = field(default_factory=dict)  # by event
    passed: list[Range] = field(default_factory=list)
    skipped: list[Range] = field(default_factory=list)  # by an operator
    withheld: RangeSet = field(default_factory=RangeSet)
    unsure: list[Intent] = field(default_factory=list)  # open, or given up: anything of them may be there
    twice: list[Range] = field(default_factory=list)  # settled more often than the line came by
    lap: RangeSet = field(default_factory=RangeSet)  # settled since the line last began here
    is_release: bool = False  # its units are whole, and only some of their rows were asked for

    def settled(self) -> RangeSet:
        """Every range of which it is recorded what became of it."""
        return RangeSet.of(
            [
                *(each.range for each in self.posted),
                *self.known,
                *(each.range for each in self.void),
                *(each.range for each in self.letters.values()),
                *self.passed,
                *self.skipped,
            ]
        )

    def settle(self, range_: Range) -> None:
        if not self.is_release:  # there a unit that was cut short is tried again as a whole
            self.twice += self.lap.within(range_)
        self.lap = self.lap.with_(range_)


@dataclass(frozen=True, slots=True)
class Account:
    """All epochs of the instance's present life, and the line as the stream alone gives it."""

    line: SinkProgress
    epochs: dict[int, Epoch]


def account_of(
    site: Site, instance: str, strand: Strand, line: SinkProgress, first_epoch: int = 0
) -> Account:
    """Read from its first event, which may be in the archive. `line` is what the global order gives,
    `first_epoch` that of the instance.

    Raises ControlUnreadable for an event that cannot be understood, HistoryGap where the stream was cut.
    """
    stream = sink_stream(instance, strand.dataset, strand.source)
    folding = _Folding(first_epoch)
    for event in past_events(site, stream):
        try:
            folding.take(event)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ControlUnreadable(stream, event.seq, str(error)) from error
    return folding.account(line.epoch)


class _Folding:
    def __init__(self, first_epoch: int) -> None:
        self._first = first_epoch
        self._line = SinkProgress(epoch=0)
        self._epochs: dict[int, Epoch] = {}

    def account(self, epoch: int) -> Account:
        self._begin(epoch)
        if self._line.intent is not None:
            self._epoch(self._line.intent.epoch).unsure.append(self._line.intent)
        return Account(
            self._line, {number: each for number, each in self._epochs.items() if number >= self._first}
        )

    def take(self, event: Event) -> None:
        data: Any = event.data
        if event.type in ("started", "intended", "passed") and data.get("ranges") is None:
            self._begin(data.get("epoch", self._line.epoch))
        before = self._line
        self._line = after = with_event(before, event)
        match event.type:
            case "intended":
                if before.intent is not None:
                    self._epoch(before.intent.epoch).unsure.append(before.intent)
            case "delivered":
                self._delivered(before, data, int(event.at))
            case "lettered":
                letter = GivenUpRange(Range(data["lo"], data["hi"]), data["rows"])
                epoch = self._epoch(data["epoch"])
                epoch.letters[event.seq] = letter
                epoch.settle(letter.range)
            case "settled":
                self._letter_settled(data, int(event.at))
            case "passed":
                gap = Range(data["lo"], data["hi"])
                self._epoch(before.epoch).passed.append(gap)
                self._epoch(before.epoch).settle(gap)
            case "moved":
                self._moved(before, after)
        self._cross(event.type, before, after)

    def _epoch(self, number: int) -> Epoch:
        return self._epochs.setdefault(number, Epoch())

    def _begin(self, epoch: int) -> None:
        """An epoch that nobody moved the line to: the instance was forgotten, and begins anew."""
        if epoch != self._line.epoch:
            if self._line.intent is not None:
                self._epoch(self._line.intent.epoch).unsure.append(self._line.intent)
            last = max(epoch, self._line.last_epoch)
            self._line = SinkProgress(epoch=epoch, last_epoch=last, event=self._line.event)

    def _delivered(self, before: SinkProgress, data: Any, at: int) -> None:
        intent = before.intent
        assert intent is not None  # else the line had refused the event
        epoch = self._epoch(intent.epoch)
        epoch.is_release = intent.ranges is not None
        kept = RangeSet.of(ranges_of(data["withheld"]))
        for each in data["units"]:
            receipt = UnitReceipt(*each)
            unit = Range(receipt.lo, receipt.hi)
            epoch.posted.append(Posted(receipt, at, tuple(kept.within(unit))))
            epoch.settle(unit)
        for lo, hi in data["known"]:
            epoch.known.append(Range(lo, hi))
            epoch.settle(Range(lo, hi))
        for lo, hi in data["void"]:
            void = Range(lo, hi)
            epoch.void.append(Void(void, intent, bool(data["is_repeat"]), tuple(kept.within(void))))
            epoch.settle(void)
        for each in kept.ranges:
            epoch.withheld = epoch.withheld.with_(each)

    def _letter_settled(self, data: Any, at: int) -> None:
        for epoch in self._epochs.values():
            if (letter := epoch.letters.get(data["letter"])) is not None:
                epoch.letters[data["letter"]] = replace(letter, how=data["how"])
                epoch.posted += [Posted(UnitReceipt(*each), at) for each in data["units"]]

    def _moved(self, before: SinkProgress, after: SinkProgress) -> None:
        if before.intent is not None and after.intent is None:
            self._epoch(before.intent.epoch).unsure.append(before.intent)
        epoch = self._epoch(after.epoch)
        if after.epoch == before.epoch and after.mark > before.mark:
            epoch.skipped.append(Range(before.mark, after.mark))
        epoch.lap = RangeSet()

    def _cross(self, type_: str, before: SinkProgress, after: SinkProgress) -> None:
        if type_ not in _MOVES:
            return
        if after.mark > before.mark:
            epoch = self._epoch(after.epoch)
            epoch.crossed = epoch.crossed.with_(Range(before.mark, after.mark))
        closed = before.intent
        if closed is not None and closed.ranges is not None and after.intent is None:  # of a release
            epoch = self._epoch(closed.epoch)
            for each in closed.ranges:
                epoch.crossed = epoch.crossed.with_(each)
