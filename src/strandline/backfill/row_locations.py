"""Where the rows are that ledgers name: in segments, or in the table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.base.ranges import Range
from strandline.lake.ports.lookup import SpooledRun
from strandline.persist import ExpectSeq
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.pending_rows import pending
from strandline.state.strand_entries import Entry, Landed, Raised, Spooled, entry_of
from strandline.state.strand_state import StrandState

_PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class RowLocation:
    """Rows that a ledger names: of a segment, or (no run) somewhere in the table."""

    source: str
    seqs: Range
    run: SpooledRun | None = None


@dataclass(frozen=True, slots=True)
class Strands:
    """The strands of a dataset, as their ledgers have them."""

    site: Site
    dataset: str

    def events(self, sources: Iterable[str]) -> dict[str, int]:
        """Where each ledger is now."""
        return {source: self.site.b.last_seq(self._ledger(source)) for source in sources}

    def expected(self, events: Mapping[str, int]) -> list[ExpectSeq]:
        return [ExpectSeq(self._ledger(source), event) for source, event in events.items()]

    def pending(self, source: str) -> Iterator[RowLocation]:
        """What is spooled and has not landed."""
        strand_state = self._strand_state(source)
        if strand_state.pending_rows:
            for each in pending(self.site.b, Strand(self.dataset, source), strand_state):
                yield _spooled(source, each.entry, Range(each.lo, each.hi))

    def gained(self, before: Mapping[str, int], now: Mapping[str, int]) -> list[RowLocation]:
        """What came since: rows newly spooled, wherever they are by now, and loads newly landed."""
        return [
            place
            for source, event in now.items()
            for entry in self._entries(source, before.get(source, 0), event)
            for place in self._places(source, entry)
        ]

    def has_landed(self, place: RowLocation) -> bool:
        return self._strand_state(place.source).settled.covers(place.seqs)

    def _ledger(self, source: str) -> str:
        return Strand(self.dataset, source).ledger

    def _strand_state(self, source: str) -> StrandState:
        return self.site.standing.strand_state(Strand(self.dataset, source))

    def _entries(self, source: str, after: int, until: int) -> Iterator[Entry]:
        for first in range(after + 1, until + 1, _PAGE):
            last = min(first + _PAGE - 1, until)
            yield from map(entry_of, self.site.b.read_range(self._ledger(source), first, last, limit=_PAGE))

    def _places(self, source: str, entry: Entry) -> Iterator[RowLocation]:
        """Rows that a flush landed came in with an entry of their own."""
        if isinstance(entry, Landed | Raised):
            yield RowLocation(source, Range(entry.lo, entry.hi))
        elif isinstance(entry, Spooled):
            whole = Range(entry.lo, entry.hi)
            holes = list(self._strand_state(source).settled.holes(whole))
            yield from (_spooled(source, entry, hole) for hole in holes)
            if holes != [whole]:
                yield RowLocation(source, whole)


def runs_of(places: Iterable[RowLocation]) -> list[SpooledRun]:
    return [place.run for place in places if place.run is not None]


def seqs_of(places: Iterable[RowLocation]) -> dict[str, Sequence[Range]]:
    """By source."""
    found: dict[str, list[Range]] = {}
    for place in places:
        found.setdefault(place.source, []).append(place.seqs)
    return {**found}


def _spooled(source: str, entry: Spooled, seqs: Range) -> RowLocation:
    first = entry.first_row + seqs.lo - entry.lo
    return RowLocation(source, seqs, SpooledRun(source, entry.segment, entry.of, first, seqs.hi - seqs.lo))
