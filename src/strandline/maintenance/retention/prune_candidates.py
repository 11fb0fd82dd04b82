"""Which strands may have rows to lose, by what data files say of their rows: pure, and at most."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.base.ranges import Range
from strandline.lake.ports.prune import Condition, FileBounds, RowPlace, TableFiles
from strandline.maintenance.retention.rules import RetentionRules


@dataclass(frozen=True, slots=True)
class Ripe:
    """Of one strand: at most so many rows, in files that have these seqs."""

    seqs: Range
    rows: int

    def above(self, seq: int, most: int) -> int:
        """How many of them are above a seq and not above another, at most."""
        return max(min(self.rows, min(self.seqs.hi, most) - max(self.seqs.lo, seq)), 0)


def ripe(files: TableFiles, condition: Condition, sources: Sequence[str]) -> dict[str, Ripe]:
    """By source; `sources` are in order."""
    found: dict[str, Ripe] = {}
    for file in files.files:
        if not may_hold(file, condition):
            continue
        for source in _sources(file, sources):
            before = found.get(source)
            rows = min(file.rows, len(file.seqs))
            if before is None:
                found[source] = Ripe(file.seqs, rows)
            else:
                seqs = Range(min(before.seqs.lo, file.seqs.lo), max(before.seqs.hi, file.seqs.hi))
                found[source] = Ripe(seqs, before.rows + rows)
    return found


def may_hold(file: FileBounds, condition: Condition) -> bool:
    """Whether some row of a file can be one of which the condition holds."""
    at = file.at[0]
    is_old = condition.older_than is not None and oldest(file) < condition.older_than
    is_first = condition.first is not None and at <= condition.first.at
    is_within = condition.within is None or at <= condition.within.at
    return at < condition.taken_before and (is_old or is_first) and is_within


def oldest(file: FileBounds) -> int:
    """No row of a file is older by its own time."""
    lows = []
    for each in file.times:
        if each.low is not None:
            lows.append(each.low)
        if not each.has_null:
            return min(lows)
    return min([*lows, file.at[0]])


def newest(file: FileBounds) -> int:
    """No row of a file is younger by its own time."""
    highs = []
    for each in file.times:
        if each.high is not None:
            highs.append(each.high)
        if not each.has_null:
            return max(highs)
    return max([*highs, file.at[1]])


def ripens_at(files: TableFiles, rules: RetentionRules, first: RowPlace | None, now: int) -> int | None:
    """The next instant at which files may have rows to lose that they do not have now; or at which rows that
    wait for sinks have waited for long enough. Of a file with older and younger rows that is any instant."""
    holds = {0, rules.hold_us}
    instants = (
        instant + hold + 1
        for file in files.files
        for instant in _instants(file, rules, first, now)
        for hold in holds
    )
    return min((each for each in instants if each > now), default=None)


def _instants(file: FileBounds, rules: RetentionRules, first: RowPlace | None, now: int) -> Iterator[int]:
    resident = file.at[0] + rules.residence_us
    if rules.keep_us:
        begins = max(oldest(file) + rules.keep_us, resident)
        ends = max(newest(file) + rules.keep_us, file.at[1] + rules.residence_us)
        yield now if begins <= now < ends else begins
    if first is not None and file.at[0] <= first.at:
        yield resident


def _sources(file: FileBounds, sources: Sequence[str]) -> Sequence[str]:
    low, high = file.sources
    if low == high:
        return (low,)
    return sources[bisect_left(sources, low) : bisect_right(sources, high)]
