"""Rows out of files: JSON lines, CSV, Parquet, in chunks and in bounded memory.

    .jsonl, .ndjson    One JSON object a line; blank lines are skipped. No NaN, no number beyond a double, no
                       name twice in an object. A number with a fraction is a double, so a decimal column
                       refuses it: write decimals as texts. A value nested too deep refuses its row, not the
                       file.
    .csv               A header, then fields as RFC 4180 has them; an empty field is null. A field is a text,
                       but in a column that the dataset declares as int, bigint, float, double, boolean or
                       json it is read as such. What is no number there stays a text, which `accept` refuses.
    .parquet           As it is, by row groups.

JSON lines and CSV may be compressed: `.gz` or `.zst`, or without the ending, known by their first bytes.
`-` is standard input, JSON lines if no format is named. What is no such file raises BadFile, which names the
file and the line; the chunks that came before it were whole.
"""

import csv
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.rows.batches import cut
from strandline.rows.dataset import SOURCE, Dataset
from strandline.rows.values import TooDeep, without_depth

Progress: TypeAlias = Callable[[int, int | None], None]  # bytes of the file read so far, and in all if known
Chunk: TypeAlias = list[dict[str, Any]] | Any  # Any: a pyarrow RecordBatch, which has no types

STDIN: Final = "-"
CHUNK_ROWS: Final = 10_000
CHUNK_BYTES: Final = 8 * 1024 * 1024
MAX_LINE_BYTES: Final = 64 * 1024 * 1024

_FORMATS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_PACKINGS: Final = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}  # and the bytes that each starts with
_BLOCK_BYTES: Final = 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class BadFile(UsageError):
    """A file that is not what its name or its format says."""

    def __init__(self, path: str, reason: str, *, line: int | None = None, hint: str | None = None) -> None:
        where = f"{path}, line {line}" if line is not None else path
        super().__init__(f"{where}: {reason}", hint=hint or "correct the file, or leave it out")
        self.path, self.reason, self.line = path, reason, line


def read_rows(
    path: str | Path,
    *,
    format: str | None = None,
    dataset: Dataset | None = None,
    progress: Progress | None = None,
) -> Iterator[Chunk]:
    """The rows of a file in chunks of at most 10,000 rows and about 8 MiB.

    `format` (`jsonl`, `csv`, `parquet`) goes before the ending of the name. `dataset` tells the types of
    columns in a CSV file.
    """
    name = str(path)
    kind = format or _format_of(name)
    if kind == "parquet":
        return _read_parquet(name, progress)
    if kind == "jsonl":
        return _read_text(name, progress, _json_rows)
    if kind == "csv":
        return _read_text(name, progress, lambda text: _csv_rows(text, dataset))
    raise BadFile(name, f"the format {kind!r} is unknown", hint="jsonl, csv or parquet")


def _format_of(name: str) -> str:
    if name == STDIN:
        return "jsonl"
    endings = [ending.lower() for ending in Path(name).suffixes]
    if endings and endings[-1] in _PACKINGS:
        endings.pop()
    found = _FORMATS.get(endings[-1]) if endings else None
    if found is None:
        raise BadFile(
            name,
            "its name does not tell what it is",
            hint=f"name it {', '.join(_FORMATS)}, or name the format: jsonl, csv or parquet",
        )
    return found


# Files


