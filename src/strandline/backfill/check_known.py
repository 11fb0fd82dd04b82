"""Which rows are there already, and where the ledgers were when that was asked.

The order is what makes it right: first the ledgers, then the segments that they name, then the table. A row
that moves from spool to table meanwhile is seen at least once. A row that arrives after the ledgers were read
makes the write conflict, which expects them there; then only what they have gained is looked at.

A lookup that fails leaves rows unknown, never known: they are written, and the doubt is told.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from strandline.backfill.row_locations import RowLocation, Strands, runs_of, seqs_of
from strandline.base.failpoint import reach
from strandline.errors import StrandlineError, UnavailableError
from strandline.lake.ports.lookup import Lookup, RowKey, SpoolAnswer, SpooledRun
from strandline.persist import ExpectSeq
from strandline.rows.dataset import Dataset, SchemaBreaking, merged
from strandline.state.context import Site
from strandline.state.dataset_versions import dataset_of, dataset_stream

TRIES: Final = 3  # of one lookup
_PAGE: Final = 256
_WAIT_S: Final = 0.2

T = TypeVar("T")


@dataclass(slots=True)
class Check:
    """A look for `asked` in some strands, and every further look at what came since. `committed` and
    `spooled` are what it has found, `doubts` what it could not look at."""

    site: Site
    lookup: Lookup
    dataset: Dataset
    sources: Sequence[str]
    asked: Sequence[RowKey]
    committed: set[RowKey] = field(default_factory=set)
    spooled: set[RowKey] = field(default_factory=set)
    doubts: list[str] = field(default_factory=list)
    events: dict[str, int] | None = None

    @property
    def expected(self) -> list[ExpectSeq]:
        """The ledgers where they were read."""
        assert self.events is not None, "look comes first"
        return self._strands.expected(self.events)

    def look(self) -> None:
        """The first time at everything, then at what the ledgers have gained."""
        before, self.events = self.events, self._strands.events(self.sources)
        reach("backfill.ledgers")
        if before is None:
            self._look_at_all()
        else:
            self._look_at(self._strands.gained(before, self.events))

    def _look_at_all(self) -> None:
        self._look_in_spool([place for source in self.sources for place in self._strands.pending(source)])
        reach("backfill.spooled")
        if self.site.standing.numbers(self.dataset.name).last:
            self._look_in_table(None)
        reach("backfill.committed")

    def _look_at(self, gained: Sequence[RowLocation]) -> None:
        vanished = self._look_in_spool([place for place in gained if place.run is not None])
        reach("backfill.spooled")
        landed = [place for place in gained if place.run is None]
        if landed or vanished:
            self._look_in_table([*landed, *vanished])
        reach("backfill.committed")

    @property
    def _strands(self) -> Strands:
        return Strands(self.site, self.dataset.name)

    # Lookups

    def _look_in_spool(self, places: Sequence[RowLocation]) -> list[RowLocation]:
        """Those whose segment is gone and that have landed since come back: the table has them."""
        runs = runs_of(places)
        if not runs or not self.asked:
            return []
        dataset = self._widest()
        answer = self._answer(lambda: self.lookup.spooled(dataset, self.asked, runs), "the spool")
        tries = TRIES - 1
        while answer is not None and answer.unread and tries:
            self.site.clock.sleep(_WAIT_S)
            answer = self._ask_again(dataset, answer, runs)
            tries -= 1
        if answer is None:
            return []
        self.spooled |= answer.known
        bad = {**answer.faults, **answer.unread}
        unseen = [place for place in places if place.run is not None and place.run.segment.cid in bad]
        landed = [place for place in unseen if self._strands.has_landed(place)]
        left = {place.run.segment.cid for place in unseen if place.run and place not in landed}
        self.doubts += [f"segment {cid}: {bad[cid]}" for cid in sorted(left)]
        return landed

    def _ask_again(self, dataset: Dataset, answer: SpoolAnswer, runs: list[SpooledRun]) -> SpoolAnswer:
        """Storage that did not answer is asked once more, for the segments that were not read alone."""
        again = [run for run in runs if run.segment.cid in answer.unread]
        more = self._answer(lambda: self.lookup.spooled(dataset, self.asked, again), "the spool")
        if more is None:
            return answer
        return SpoolAnswer(answer.known | more.known, {**answer.faults, **more.faults}, more.unread)

    def _look_in_table(self, places: Iterable[RowLocation] | None) -> None:
        """In all of it, or where the places say."""
        if not self.asked:
            return
        within = None if places is None else seqs_of(places)
        dataset = self._widest()
        by_columns = is_restamped(self.site, dataset)
        found = self._answer(
            lambda: self.lookup.committed(dataset, self.asked, within, by_columns=by_columns), "the table"
        )
        self.committed |= found or frozenset()

    def _widest(self) -> Dataset:
        """Rows of others may have made the dataset grow since: their segments have wider columns."""
        try:
            return merged(self.site.schema(self.dataset.name).dataset, self.dataset)
        except SchemaBreaking:  # the write is judged again, and says so
            return self.dataset

    def _answer(self, ask: Callable[[], T], where: str) -> T | None:
        """What a lookup says; None, and a doubt, where it fails as often as it is tried."""
        answer, failure = tried(self.site, ask)
        if failure is not None:
            self.doubts.append(f"{where} of {self.dataset.name!r}: {failure.message}")
        return answer


def is_restamped(site: Site, dataset: Dataset) -> bool:
    """Whether rows may have landed under another identity than the dataset has now, or under none: then their
    ids are others than those that are asked for."""
    stream, first = dataset_stream(dataset.name), 1
    while page := list(site.b.read_range(stream, first, site.b.last_seq(stream), limit=_PAGE)):
        if any(dataset_of(event).identity != dataset.identity for event in page):
            return True
        first = page[-1].seq + 1
    return False


def tried(site: Site, ask: Callable[[], T]) -> tuple[T | None, StrandlineError | None]:
    """The answer, or the last error. Only what may pass is tried again."""
    for is_last in (*(False,) * (TRIES - 1), True):
        try:
            return ask(), None
        except UnavailableError as error:
            if is_last:
                return None, error
            site.clock.sleep(_WAIT_S)
        except StrandlineError as error:
            return None, error
    raise AssertionError("the last try returns")


def tried_segments(
    site: Site, ask: Callable[[], SpoolAnswer]
) -> tuple[SpoolAnswer | None, StrandlineError | None]:
    """As `tried`; where storage did not answer for some of the segments, it is asked again as often."""
    answer, failure = tried(site, ask)
    for _ in range(TRIES - 1):
        if answer is None or not answer.unread:
            break
        site.clock.sleep(_WAIT_S)
        answer, failure = tried(site, ask)
    return answer, failure
