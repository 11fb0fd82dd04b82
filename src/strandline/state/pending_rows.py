"""The spool of a strand: rows that its ledger names and that no flush has landed yet, oldest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strandline.base.ranges import Range
from strandline.persist import AtomicBackend
from strandline.rows.dataset import Strand
from strandline.state.strand_entries import Spooled, entry_of
from strandline.state.strand_state import StrandState

_PAGE: Final = 64  # a flush may read thousands of strands side by side


@dataclass(frozen=True, slots=True)
class Pending:
    """The rows of one ledger entry that have not landed."""

    event: int
    at: int
    entry: Spooled
    lo: int
    hi: int

    @property
    def first_row(self) -> int:
        return self.entry.first_row + self.lo - self.entry.lo

    @property
    def bytes(self) -> int:
        return share(self.entry, self.lo, self.hi)


def share(entry: Spooled, lo: int, hi: int) -> int:
    """The bytes of rows (lo, hi] of an entry, as if all were alike. The shares of its parts add up to its
    own."""
    rows = entry.hi - entry.lo
    return entry.bytes * (hi - entry.lo) // rows - entry.bytes * (lo - entry.lo) // rows


def pending(b: AtomicBackend, strand: Strand, strand_state: StrandState) -> Iterator[Pending]:
    """Yield the pending rows of a strand, read lazily by pages. Rows that are spooled meanwhile come too."""
    first, ledger = strand_state.next, strand.ledger
    while page := list(b.read_range(ledger, first, b.last_seq(ledger), limit=_PAGE)):
        for event in page:
            if event.type != "spooled":
                continue
            entry = entry_of(event)
            assert isinstance(entry, Spooled)
            for hole in strand_state.settled.holes(Range(entry.lo, entry.hi)):
                yield Pending(event.seq, int(event.at), entry, hole.lo, hole.hi)
        first = page[-1].seq + 1