class _Text:
    """The lines of a file, unpacked. `line` is the number of the last one, `done` the bytes it took."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name, self.line, self.done = name, 0, 0
        self._file = file

    def bad(self, reason: str) -> BadFile:
        return BadFile(self.name, reason, line=self.line)

    def lines(self) -> Iterator[bytes]:
        """Without their ends."""
        rest = b""
        for block in self._blocks():
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                self.line += 1
                yield line
            if len(rest) > MAX_LINE_BYTES:
                self.line += 1
                raise self.bad(f"a line of over {MAX_LINE_BYTES:,} bytes")
        if rest:
            self.line += 1
            yield rest

    def _blocks(self) -> Iterator[bytes]:
        file = self._file
        start = file.read(4)
        packing = next((ending for ending, magic in _PACKINGS.items() if start.startswith(magic)), "")
        claimed = Path(self.name).suffix.lower()
        if claimed in _PACKINGS and start and packing != claimed:
            raise BadFile(self.name, f"it is not compressed as {claimed[1:]}")
        blocks = self._unpacked(packing, _Rest(start, file, self))
        first = next(blocks, b"")
        if not first:
            raise BadFile(self.name, "it is empty")
        yield first.removeprefix(_BOM)
        yield from blocks

    def _unpacked(self, packing: str, rest: "_Rest") -> Iterator[bytes]:
        if packing == ".gz":
            source: Any = gzip.open(cast("BinaryIO", rest))  # noqa: SIM115  # it holds nothing open
        elif packing == ".zst":
            source = pa.CompressedInputStream(pa.PythonFile(rest, "r"), "zstd")
        else:
            source = rest
        try:
            while block := source.read(_BLOCK_BYTES):
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowException) as error:
            raise BadFile(self.name, f"it is damaged or cut short: {error}") from error
        except OSError as error:
            if error.errno is None:  # of Arrow: the bytes are no zstd
                raise BadFile(self.name, f"it is damaged or cut short: {error}") from error
            raise UnavailableError(f"{self.name}: {error.strerror}", hint="try again") from error


class _Rest:
    """A file whose first bytes were read already; it counts what it gives."""

    closed = False

    def __init__(self, start: bytes, file: BinaryIO, text: _Text) -> None:
        self._start, self._file, self._text = start, file, text

    def read(self, size: int = -1) -> bytes:
        if self._start:
            end = len(self._start) if size < 0 else size
            data, self._start = self._start[:end], self._start[end:]
        else:
            data = self._file.read(size)
        self._text.done += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The one who opened the file closes it."""


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file and its size."""
    if name == STDIN:
        yield sys.stdin.buffer, None
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  # closed below: an error of the caller's is none of ours
    except FileNotFoundError as error:
        raise NotFoundError(f"{name}: there is no such file", hint="look at the path") from error
    except OSError as error:
        raise BadFile(name, error.strerror or str(error)) from error
    with file:
        yield file, os.fstat(file.fileno()).st_size


def _read_text(
    name: str,
    progress: Progress | None,
    rows_of: Callable[[_Text], Iterator[tuple[dict[str, Any], int]]],
) -> Iterator[Chunk]:
    with _opened(name) as (file, total):
        text = _Text(name, file)
        chunk: list[dict[str, Any]] = []
        size = 0
        for row, row_bytes in rows_of(text):
            chunk.append(row)
            size += row_bytes
            if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                if progress:
                    progress(text.done, total)
                yield chunk
                chunk, size = [], 0
        if progress:
            progress(text.done, total)
        if chunk:
            yield chunk


# JSON lines


def _json_rows(text: _Text) -> Iterator[tuple[dict[str, Any], int]]:
    for line in text.lines():
        if not (stripped := line.strip()):
            continue
        try:
            yield parse_row(stripped), len(stripped)
        except ValueError as error:
            raise text.bad(str(error)) from error


def parse_row(line: bytes) -> dict[str, Any]:
    """A JSON object with nothing lost; ValueError says what would be."""
    try:
        row = orjson.loads(line)
        if type(row) is dict and ((again := orjson.dumps(row)) == line or again == _tight(line)):
            return row  # written back as it was: no name twice, no number changed
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass  # the slow reader says what is wrong, and where
    try:
        row = _decoded_row(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at character {error.pos + 1}") from error
    if type(row) is not dict:
        raise ValueError(f"a JSON object is wanted, not {type(row).__name__}")
    return row


def parse_lines(text: bytes) -> list[dict[str, Any]] | None:
    """The rows of JSON lines that stand there as orjson writes them, which is the fastest to read; None where
    any is written another way, or is no row."""
    try:
        rows = orjson.loads(b"[%b]" % text.removesuffix(b"\n").replace(b"\n", b","))
        if b"".join([orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]) != text:
            return None
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    return rows if all(type(row) is dict for row in rows) else None


def parse_rows(document: bytes) -> list[dict[str, Any]]:
    """A JSON array of objects, or one object, with nothing lost; ValueError says what would be."""
    text = document.strip()
    if text.startswith(b"{"):
        return [parse_row(text)]
    try:
        rows = orjson.loads(text)
        is_same = orjson.dumps(rows) in (text, _tight(text).replace(b"}, {", b"},{"))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        is_same = False
    if not is_same:
        rows = _slowly(text)
    if type(rows) is not list or any(type(row) is not dict for row in rows):
        raise ValueError("a JSON array of objects is wanted")
    return rows


def _slowly(text: bytes) -> Any:
    """By the reader that says what is wrong, and where."""
    try:
        return _READER.decode(text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep; as JSON lines each row is judged by itself") from error


def _tight(line: bytes) -> bytes:
    """Without the spaces that most writers put behind a colon and a comma. Inside a text they count."""
    return line.replace(b'": ', b'":').replace(b', "', b',"')


def _decoded_row(line: str) -> Any:
    try:
        return _READER.decode(line)
    except RecursionError as error:
        cut = without_depth(line)
        if cut is None:
            raise ValueError("it is nested too deep, and no JSON object") from error
    text, deep = cut
    row = _READER.decode(text)
    return {name: TooDeep(deep[value]) if _is_cut(value, deep) else value for name, value in row.items()}


def _is_cut(value: Any, deep: dict[str, str]) -> bool:
    return type(value) is str and value in deep


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} is there twice")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.40} is larger than any double")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON; write it as a text")


_READER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)


# CSV


def _csv_rows(text: _Text, dataset: Dataset | None) -> Iterator[tuple[dict[str, Any], int]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # of the process; never made smaller
    reader = csv.reader(_decoded(text), strict=True)
    try:
        header = next(reader, [])
        _check_header(text, header)
        readers = [_reader_of(dataset, name) for name in header]
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                raise text.bad(f"{len(fields)} fields, the header has {len(header)}")
            made: dict[str, Any] = {}
            for name, field, read in zip(header, fields, readers, strict=True):
                if field != "":
                    made[name] = _field(text, name, field, read)
            yield made, sum(map(len, fields))
    except csv.Error as error:
        raise text.bad(f"no CSV: {error}") from error


def _field(text: _Text, column: str, field: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(field)
    except ValueError as error:  # of JSON: as a text it would pass for a JSON string
        raise text.bad(f"column {column!r} has no JSON: {error}") from error


def _decoded(text: _Text) -> Iterator[str]:
    for line in text.lines():
        try:
            yield line.decode() + "\n"
        except UnicodeDecodeError as error:
            raise text.bad(f"byte {error.start + 1} is no UTF-8") from error


def _check_header(text: _Text, header: list[str]) -> None:
    seen: set[str] = set()
    for name in header:
        if not name:
            raise text.bad("a column without a name")
        if name.lower() in seen:
            raise text.bad(f"the column {name!r} is there twice")
        seen.add(name.lower())
    if not header:
        raise text.bad("no header")


def _reader_of(dataset: Dataset | None, name: str) -> Callable[[str], Any]:
    column = dataset.column(name) if dataset and name != SOURCE else None
    return _READERS.get(column.type, str) if column else str


def _integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text) else text


def _double(text: str) -> Any:
    """The nearest double; the three that are no numbers stay texts, which `accept` reads."""
    return float(text) if _NUMBER.fullmatch(text) and abs(float(text)) < float("inf") else text


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _json_field(text: str) -> Any:
    try:
        return _READER.decode(text)
    except RecursionError:
        return TooDeep(text)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "int": _integer,
    "bigint": _integer,
    "float": _double,
    "double": _double,
    "boolean": _boolean,
    "json": _json_field,
}


# Parquet


def _read_parquet(name: str, progress: Progress | None) -> Iterator[Chunk]:
    if name == STDIN:
        raise BadFile(name, "Parquet cannot be read from a pipe", hint="write it to a file first")
    with _opened(name) as (_, size):
        if not size:
            raise BadFile(name, "it is empty")
        try:
            parquet = pq.ParquetFile(name)
        except (pa.ArrowException, OSError) as error:
            raise BadFile(name, f"no Parquet, or cut short: {_first_line(error)}") from error
        with parquet:
            yield from _row_groups(name, parquet, size or 0, progress)


def _row_groups(name: str, parquet: Any, size: int, progress: Progress | None) -> Iterator[Chunk]:
    done = 0
    for group in range(parquet.num_row_groups):
        batches = parquet.iter_batches(batch_size=CHUNK_ROWS, row_groups=[group], use_threads=False)
        while (batch := _next_batch(name, group, batches)) is not None:
            yield from cut(batch, rows=CHUNK_ROWS, size=CHUNK_BYTES)
        done += _group_bytes(parquet, group)
        if progress:
            progress(min(done, size), size)
    if progress:
        progress(size, size)


def _next_batch(name: str, group: int, batches: Iterator[Any]) -> Any:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError) as error:
        raise BadFile(name, f"row group {group} cannot be read: {_first_line(error)}") from error


def _group_bytes(parquet: Any, group: int) -> int:
    found = parquet.metadata.row_group(group)
    return sum(found.column(column).total_compressed_size for column in range(found.num_columns))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
