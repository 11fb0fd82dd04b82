"""What a sink is owed, from the store alone: no table is looked at, nothing is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from strandline.dataset import Strand
from strandline.ledger.entry import NUMBERING, entry_of
from strandline.ledger.line import Intent, Line
from strandline.ledger.tally import Tally
from strandline.persist import AtomicBackend
from strandline.pipeline.config_sinks import is_selected
from strandline.pipeline.plan import flush_stream
from strandline.pipeline.site import Site
from strandline.ranges import Range
from strandline.sinks.sink import Limits, Patience, Sink

_LOOK_BACK: Final = 16  # flush events in which the size of a row is looked for
_PAGE: Final = 4  # ledger events of one look in a search: one that gives out numbers is mostly near


@dataclass(frozen=True, slots=True)
class Terms:
    """What is configured of an instance, whatever its type."""

    name: str
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    start: Literal["all", "now"] = "all"
    max_intent_rows: int = 200_000

    def covers(self, dataset: str) -> bool:
        return is_selected(dataset, self.include, self.exclude)


@dataclass(frozen=True, slots=True)
class Owed:
    """A strand with something to deliver: an intent that is open, or rows behind the line up to `until`."""

    strand: Strand
    line: Line
    tally: Tally
    until: int

    @property
    def rows(self) -> int:
        """At most: seqs without a row are counted too."""
        left = self.line.left()
        behind = max(self.until - max(self.line.mark, left[-1].hi if left else 0), 0)
        return sum(map(len, left)) + behind


def owed(site: Site, terms: Terms) -> list[Owed]:
    """Every strand of which something visible is not delivered, those that have waited longest first."""
    lines = site.standing.lines()
    found = [
        Owed(strand, line, tally, tally.visible_through)
        for strand, tally in covered(site, terms)
        if (line := lines.line(terms.name, strand)).intent is not None or line.mark < tally.visible_through
    ]
    return sorted(found, key=lambda each: (each.line.at, each.strand))


def covered(site: Site, terms: Terms) -> Iterator[tuple[Strand, Tally]]:
    """The strands of the datasets that an instance takes."""
    for dataset in filter(terms.covers, site.standing.datasets()):
        for source, tally in site.standing.tallies(dataset).items():
            yield Strand(dataset, source), tally


def passable(each: Owed) -> int:
    """Up to where nothing is owed, by what the ledger says: gaps have no row."""
    return min(each.tally.empty.through(each.line.mark), each.until)


def next_intent(
    each: Owed, terms: Terms, limits: Limits, *, schema: int, policy: int, at: int, draw: Callable[[], str]
) -> Intent | None:
    """What is delivered next of a strand without an open intent; None if only a gap is left."""
    lo = passable(each)
    if lo >= each.until:
        return None
    hi = min(each.until, lo + terms.max_intent_rows)
    line = each.line
    return Intent(draw(), lo, hi, line.epoch, line.chain_hi, limits, schema, policy, at=at)


def mean_row_bytes(b: AtomicBackend, dataset: str) -> float:
    """About what a row of a dataset takes in its table, by the newest flush that landed some; 0 if none
    has."""
    stream = flush_stream(dataset)
    last = b.last_seq(stream)
    first = max(last - _LOOK_BACK + 1, 1)
    for event in reversed(list(b.read_range(stream, first, last, limit=_LOOK_BACK))):
        if event.type in ("committed", "landed") and event.data["rows"]:
            return float(event.data["bytes"]) / float(event.data["rows"])
    return 0.0


def numbered_at(b: AtomicBackend, strand: Strand, seq: int) -> int | None:
    """When the row of a seq was numbered; None for one that was not. A search by halves in its ledger."""
    ledger = strand.ledger
    low, high = 1, b.last_seq(ledger)
    while low <= high:
        middle = (low + high) // 2
        at, range_ = _numbering(b, ledger, middle, high)
        if range_ is None:  # nothing up to `high` gives out numbers
            high = middle - 1
        elif seq in range_[1]:
            return at
        elif seq <= range_[1].lo:
            high = middle - 1
        else:
            low = range_[0] + 1
    return None


def _numbering(b: AtomicBackend, ledger: str, first: int, last: int) -> tuple[int, tuple[int, Range] | None]:
    """The first entry from `first` on that gives out numbers: its time, its event, its range."""
    while first <= last:
        page = list(b.read_range(ledger, first, last, limit=_PAGE))
        for event in page:
            entry = entry_of(event)
            if isinstance(entry, NUMBERING):
                return int(event.at), (event.seq, Range(entry.lo, entry.hi))
        if not page:
            break
        first = page[-1].seq + 1
    return 0, None


def due(site: Site, sink: Sink, terms: Terms) -> list[Owed]:
    """What is owed and worth an object: enough is there, or it has waited for long enough."""
    found = owed(site, terms)
    if not sink.patience.min_bytes:
        return found
    means = {name: mean_row_bytes(site.b, name) for name in {each.strand.dataset for each in found}}
    return [each for each in found if _is_worth_it(site, sink.patience, each, means[each.strand.dataset])]


def _is_worth_it(site: Site, patience: Patience, each: Owed, mean: float) -> bool:
    if each.line.intent is not None or each.rows * mean >= patience.min_bytes:
        return True
    at = numbered_at(site.b, each.strand, each.line.mark + 1)
    return at is None or site.clock.now_us() - at >= patience.max_delay_s * 1_000_000
