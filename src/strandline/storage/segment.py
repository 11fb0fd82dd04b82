"""Segments: one immutable Parquet file for the rows of an append, in the content store under its digest.

The rows of each source are one run, in the order in which they came. No seq is inside: a ledger says which
seqs a run has, so an append that loses a race for a ledger keeps its segment. The footer's metadata:

    strandline.format          1
    strandline.dataset         access-logs
    strandline.schema_version  3
    strandline.append_id       0f3c… (random: two appends of equal rows are two segments)

A row group has at most 65,536 rows or 16 MiB (one row may be larger), and readers hold one at a time.
`segment_reader.py` reads rows again, and `segment_fault.py` says whether a segment is valid.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.errors import CorruptionError
from strandline.persist import BlobRef
from strandline.rows.batches import cut
from strandline.rows.dataset import SOURCE, Dataset
from strandline.storage.content import ContentStore

MIME: Final = "application/vnd.apache.parquet"
FORMAT: Final = 1
MISSING: Final = "missing"
KEY_PREFIX: Final = "strandline."  # of the footer's metadata
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 16 * 1024 * 1024

_PUT_BYTES: Final = 8 * 1024 * 1024


class SegmentUnreadable(CorruptionError):
    """A segment that is damaged or gone: its rows wait until it is put back or given up."""

    def __init__(self, segment: str, reason: str) -> None:
        super().__init__(
            f"segment {segment} cannot be read: {reason}",
            hint="put its bytes back from a copy; `strandline spool lost` gives its rows up",
        )
        self.segment, self.reason = segment, reason


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """The rows of one source, from row `first_row` of the segment on."""

    source: str
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    """What was written: durable under `ref` once this value exists."""

    ref: BlobRef
    rows: int
    runs: tuple[SegmentRun, ...]


def write_segment(content: ContentStore, dataset: Dataset, table: Any, append_id: str) -> Segment:
    """Store rows that `strandline.rows.validate.accept` has made: some, grouped by source."""
    runs = _runs(table[SOURCE])
    facts = {
        f"{KEY_PREFIX}format": str(FORMAT),
        f"{KEY_PREFIX}dataset": dataset.name,
        f"{KEY_PREFIX}schema_version": str(dataset.version),
        f"{KEY_PREFIX}append_id": append_id,
    }
    buffer = pa.BufferOutputStream()
    # Texts of logs repeat little: dictionaries would cost more time than they save bytes. What a flush reads
    # whole, once, needs no statistics either.
    with pq.ParquetWriter(
        buffer,
        table.schema,
        compression="snappy",
        use_dictionary=[SOURCE],
        write_statistics=False,
        store_schema=False,
    ) as writer:
        for group in cut(table, rows=GROUP_ROWS, size=GROUP_BYTES):
            writer.write_table(group, row_group_size=group.num_rows)
        writer.add_key_value_metadata(facts)
    ref = content.put_stream(_chunks(memoryview(buffer.getvalue())), MIME)
    return Segment(ref, table.num_rows, runs)


def _runs(sources: Any) -> tuple[SegmentRun, ...]:
    encoded = pc.run_end_encode(sources.combine_chunks())
    ends, names = encoded.run_ends.to_pylist(), encoded.values.to_pylist()
    assert names, "an append of no rows writes no segment"
    assert len(set(names)) == len(names), "accept groups rows by source"
    return tuple(
        SegmentRun(name, first, end - first)
        for name, first, end in zip(names, [0, *ends], ends, strict=False)
    )


def _chunks(data: memoryview) -> Iterator[bytes]:
    for first in range(0, len(data), _PUT_BYTES):
        yield bytes(data[first : first + _PUT_BYTES])
