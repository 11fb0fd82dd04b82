"""The data files of a table, bin by bin, from its manifests: no Spark, no data file is opened."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from strandline.config.lake_settings import LakeSettings
from strandline.lake.metadata.iceberg import BoundsMissing, SnapshotGone, load_table
from strandline.lake.ports.rewrite import Bin, DataFile, Listing
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

_MAIN: Final = "main"
_LONG: Final = struct.Struct("<q")


def list_files(lake: LakeSettings, dataset: Dataset, *, snapshot: int | None = None) -> Listing:
    """See Rewriter.files. Raises as `load_table` does, and SnapshotGone."""
    from pyiceberg.manifest import ManifestContent

    table = load_table(lake, dataset.name)
    pinned = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
    if pinned is None and snapshot is not None:
        raise SnapshotGone(dataset.name, snapshot)
    manifests = [] if pinned is None else pinned.manifests(table.io)
    order = "_sl_flush" if dataset.source_buckets else "_sl_seq"
    field = table.schema().find_field(order).field_id
    files = [file for manifest in manifests for file in _files(table, manifest, dataset.name, order, field)]
    return Listing(
        table.metadata_location,
        None if pinned is None else pinned.snapshot_id,
        tuple(files),
        len(table.metadata.snapshots),
        any(manifest.content == ManifestContent.DELETES for manifest in manifests),
    )


def branches(lake: LakeSettings, dataset: str) -> dict[str, int]:
    """The refs beside main, each with its snapshot."""
    refs = load_table(lake, dataset).metadata.refs
    return {name: ref.snapshot_id for name, ref in refs.items() if name != _MAIN}


def ancestry(lake: LakeSettings, dataset: str, snapshot: int | None = None) -> list[int]:
    """A snapshot, the current one by default, and what it was made from, newest first."""
    metadata = load_table(lake, dataset).metadata
    parents = {each.snapshot_id: each.parent_snapshot_id for each in metadata.snapshots}
    found, at = [], metadata.current_snapshot_id if snapshot is None else snapshot
    while at is not None and at in parents:
        found.append(at)
        at = parents[at]
    return found


def _files(
    table: "Table", manifest: "ManifestFile", dataset: str, order: str, field: int
) -> tuple[DataFile, ...]:
    from pyiceberg.manifest import ManifestContent

    if manifest.content != ManifestContent.DATA:
        return ()
    return _manifest_files(_Read(table, manifest, dataset, order, field))


class _Read:
    """A manifest never changes: read once, it is known by its path."""

    def __init__(
        self, table: "Table", manifest: "ManifestFile", dataset: str, order: str, field: int
    ) -> None:
        self.table, self.manifest, self.dataset, self.order, self.field = (
            table,
            manifest,
            dataset,
            order,
            field,
        )

    def __hash__(self) -> int:
        return hash(self.manifest.manifest_path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Read) and self.manifest.manifest_path == other.manifest.manifest_path

    def files(self) -> Iterator[DataFile]:
        for entry in self.manifest.fetch_manifest_entry(self.table.io, discard_deleted=True):
            file: Any = entry.data_file
            lo, hi = ((bounds or {}).get(self.field) for bounds in (file.lower_bounds, file.upper_bounds))
            if lo is None or hi is None:
                raise BoundsMissing(self.dataset, file.file_path, self.order)
            place, first = file.partition[0], file.partition[1]
            yield DataFile(
                Bin(place, first),
                _LONG.unpack(lo)[0] - 1,
                _LONG.unpack(hi)[0],
                file.record_count,
                file.file_size_in_bytes,
                entry.snapshot_id or 0,
                file.file_path,
            )


@lru_cache(maxsize=1_000)
def _manifest_files(read: _Read) -> tuple[DataFile, ...]:
    return tuple(read.files())
