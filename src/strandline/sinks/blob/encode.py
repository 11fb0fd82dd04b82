"""Rows to the bytes of an object, streaming: the same rows give the same bytes, however they are batched.

    parquet:snappy, parquet:zstd   row groups of at most 32 MiB (one row may be larger); no time, no random id
    jsonl, jsonl.gz                lines as strandline.sinks.ndjson writes them; gzip without a time

An object holds the dataset's columns and `source`, no column of our own. At most one row group, or one block
of lines, is in memory. Parquet has what no listing tells in its footer:

    strandline.format          1
    strandline.dataset         access-logs
    strandline.schema_version  3
    strandline.intent, .lo, .hi     where the store keeps no metadata beside objects
"""

import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.errors import HeldError
from strandline.rows.batches import cut
from strandline.rows.dataset import Dataset
from strandline.rows.validate import arrow_schema
from strandline.sinks.ndjson import ndjson_lines

EXTENSIONS: Final = {
    "parquet:snappy": ".parquet",
    "parquet:zstd": ".parquet",
    "jsonl": ".jsonl",
    "jsonl.gz": ".jsonl.gz",
}
GROUP_BYTES: Final = 32 * 1024 * 1024
BLOCK_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 5 * 1024**3  # what any store takes in one request

_KEY: Final = "strandline."
_LINES_ROWS: Final = 8_192
_LINES_BYTES: Final = 4 * 1024 * 1024
_GZIP: Final = 31  # zlib's word for its largest window in gzip's frame; the frame's time is 0


class EncodeFailed(HeldError):
    """Rows that cannot be written as an object."""

    def __init__(self, dataset: str, encoder: str, reason: str) -> None:
        super().__init__(
            f"rows of {dataset!r} cannot be written as {encoder}: {reason}",
            hint="skip the range, or send it on in another form: rewind the sink with another encoder",
        )
        self.dataset, self.encoder, self.reason = dataset, encoder, reason


class Encoding:
    """The chunks of one object as they are made. When all were taken, `rows`, `size` and `digest` are its."""

    def __init__(
        self,
        encoder: str,
        dataset: Dataset,
        batches: Iterable[pa.RecordBatch],
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self.encoder, self.dataset = encoder, dataset
        self.rows = self.size = 0
        self._batches, self._facts, self._digest = batches, facts or {}, sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks():
            self.size += len(chunk)
            if self.size > MAX_BYTES:
                raise EncodeFailed(self.dataset.name, self.encoder, f"over {MAX_BYTES:,} bytes")
            self._digest.update(chunk)
            yield chunk

    def _chunks(self) -> Iterator[bytes]:
        if self.encoder.startswith("parquet:"):
            return self._parquet(self.encoder.removeprefix("parquet:"))
        if self.encoder == "jsonl":
            return self._blocks()
        if self.encoder == "jsonl.gz":
            return _gzipped(self._blocks())
        raise EncodeFailed(self.dataset.name, self.encoder, "no such encoder")

    def _counted(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch

    def _blocks(self) -> Iterator[bytes]:
        """Lines in blocks of one size, whatever the batches: what is made of them then is the same too."""
        block = bytearray()
        for batch in self._counted():
            for piece in cut(batch, rows=_LINES_ROWS, size=_LINES_BYTES):
                with self._failing():
                    block += ndjson_lines(self.dataset, piece, with_source=True, with_row_id=False)
                while len(block) >= BLOCK_BYTES:
                    yield bytes(block[:BLOCK_BYTES])
                    del block[:BLOCK_BYTES]
        yield bytes(block)

    def _parquet(self, codec: str) -> Iterator[bytes]:
        schema, made = arrow_schema(self.dataset), _Made()
        with self._failing():
            writer = pq.ParquetWriter(
                pa.PythonFile(made, "w"),
                schema,
                version="2.6",
                data_page_version="1.0",
                compression=codec,
                compression_level=3 if codec == "zstd" else None,
                store_schema=False,
            )
        for group in _groups(map(self._fitted, self._counted())):
            with self._failing():
                writer.write_table(group, row_group_size=group.num_rows)
            yield from made.taken()
        with self._failing():
            writer.add_key_value_metadata(
                {f"{_KEY}{key}": value for key, value in self._known_facts().items()}
            )
            writer.close()
        yield from made.taken()

    def _known_facts(self) -> dict[str, str]:
        known = {"format": "1", "dataset": self.dataset.name, "schema_version": str(self.dataset.version)}
        return {**known, **self._facts}

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = arrow_schema(self.dataset)
        with self._failing():
            return batch.select(schema.names).cast(schema)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """About what encodes, never about what fetches rows: an error of theirs passes as it is."""
        try:
            yield
        except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise EncodeFailed(self.dataset.name, self.encoder, reason) from error


class _Made(io.RawIOBase):
    """A file for Arrow to write to, whose bytes are taken away from time to time."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._chunks.append(bytes(data))
        return len(self._chunks[-1])

    def taken(self) -> Iterator[bytes]:
        """In one piece: a row group comes in very many."""
        chunks, self._chunks = self._chunks, []
        if chunks:
            yield b"".join(chunks)


def _gzipped(blocks: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    for block in blocks:
        yield packer.compress(block)
    yield packer.flush()


# Row groups


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows in groups that depend on the rows alone: one ends where the next row would make it too large."""
    held: list[pa.RecordBatch] = []
    room = GROUP_BYTES
    for batch in batches:
        sizes = _row_sizes(batch)
        at = 0
        while at < batch.num_rows:
            fitting, used = _fitting(sizes.slice(at), room)
            if fitting == 0 and not held:
                fitting, used = 1, sizes[at].as_py()  # larger than a group, and one by itself
            if fitting:
                held.append(batch.slice(at, fitting))
            at, room = at + fitting, room - used
            if at < batch.num_rows:
                yield _joined(held)
                held, room = [], GROUP_BYTES
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """In one piece: pages end where pieces do."""
    return pa.Table.from_batches(batches).combine_chunks()


def _fitting(sizes: pa.Array, room: int) -> tuple[int, int]:
    """How many of the next rows fit, and their size."""
    sums = pc.cumulative_sum(sizes)
    fitting = pc.sum(pc.less_equal(sums, room)).as_py() or 0
    return fitting, sums[fitting - 1].as_py() if fitting else 0


def _row_sizes(batch: pa.RecordBatch) -> pa.Array:
    """Bytes of each row in memory, by its values alone: what Arrow itself says depends on how it was cut."""
    fixed = sum(_width(field.type) for field in batch.schema)
    sizes = pa.repeat(pa.scalar(fixed, pa.int64()), batch.num_rows)
    for column in batch.columns:
        if _is_variable(column.type):
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    return sizes


def _is_variable(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _width(type_: pa.DataType) -> int:
    return 4 if _is_variable(type_) else max(type_.bit_width // 8, 1)
