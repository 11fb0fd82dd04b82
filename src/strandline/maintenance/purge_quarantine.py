"""A purge of rows in quarantine: judged as they were given, which is not always possible.

A row is there because some value of it cannot be stored. It is judged where the predicate does not name the
column of such a value; else nobody can say, and it stays.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from strandline.base.failpoint import reach
from strandline.errors import UsageError
from strandline.ingest import quarantine
from strandline.ingest.quarantine import QuarantineEntry, Refused
from strandline.lake.ports.purge import Purger
from strandline.maintenance.sweeps.landed_segments import ANY_AGE
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.rows.dataset import SOURCE, Dataset
from strandline.rows.validate import accept, arrow_schema, source_of
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.flush_plan import readable

_PURGED: Final = "purged"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Rows that went, or would, and rows of which nobody can say whether they should."""

    rows: int = 0
    undecided: int = 0


@dataclass(frozen=True, slots=True)
class _Judged:
    """An entry with its rows; a verdict for each, None where there can be none."""

    entry: QuarantineEntry
    rows: Sequence[Refused]
    verdicts: Sequence[bool | None]


def purge_quarantine(
    site: Site, purger: Purger, dataset: str, *, where: str | None, source: str | None, is_dry: bool
) -> Quarantined:
    """Drop the rows of a source, or for which `where` is true; the others of their entries become new ones,
    in the same transaction. The bytes of what was dropped go at once."""
    stream = quarantine.quarantine_stream(dataset)
    while True:
        expected = ExpectSeq(stream, site.b.last_seq(stream))  # read first: whatever comes now is a conflict
        judge = _Judge(site.known(dataset).dataset, purger, where, source)
        judged = judge.judged(
            [
                (each, quarantine.refused_of(site.content, each))
                for each in quarantine.entries(site.b, dataset)
            ]
        )
        verdicts = [verdict for each in judged for verdict in each.verdicts]
        found = Quarantined(verdicts.count(True), verdicts.count(None))
        if is_dry:
            return found
        writes = [
            write for each in judged if True in each.verdicts for write in _dropped(site, dataset, each)
        ]
        reach("purge.quarantine_drop")
        if not writes or not isinstance(site.b.commit([expected], writes), Conflict):
            reach("purge.quarantine_dropped")
            _release(site, dataset)
            return found


def _dropped(site: Site, dataset: str, each: _Judged) -> list[Write]:
    at, gone = site.clock.now_us(), [verdict is True for verdict in each.verdicts]
    entry = replace(each.entry, count=sum(gone))
    writes: list[Write] = [quarantine.dropped(dataset, entry, _PURGED, at)]
    kept = [row for row, is_gone in zip(each.rows, gone, strict=True) if not is_gone]
    if kept:
        reasons = [row.reason or "" for row in kept]
        # An entry is dropped once. The same again after a crash, or a conflict, has the same bytes.
        rows, source, id_ = [row.row for row in kept], each.entry.source, f"{dataset}/{entry.entry}"
        writes.append(quarantine.quarantined(site.content, dataset, rows, reasons, source, at, id_))
    return writes


def _release(site: Site, dataset: str) -> None:
    """Remove the bytes of what purges have dropped, of one that was cut short too. Entries of equal rows had
    the same bytes once."""
    entered: dict[int, str] = {}
    purged: set[str] = set()
    for event in past_events(site, quarantine.quarantine_stream(dataset)):
        with readable(event.stream, event.seq):
            data: Any = event.data
            if event.type == "quarantined":
                entered[event.seq] = data["rows"].cid
            elif data.get("reason") == _PURGED:
                purged.add(entered[data["entry"]])
    for name in site.standing.datasets() if purged else ():
        purged -= {each.rows.cid for each in quarantine.entries(site.b, name)}
    for cid in purged:
        site.content.remove_older(cid, ANY_AGE)


@dataclass(frozen=True, slots=True)
class _Judge:
    dataset: Dataset
    purger: Purger
    where: str | None
    source: str | None

    def judged(self, entries: Sequence[tuple[QuarantineEntry, list[Refused]]]) -> list[_Judged]:
        sources = [[self._source(row.row, entry.source) for row in rows] for entry, rows in entries]
        verdicts = [[self._by_source(each) for each in named] for named in sources]
        if self.where is not None:
            self._by_predicate([rows for _, rows in entries], sources, verdicts)
        return [_Judged(entry, rows, found) for (entry, rows), found in zip(entries, verdicts, strict=True)]

    def _source(self, row: Any, given: str | None) -> str | None:
        """None where its source is what is wrong with it."""
        if given is None and not isinstance(row, Mapping):
            return None
        try:
            return source_of(self.dataset, row, given)
        except UsageError:
            return None

    def _by_source(self, source: str | None) -> bool | None:
        if self.source is None:
            return True
        return None if source is None else source == self.source

    def _by_predicate(
        self,
        rows: Sequence[Sequence[Refused]],
        sources: Sequence[Sequence[str | None]],
        verdicts: list[list[bool | None]],
    ) -> None:
        """One question for all rows that are not ruled out by their source."""
        assert self.where is not None
        asked: list[tuple[int, int]] = []
        tables: list[pa.Table] = []
        for place, each in enumerate(rows):
            for number, refused in enumerate(each):
                if verdicts[place][number] is False:
                    continue
                table = self._as_table(refused.row, sources[place][number])
                if table is None:
                    verdicts[place][number] = None
                elif verdicts[place][number]:
                    asked.append((place, number))
                    tables.append(table)
        if tables:
            answers = self.purger.holds_for(self.dataset, self.where, pa.concat_tables(tables))
            for (place, number), answer in zip(asked, answers, strict=True):
                verdicts[place][number] = answer

    def _as_table(self, row: Any, source: str | None) -> pa.Table | None:
        """The row with every column that the predicate names; None if it cannot be had."""
        if not isinstance(row, Mapping) or (source is None and self._names(SOURCE)):
            return None
        columns = tuple(replace(each, required=False) for each in self.dataset.columns)
        lenient = Dataset(self.dataset.name, columns)
        good: dict[str, Any] = {}
        for column in columns:
            if column.name == SOURCE or row.get(column.name) is None:
                continue
            value = {column.name: row[column.name]}
            if not accept(lenient, [value], source="s").refusals:
                good |= value
            elif self._names(column.name):
                return None
        schema = arrow_schema(lenient)
        try:
            table = accept(lenient, [good], source=source or "unknown").table
            arrays = [
                table[field.name].cast(field.type)
                if field.name in table.column_names
                else pa.nulls(1, field.type)
                for field in schema
            ]
        except pa.ArrowInvalid:  # it fits a wider type than the column has by now
            return None
        return pa.table(arrays, schema=schema)

    def _names(self, column: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", self.where or "", re.IGNORECASE) is not None
