"""What the next flush takes: the oldest pending rows of a dataset, within its limits, from valid segments
only."""

import heapq
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from strandline.base.ranges import Range, RangeSet
from strandline.persist import Append
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.flush_plan import Share
from strandline.state.landing import SegmentPiece
from strandline.state.pending_rows import Pending, pending
from strandline.state.strand_entries import Held, append_of
from strandline.state.strand_state import StrandState
from strandline.storage.segment_fault import segment_fault

MAX_PIECES: Final = 5_000  # a plan is one event, and names each of them; so it has no more strands either
_CHECKERS: Final = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """What a flush would take of each strand, and the writes that record what it found damaged."""

    strands: Mapping[str, Share]
    holds: list[Append]


def choose(site: Site, dataset: str, until: Mapping[str, int]) -> Choice:
    """The oldest pending rows up to `until[source]` of each strand. Each strand lands in seq order: it
    stops in front of a damaged segment, and the others go on as if it had nothing behind that."""
    strand_states = {
        source: each for source, each in site.standing.pending(dataset).items() if source in until
    }
    ends = dict(until)
    faults: dict[str, str | None] = {}
    holds: dict[str, Append] = {}
    while True:
        taken = list(_oldest(site, dataset, strand_states, ends))
        _look_at(site, taken, faults)
        damaged = [(source, each) for source, each in taken if faults[each.entry.segment.cid] is not None]
        if not damaged:
            break
        for source, each in damaged:
            if each.lo < ends[source]:
                ends[source] = each.lo
                holds[source] = _hold(site, dataset, source, each, str(faults[each.entry.segment.cid]))
    strands: dict[str, list[Pending]] = {}
    for source, each in taken:
        strands.setdefault(source, []).append(each)
    shares = {source: share_of(source, parts) for source, parts in strands.items()}
    new = [hold for source, hold in holds.items() if not _is_held(strand_states[source], hold)]
    return Choice(shares, new)


def _hold(site: Site, dataset: str, source: str, each: Pending, fault: str) -> Append:
    """Of the whole entry, whichever part of it this flush would have taken."""
    held = Held(each.entry.segment.cid, each.lo, each.entry.hi, fault)
    return append_of(Strand(dataset, source).ledger, held, site.clock.now_us())


def _is_held(strand_state: StrandState, hold: Append) -> bool:
    return any((each.lo, each.hi) == (hold.data["lo"], hold.data["hi"]) for each in strand_state.holds)


def share_of(source: str, parts: list[Pending]) -> Share:
    """Consecutive pending parts of one strand as a flush records them."""
    last = parts[-1]
    is_whole = last.hi == last.entry.hi
    return Share(
        RangeSet.of(Range(each.lo, each.hi) for each in parts).ranges,
        last.event + 1 if is_whole else last.event,
        sum(each.hi - each.lo for each in parts),
        sum(each.bytes for each in parts),
        tuple(
            SegmentPiece(source, each.entry.segment, each.first_row, each.hi - each.lo, each.lo, each.at)
            for each in parts
        ),
    )


def _oldest(
    site: Site, dataset: str, strand_states: Mapping[str, StrandState], until: Mapping[str, int]
) -> Iterator[tuple[str, Pending]]:
    """Across strands by age, in each by seq; the last one may be cut at a row."""
    rows, bytes_, pieces = 0, 0, 0
    merged = heapq.merge(
        *(
            _of_strand(site, Strand(dataset, source), strand_state, until[source])
            for source, strand_state in strand_states.items()
        ),
        key=lambda found: (found[1].at, found[0], found[1].event),
    )
    for source, each in merged:
        room = site.flush.max_rows - rows
        part = each if each.hi - each.lo <= room else _cut(each, room)
        yield source, part
        rows, bytes_, pieces = rows + part.hi - part.lo, bytes_ + part.bytes, pieces + 1
        if rows >= site.flush.max_rows or bytes_ >= site.flush.max_bytes or pieces >= MAX_PIECES:
            return


def _of_strand(
    site: Site, strand: Strand, strand_state: StrandState, until: int
) -> Iterator[tuple[str, Pending]]:
    for each in pending(site.b, strand, strand_state):
        if each.lo >= until:
            return
        yield strand.source, each


def _cut(each: Pending, rows: int) -> Pending:
    return Pending(each.event, each.at, each.entry, each.lo, each.lo + rows)


def _look_at(site: Site, taken: list[tuple[str, Pending]], faults: dict[str, str | None]) -> None:
    """The verdict on each segment, found once. Storage that does not answer raises: that is no verdict."""
    new = {each.entry.segment.cid: each.entry for _, each in taken if each.entry.segment.cid not in faults}
    if new:
        with ThreadPoolExecutor(min(_CHECKERS, len(new))) as pool:
            found = pool.map(lambda entry: segment_fault(site.content, entry.segment, entry.of), new.values())
            faults.update(zip(new, found, strict=True))


def without(strands: Mapping[str, Share], cid: str) -> tuple[dict[str, Share], dict[str, Range]]:
    """The shares cut in front of a segment that turned bad after it was planned, and the ranges that it
    took."""
    kept: dict[str, Share] = {}
    bad: dict[str, Range] = {}
    for source, each in strands.items():
        index = next((i for i, piece in enumerate(each.pieces) if piece.segment.cid == cid), None)
        if index is None:
            kept[source] = each
            continue
        piece = each.pieces[index]
        bad[source] = Range(piece.lo, piece.hi)
        before = each.pieces[:index]
        if before:
            kept[source] = _shortened(each, before)
    return kept, bad


def _shortened(each: Share, pieces: tuple[SegmentPiece, ...]) -> Share:
    """A share of fewer pieces. The strand is read again from where this flush began: `next` is a hint that
    may be too low, never too high."""
    rows = sum(piece.rows for piece in pieces)
    return Share(
        RangeSet.of(Range(piece.lo, piece.hi) for piece in pieces).ranges,
        0,
        rows,
        each.bytes * rows // each.rows,
        pieces,
    )
