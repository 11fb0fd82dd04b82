"""The rows of a segment, read again. The linter's contracts say which modules may: a flush that looked for
known rows in the spool would find each row itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import BlobCorrupt, NotFoundError, UnavailableError
from strandline.persist import BlobRef
from strandline.storage.content import ContentStore
from strandline.storage.segment import FORMAT, KEY_PREFIX, MISSING, SegmentUnreadable

WHOLE_BYTES: Final = 16 * 1024 * 1024  # a larger segment is read by way of a file, not held in memory


def read_segment(
    content: ContentStore, ref: BlobRef, *, first_row: int, rows: int, schema: Any
) -> Iterator[Any]:
    """The rows of a run as batches of `schema`. Raises SegmentUnreadable before it gives a wrong row.

    Of a segment with many runs read all with one `open_segment`: each opening reads all bytes.
    """
    with open_segment(content, ref) as opened:
        yield from opened.batches(first_row=first_row, rows=rows, schema=schema)


@contextmanager
def open_segment(content: ContentStore, ref: BlobRef) -> Iterator["OpenSegment"]:
    """A segment whose bytes were all read once and are those that `ref` names.

    What its ends cannot be read of raises SegmentUnreadable; storage that does not answer, UnavailableError.
    """
    with _verified(content, ref) as file:
        try:
            parquet = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise SegmentUnreadable(ref.cid, f"its footer is unreadable: {_first_line(error)}") from error
        metadata = parquet.metadata.metadata or {}
        format_ = metadata.get(f"{KEY_PREFIX}format".encode(), b"none").decode(errors="replace")
        if format_ != str(FORMAT):
            raise SegmentUnreadable(ref.cid, f"its format version is {format_}, this version reads {FORMAT}")
        yield OpenSegment(ref.cid, parquet)


class OpenSegment:
    """See open_segment."""

    def __init__(self, cid: str, parquet: Any) -> None:
        self._cid, self._parquet = cid, parquet
        self.rows = int(parquet.metadata.num_rows)

    def fault(self, rows: int) -> str | None:
        """See segment_fault, which this is the last part of, for who reads the segment as well."""
        return None if self.rows == rows else f"it has {self.rows:,} rows, the ledgers name {rows:,}"

    def batches(self, *, first_row: int, rows: int, schema: Any) -> Iterator[Any]:
        """Rows `first_row` to `first_row + rows - 1` with the columns of `schema`, in its types.

        A column that the segment has in a narrower type is widened, one that it lacks is null, one that
        `schema` lacks is left out. Row groups without such rows are not read.
        """
        if not 0 <= first_row <= first_row + rows <= self.rows:
            raise SegmentUnreadable(
                self._cid, f"rows {first_row:,} to {first_row + rows:,} are asked of its {self.rows:,}"
            )
        start = 0
        for group in range(self._parquet.num_row_groups):
            count = self._parquet.metadata.row_group(group).num_rows
            lo, hi = max(first_row - start, 0), min(first_row + rows - start, count)
            start += count
            if lo < hi:
                yield from self._read(group, schema, lo, hi)

    def _read(self, group: int, schema: Any, lo: int, hi: int) -> list[Any]:
        """Rows of a row group in the columns and types of `schema`."""
        if not schema.names:  # a table has as many rows as its columns; rows without columns are rows too
            return [pa.RecordBatch.from_struct_array(pa.array([{}] * (hi - lo), pa.struct([])))]
        have = set(self._parquet.schema_arrow.names)
        wanted = [name for name in schema.names if name in have]
        try:
            table = self._parquet.read_row_group(group, columns=wanted, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise SegmentUnreadable(self._cid, f"row group {group}: {_first_line(error)}") from error
        rows = self._parquet.metadata.row_group(group).num_rows
        columns = [self._fitted(table, field, rows) for field in schema]
        batches: list[Any] = pa.table(columns, schema=schema).slice(lo, hi - lo).to_batches()
        return batches

    def _fitted(self, table: Any, field: Any, rows: int) -> Any:
        if field.name not in table.column_names:
            return pa.nulls(rows, field.type)
        column = table[field.name]
        if not _is_wider(column.type, field.type):
            raise SegmentUnreadable(
                self._cid, f"column {field.name!r} is {column.type}, which does not fit {field.type}"
            )
        return column.cast(field.type)


def _is_wider(have: Any, wanted: Any) -> bool:
    if have == wanted or (have, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    if not (pa.types.is_decimal(have) and pa.types.is_decimal(wanted)):
        return False
    return bool(have.scale == wanted.scale and have.precision <= wanted.precision)


@contextmanager
def _verified(content: ContentStore, ref: BlobRef) -> Iterator[Any]:
    """The bytes of the segment, all read and hashed: in memory, or in a file that is gone afterwards."""
    if ref.size <= WHOLE_BYTES:
        yield pa.BufferReader(b"".join(_stream(content, ref)))
        return
    with TemporaryFile() as copy:
        for chunk in _stream(content, ref):
            try:
                copy.write(chunk)
            except OSError as error:
                raise UnavailableError(
                    f"cannot copy segment {ref.cid} of {ref.size:,} bytes to a temporary file: {error}",
                    hint="make room in the temporary folder of this machine",
                ) from error
        copy.seek(0)
        yield copy


def _stream(content: ContentStore, ref: BlobRef) -> Iterator[bytes]:
    try:
        yield from content.get_stream(ref)
    except NotFoundError as error:
        raise SegmentUnreadable(ref.cid, MISSING) from error
    except BlobCorrupt as error:
        raise SegmentUnreadable(ref.cid, error.message) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
