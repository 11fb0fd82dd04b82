"""Which sinks lack rows that retention took.

Between the decision and its record sinks go on. One that comes by the place of rows that are gone passes it,
as there is nothing to deliver, and its mark tells no difference from one that had them. So where it stood
when that was decided is part of the decision, and what it has sent since is looked up in its stream.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strandline.lake.ports.prune import Count
from strandline.maintenance.retention.prune_intent import PruneIntent, Stood, behind
from strandline.maintenance.retention.sink_marks import Marks
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.sink_progress import UnitReceipt, sink_stream


class Lack(NamedTuple):
    """So many rows above a seq, at most."""

    lo: int
    rows: int


def stood(run: PruneIntent, marks: Marks) -> tuple[Stood, ...]:
    """The sinks that lack some of what goes, before anything has gone."""
    return tuple(
        Stood(name, source, mark, marks.event(name, source))
        for source, counts in run.by_source().items()
        for name in marks.names()
        if behind(counts, mark := marks.mark(name, source))
    )


def lacking(site: Site, dataset: str, run: PruneIntent, marks: Marks) -> dict[str, dict[str, Lack]]:
    """By source, and sink: what it will never have of the rows that went."""
    before = {(each.source, each.sink): each for each in run.stood}
    found: dict[str, dict[str, Lack]] = {source: {} for source in run.by_source()}
    for source, counts in run.by_source().items():
        for name in marks.names():
            mark = marks.mark(name, source)
            then = before.get((source, name))
            passed = 0 if then is None else _passed(site, dataset, counts, then, mark)
            if rows := passed + behind(counts, mark):
                found[source][name] = Lack(then.mark if passed and then is not None else mark, rows)
    return found


def rows_of(lacks: Mapping[str, Mapping[str, Lack]]) -> int:
    """How many rows some sink lacks."""
    return sum(max((each.rows for each in sinks.values()), default=0) for sinks in lacks.values())


def _passed(site: Site, dataset: str, counts: Sequence[Count], then: Stood, mark: int) -> int:
    """Rows of what went that a sink has passed since and did not send, at most."""
    most = behind(counts, then.mark, mark)
    if not most:
        return 0
    sent = 0
    for event in past_events(site, sink_stream(then.sink, dataset, then.source), then.event + 1):
        if event.type == "moved":
            return most  # some of what was sent may have been so twice
        if event.type == "delivered":
            units = [UnitReceipt(*each) for each in event.data["units"]]
            sent += sum(unit.rows for unit in units if then.mark <= unit.lo and unit.hi <= mark)
    return min(most, mark - then.mark - sent)
