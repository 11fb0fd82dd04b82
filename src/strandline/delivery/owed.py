"""What a sink is owed, from the store alone: no table is looked at, nothing is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from strandline.base.ranges import Range
from strandline.config.sinks import is_selected
from strandline.delivery.result import NOT_TAKEN
from strandline.persist import AtomicBackend
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Limits, Patience, Sink
from strandline.state.context import Site
from strandline.state.flush_plan import flush_stream
from strandline.state.sink_progress import Intent, SinkProgress
from strandline.state.strand_entries import NUMBERING, entry_of
from strandline.state.strand_state import StrandState

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
    line: SinkProgress
    strand_state: StrandState
    until: int

    @property
    def rows(self) -> int:
        """At most: seqs without a row are counted too."""
        left = self.line.left()
        behind = max(self.until - max(self.line.mark, left[-1].hi if left else 0), 0)
        return sum(map(len, left)) + behind

    @property
    def first(self) -> int:
        """The lowest seq that may have a row to deliver."""
        left = self.line.left()
        return left[0].lo + 1 if left else passable(self) + 1


def owed(site: Site, terms: Terms) -> list[Owed]:
    """Every strand of which something visible is not delivered; first the one whose oldest such row is the
    oldest of all."""
    lines = site.standing.lines()
    found = []
    for strand, strand_state in covered(site, terms):
        line, until = lines.line(terms.name, strand), strand_state.visible_through
        if line.intent is not None or line.mark < until:
            found.append(Owed(strand, line, strand_state, until))
    if len(found) < 2:
        return found
    return sorted(found, key=lambda each: (_waiting_since(site, terms, each), each.strand))


def covered(site: Site, terms: Terms) -> Iterator[tuple[Strand, StrandState]]:
    """The strands of the datasets that an instance takes."""
    for dataset in filter(terms.covers, site.standing.datasets()):
        for source, strand_state in site.standing.strand_states(dataset).items():
            yield Strand(dataset, source), strand_state


def passable(each: Owed) -> int:
    """Up to where nothing is owed, by what the ledger says: gaps have no row, nor has what was removed."""
    return min(each.strand_state.vacant_through(each.line.mark), each.until)


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
    """When the row of a seq was numbered; None for one that was not. One look at the end of its ledger, where
    it mostly is, and then a search by halves."""
    ledger = strand.ledger
    low, high = 1, b.last_seq(ledger)
    for event in b.read_range(ledger, max(high - _PAGE + 1, 1), high, limit=_PAGE):
        entry = entry_of(event)
        if isinstance(entry, NUMBERING) and seq in Range(entry.lo, entry.hi):
            return int(event.at)
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


def _waiting_since(site: Site, terms: Terms, each: Owed) -> int:
    """When the first row that is owed was numbered, 0 if the ledger does not tell. It is looked up once for
    each place that a line comes to: a strand that stands still costs nothing more."""
    key, first = (terms.name, each.strand), each.first
    known = site.firsts.get(key)
    if known is None or known[0] != first:
        known = site.firsts[key] = (first, numbered_at(site.b, each.strand, first) or 0)
    return known[1]


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


def due(site: Site, sink: Sink, terms: Terms, *, is_command: bool = False) -> list[Owed]:
    """What is owed, can be taken, and is worth an object: enough is there, or it has waited for long enough,
    or someone asks for it now."""
    found = [each for each in owed(site, terms) if not _is_declined(site, sink, each)]
    if is_command or not sink.patience.min_bytes:
        return found
    means = {name: mean_row_bytes(site.b, name) for name in {each.strand.dataset for each in found}}

    def is_due(each: Owed) -> bool:
        return _is_worth_it(site, terms, sink.patience, each, means[each.strand.dataset])

    return list(filter(is_due, found))


def _is_declined(site: Site, sink: Sink, each: Owed) -> bool:
    """Whether the sink has told that it cannot take the dataset, and still cannot."""
    hold = each.line.hold
    if hold is None or hold.kind != NOT_TAKEN:
        return False
    return sink.cannot_take(site.known(each.strand.dataset).dataset) is not None


def _is_worth_it(site: Site, terms: Terms, patience: Patience, each: Owed, mean: float) -> bool:
    if each.line.intent is not None or each.rows * mean >= patience.min_bytes:
        return True
    waited_us = site.clock.now_us() - _waiting_since(site, terms, each)
    return waited_us >= patience.max_delay_s * 1_000_000
