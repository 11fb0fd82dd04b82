"""Which entries of a ledger name the rows of a range: found by halves, since numbers only ever grow."""

from collections.abc import Iterator
from typing import Final

from strandline.base.ranges import Range
from strandline.persist import AtomicBackend
from strandline.state.strand_entries import NUMBERING, Entry, Spooled, entry_of

_PAGE: Final = 64
_LOOK: Final = 4  # events of one look in the search: one that gives out numbers is mostly near


def spooled_in(b: AtomicBackend, ledger: str, rows: Range) -> Iterator[Spooled]:
    """The entries that name a segment for some rows of the range, oldest first."""
    for entry in _from(b, ledger, _first_reaching(b, ledger, rows.lo)):
        if not isinstance(entry, NUMBERING):
            continue
        if entry.lo >= rows.hi:
            return
        if isinstance(entry, Spooled) and Range(entry.lo, entry.hi).meets(rows):
            yield entry


def _first_reaching(b: AtomicBackend, ledger: str, seq: int) -> int:
    """An event before which no entry gives out a number above `seq`."""
    low, high = b.truncated_through(ledger) + 1, b.last_seq(ledger) + 1
    while low < high:
        middle = (low + high) // 2
        found = _numbering(b, ledger, middle, high)
        if found is None or found[1] > seq:
            high = middle
        else:
            low = found[0] + 1
    return low


def _numbering(b: AtomicBackend, ledger: str, first: int, before: int) -> tuple[int, int] | None:
    """The first entry from `first` on that gives out numbers: its event, and the last of them."""
    while first < before and (page := list(b.read_range(ledger, first, before - 1, limit=_LOOK))):
        for event in page:
            entry = entry_of(event)
            if isinstance(entry, NUMBERING):
                return event.seq, entry.hi
        first = page[-1].seq + 1
    return None


def _from(b: AtomicBackend, ledger: str, first: int) -> Iterator[Entry]:
    while page := list(b.read_range(ledger, first, b.last_seq(ledger), limit=_PAGE)):
        yield from map(entry_of, page)
        first = page[-1].seq + 1
