"""Rows that landed and are not in their table: whether what is recorded explains each of them. Pure.

A flush says how many rows it left out, over all its strands. A ledger says where retention, purge or
compaction removed rows, and how many. So outside of where rows were removed, a flush lacks what it left out;
inside, what it left out and what was removed are told apart by their numbers alone.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from strandline.base.ranges import Range, RangeSet


class Took(NamedTuple):
    """So many rows of a range that were removed; where it is `open`, any number up to it may be by now."""

    range: Range
    rows: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class StrandRows:
    """A strand: what each flush landed of it, what was removed, and what is there."""

    by_flush: Mapping[int, Sequence[Range]]
    there: RangeSet
    took: Sequence[Took] = ()
    raised: RangeSet = field(default_factory=RangeSet)  # numbers that may have had rows as well


class Unexplained(NamedTuple):
    source: str
    kind: Literal["row_missing", "row_unexpected"]
    ranges: Sequence[Range]
    text: str


class _Zone(NamedTuple):
    """Where rows of a strand were removed. Of those that are absent, `least` to `most` were left out."""

    source: str
    range: Range
    absent: int
    least: int
    most: int
    flushes: frozenset[int]


def unexplained(strands: Mapping[str, StrandRows], left_out: Mapping[int, int]) -> Iterator[Unexplained]:
    zones: list[_Zone] = []
    for source, strand in strands.items():
        for zone in RangeSet.of(each.range for each in strand.took).ranges:
            found, problem = _zone(source, strand, zone)
            zones.append(found)
            if problem is not None:
                yield problem
    rest = yield from _flushes(strands, left_out, zones)
    yield from _zones(zones, rest)


def _zone(source: str, strand: StrandRows, zone: Range) -> tuple[_Zone, Unexplained | None]:
    absent = {
        number: sum(len(hole) for part in _within(ranges, zone) for hole in strand.there.holes(part))
        for number, ranges in strand.by_flush.items()
    }
    flushes = frozenset(number for number, ranges in strand.by_flush.items() if _within(ranges, zone))
    count = sum(absent.values())
    other = sum(len(hole) for part in strand.raised.within(zone) for hole in strand.there.holes(part))
    took = [each for each in strand.took if zone.covers(each.range)]
    sure = sum(each.rows for each in took if not each.is_open)
    maybe = sum(each.rows for each in took if each.is_open)
    problem = None
    if sure > count + other:
        text = f"{sure:,} rows of it were removed, and {sure - count - other:,} of those are there"
        problem = Unexplained(source, "row_unexpected", [zone], text)
    least, most = max(count - sure - maybe, 0), count if other else max(count - sure, 0)
    return _Zone(source, zone, count, least, most, flushes), problem


def _flushes(
    strands: Mapping[str, StrandRows], left_out: Mapping[int, int], zones: Sequence[_Zone]
) -> Generator[Unexplained, None, dict[int, int]]:
    """Outside of the zones. Gives for each flush that has part in one how many rows it left out there."""
    rest: dict[int, int] = {}
    touched = frozenset(number for zone in zones for number in zone.flushes)
    apart = {source: RangeSet.of(zone.range for zone in zones if zone.source == source) for source in strands}
    numbers = sorted({number for strand in strands.values() for number in strand.by_flush})
    for number in numbers:
        landed = {
            source: each.by_flush[number] for source, each in strands.items() if number in each.by_flush
        }
        holes = {
            source: [
                hole
                for range_ in ranges
                for part in apart[source].holes(range_)
                for hole in strands[source].there.holes(part)
            ]
            for source, ranges in landed.items()
        }
        count, wanted = sum(len(hole) for found in holes.values() for hole in found), left_out.get(number, 0)
        if count > wanted:
            text = f"flush {number} landed {count:,} rows that are not there, and left out {wanted:,}"
            for source, found in holes.items():
                yield Unexplained(source, "row_missing", found, text)
        elif number in touched:
            rest[number] = wanted - count
        elif count < wanted:
            text = f"flush {number} left out {wanted:,} rows, and {wanted - count:,} of those are there"
            for source, ranges in landed.items():
                yield Unexplained(source, "row_unexpected", ranges, text)
    return rest


def _zones(zones: Sequence[_Zone], rest: Mapping[int, int]) -> Iterator[Unexplained]:
    """Inside of them."""
    is_told = False
    for zone in zones:
        explained = sum(rest.get(number, 0) for number in zone.flushes)
        if zone.least > explained:
            is_told = True
            text = (
                f"{zone.absent:,} rows of it are not there, {zone.least - explained:,} more than are recorded"
            )
            yield Unexplained(zone.source, "row_missing", [zone.range], text)
    least, most, left = sum(z.least for z in zones), sum(z.most for z in zones), sum(rest.values())
    if not is_told and least > left:
        for zone in zones:
            if zone.least:
                text = f"with others, it lacks {least - left:,} rows more than are recorded"
                yield Unexplained(zone.source, "row_missing", [zone.range], text)
    elif not is_told and most < left:
        for zone in zones:
            text = f"with others, {left - most:,} rows are there that were left out or removed"
            yield Unexplained(zone.source, "row_unexpected", [zone.range], text)


def _within(ranges: Sequence[Range], zone: Range) -> list[Range]:
    return [found for each in ranges if (found := each.meets(zone)) is not None]
