"""Tries a catalog by Spark, in a scratch table: see ports/probe.py.

It stages, publishes and rewrites as landing and compaction do. Each check looks at the rows that the table
shows afterwards, and not at whether a call was refused, because errors differ between catalogs, and between
classic Spark and Connect.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pyspark.sql import SparkSession

from strandline.config.lake_settings import CATALOG, SCRATCH
from strandline.lake.jobs.landing_history import History, find, read_history
from strandline.lake.jobs.stage import stage_session
from strandline.lake.jobs.table_schema import quoted, spark_errors
from strandline.lake.ports.probe import BRANCHES, DROP, HISTORY, ONCE, REMOVAL, STAGED

_ID: Final = "probe-1"
_EXPIRED_ID: Final = "probe-2"
_BRANCH: Final = "probe"
_LONG_AGO: Final = "TIMESTAMP '1970-01-01 00:00:00'"
_PROPERTIES: Final = (
    "'write.wap.enabled'='true', 'write.parquet.compression-codec'='zstd', "
    "'write.parquet.compression-level'='1'"
)


class CatalogProbe:
    """See Probe."""

    def __init__(self, spark: SparkSession, *, format: int) -> None:
        self._spark, self._format = spark, format

    def missing(self, table: str) -> list[str]:
        name = _name(table)
        with spark_errors("try the catalog with", name):
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{SCRATCH}")
            self._spark.sql(
                f"CREATE TABLE {name} (n BIGINT) USING iceberg "
                f"TBLPROPERTIES ('format-version'='{self._format}', {_PROPERTIES})"
            )
            self._spark.sql(f"INSERT INTO {name} VALUES (1)")
            trial = _Trial(self._spark, table)
        checks: dict[str, Callable[[], bool]] = {
            STAGED: trial.keeps_a_stage_apart,
            ONCE: trial.publishes_once,
            HISTORY: trial.keeps_history,
            BRANCHES: trial.keeps_branches,
            REMOVAL: trial.removes,
        }
        missing = [promise for promise, check in checks.items() if not self._holds(check, name)]
        return missing if self._drops(table) else [*missing, DROP]

    def drop(self, table: str) -> None:
        self._drops(table)

    def _holds(self, check: Callable[[], bool], name: str) -> bool:
        try:
            return check()
        except Exception:  # noqa: BLE001  # what is not there fails in as many ways as there are catalogs
            # Raises if the catalog does not answer any more, which is no fault of what was tried.
            with spark_errors("try the catalog with", name):
                self._spark.table(name).collect()
            return False

    def _drops(self, table: str) -> bool:
        """Whether the table goes with its files. A catalog that keeps files (gc.enabled=false) refuses that;
        then the table goes alone."""
        name = _name(table)
        try:
            self._spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
        except Exception:  # noqa: BLE001  # as in `_holds`
            with spark_errors("drop", name):
                self._spark.sql(f"DROP TABLE IF EXISTS {name}")
            return False
        return True


class _Trial:
    """The checks, in the order of PROMISES: each goes on from what the one before has left."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark, self._table, self._name = spark, f"{SCRATCH}.{quoted(table)}", _name(table)
        self._first = self._history().current

    def keeps_a_stage_apart(self) -> bool:
        shown = self._shown()
        self._stage(_ID, 2)
        found = find(self._history(), _ID)
        return self._shown() == shown and found.published is None and len(found.staged) == 1

    def publishes_once(self) -> bool:
        """The second copy is picked after another commit, as a process does that wakes up late."""
        self._stage(_ID, 3)
        first, second = find(self._history(), _ID).staged
        self._publish(first.snapshot)
        self._spark.sql(f"INSERT INTO {self._name} VALUES (4)")
        shown = self._shown()
        with suppress(Exception):  # it should be refused; the rows tell, see the head of the file
            self._publish(second.snapshot)
        return self._shown() == shown and len(shown) == 3

    def keeps_history(self) -> bool:
        found = self._spark.sql(f"SELECT n FROM {self._name} VERSION AS OF {self._first:d}").collect()
        return [row[0] for row in found] == [1] and find(self._history(), _ID).published is not None

    def keeps_branches(self) -> bool:
        shown = self._shown()
        self._spark.sql(f"ALTER TABLE {self._name} CREATE BRANCH {_BRANCH}")
        self._spark.sql(f"INSERT INTO {self._name}.branch_{_BRANCH} VALUES (5)")
        is_apart = self._shown() == shown
        self._call(f"fast_forward('{self._table}', 'main', '{_BRANCH}')")
        is_landed = self._shown() == [*shown, 5]
        self._spark.sql(f"ALTER TABLE {self._name} DROP BRANCH {_BRANCH}")
        return is_apart and is_landed

    def removes(self) -> bool:
        self._stage(_EXPIRED_ID, 6)
        shown = self._shown()
        (doomed,) = find(self._history(), _EXPIRED_ID).staged
        self._call(
            f"expire_snapshots(table => '{self._table}', older_than => {_LONG_AGO}, "
            f"snapshot_ids => array({doomed.snapshot:d}L))"
        )
        self._call(
            f"remove_orphan_files(table => '{self._table}', older_than => {_LONG_AGO}, "
            "prefix_listing => true)"
        )
        return doomed.snapshot not in self._history().snapshots and self._shown() == shown

    def _history(self) -> History:
        return read_history(self._spark, self._name)

    def _shown(self) -> list[int]:
        return sorted(row[0] for row in self._spark.sql(f"SELECT n FROM {self._name}").collect())

    def _stage(self, id: str, number: int) -> None:
        with stage_session(self._spark, id) as session:
            session.sql(f"INSERT INTO {self._name} VALUES ({number:d})")

    def _publish(self, snapshot: int) -> None:
        self._call(f"cherrypick_snapshot(table => '{self._table}', snapshot_id => {snapshot:d})")

    def _call(self, procedure: str) -> None:
        self._spark.sql(f"CALL {CATALOG}.system.{procedure}").collect()


def _name(table: str) -> str:
    return f"{CATALOG}.{SCRATCH}.{quoted(table)}"
