"""A store and its tables, compared when a node is opened for writing: no number is ever given out twice.

A store that was restored from a backup, or lost, may know less than its tables hold. Then the next seq of
each strand, and the next flush number, are raised above all that is there, by an event, before anything is
written.

    table/<dataset>    the metadata of the table as it was when the two last agreed
    sweep/paused       why the orphan sweep waits: rows that were acknowledged after the restored state are
                       orphans now; gone once an operator has confirmed, which the stream `sweep` keeps
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from strandline.base.ranges import Range, RangeSet
from strandline.config.lake_settings import LakeSettings
from strandline.lake.metadata.explain import seqs_in_table
from strandline.lake.metadata.iceberg import (
    TableMarks,
    UnstampedRows,
    check_pointers,
    table_history,
    table_marks,
    table_pointers,
)
from strandline.persist import Append, Conflict, Delete, ExpectKey, ExpectSeq, Put
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.flush_plan import flush_stream, plan_of, plans_after
from strandline.state.next_number import floor_key, head_of
from strandline.state.pending_rows import pending
from strandline.state.strand_entries import ControlUnreadable, Entry, Flushed, Raised, append_of

SWEEP_PAUSED: Final = "sweep/paused"
SWEEP: Final = "sweep"


class StoreBehindTables(UserWarning):
    """The store knew less than its tables; numbers were raised."""


@dataclass(frozen=True, slots=True)
class Raise:
    """What a dataset was raised to: the flush number, and the seq of each strand that was behind."""

    dataset: str
    number: int | None
    seqs: dict[str, int]


def reconcile(site: Site, lake: LakeSettings) -> list[Raise]:
    """Compare, and raise what is behind. Where nothing has changed since the last time it costs one small
    query, and a look whether the metadata is where the catalog says.

    Raises what the lake raises where a table cannot be read, WarehouseMoved among it: then the node is not
    opened for writing.
    """
    raised = []
    pointers = table_pointers(lake)
    check_pointers(lake, pointers)
    for dataset, pointer in pointers.items():
        if site.b.kv_get(f"table/{dataset}") == pointer:
            continue
        if not _knows_newest(site, lake, dataset):
            try:
                marks = table_marks(lake, dataset)
            except UnstampedRows:
                continue  # no number of ours is in it; a flush into it is refused
            found = _raise_behind(site, lake, dataset, marks)
            if found is not None:
                raised.append(found)
        site.b.kv_put(f"table/{dataset}", pointer)
    return raised


def _knows_newest(site: Site, lake: LakeSettings, dataset: str) -> bool:
    """Whether the newest flush in the table, and the one with the highest number, are ones that this store
    planned: a load may publish after a flush of a higher number."""
    history = table_history(lake, dataset)
    if history.newest_flush_id is None or site.standing.numbers(dataset).last < history.kept.flush:
        return False
    highest = max(history.flush_ids, key=lambda id_: _number(dataset, id_))
    return all(_is_planned(site, dataset, id_) for id_ in {history.newest_flush_id, highest})


def _is_planned(site: Site, dataset: str, id_: str) -> bool:
    number = _number(dataset, id_)
    return any(plan_of(event).id == id_ for _, event in plans_after(site.b, dataset, number - 1, number))


def _number(dataset: str, id_: str) -> int:
    """The flush number in an id; 0 of one that is not ours."""
    text = id_.removeprefix(f"{dataset}-").partition("-")[0]
    return int(text) if text.isdecimal() else 0


def _raise_behind(site: Site, lake: LakeSettings, dataset: str, marks: TableMarks) -> Raise | None:
    stream = flush_stream(dataset)
    while True:
        at, event = site.clock.now_us(), site.b.last_seq(stream)
        expected: list[Expectation] = [ExpectSeq(stream, event)]
        writes: list[Write] = []
        number, kept = None, 0
        if site.standing.numbers(dataset).last < marks.max_flush:
            # Only then: what is kept apart from rows is one number for all strands, and a store that knows
            # each flush knows each number.
            number, kept = marks.max_flush, marks.history.kept.seq
            writes.append(
                Append(stream, "raised", at, {"number": number, "reason": "the table has it"}, globally=True)
            )
        seqs, reached = {}, _reached(site, dataset)
        for source in _sources(site, dataset, marks, reached):
            strand, highest = Strand(dataset, source), marks.max_seq(source)
            head = head_of(site.b, strand)
            entries: list[Entry] = []
            if landed := _landed_unknown(site, lake, strand, highest):
                # Pending when the backup was made, and landed since by a flush that it does not know.
                entries.append(Flushed(marks.max_flush, tuple(landed), sum(map(len, landed)), 0, 0))
            if head.hi < (above := max(highest, kept, reached.get(source, 0))):
                had = "the table had them" if above == kept else "a sink was further"
                reason = "the table has them" if above == highest else had
                entries.append(Raised(head.hi, above, reason))
                seqs[source] = above
            if entries:
                expected.append(ExpectSeq(strand.ledger, head.event))
                writes += [append_of(strand.ledger, entry, at) for entry in entries]
        of_buckets = max(marks.max_seqs.values(), default=0) if marks.source_buckets else 0
        if floor := max(of_buckets, kept):
            # A bucket does not tell its sources, nor does a number that is kept apart from rows: a strand
            # that comes later starts above all of them.
            writes.append(Put(floor_key(dataset), floor))
        if not writes:
            return None
        paused = {"dataset": dataset, "at": at, "reason": "the store was behind its tables"}
        writes.append(Put(SWEEP_PAUSED, paused))
        if not isinstance(site.b.commit(expected, writes), Conflict):
            site.heads.clear()
            warnings.warn(
                f"the store knew less of dataset {dataset!r} than its table holds: numbers go on after flush "
                f"{marks.max_flush} and what the table has of each source; the orphan sweep waits until "
                "`strandline maintain --confirm-restore`",
                StoreBehindTables,
                stacklevel=2,
            )
            return Raise(dataset, number, seqs)


def paused(site: Site) -> dict[str, Any] | None:
    """Why the orphan sweep waits, None if it does not: {dataset, at, reason}."""
    found: Any = site.b.kv_get(SWEEP_PAUSED)
    if found is None:
        return None
    if isinstance(found, Mapping) and found.keys() >= {"dataset", "at", "reason"}:
        return dict(found)
    raise ControlUnreadable(SWEEP_PAUSED, None, f"{found!r:.80} is no reason")


def confirm_restore(site: Site) -> dict[str, Any] | None:
    """An operator says that what the restored store does not know may go: the sweep need not wait any more.
    Why it waited, None if it did not. What a later restore pauses stays paused."""
    found = paused(site)
    if found is None:
        return None
    confirmed = Append(SWEEP, "confirmed", site.clock.now_us(), found, globally=True)
    outcome = site.b.commit([ExpectKey(SWEEP_PAUSED, found)], [Delete(SWEEP_PAUSED), confirmed])
    return confirm_restore(site) if isinstance(outcome, Conflict) else found


def _landed_unknown(site: Site, lake: LakeSettings, strand: Strand, highest: int) -> list[Range]:
    """Of the rows that this store has pending, those that are in the table."""
    strand_state = site.standing.strand_state(strand)
    found = []
    for each in pending(site.b, strand, strand_state):
        if each.lo >= highest:
            break
        found += seqs_in_table(lake, strand.dataset, strand.source, Range(each.lo, min(each.hi, highest)))
    return list(RangeSet.of(found).ranges)


def _reached(site: Site, dataset: str) -> dict[str, int]:
    """How far any sink is on each strand, with what it has under way: a number at or below it would be
    taken for a row that has left."""
    found: dict[str, int] = {}
    lines = site.standing.lines()
    for name in lines.instances():
        for strand, line in lines.of(name).items():
            if strand.dataset == dataset:
                under_way = 0 if line.intent is None else line.intent.hi
                found[strand.source] = max(found.get(strand.source, 0), line.mark, line.high, under_way)
    return found


def _sources(site: Site, dataset: str, marks: TableMarks, reached: Mapping[str, int]) -> list[str]:
    known = {*site.standing.strand_states(dataset), *reached}
    if not marks.source_buckets:
        known |= {str(source) for source in marks.max_seqs}
    return sorted(known)
