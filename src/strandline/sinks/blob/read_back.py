"""What is in an object that is there already: its rows as JSON lines, counted, and compared with others.

Damaged bytes raise Unreadable.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.rows.dataset import Dataset
from strandline.rows.validate import arrow_schema
from strandline.sinks.ndjson import ndjson_lines

BATCH_ROWS: Final = 8_192
BLOCK_BYTES: Final = 1024 * 1024
_INTENT: Final = b"strandline.intent"


class Unreadable(Exception):
    """A file that is not what its name says. It never leaves the sink."""


def digest_in(path: Path) -> str:
    """Of its bytes, as SHA-256 in hex."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def rows_in(path: Path) -> int:
    if path.suffix == ".parquet":
        with _parquet(path) as parquet:
            return int(parquet.metadata.num_rows)
    return sum(block.count(b"\n") for block in _blocks(path))


def intent_in(path: Path) -> str:
    """The intent that a Parquet file says it is of; empty where it says nothing."""
    if path.suffix != ".parquet":
        return ""
    with _parquet(path) as parquet:
        found = parquet.metadata.metadata or {}
    return bytes(found.get(_INTENT, b"")).decode(errors="replace")


def holds(path: Path, dataset: Dataset, batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether all of these rows are among those of the file, in the same order."""
    there = _lines(path, dataset)
    return all(_comes(line, there) for batch in batches for line in _lines_of(dataset, batch))


def _comes(line: bytes, lines: Iterator[bytes]) -> bool:
    """Whether the line is one of the next ones; what stands before it is passed."""
    return any(line == each for each in lines)


def _lines(path: Path, dataset: Dataset) -> Iterator[bytes]:
    if path.suffix != ".parquet":
        yield from _split(_blocks(path))
        return
    with _parquet(path) as parquet:
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            yield from _lines_of(dataset, _fitted(batch, arrow_schema(dataset)))


def _lines_of(dataset: Dataset, batch: pa.RecordBatch) -> list[bytes]:
    return ndjson_lines(dataset, batch, with_source=True, with_row_id=False).split(b"\n")[:-1]


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of today; those that it lacks are null. One of its own makes it another's."""
    if not set(batch.schema.names) <= set(schema.names):
        raise Unreadable("it has other columns")
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _split(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        raise Unreadable("its last line has no end")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        source: Any = gzip.open(file) if path.suffix == ".gz" else file  # noqa: SIM115  # it holds nothing open
        try:
            while block := source.read(BLOCK_BYTES):
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Unreadable("it is damaged or cut short") from error


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The file as Parquet, and its own faults as Unreadable; an OSError with a number is the disk's."""
    try:
        with pq.ParquetFile(path) as parquet:
            yield parquet
    except pa.ArrowException as error:
        raise Unreadable("it is no Parquet, or damaged") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Unreadable("it is no Parquet, or damaged") from error
