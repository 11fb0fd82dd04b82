"""What a table's snapshots say about the id of a landing: read from its metadata, decided by a pure function.

A staged snapshot carries `wap.id` and our properties. Published where its parent was current, it becomes
current itself; else Iceberg makes a copy with `published-wap-id` and `source-snapshot-id`, which leads back
to the staged one and so to our properties.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings
from strandline.errors import CorruptionError
from strandline.lake.metadata.iceberg import load_metadata
from strandline.lake.ports.stage import LandingSnapshots, Published, Staged

VERSION: Final = "strandline.version"
NUMBER: Final = "strandline.number"
SETTLED: Final = "strandline.settled-drop"
SETTLE_FAILED: Final = "strandline.settle-failed"

_NO_SNAPSHOT: Final = -1
_SUMMARY: Final = {
    "wap": "wap.id",
    "published": "published-wap-id",
    "copy_of": "source-snapshot-id",
    "version": VERSION,
    "rows": "added-records",
    "bytes": "added-files-size",
    "files": "added-data-files",
    "settled": SETTLED,
    "settle_failed": SETTLE_FAILED,
}


class Snapshot(NamedTuple):
    """A snapshot's place and what its summary says; an absent entry is None."""

    id: int
    parent: int | None
    wap: str | None = None
    published: str | None = None
    copy_of: str | None = None
    version: str | None = None
    rows: str | None = None
    bytes: str | None = None
    files: str | None = None
    settled: str | None = None
    settle_failed: str | None = None


class History(NamedTuple):
    """All snapshots of a table by id, and which one is current."""

    current: int | None
    snapshots: Mapping[int, Snapshot]


def read_history(spark: SparkSession, table: str) -> History:
    """Two reads, the current snapshot first: one that is published in between counts as staged still, and
    publishing it again is refused; the other way round it could count as neither."""
    shown = spark.sql(f"SHOW TBLPROPERTIES {table} ('current-snapshot-id')").collect()[0][1]
    entries = ", ".join(f"summary['{key}'] as {name}" for name, key in _SUMMARY.items())
    rows = spark.sql(f"SELECT snapshot_id, parent_id, {entries} FROM {table}.snapshots").collect()
    snapshots = {row[0]: Snapshot(*row) for row in rows}
    return History(int(shown) if shown != "none" else None, snapshots)


def metadata_history(lake: LakeSettings, dataset: str) -> History:
    """The same from the metadata file itself, in a hundredth of the time: no job, no Java."""
    metadata = load_metadata(lake, dataset)
    snapshots = {
        each["snapshot-id"]: Snapshot(
            each["snapshot-id"],
            each.get("parent-snapshot-id"),
            *map(each.get("summary", {}).get, _SUMMARY.values()),
        )
        for each in metadata.get("snapshots", ())
    }
    current = metadata.get("current-snapshot-id")
    return History(None if current in (None, _NO_SNAPSHOT) else current, snapshots)


def find(history: History, id: str) -> LandingSnapshots:
    """The snapshot in the current ancestry that carries the id, and the staged ones beside it."""
    ancestry = {each.id: each for each in _ancestry(history)}
    published = next((each for each in ancestry.values() if id in (each.wap, each.published)), None)
    staged = tuple(
        Staged(**_written(each, each), is_behind=each.parent != history.current)
        for each in history.snapshots.values()
        if each.wap == id and each.id not in ancestry
    )
    return LandingSnapshots(_published(history, published) if published else None, staged)


def _ancestry(history: History) -> Iterator[Snapshot]:
    at = history.current
    while at is not None and (found := history.snapshots.get(at)) is not None:
        yield found
        at = found.parent


def _published(history: History, found: Snapshot) -> Published:
    return Published(**_written(found, _origin(history, found)))


def _written(found: Snapshot, origin: Snapshot) -> dict[str, Any]:
    """What a snapshot adds; the properties that we gave it stand at the one that was staged."""
    return {
        "snapshot": found.id,
        "version": int(origin.version or 0),
        "rows": int(found.rows or 0),
        "bytes": int(found.bytes or 0),
        "files": int(found.files or 0),
        "settled_drop": int(origin.settled or 0),
        "settle_failure": origin.settle_failed,
    }


def _origin(history: History, found: Snapshot) -> Snapshot:
    """The snapshot as it was staged: itself, or the one that it is a copy of."""
    if found.copy_of is None:
        return found
    origin = history.snapshots.get(int(found.copy_of))
    if origin is None:
        raise CorruptionError(
            f"snapshot {found.id} is a copy of {found.copy_of}, which is gone, and the version with it",
            hint="snapshots of an open plan must not be expired; compare the table's rows with the plan",
        )
    return origin
