"""A store and its tables, compared when a node is opened for writing: no number is ever given out twice.

A store that was restored from a backup, or lost, may know less than its tables hold. Then the next seq of
each strand, and the next flush number, are raised above all that is there, by an event, before anything is
written.

    table/<dataset>    the metadata of the table as it was when the two last agreed
    sweep/paused       why the orphan sweep waits: rows that were acknowledged after the restored state are
    orphans now
"""

import warnings
from dataclasses import dataclass

from strandline.dataset import Strand
from strandline.lake.iceberg import TableMarks, UnstampedRows, table_history, table_marks, table_pointers
from strandline.lake.settings import LakeSettings
from strandline.ledger.entry import Raised, append_of
from strandline.ledger.numbers import floor_key, head_of
from strandline.persist import Append, Conflict, ExpectSeq, Put
from strandline.persist.backend import Expectation, Write
from strandline.pipeline.plan import flush_stream, plan_of, plans_after
from strandline.pipeline.site import Site

SWEEP_PAUSED = "sweep/paused"


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
    query.

    Raises what the lake raises where a table cannot be read: then the node is not opened for writing.
    """
    raised = []
    for dataset, pointer in table_pointers(lake).items():
        if site.b.kv_get(f"table/{dataset}") == pointer:
            continue
        if not _knows_newest(site, lake, dataset):
            try:
                marks = table_marks(lake, dataset)
            except UnstampedRows:
                continue  # no number of ours is in it; a flush into it is refused
            found = _raise_behind(site, dataset, marks)
            if found is not None:
                raised.append(found)
        site.b.kv_put(f"table/{dataset}", pointer)
    return raised


def _knows_newest(site: Site, lake: LakeSettings, dataset: str) -> bool:
    """Whether the newest flush in the table is one that this store planned."""
    newest = table_history(lake, dataset).newest_flush_id
    if newest is None:
        return False
    number = newest.removeprefix(f"{dataset}-").partition("-")[0]
    if not number.isdecimal():
        return False
    return any(
        plan_of(event).id == newest for _, event in plans_after(site.b, dataset, int(number) - 1, int(number))
    )


def _raise_behind(site: Site, dataset: str, marks: TableMarks) -> Raise | None:
    stream = flush_stream(dataset)
    while True:
        at, event = site.clock.now_us(), site.b.last_seq(stream)
        expected: list[Expectation] = [ExpectSeq(stream, event)]
        writes: list[Write] = []
        number = None
        if site.standing.numbers(dataset).last < marks.max_flush:
            number = marks.max_flush
            writes.append(
                Append(stream, "raised", at, {"number": number, "reason": "the table has it"}, globally=True)
            )
        seqs = {}
        for source in _sources(site, dataset, marks):
            strand, highest = Strand(dataset, source), marks.max_seq(source)
            head = head_of(site.b, strand)
            if head.hi < highest:
                expected.append(ExpectSeq(strand.ledger, head.event))
                writes.append(append_of(strand.ledger, Raised(head.hi, highest, "the table has them"), at))
                seqs[source] = highest
        if marks.source_buckets and marks.max_seqs:
            # A bucket does not tell its sources: a strand that comes later starts above all of them.
            writes.append(Put(floor_key(dataset), max(marks.max_seqs.values())))
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


def _sources(site: Site, dataset: str, marks: TableMarks) -> list[str]:
    known = set(site.standing.tallies(dataset))
    if not marks.source_buckets:
        known |= {str(source) for source in marks.max_seqs}
    return sorted(known)
