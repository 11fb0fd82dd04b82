"""A frame on its way in: a DataFrame of any size, what is known of it left out by Spark, the rest loaded.

    backfilled/<provider>/<digest of dataset and item>/frame    {"version": "4096:…", "rows": 1000000,
                                                                 "request": "backfill-…", its load's, or ""}

The check is that of chunks, and the reservation is what expects the ledgers. The rows that are left are fixed
before, so what ledgers gain meanwhile is compared with them; only where one of them came in does the frame
begin anew. A segment that cannot be read is a doubt, a table that cannot fails the item (decision 10).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.backfill.check_known import is_restamped, tried, tried_segments
from strandline.backfill.chunk import FrameMark, ItemChanged, frame_key, frame_mark, refuse_cut
from strandline.backfill.result import BackfillCounts
from strandline.backfill.row_locations import RowLocation, Strands, runs_of, seqs_of
from strandline.backfill.write import TRIES, Overtaken, WrittenElsewhere
from strandline.base.failpoint import reach
from strandline.ingest.load import Guard, Guarded, LoadResult, LoadTables, load, settled_load
from strandline.lake.ports.lookup import SpooledRun, has_identity
from strandline.persist import ABSENT, Delete, ExpectKey, Put
from strandline.persist.backend import Expectation
from strandline.rows.dataset import Dataset
from strandline.sources.provider import Item
from strandline.state.context import Site
from strandline.state.landing import FixedInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.lake.jobs.lookup_frame import FrameLookup, LookupCounts, Unknown


class _Met(Exception):
    """A row of the fixed input has come in by another way."""


def write_frame(
    site: Site,
    tables: LoadTables,
    lookup: "FrameLookup",
    instance: str,
    item: Item,
    df: "DataFrame",
    *,
    is_dry: bool,
) -> BackfillCounts:
    """Land the rows of `df` that are not there yet. Raises ItemChanged; Overtaken after TRIES."""
    key = frame_key(instance, item)
    if not is_dry:
        _end_load(site, tables, item.dataset, key)
    before = site.b.kv_get(key)
    kept = frame_mark(key, before)
    dataset = (site.known(item.dataset) if site.is_strict else site.schema(item.dataset)).dataset
    if kept is None and not has_identity(dataset):
        refuse_cut(site.b, instance, item)
    version = item.version or lookup.version(dataset, df)
    if kept is not None and kept.version == version:
        return BackfillCounts(chunk_known=kept.rows)
    frame = _Frame(site, tables, lookup, dataset, item, df, key, version, before)
    if not has_identity(dataset):
        if kept is not None:
            raise ItemChanged(item.id, dataset.name)
        return frame.write_all(is_dry=is_dry)
    return frame.write_unknown(is_dry=is_dry)


def _end_load(site: Site, tables: LoadTables, dataset: str, key: str) -> None:
    """What may have been cut short comes to its end. Where its load was released none of its rows landed,
    and the mark, which was written with their numbers, goes."""
    value = site.b.kv_get(key)
    kept = frame_mark(key, value)
    if kept is not None and kept.request:
        has_landed = settled_load(site, tables, dataset, kept.request) is not None
        done = _mark(key, FrameMark(kept.version, kept.rows)) if has_landed else Delete(key)
        site.b.commit([ExpectKey(key, value)], [done])  # else another has come to the same


def _mark(key: str, mark: FrameMark) -> Put:
    return Put(key, msgspec.structs.asdict(mark))


@dataclass(slots=True)
class _Frame:
    site: Site
    tables: LoadTables
    lookup: "FrameLookup"
    dataset: Dataset
    item: Item
    df: "DataFrame"
    key: str
    version: str
    before: Any
    request: str = ""  # of the load that is under way
    tries: int = 0
    looked: int = 0  # the last flush that was whole in the table before it was looked at
    pending: list[RowLocation] = field(default_factory=list)  # what was spooled at the look
    events: dict[str, int] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    mark: list[Put] = field(
        default_factory=list
    )  # filled when the rows are counted, before they are reserved

    def write_all(self, *, is_dry: bool) -> BackfillCounts:
        """Rows without identity: nothing is left out."""
        if is_dry:
            return BackfillCounts(written=self.df.count())

        def guard(fixed: FixedInput) -> Guarded:
            if self._is_reserved():
                return Guarded([])
            self._count(sum(fixed.rows.values()), self.request)
            return Guarded([self._mark_expected])

        return BackfillCounts(written=self._load(self.df, guard).rows)

    def write_unknown(self, *, is_dry: bool) -> BackfillCounts:
        while self.tries < TRIES:
            self.tries += 1
            unknown = self._look()
            if is_dry:
                left = unknown.rows.count()
                return self._strand_state(left, unknown.counts(left))
            try:
                result = self._load(unknown.rows, partial(self._guard, unknown=unknown))
            except _Met:
                continue
            counts = unknown.counts(result.rows + result.duplicates)
            if not result.number:  # nothing was left to load: the mark alone is to be written
                self._count(counts.asked, request="")
                self.site.b.commit([self._mark_expected], self.mark)
            found = self._strand_state(result.rows, counts)
            found.committed += result.duplicates
            return found
        raise Overtaken(self.dataset.name, self.tries)

    def _look(self) -> "Unknown":
        """First the ledgers, then the segments that they name, then the table; by then all that is visible
        now is in it."""
        self.looked = self.site.standing.numbers(self.dataset.name).visible
        sources = (
            [self.item.source]
            if self.item.source
            else list(self.site.standing.strand_states(self.dataset.name))
        )
        self.events, self.doubts = self._strands.events(sources), []
        reach("backfill.ledgers")
        self.pending = [place for source in sources for place in self._strands.pending(source)]
        runs, _ = self._valid(self.pending)  # what has landed is in the table, which comes next
        reach("backfill.spooled")
        has_table = self.site.standing.numbers(self.dataset.name).last > 0
        strand_states = self.site.standing.strand_states(self.dataset.name)
        seqs = sum(each.hi - each.removed_rows for source, each in strand_states.items() if source in sources)
        return self.lookup.unknown_rows(
            self.dataset,
            self.df,
            self.item.source,
            runs,
            table_rows=max(seqs, 1) if has_table else 0,
            by_columns=is_restamped(self.site, self.dataset),
        )

    def _guard(self, fixed: FixedInput, unknown: "Unknown") -> Guarded:
        """What the reservation expects: the ledgers, up to where none of their rows is one of these."""
        reach("backfill.committed")
        if self._is_reserved():
            return Guarded([])
        now = self._strands.events(fixed.rows)
        gained = [*self._strands.gained(self.events, now), *self._swept()]
        if gained:
            self.tries += 1
            if self.tries > TRIES:
                raise Overtaken(self.dataset.name, TRIES)
            self._refuse_met(fixed, gained)
        self.events |= now
        self._count(unknown.counts(sum(fixed.rows.values())).asked, self.request)
        reach("backfill.append")
        expected: list[Expectation] = [self._mark_expected, *self._strands.expected(now)]
        return Guarded(expected, self.looked if unknown.is_sure else 0)

    def _is_reserved(self) -> bool:
        """Whether only the answer was lost, which the load knows by its marker. Raises WrittenElsewhere."""
        found = self.site.b.kv_get(self.key)
        if self.mark and found == self.mark[0].value:
            return True
        if found != self.before:
            raise WrittenElsewhere(self.item.id)
        return False

    def _swept(self) -> list[RowLocation]:
        """What was spooled at the look, and whose segment may have gone before the rows were computed: it has
        landed, and the table was looked at before."""
        pending, self.pending, gone = self.pending, [], []
        for place in pending:
            segments = [run.segment.cid for run in runs_of([place]) if self._strands.has_landed(place)]
            if not all(map(self.site.content.has, segments)):
                gone.append(replace(place, run=None))
            else:
                self.pending.append(place)
        return gone

    def _refuse_met(self, fixed: FixedInput, gained: Sequence[RowLocation]) -> None:
        runs, vanished = self._valid([place for place in gained if place.run is not None])
        landed = seqs_of([*(place for place in gained if place.run is None), *vanished])
        is_met, failure = tried(self.site, lambda: self.lookup.meets(self.dataset, fixed, runs, landed))
        if failure is not None:
            self.doubts.append(f"what {self.dataset.name!r} has gained: {failure.message}")
        if is_met:
            raise _Met

    def _valid(self, places: Sequence[RowLocation]) -> tuple[list[SpooledRun], list[RowLocation]]:
        """Those that flush would land, and those whose segment is gone since they landed; others are told."""
        runs = runs_of(places)
        answer, failure = tried_segments(self.site, lambda: self.lookup.faults(self.dataset, runs))
        if answer is None:
            assert failure is not None
            self.doubts.append(f"the spool of {self.dataset.name!r}: {failure.message}")
            return [], []
        bad = {**answer.faults, **answer.unread}
        unseen = [place for place in places if place.run is not None and place.run.segment.cid in bad]
        landed = [place for place in unseen if self._strands.has_landed(place)]
        left = {run.segment.cid for run in runs_of(place for place in unseen if place not in landed)}
        self.doubts += [f"segment {cid}: {bad[cid]}" for cid in sorted(left)]
        return [run for run in runs if run.segment.cid not in bad], landed

    def _load(self, rows: "DataFrame", guard: Guard) -> LoadResult:
        self.request = f"backfill-{self.site.random_hex()}"
        self.mark.clear()
        result = load(
            self.site,
            self.tables,
            self.dataset.name,
            rows,
            source=self.item.source,
            request_id=self.request,
            expected=guard,
            also=self.mark,
        )
        reach("backfill.appended")
        return result

    def _count(self, rows: int, request: str) -> None:
        self.mark[:] = [_mark(self.key, FrameMark(self.version, rows, request))]

    def _strand_state(self, written: int, counts: "LookupCounts") -> BackfillCounts:
        found = BackfillCounts(
            written=written, committed=counts.committed, spooled=counts.spooled, in_chunk=counts.repeated
        )
        found.doubt(self.doubts)
        return found

    @property
    def _mark_expected(self) -> ExpectKey:
        return ExpectKey(self.key, ABSENT if self.before is None else self.before)

    @property
    def _strands(self) -> Strands:
        return Strands(self.site, self.dataset.name)
