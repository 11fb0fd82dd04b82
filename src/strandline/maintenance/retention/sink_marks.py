"""How far the strands of a dataset have got at each sink that is configured to take it, from the store."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from strandline.maintenance.retention.rules import RetentionRules
from strandline.persist import ExpectSeq
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.sink_progress import SinkProgress, instance_stream, sink_stream
from strandline.state.strand_state import StrandState


@dataclass(frozen=True, slots=True)
class _Stand:
    """One sink. `is_new` where it has never delivered."""

    name: str
    is_awaited: bool
    is_new: bool
    starts_now: bool
    event: int
    lines: Mapping[Strand, SinkProgress]


class Marks:
    """As of when it was made. A sink that was forgotten is not among them, until it delivers again."""

    def __init__(self, site: Site, rules: RetentionRules, dataset: str) -> None:
        self._dataset = dataset
        self.strand_states: Mapping[str, StrandState] = site.standing.strand_states(dataset)
        lines = site.standing.lines()
        self._stands = []
        for sink in rules.sinks:
            instance = lines.instance(sink.instance)
            if instance.is_open or not instance.event:
                stand = _Stand(
                    sink.instance,
                    rules.awaits(sink.instance),
                    not instance.is_open,
                    sink.start == "now",
                    instance.event,
                    lines.of(sink.instance),
                )
                self._stands.append(stand)

    def names(self) -> list[str]:
        return [each.name for each in self._stands]

    def awaited(self) -> list[str]:
        return [each.name for each in self._stands if each.is_awaited]

    def visible(self, source: str) -> int:
        return self.strand_states[source].visible_through if source in self.strand_states else 0

    def landed(self, source: str) -> int:
        """The highest seq that has come to its end, be there open ones below it."""
        ranges = self.strand_states[source].settled.ranges if source in self.strand_states else ()
        return ranges[-1].hi if ranges else 0

    def mark(self, name: str, source: str) -> int:
        """Up to where a sink has a strand, or is not owed it."""
        return self._mark(next(each for each in self._stands if each.name == name), source)

    def event(self, name: str, source: str) -> int:
        """The last of its stream."""
        stand = next(each for each in self._stands if each.name == name)
        line = stand.lines.get(Strand(self._dataset, source))
        return 0 if line is None else line.event

    def _mark(self, stand: _Stand, source: str) -> int:
        if stand.is_new and stand.starts_now:
            return self.visible(source)  # it will begin there, or later
        line = stand.lines.get(Strand(self._dataset, source))
        return 0 if line is None else line.mark

    def through(self, source: str) -> int:
        """Up to where rows may go: V, and no farther than any sink that is waited for."""
        marks = (self._mark(each, source) for each in self._stands if each.is_awaited)
        return min([self.visible(source), *marks])

    def cuts(self, source: str) -> list[int]:
        """The marks of all sinks, whether they are waited for or not."""
        return sorted({self._mark(each, source) for each in self._stands})

    def expected(self, sources: Iterable[str]) -> Iterator[ExpectSeq]:
        """That nothing has moved since: for what is decided on it."""
        for stand in self._stands:
            yield ExpectSeq(instance_stream(stand.name), stand.event)
        for source in sources:
            for name in self.names():
                yield ExpectSeq(sink_stream(name, self._dataset, source), self.event(name, source))
