"""A sink that keeps rows in a SQLite file, one table for all datasets.

    [sinks.copy]
    type = "sqlite"
    file = "copy.db"          # from the node's folder on
    unit_rows = 10000

A row is known by its strand and seq, which no other row ever has. So a unit that comes twice, also at the
same time or with other bounds, stores nothing again; and it is one transaction, so no part of it is ever
seen.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from strandline.errors import UsageError
from strandline.sinks.ndjson import lines_of
from strandline.sinks.registry import SinkOptions
from strandline.sinks.sink import Delivery, Limits, Outcome, Sink, Unit

TABLE = """
CREATE TABLE IF NOT EXISTS rows (
    origin TEXT, epoch INTEGER, dataset TEXT, source TEXT, seq INTEGER, row TEXT NOT NULL,
    PRIMARY KEY (origin, epoch, dataset, source, seq)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class SqliteSink(Sink):
    """Where the file is. It travels to where the rows are, so it holds no connection."""

    file: str
    unit_rows: int = 10_000

    @property
    def fingerprint(self) -> str:
        return f"sqlite:{self.file}"

    @property
    def parallel(self) -> int:
        return 1  # SQLite has one writer at a time

    def limits(self, mean_row_bytes: float) -> Limits:  # noqa: ARG002  # a unit of any size is one transaction
        return Limits(self.unit_rows)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        yield _Delivery(self.file)


class _Delivery:
    """What would be kept open from unit to unit is here; a file opens fast enough for each."""

    def __init__(self, file: str) -> None:
        self._file = file

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        try:
            with closing(sqlite3.connect(self._file, timeout=60, isolation_level=None)) as db:
                got, new = _stored(db, unit, rows)
        except sqlite3.Error as error:  # the file is locked, full, gone: it may work later
            yield Outcome(unit.lo, unit.hi, "failed", kind="sqlite", text=str(error))
            return
        yield Outcome(unit.lo, unit.hi, "stored" if new else "known", rows=got)


def _stored(db: sqlite3.Connection, unit: Unit, rows: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    """How many rows came, and how many of them are new. An error undoes all of it, as closing does."""
    dataset = unit.shipment.dataset
    strand = (unit.shipment.origin, unit.epoch, dataset.name, unit.source)
    db.execute("BEGIN IMMEDIATE")
    db.execute(TABLE)
    got = 0
    for batch in rows:
        lines = lines_of(dataset, batch, with_source=False, with_row_id=False).to_pylist()
        seqs = batch.column("_sl_seq").to_pylist()
        values = [(*strand, seq, line) for seq, line in zip(seqs, lines, strict=True)]
        db.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?)", values)
        got += len(values)
    db.execute("COMMIT")
    return got, db.total_changes


def configure(options: SinkOptions) -> SqliteSink:
    """What the entry point names: a sink from the keys of its section."""
    keys = dict(options.keys)
    file, unit_rows = keys.pop("file", None), keys.pop("unit_rows", 10_000)
    if keys or not isinstance(file, str) or not isinstance(unit_rows, int) or unit_rows < 1:
        raise UsageError(
            f"sink {options.instance!r}: a sqlite sink has a file, and perhaps unit_rows",
            hint='file = "copy.db"',
        )
    return SqliteSink(str(options.home / file), unit_rows)
