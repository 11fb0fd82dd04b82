"""The next number of a strand: what the newest numbering entry of its ledger says."""

from dataclasses import dataclass
from typing import Final

from strandline.persist import AtomicBackend
from strandline.rows.dataset import Strand
from strandline.state.strand_entries import NUMBERING, ControlUnreadable, Entry, Raised, entry_of

# Between two entries that give out numbers stand at most a few that do not, so one page nearly always has
# one.
_PAGE: Final = 16


@dataclass(frozen=True, slots=True)
class Head:
    """Where a ledger is: its last event, and the last seq that it gave out. A ledger without an event may
    begin above 0: then its first entry is a raise."""

    event: int
    hi: int

    @property
    def opening(self) -> list[Entry]:
        """What the ledger must hold before the next entry."""
        return [Raised(0, self.hi, "the table may have them")] if self.event == 0 and self.hi else []


def floor_key(dataset: str) -> str:
    """Holds the seq above which new strands of a dataset begin, where its table does not tell sources."""
    return f"floor/{dataset}"


def head_of(b: AtomicBackend, strand: Strand) -> Head:
    """Read backwards from the end. The cost does not grow with the ledger."""
    ledger = strand.ledger
    last = event = b.last_seq(ledger)
    while event > 0:
        first = max(event - _PAGE + 1, 1)
        for found in reversed(list(b.read_range(ledger, first, event, limit=_PAGE))):
            entry = entry_of(found)
            if isinstance(entry, NUMBERING):
                return Head(last, entry.hi)
        event = first - 1
    return Head(last, _floor(b, strand.dataset) if last == 0 else 0)


def _floor(b: AtomicBackend, dataset: str) -> int:
    found = b.kv_get(floor_key(dataset))
    if found is None or (type(found) is int and found >= 0):
        return found or 0
    raise ControlUnreadable(floor_key(dataset), None, f"{found!r:.80} is no seq")
