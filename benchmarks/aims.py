"""What the figures are to reach: one list, which `report` sets against what was measured."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from benchmarks.report import Row, Spread, Table

PEER: Final = "eventsourcing"


class Aim(NamedTuple):
    """A row's ratio to another, or without `against` its measure, is at least `reach`, or at most if it
    `is_most`; `better` is where we would stop."""

    question: str
    title: str
    row: str
    against: str
    reach: float
    better: float | None = None
    is_most: bool = False

    @property
    def text(self) -> str:
        return f"{self.title}: {self.row}" + (f" / {self.against}" if self.against else "")


class Standing(NamedTuple):
    """An aim beside what was measured, if it was, by us and by the peer."""

    aim: Aim
    ours: "Spread | None" = None
    unit: str = ""
    peer: "Spread | None" = None

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return "not measured"
        if self._is_met(self.aim.better):
            return "better"
        return "reached" if self._is_met(self.aim.reach) else "**missed**"

    def _is_met(self, bound: float | None) -> bool:
        if bound is None or self.ours is None:
            return False
        value = round(self.ours.median, 2)  # as it is shown
        return value <= bound if self.aim.is_most else value >= bound

    def share(self, value: float) -> float:
        """How much of the aim a value is; 1 reaches it."""
        return self.aim.reach / value if self.aim.is_most else value / self.aim.reach


_APPEND, _BATCH, _READ = "How fast is an append?", "How fast is a batch?", "How fast is a read?"
_OLD, _SLOW, _TICK = "How much does a read open?", "Does a store slow down?", "How much does a tick open?"
_RAW, _FULL = "raw table", "ours, full contract"
_FORWARD, _COMPACTION = "How fast is a forward?", "How fast is a compaction?"
_MUCH, _LITTLE = "5,000,000 old rows", "10,000 old rows"

AIMS: Final = (
    Aim(_APPEND, "SQLite: one durable append", _FULL, "the full contract by hand", 0.75, 0.85),
    Aim(_BATCH, "SQLite: batches of 1,000", _FULL, "raw executemany", 0.65, 0.85),
    Aim(
        "How do threads share a store?",
        "SQLite: acknowledged single appends",
        "ours full, 64 threads",
        "raw table, 1 thread",
        3,
        4,
    ),
    Aim(_READ, "SQLite: pages of 500 of one stream", "ours", _RAW, 0.7, 0.85),
    Aim(_READ, "SQLite: replay of a stream into one value", "ours, project", _RAW, 0.4, 0.6),
    Aim(_APPEND, "Postgres: one durable append", _FULL, _RAW, 0.65, 0.8),
    Aim(_BATCH, "Postgres: batches of 1,000", _FULL, "raw binary COPY", 0.5, 0.7),
    Aim(
        "How fast are six writers?",
        "Postgres: 6 processes, in commit order",
        _FULL,
        "a bare sequence, unsafe",
        0.6,
        0.9,
    ),
    Aim("How much does HTTP cost?", "Batches of 1,000", "over HTTP", "in this process", 0.5, 0.8),
    Aim(
        "How much does HTTP cost?",
        "Single appends, 64 at once",
        "64 connections",
        "in this process",
        0.5,
        0.8,
    ),
    *(
        Aim(_SLOW, f"To {act} (less is better)", "10,000,000 events", "10,000 events", 1.2, is_most=True)
        for act in ("open and close", "mark", "resume")
    ),
    *(
        Aim("How fast is an append of rows?", "Batches of 10,000 rows", row, "pyarrow by hand", 0.6)
        for row in ("ours, dicts", "ours, Arrow")
    ),
    Aim("How fast is a flush?", "1,000,000 rows", "ours", "bare Spark, the same columns", 1.3, is_most=True),
    Aim("How fast is a flush?", "1,000 rows", "ours", "bare Spark, from memory", 2, is_most=True),
    Aim(
        "Does a flush slow down?",
        "1,000 rows each",
        "flush 994 to 1,000",
        "flush 4 to 10 of a fresh table",
        1.3,
        is_most=True,
    ),
    Aim(_OLD, "Files opened", f"{_MUCH}, read of all", _LITTLE, 1.5, is_most=True),
    Aim(_OLD, "Sizes of the files opened", f"{_MUCH}, read of all", _LITTLE, 1.5, is_most=True),
    Aim(
        "How much does a backlog cost?",
        "Memory held",
        "the appending process, growth",
        "",
        64,
        is_most=True,
    ),
    Aim(
        "How much does a backlog cost?",
        "After a restart",
        "10,000,000 rows pending, open and first append",
        "",
        2000,
        is_most=True,
    ),
    Aim(_FORWARD, "500,000 rows, 1,000 a request", "ours", "a bare loop", 0.6),
    Aim(_FORWARD, "100,000 rows, 100 a request", "ours", "a bare loop", 0.6),
    *(
        Aim(_FORWARD, f"{title}, all to the same sink", "ours", "OpenTelemetry Collector", 1)
        for title in ("500,000 rows, 1,000 a request", "100,000 rows, 100 a request")
    ),
    Aim("How fast is a blob?", "1,000,000 rows, 4 objects", "ours", "Spark by itself", 0.7),
    Aim(_TICK, "1,000 new rows: what is opened", f"{_MUCH}, bytes", _LITTLE, 1.5, is_most=True),
    Aim(_TICK, "1,000 new rows", f"{_MUCH}, delivery", _LITTLE, 2, is_most=True),
    Aim("How much does an idle tick cost?", "1,000 sources", "a tick", "", 1000, is_most=True),
    Aim(
        "How much does an idle tick cost?",
        "1,000 sources: read from tables, sent, and written to the node's folder",
        "a tick",
        "",
        0,
        is_most=True,
    ),
    Aim(_COMPACTION, "1,000 files of 200 rows", "ours", "bare Spark", 1.3, is_most=True),
    Aim(_COMPACTION, "1,000 files of 900 rows", "ours", "bare Spark", 1.3, is_most=True),
    Aim(_COMPACTION, "250 flushes of 1,000 rows", "ours, rows", "", 3, is_most=True),
    Aim(
        _COMPACTION,
        "a walk over 1,000 strands with nothing to do",
        "a row has landed",
        "",
        2000,
        is_most=True,
    ),
    Aim(
        "How fast is a backfill?",
        "1,000,000 rows, 900,000 known",
        "ours, as a frame",
        "bare Spark",
        2,
        is_most=True,
    ),
)


def standings(tables: "Iterable[Table]", aims: Sequence[Aim] = AIMS) -> list[Standing]:
    found = {(table.question, table.title, row.name): (table, row) for table in tables for row in table.rows}
    return [_standing(aim, *found.get((aim.question, aim.title, aim.row), (None, None))) for aim in aims]


def _standing(aim: Aim, table: "Table | None", row: "Row | None") -> Standing:
    if table is None or row is None:
        return Standing(aim)
    return Standing(aim, _value(aim, row), table.unit, _peer(aim, table))


def _value(aim: Aim, row: "Row") -> "Spread":
    return row.ratios[aim.against] if aim.against else row.measure


def _peer(aim: Aim, table: "Table") -> "Spread | None":
    rows = [row for row in table.rows if row.name.startswith(PEER)]
    return _value(aim, rows[0]) if rows else None
