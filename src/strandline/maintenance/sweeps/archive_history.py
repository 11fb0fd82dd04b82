"""Folding: closed history leaves the store, and no answer changes.

What is older than a month has long been folded into what every process starts from, so the store need not
have its events any more. They go to the archive (`strandline.state.archive`), where those who ask for all
of a stream still find them: `prove`, `sink history`, what was lost. In this order:

1. The base: how everything stood at the place up to which is folded, kept as a snapshot.
2. Stream by stream, events become a part of the archive, then the store lets go of them.
3. The global order lets go of its pointers up to that place.

A crash between any two leaves longer streams, which the next fold takes up. What is open keeps its events,
and every ledger the newest entry that gave out numbers: the next number rests on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from strandline.base.failpoint import reach
from strandline.maintenance.sweeps.age_index import reached
from strandline.maintenance.sweeps.landed_segments import swept_through
from strandline.persist import AtomicBackend, global_trim
from strandline.persist.features.hold import truncate_unheld
from strandline.rows.dataset import Strand, decode_source
from strandline.state.archive import archive, archived_through
from strandline.state.context import Site
from strandline.state.lease import Lease
from strandline.state.node_state import Standing, keep_base
from strandline.state.strand_entries import NUMBERING, entry_of

AGE_S: Final = 30 * 86_400
FEWEST: Final = 256  # events that are worth a part of the archive
STAY: Final = 64  # the newest of a stream, whatever their age
_GLOBAL: Final = "$global"
_PAGE: Final = 500
_LOOK: Final = 16


@dataclass(frozen=True, slots=True)
class Folded:
    """What left the store: events of so many streams, and pointers of the global order."""

    events: int = 0
    streams: int = 0
    positions: int = 0


def fold(site: Site, lease: Lease, *, age_s: float = AGE_S) -> Folded:
    """Fold what is older than `age_s`, as far as the sweep of segments has come."""
    until, trimmed = min(reached(site, age_s), swept_through(site)), site.b.truncated_through(_GLOBAL)
    if until - trimmed < FEWEST:
        return Folded()
    touched = _touched(site.b, trimmed + 1, until)
    base = keep_base(site.b, until)
    reach("fold.based")
    events = streams = 0
    for stream, seq in touched.items():
        if went := _fold_stream(site, lease, base, stream, seq):
            events, streams = events + went, streams + 1
    went = global_trim(site.b, until) - trimmed
    reach("fold.trimmed")
    return Folded(events, streams, went)


def _touched(b: AtomicBackend, first: int, last: int) -> dict[str, int]:
    """The streams that have events at these places, each with the last of them."""
    found: dict[str, int] = {}
    while first <= last and (page := list(b.global_range(first, limit=min(_PAGE, last - first + 1)))):
        found.update((event.stream, event.seq) for _, event in page)
        first = page[-1][0] + 1
    return found


def _fold_stream(site: Site, lease: Lease, base: Standing, stream: str, seq: int) -> int:
    kind, _, rest = stream.partition("/")
    rule = _RULES.get(kind)
    if rule is None:
        return 0
    through = min(seq, site.b.last_seq(stream) - STAY, rule(site, base, rest))
    truncated = site.b.truncated_through(stream)
    if through - archived_through(site.b, stream) >= FEWEST:
        archive(site, lease, stream, through)
        reach("fold.archived")
    elif archived_through(site.b, stream) <= truncated:
        return 0
    truncate_unheld(site.b, stream, lambda: archived_through(site.b, stream))
    reach("fold.truncated")
    return site.b.truncated_through(stream) - truncated


# How far each kind of stream may go: the last event that nobody asks for but to read all of it. `base` is how
# everything stood at the place up to which is folded.


def _ledger(site: Site, base: Standing, name: str) -> int:
    dataset, _, source = name.partition("/")
    strand = Strand(dataset, decode_source(source))
    numbering = _newest_numbering(site.b, strand.ledger)
    lines = site.standing.lines()
    lines_here = [lines.of(each).get(strand) for each in lines.instances()]
    marks = [line.mark for line in lines_here if line is not None]
    # Rows that were pending then may have landed since: the sweep of their segments has that still to see.
    least = min(numbering, base.strand_state(strand).next) - 1
    # How late a sink is, is told by when the first row that it lacks was numbered.
    return _before_numbering(site.b, strand.ledger, min(marks), least) if marks else least


def _newest_numbering(b: AtomicBackend, ledger: str) -> int:
    last = b.last_seq(ledger)
    while last > 0:
        first = max(last - _LOOK + 1, 1)
        for event in reversed(list(b.read_range(ledger, first, last, limit=_LOOK))):
            if isinstance(entry_of(event), NUMBERING):
                return event.seq
        last = first - 1
    return 1


def _before_numbering(b: AtomicBackend, ledger: str, seq: int, last: int) -> int:
    """The event before the first one, up to `last`, that numbers a row above `seq`."""
    first = b.truncated_through(ledger) + 1
    while first <= last and (page := list(b.read_range(ledger, first, last, limit=_PAGE))):
        for event in page:
            entry = entry_of(event)
            if isinstance(entry, NUMBERING) and entry.hi > seq:
                return event.seq - 1
        first = page[-1].seq + 1
    return last


def _flush(site: Site, _: Standing, dataset: str) -> int:
    opened = site.standing.numbers(dataset).open.values()
    return min(opened, default=site.b.last_seq(f"flush/{dataset}") + 1) - 1


def _sink(site: Site, _: Standing, name: str) -> int:
    instance, *strand = name.split("/", 2)
    if not strand:
        return 0  # of the instance as a whole there are few
    line = site.standing.lines().line(instance, Strand(strand[0], decode_source(strand[1])))
    return min(line.letters, default=site.b.last_seq(f"sink/{name}") + 1) - 1


def _retention(site: Site, _: Standing, dataset: str) -> int:
    opened = site.standing.prunings().of(dataset).open
    return opened - 1 if opened else site.b.last_seq(f"retention/{dataset}")


def _maintain(site: Site, _: Standing, dataset: str) -> int:
    begun = site.standing.rewrites().of(dataset).begun
    return begun - 1 if begun else site.b.last_seq(f"maintain/{dataset}")


_RULES: Final[dict[str, Callable[[Site, Standing, str], int]]] = {
    "strand": _ledger,
    "flush": _flush,
    "sink": _sink,
    "retention": _retention,
    "maintain": _maintain,
}
