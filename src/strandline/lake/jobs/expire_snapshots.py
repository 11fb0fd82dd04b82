"""Keeping a table's history short: every commit reads and writes the list of its snapshots."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pyspark.sql import SparkSession

from strandline.config.lake_settings import CATALOG, NAMESPACE, LakeSettings
from strandline.errors import HeldError, UnavailableError
from strandline.lake.jobs.table_schema import quoted, spark_errors, table_name
from strandline.lake.metadata.iceberg import WAP_IDS, load_table
from strandline.lake.ports.snapshots import KnownSnapshot

# Given with the ids, since Iceberg would take a default of its own, and expire what is older than that as
# well.
_LONG_AGO: Final = "TIMESTAMP '1970-01-01 00:00:00'"
_AT_ONCE: Final = 500
_MAIN: Final = "main"


def snapshots(session: Callable[[], SparkSession], lake: LakeSettings, dataset: str) -> list[KnownSnapshot]:
    """Every snapshot, oldest first. From the metadata, by Spark where only its server reaches that."""
    try:
        found = _from_metadata(lake, dataset)
    except (HeldError, UnavailableError):
        found = _from_spark(session(), dataset)
    return sorted(found, key=lambda each: (each.at, each.id))


def _from_metadata(lake: LakeSettings, dataset: str) -> list[KnownSnapshot]:
    metadata = load_table(lake, dataset).metadata
    parents = {each.snapshot_id: each.parent_snapshot_id for each in metadata.snapshots}
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    current, named = _ancestries(parents, metadata.current_snapshot_id, refs)
    return [
        KnownSnapshot(
            each.snapshot_id,
            each.timestamp_ms * 1_000,
            next((id for name in WAP_IDS if each.summary is not None and (id := each.summary[name])), None),
            each.snapshot_id in current,
            each.snapshot_id in named,
        )
        for each in metadata.snapshots
    ]


def _from_spark(spark: SparkSession, dataset: str) -> list[KnownSnapshot]:
    table = table_name(dataset)
    with spark_errors("look at", table):
        shown = spark.sql(f"SHOW TBLPROPERTIES {table} ('current-snapshot-id')").collect()[0][1]
        rows = spark.sql(
            "SELECT snapshot_id, parent_id, unix_micros(committed_at), "
            f"coalesce(summary['wap.id'], summary['published-wap-id']) FROM {table}.snapshots"
        ).collect()
        refs: dict[str, int] = dict(spark.sql(f"SELECT name, snapshot_id FROM {table}.refs").collect())
    parents = {row[0]: row[1] for row in rows}
    current, named = _ancestries(parents, int(shown) if shown != "none" else None, refs)
    return [KnownSnapshot(row[0], row[2], row[3], row[0] in current, row[0] in named) for row in rows]


def _ancestries(
    parents: Mapping[int, int | None], current: int | None, refs: Mapping[str, int]
) -> tuple[set[int], set[int]]:
    """Those of the table; and of refs beside main these themselves, and what only they have."""
    table, heads = _ancestry(parents, current), {head for name, head in refs.items() if name != _MAIN}
    return table, heads | {each for head in heads for each in _ancestry(parents, head) if each not in table}


def _ancestry(parents: Mapping[int, int | None], at: int | None) -> set[int]:
    found = set()
    while at is not None and at in parents:
        found.add(at)
        at = parents[at]
    return found


def expire(spark: SparkSession, dataset: str, ids: Iterable[int]) -> None:
    """Remove these snapshots, and the files that only they name."""
    table = f"{NAMESPACE}.{quoted(dataset)}"
    doomed = list(ids)
    for first in range(0, len(doomed), _AT_ONCE):
        listed = ", ".join(f"{each:d}L" for each in doomed[first : first + _AT_ONCE])
        with spark_errors("expire snapshots of", table):
            spark.sql(
                f"CALL {CATALOG}.system.expire_snapshots(table => '{table}', older_than => {_LONG_AGO}, "
                f"snapshot_ids => array({listed}))"
            ).collect()
