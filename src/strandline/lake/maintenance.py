"""Keeping a table's history short: every commit reads and writes the list of its snapshots."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from strandline.lake.schema import quoted, spark_errors, table_name
from strandline.lake.settings import CATALOG, NAMESPACE

# Given with the ids, since Iceberg would take a default of its own, and expire what is older than that as
# well.
_LONG_AGO: Final = "TIMESTAMP '1970-01-01 00:00:00'"
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A snapshot as expiry sees it. `wap` is the id that it was staged or published under; `is_current`
    whether it is part of the table, now or as an ancestor."""

    id: int
    at: int  # microseconds
    wap: str | None
    is_current: bool


def snapshots(spark: SparkSession, dataset: str) -> list[KnownSnapshot]:
    """Every snapshot, oldest first."""
    table = table_name(dataset)
    with spark_errors("look at", table):
        current = spark.sql(f"SHOW TBLPROPERTIES {table} ('current-snapshot-id')").collect()[0][1]
        rows = spark.sql(
            "SELECT snapshot_id, parent_id, unix_micros(committed_at), "
            f"coalesce(summary['wap.id'], summary['published-wap-id']) FROM {table}.snapshots"
        ).collect()
    parents = {row[0]: row[1] for row in rows}
    ancestry = set()
    at = int(current) if current != "none" else None
    while at is not None and at in parents:
        ancestry.add(at)
        at = parents[at]
    found = [KnownSnapshot(row[0], row[2], row[3], row[0] in ancestry) for row in rows]
    return sorted(found, key=lambda each: (each.at, each.id))


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
