"""Landings for tests: rows become real segments in a real content store, numbered as a ledger would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from strandline.lake.jobs.stage import IcebergTables
from strandline.rows.dataset import SOURCE, Column, Dataset
from strandline.rows.validate import arrow_schema
from strandline.state.landing import FlushLanding, SegmentPiece
from strandline.storage import ContentStore
from strandline.storage.segment import write_segment

AT: Final = 1_700_000_000_000_000
_names: Final = count(1)


def fresh_name(kind: str = "logs") -> str:
    """Tests share one lake, so each takes a table of its own; the name has what must be quoted."""
    return f"{kind}.{next(_names)}-{uuid4().hex[:6]}"


def logs(**settings: Any) -> Dataset:
    return Dataset(fresh_name(), (Column("level", "string"), Column("n", "bigint")), **settings)


@dataclass
class Ledgers:
    """Which seq comes next in each strand, and the flush number."""

    content: ContentStore
    his: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def pieces(
        self, dataset: Dataset, rows: Mapping[str, Sequence[Mapping[str, Any]]], *, at: int = AT
    ) -> tuple[SegmentPiece, ...]:
        """One segment of these rows by source, and the pieces that number them."""
        flat = [{**row, SOURCE: source} for source, mine in rows.items() for row in mine]
        table = pa.Table.from_pylist(flat, schema=_schema(dataset))
        segment = write_segment(self.content, dataset, table, uuid4().hex)
        return tuple(self._numbered(run, segment.ref, at) for run in segment.runs)

    def landing(
        self, dataset: Dataset, pieces: Sequence[SegmentPiece], *, id: str | None = None, version: int = 0
    ) -> FlushLanding:
        self.number += 1
        inorder = tuple(sorted(pieces, key=lambda piece: (piece.source, piece.lo)))
        return FlushLanding(
            dataset, self.number, id or f"flush-{self.number}-{uuid4().hex}", inorder, version
        )

    def _numbered(self, run: Any, ref: Any, at: int) -> SegmentPiece:
        lo = self.his.get(run.source, 0)
        self.his[run.source] = lo + run.rows
        return SegmentPiece(run.source, ref, run.first_row, run.rows, lo, at)


def _schema(dataset: Dataset) -> pa.Schema:
    own = [each for each in arrow_schema(dataset) if each.name != SOURCE]
    return pa.schema([pa.field(SOURCE, pa.string()), *own])


def land(tables: IcebergTables, landing: Any, **stage: Any) -> int:
    """Ensure, stage, publish; the snapshot."""
    tables.ensure(landing.dataset)
    tables.stage(landing, **stage)
    return publish(tables, landing)


def publish(tables: IcebergTables, landing: Any) -> int:
    name = landing.dataset.name
    staged = tables.look(name, landing.id).staged
    tables.publish(name, staged[-1].snapshot)
    published = tables.look(name, landing.id).published
    assert published is not None
    return published.snapshot
