"""What follows from what a sink told of a strand: what is done, what is tried again and when, what is given
up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.backoff import pace_s, retry_s
from strandline.sinks.sink import DONE, Outcome, Patience
from strandline.state.sink_progress import SinkProgress, Trouble, UnitReceipt

if TYPE_CHECKING:
    from strandline.sinks.unit_runner import IntentPart, Told  # which needs pyarrow, and status does not

_STOPS: Final = frozenset({"pace", "failed", "refused", "denied"})
_FINAL: Final = frozenset({"row_too_large"})  # no further try could end otherwise
_REFUSED: Final = frozenset({"bad_rows", "poison"})


@dataclass(frozen=True, slots=True)
class Verdict:
    receipts: tuple[UnitReceipt, ...]
    void: tuple[Range, ...]
    withheld: tuple[Range, ...]
    given_up: tuple[Outcome, ...]  # become dead letters
    hold: Outcome | None
    trouble: Trouble | None
    is_denied: bool

    @property
    def has_progress(self) -> bool:
        return bool(self.receipts or self.void or self.given_up)


def judge(
    line: SinkProgress, part: "IntentPart", told: "Sequence[Told]", patience: Patience, now: int
) -> Verdict:
    """`told` is everything that was told of the strand, in the order of its seqs."""
    outcomes = [each.outcome for each in told]
    covered = RangeSet.of(Range(each.lo, each.hi) for each in outcomes)
    void = [hole for each in part.ranges for hole in covered.holes(each)]
    void += [Range(each.lo, each.hi) for each in outcomes if each.status in DONE and not each.rows]
    receipts = tuple(
        UnitReceipt(each.lo, each.hi, each.rows, each.bytes, each.digest, each.target)
        for each in outcomes
        if each.status in DONE and each.rows
    )
    refused = [each for each in outcomes if each.status in _REFUSED]
    tries = {Range(each.lo, each.hi): _tries(line, each) for each in refused}
    over = [
        each
        for each in refused
        if each.kind in _FINAL or tries[Range(each.lo, each.hi)] >= patience.poison_attempts
    ]
    hold = next((each for each in outcomes if each.status == "held"), None)
    if hold is None and over and patience.on_poison == "hold":
        hold = over[0]
    given_up = () if patience.on_poison == "hold" else tuple(over)
    for each in over:
        tries.pop(Range(each.lo, each.hi))
    trouble = _trouble(line, outcomes, tries, now)
    if hold is None and trouble is not None and trouble.refused >= patience.refused_attempts:
        hold = next(each for each in outcomes if each.status == "refused")
    return Verdict(
        receipts,
        tuple(void),
        tuple(range_ for each in told for range_ in each.withheld),
        given_up,
        hold,
        trouble,
        is_denied=any(each.status == "denied" for each in outcomes),
    )


def _tries(line: SinkProgress, refused: Outcome) -> int:
    """How often these rows were refused, this time included."""
    before = line.trouble.bad if line.trouble is not None else {}
    return before.get(Range(refused.lo, refused.hi), 0) + 1


def _trouble(
    line: SinkProgress, outcomes: Sequence[Outcome], bad: dict[Range, int], now: int
) -> Trouble | None:
    stopped = next((each for each in outcomes if each.status in _STOPS), None)
    is_pace = stopped is not None and stopped.status == "pace"
    refused = 0
    if stopped is not None:
        attempts = _attempts(line, stopped.lo)
        if is_pace:
            wait_s = stopped.wait_s if stopped.wait_s and stopped.wait_s > 0 else pace_s(attempts)
        else:
            wait_s = retry_s(attempts)
        kind = "auth_failed" if stopped.status == "denied" else stopped.kind
        refused = _refused(line, stopped)
    elif bad:
        first = min(bad)
        stopped = next(each for each in outcomes if (each.lo, each.hi) == (first.lo, first.hi))
        attempts = max(bad.values())
        wait_s, kind = retry_s(attempts), stopped.kind
    else:
        return None
    not_before = now + int(wait_s * 1_000_000)
    return Trouble(
        stopped.lo, stopped.hi, kind, stopped.text, attempts, not_before, now, is_pace, bad, refused
    )


def _refused(line: SinkProgress, stopped: Outcome) -> int:
    """Return how often this unit was refused on its way. Failures in between, such as a line that is down,
    neither count nor start the count anew."""
    before = line.trouble.refused if line.trouble is not None and line.trouble.lo == stopped.lo else 0
    return before + (stopped.status == "refused")


def _attempts(line: SinkProgress, lo: int) -> int:
    return line.trouble.attempts + 1 if line.trouble is not None and line.trouble.lo == lo else 1
