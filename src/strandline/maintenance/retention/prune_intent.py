"""What a run of retention has decided, as values and as data of its event: which rows go, and how many.

    intended  {run, by: "retention", cutoff, doomed, counts: [[source, band, rows, seqs, flushes], …],
               stood: [[sink, source, mark, event], …]}

Where some sink has not delivered all that goes, rows are counted apart between the marks of sinks, and where
it stood is kept: what is gone cannot be counted any more, and a sink may pass its place before it is told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from strandline.base.ranges import Range
from strandline.lake.ports.prune import Count, RowsToDelete, doomed_data, doomed_of
from strandline.maintenance.open_run import BY, OtherRunOpen, opened_by
from strandline.maintenance.retention.sink_marks import Marks
from strandline.persist import AtomicBackend
from strandline.state.flush_plan import readable
from strandline.state.retention_events import retention_stream

_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Gone:
    """What a strand lost: so many rows, between these seqs."""

    seqs: Range
    rows: int


class Stood(NamedTuple):
    """A sink that lacked some of the rows of a strand when they were to go: its mark, and the last event."""

    sink: str
    source: str
    mark: int
    event: int


@dataclass(frozen=True, slots=True)
class PruneIntent:
    """What is decided: which rows go, and how many they are, by strand and between which marks of sinks."""

    id: str
    doomed: RowsToDelete
    counts: tuple[Count, ...]
    free: Mapping[str, int] = field(default_factory=dict)  # up to where sinks must have what goes
    evicted: int = 0
    stood: tuple[Stood, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.counts)

    def gone(self) -> dict[str, Gone]:
        return {source: sum_of(counts) for source, counts in self.by_source().items()}

    def by_source(self) -> dict[str, list[Count]]:
        found: dict[str, list[Count]] = {}
        for each in self.counts:
            found.setdefault(each.source, []).append(each)
        return found

    def flushes(self) -> Range:
        return Range(
            min(each.flushes.lo for each in self.counts), max(each.flushes.hi for each in self.counts)
        )


def sum_of(counts: Sequence[Count]) -> Gone:
    lo, hi = min(each.seqs.lo for each in counts), max(each.seqs.hi for each in counts)
    return Gone(Range(lo, hi), sum(each.rows for each in counts))


def run_data(run: PruneIntent, cutoff: int | None) -> dict[str, Any]:
    return {
        "run": run.id,
        "by": BY,
        "cutoff": cutoff,
        "doomed": doomed_data(run.doomed),
        "counts": [
            [
                each.source,
                *(edge for range_ in (each.band, each.seqs, each.flushes) for edge in _pair(range_)),
                each.rows,
            ]
            for each in run.counts
        ],
        "stood": [list(each) for each in run.stood],
    }


def open_run(b: AtomicBackend, dataset: str, event: int) -> PruneIntent:
    """The run that an event began; OtherRunOpen where that is none of retention."""
    by, data = opened_by(b, dataset, event)
    if by != BY:
        raise OtherRunOpen(dataset, by)
    with readable(retention_stream(dataset), event):
        counts = tuple(
            Count(source, Range(lo, hi), rows, Range(first, last), Range(early, late))
            for source, lo, hi, first, last, early, late, rows in data["counts"]
        )
        stood = tuple(Stood(*each) for each in data["stood"])
        return PruneIntent(data["run"], doomed_of(data["doomed"]), counts, stood=stood)


def _pair(range_: Range) -> tuple[int, int]:
    return range_.lo, range_.hi


# Counting


def bands(marks: Marks, source: str) -> list[Range]:
    """The seqs of a strand, cut where sinks stand."""
    edges = [0, *(each for each in marks.cuts(source) if each), _END]
    return [Range(lo, hi) for lo, hi in pairwise(edges)]


def behind(counts: Sequence[Count], mark: int, until: int = _END) -> int:
    """How many rows are above a mark, at most: in the midst of a band nobody knows which."""
    within = Range(min(mark, until), until)
    met = ((each.rows, each.seqs.meets(within)) for each in counts)
    return sum(min(rows, len(seqs)) for rows, seqs in met if seqs is not None)


def evicted(run: PruneIntent, marks: Marks) -> int:
    """How many of the rows some sink does not have."""
    return sum(
        behind(counts, min(marks.cuts(source), default=_END)) for source, counts in run.by_source().items()
    )
