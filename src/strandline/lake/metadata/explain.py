"""What a read would open, found from the manifests alone: no Spark, no data file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.base.ranges import Range, RangeSet
from strandline.config.lake_settings import LakeSettings
from strandline.lake.metadata.iceberg import SnapshotGone, load_table

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The files of the snapshot, those whose bounds rule them out, and those that would be opened.

    `bytes` are the sizes of the files opened, `rows_at_most` the rows in them: a file may hold others too.
    """

    snapshot: int | None  # None: a table that has none yet
    files_considered: int = 0
    files_pruned: int = 0
    files_opened: int = 0
    delete_files: int = 0
    bytes: int = 0
    rows_at_most: int = 0


def explain(
    lake: LakeSettings,
    dataset: str,
    *,
    source: str | None = None,
    seqs: Range | None = None,
    flushes: Range | None = None,
    snapshot: int | None = None,
) -> ScanPlan:
    """What `LakeReader.rows` with the same bounds opens. Raises as `load_table` does, and SnapshotGone."""
    table = load_table(lake, dataset)
    pinned = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
    if pinned is None:
        if snapshot is not None:
            raise SnapshotGone(dataset, snapshot)
        return ScanPlan(None)
    scan = table.scan(row_filter=_matching(source, seqs, flushes), snapshot_id=pinned.snapshot_id)
    tasks = list(scan.plan_files())
    considered = _data_files(pinned, table.io)
    return ScanPlan(
        snapshot=pinned.snapshot_id,
        files_considered=considered,
        files_pruned=considered - len(tasks),
        files_opened=len(tasks),
        delete_files=len({file.file_path for task in tasks for file in task.delete_files}),
        bytes=sum(task.file.file_size_in_bytes for task in tasks),
        rows_at_most=sum(task.file.record_count for task in tasks),
    )


def seqs_in_table(lake: LakeSettings, dataset: str, source: str, asked: Range) -> list[Range]:
    """Which seqs of a range have a row; reads that column of the files that may hold them. For repairs."""
    table = load_table(lake, dataset)
    scan = table.scan(row_filter=_matching(source, asked, None), selected_fields=("_sl_seq",))
    seqs = scan.to_arrow().column("_sl_seq").to_pylist()
    return list(RangeSet.of(Range(seq - 1, seq) for seq in seqs).ranges)


def _data_files(snapshot: "Snapshot", io: "FileIO") -> int:
    from pyiceberg.manifest import ManifestContent

    return sum(
        (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        for manifest in snapshot.manifests(io)
        if manifest.content == ManifestContent.DATA
    )


def _matching(source: str | None, seqs: Range | None, flushes: Range | None) -> "BooleanExpression":
    from pyiceberg.expressions import AlwaysTrue, And

    return And(AlwaysTrue(), AlwaysTrue(), *_bounds(source, seqs, flushes))


def _bounds(source: str | None, seqs: Range | None, flushes: Range | None) -> "Iterator[BooleanExpression]":
    from pyiceberg import expressions

    made: Any = expressions  # mypy sees the fields of these classes where their constructors are
    if source is not None:
        yield made.EqualTo("source", source)
    for column, range_ in (("_sl_seq", seqs), ("_sl_flush", flushes)):
        if range_ is not None:
            yield made.GreaterThan(column, range_.lo)
            yield made.LessThanOrEqual(column, range_.hi)
