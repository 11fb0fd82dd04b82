"""Ranges of row numbers, all of them `(lo, hi]`: `lo` excluded, `hi` included, so that `hi - lo` is a
count."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NewType

from strandline.errors import UsageError

Seq = NewType("Seq", int)


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The seqs above `lo` up to and including `hi`."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi:
            raise UsageError(f"({self.lo}, {self.hi}] is no range", hint="0 <= lo <= hi")

    def __len__(self) -> int:
        return self.hi - self.lo

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and self.lo < seq <= self.hi

    def covers(self, other: "Range") -> bool:
        return self.lo <= other.lo and other.hi <= self.hi

    def meets(self, other: "Range") -> "Range | None":
        """What both hold, None if nothing."""
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return Range(lo, hi) if lo < hi else None

    def cut(self, width: int) -> Iterator["Range"]:
        """Pieces of `width` seqs from `lo` on; the last may be shorter."""
        if width < 1:
            raise UsageError(f"a width of {width}", hint="1 or more")
        for lo in range(self.lo, self.hi, width):
            yield Range(lo, min(lo + width, self.hi))

    def halves(self) -> "tuple[Range, Range]":
        """Two pieces that meet at the middle seq; a single seq cannot be halved."""
        if len(self) < 2:
            raise UsageError(f"({self.lo}, {self.hi}] cannot be halved", hint="it holds fewer than two seqs")
        middle = (self.lo + self.hi) // 2
        return Range(self.lo, middle), Range(middle, self.hi)


@dataclass(frozen=True, slots=True)
class RangeSet:
    """Disjoint ranges in order, neighbours merged: as large as its holes are many, however many seqs it
    holds."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> "RangeSet":
        merged: list[Range] = []
        for each in sorted(each for each in ranges if len(each)):
            if merged and each.lo <= merged[-1].hi:
                merged[-1] = Range(merged[-1].lo, max(merged[-1].hi, each.hi))
            else:
                merged.append(each)
        return cls(tuple(merged))

    def __len__(self) -> int:
        """How many seqs it holds."""
        return sum(map(len, self.ranges))

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and any(
            seq in each for each in self._near(Range(max(seq - 1, 0), max(seq, 0)))
        )

    def with_(self, added: Range) -> "RangeSet":
        """This set and `added`; it costs what lies around `added`, and a copy."""
        if not len(added):
            return self
        first = bisect_left(self.ranges, added.lo, key=lambda each: each.hi)
        last = bisect_right(self.ranges, added.hi, key=lambda each: each.lo)
        touched = [added, *self.ranges[first:last]]
        joined = Range(min(each.lo for each in touched), max(each.hi for each in touched))
        return RangeSet((*self.ranges[:first], joined, *self.ranges[last:]))

    def within(self, asked: Range) -> list[Range]:
        """What it holds of `asked`."""
        return [found for each in self._near(asked) if (found := each.meets(asked)) is not None]

    def holes(self, asked: Range) -> list[Range]:
        """What it lacks of `asked`."""
        edges = [asked.lo, *(edge for each in self.within(asked) for edge in (each.lo, each.hi)), asked.hi]
        return [Range(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]

    def covers(self, asked: Range) -> bool:
        return not len(asked) or any(each.covers(asked) for each in self._near(asked))

    def through(self, lo: int = 0) -> int:
        """The seq up to which it holds everything above `lo`."""
        place = bisect_right(self.ranges, lo, key=lambda each: each.hi)
        found = self.ranges[place : place + 1]
        return found[0].hi if found and found[0].lo <= lo else lo

    def _near(self, asked: Range) -> tuple[Range, ...]:
        """Those that could meet `asked`, found by bisection."""
        first = bisect_left(self.ranges, asked.lo, key=lambda each: each.hi)
        last = bisect_right(self.ranges, asked.hi, key=lambda each: each.lo)
        return self.ranges[first:last]


def pairs_of(ranges: Iterable[Range]) -> list[list[int]]:
    """Ranges as they are stored and sent: `[[lo, hi], …]`."""
    return [[each.lo, each.hi] for each in ranges]


def ranges_of(pairs: Iterable[Iterable[int]]) -> tuple[Range, ...]:
    """Ranges that stood as `[[lo, hi], …]`."""
    return tuple(Range(lo, hi) for lo, hi in pairs)
