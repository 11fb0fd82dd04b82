"""Purge in the simulated world: its way to the table, rows for its quarantine, a process that purges now and
then, and what must hold of it."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from strandline.base.ranges import Range, RangeSet
from strandline.flush.flush import flush
from strandline.ingest.quarantine import entries, rows_of
from strandline.lake.ports.purge import FileListing, Match, PredicateUnreadable, PurgeAsked
from strandline.lake.ports.snapshots import KnownSnapshot
from strandline.maintenance.purge import PurgeResult, purge
from strandline.maintenance.purge_intent import BY
from strandline.rows.dataset import Dataset, Strand
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.retention_events import retention_stream
from strandline.state.strand_entries import Removed, entry_of
from tests.delivery.simulated import Destinations
from tests.maintenance.history import File, HistoryTable, SimRewriter
from tests.simulation import DATASET, FAILURES, SOURCES, Process, TableRow, World

WHERES: Final = tuple(f"key LIKE '%{digit}'" for digit in range(10))
_BAD: Final = {"not": "a text"}


def holds(key: str, where: str | None) -> bool:
    """Of the one kind of predicate that this world has: how a key ends."""
    return where is None or key.endswith(where.split("%")[1].rstrip("'"))


def name_of(row: TableRow) -> str:
    """Rows are told apart at their destination by their place, since keys repeat."""
    return f"{row.key} {row.source}/{row.seq}"


def rows_at(to: Destinations) -> dict[str, Counter[str]]:
    """What each destination has, by name."""
    return {"server": Counter(name for _, name in to.server.rows), "bucket": to.bucket.rows()}


# Its way to the table


@dataclass
class SimPurger:
    """See Purger. `gone` are the rows that went by this one."""

    site: Site
    table: HistoryTable
    to: Destinations
    gone: set[TableRow] = field(default_factory=set)

    def check(self, dataset: Dataset, where: str) -> None:
        self.table.effect("purge check")

    def count(self, dataset: Dataset, asked: PurgeAsked) -> list[Match]:
        self.table.effect("purge count")
        found = sorted(self._asked_for(asked), key=lambda row: (row.source, row.seq))
        matches = []
        for source, group in groupby(found, lambda row: row.source):
            rows = list(group)
            flushes = [row.flush for row in rows]
            seqs = Range(rows[0].seq - 1, rows[-1].seq)
            ranges = RangeSet.of(Range(row.seq - 1, row.seq) for row in rows).ranges if asked.where else ()
            matches.append(
                Match(source, len(rows), seqs, Range(min(flushes) - 1, max(flushes)), tuple(ranges))
            )
        return matches

    def passed(
        self, dataset: Dataset, asked: PurgeAsked, marks: Mapping[tuple[str, str], int]
    ) -> dict[tuple[str, str], int]:
        """Whoever has such a row by now, it must be told, but for what an open intent may have sent: nothing
        happens between the marks and this."""
        rows = self._asked_for(asked)
        for sink, names in rows_at(self.to).items():
            there = [row for row in rows if name_of(row) in names]
            untold = [
                row for row in there if row.seq > max(marks.get((sink, row.source), 0), self._sent(sink, row))
            ]
            if untold:
                self.table.wrongs.append(f"the {sink} has {untold[:3]}, and a purge does not tell")
        self.table.effect("purge passed")
        counts = {
            (sink, source): sum(row.source == source and row.seq <= mark for row in rows)
            for (sink, source), mark in marks.items()
        }
        return {each: count for each, count in counts.items() if count}

    def _sent(self, sink: str, row: TableRow) -> int:
        intent = self.site.standing.lines().line(sink, Strand(DATASET, row.source)).intent
        return 0 if intent is None else intent.hi

    def delete(self, dataset: str, asked: PurgeAsked) -> None:
        table = self.table

        def act() -> None:
            gone = set(self._asked_for(asked))
            left = [
                (file, tuple(row for row in file.rows if row not in gone))
                for file in table.files_of(table.main)
            ]
            files = [file if rows == file.rows else File(rows, 0) for file, rows in left if rows]
            if gone:
                table.move(table.snapshot_of(table.main, files).id, gone=gone)
            table.purged |= gone
            self.gone |= gone

        table.call("purge", act)

    def list_files(self, dataset: str) -> FileListing:
        return FileListing()

    def unnamed(self, dataset: str, listing: FileListing) -> list[str]:
        return []

    def remove(self, dataset: str, files: Sequence[str]) -> list[str]:
        return []

    def _asked_for(self, asked: PurgeAsked) -> list[TableRow]:
        if (chosen := asked.rows) is not None:
            return [
                row for row in self.table.rows if any(row.seq in each for each in chosen.get(row.source, ()))
            ]
        return [row for row in self.table.rows if row.flush <= asked.flush and is_asked_for(row, asked)]

    def holds_for(self, dataset: Dataset, where: str, rows: Any) -> list[bool]:
        self.table.effect("purge judge")
        if "key" not in rows.column_names:  # nothing but bad rows has come so far
            raise PredicateUnreadable(dataset.name, where, "there is no column key")
        return [key is not None and holds(key, where) for key in rows["key"].to_pylist()]

    def snapshots(self, dataset: str) -> Sequence[KnownSnapshot]:
        return SimRewriter(self.table, 1).snapshots(dataset)

    def expire(self, dataset: str, ids: Iterable[int]) -> None:
        SimRewriter(self.table, 1).expire(dataset, ids)


def is_asked_for(row: TableRow, asked: PurgeAsked) -> bool:
    return asked.source in (None, row.source) and holds(row.key, asked.where)


# Who purges


def purges(to: Destinations) -> Callable[[Process], None]:
    def body(process: Process) -> None:
        world, site = process.world, process.world.site()
        while True:
            where, source = chosen_purge(process.random)
            try:
                run_purge(world, site, to, where, source, is_dry=process.random.random() < 0.1)
            except FAILURES:
                world.counts["purge failed"] += 1
            site.clock.sleep(process.random.choice((0.2, 1, 3)))

    return body


def chosen_purge(by: random.Random) -> tuple[str | None, str | None]:
    """Mostly by a predicate, also of one source; seldom all that a source has."""
    source = by.choice(SOURCES)
    if by.random() < 0.1:
        return None, source
    return by.choice(WHERES), source if by.random() < 0.3 else None


def run_purge(
    world: World,
    site: Site,
    to: Destinations,
    where: str | None,
    source: str | None,
    *,
    is_dry: bool = False,
) -> PurgeResult:
    """And what it says of itself must be so."""
    table = world.table
    assert isinstance(table, HistoryTable)
    purger, visible = SimPurger(site, table, to), site.standing.numbers(DATASET).visible
    before = {
        row for row in table.rows if row.flush <= visible and is_asked_for(row, PurgeAsked(where, source, 0))
    }

    def land() -> None:
        """Mostly another does, and what has not landed is none of what must go."""
        if world.is_calm or world.chance(0.3):
            with suppress(*FAILURES):
                flush(site, table, DATASET, timeout_s=5)

    result = purge(site, purger, DATASET, where=where, source=source, flush=land, is_dry=is_dry, timeout_s=30)
    if is_dry:
        assert not purger.gone, f"a dry run took {len(purger.gone)} rows out"
        return result
    world.counts["purges"] += 1
    world.counts["rows purged out of quarantine"] += result.quarantined.rows
    left = before & set(table.rows)
    assert not left, f"a purge left {sorted(map(name_of, left))[:3]}"
    gone = len(purger.gone)
    if not result.is_resumed:
        assert result.rows == gone, f"a purge took {gone} rows out, and says {result.rows}"
    if not result.snapshots_left:
        kept = [each.id for each in table.snapshots.values() if before & set(each.rows())]
        assert not kept, f"rows that were purged are still in the snapshots {kept}"
    return result


# What must hold


def bad_row(number: int) -> dict[str, Any]:
    """One that is quarantined: what it is by is no text."""
    return {"key": f"bad{number}", "source": SOURCES[number % 3], "by": _BAD}


def check_purged(site: Site, table: HistoryTable) -> None:
    """On record are as many as went, in their ledgers and in the stream of the dataset, and none is there."""
    for source in SOURCES:
        told = _removed(site, Strand(DATASET, source).ledger)
        gone = sum(row.source == source for row in table.purged)
        assert told == gone, f"{source}: {gone} rows were purged, and {told} are on record"
    recorded = [each.data for each in past_events(site, retention_stream(DATASET)) if each.type == "pruned"]
    rows = sum(each["rows"] for each in recorded if each["by"] == BY)
    assert rows == len(table.purged), f"{len(table.purged)} rows were purged, and {rows} are on record"
    assert not table.purged & set(table.rows), "a row that was purged is there"


def _removed(site: Site, ledger: str) -> int:
    every = (entry_of(event) for event in past_events(site, ledger))
    return sum(each.rows for each in every if isinstance(each, Removed) and each.by == BY)


def check_quarantine(site: Site, wanted: Sequence[str]) -> None:
    """Each bad row once, or a purge has dropped it: those that are left can be read."""
    left = Counter(row["key"] for each in entries(site.b, DATASET) for row in rows_of(site.content, each))
    assert max(left.values(), default=1) == 1, f"quarantined twice: {left}"
    assert set(left) <= set(wanted), f"nobody brought {sorted(set(left) - set(wanted))}"
    dropped = sum(
        each.data["count"] for each in past_events(site, f"quarantine/{DATASET}") if each.type == "dropped"
    )
    assert len(left) + dropped == len(wanted), f"{len(wanted)} were bad: {len(left)} left, {dropped} dropped"
