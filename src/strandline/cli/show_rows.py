"""Rows as commands print them: a table, JSON lines, CSV or Parquet, page by page, on stdout or into a file.

JSON lines and CSV write values as Strandline does everywhere: times in ISO 8601 with microseconds and `Z`,
decimals as texts, binary as base64, NaN and infinities as texts. In CSV a null is an empty field, and so is
an empty text.
"""

import base64
import csv
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Final, Protocol

import click
import orjson

from strandline.cli.show import print_table
from strandline.errors import UnavailableError, UsageError

Row = Mapping[str, Any]
Page = Sequence[Row]

FORMATS: Final = ("table", "jsonl", "csv", "parquet")
_TABLE_ROWS: Final = 1_000  # of one width: a table of any length is printed in such parts


class RowOutput(Protocol):
    """Where rows go."""

    def write(self, page: Page) -> None: ...
    def close(self) -> None:
        """Nothing more comes."""


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--format as `format_`, --out as `out`, --limit as `limit`."""
    for option in (
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most this many rows."),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write into this new file, which is there when it is whole, and not to stdout.",
        ),
        click.option(
            "--format", "format_", type=click.Choice(FORMATS), help="How rows are written; table if not told."
        ),
    ):
        function = option(function)
    return function


@contextmanager
def row_output(
    format_: str | None,
    out: Path | None,
    columns: Sequence[str],
    arrow_schema: Callable[[], Any],
    *,
    as_json: bool = False,
    json_columns: Collection[str] = (),
) -> Iterator[RowOutput]:
    """Writes rows of `columns`; `as_json` wraps each as {"row": …}. A file is renamed to `out` at the end.

    Rows have the values of `json_columns`; what is not JSON lines has their text.
    """
    if as_json and format_ not in (None, "jsonl"):
        raise UsageError(f"--json and --format {format_} are two formats", hint="leave one out")
    kind = "jsonl" if as_json else format_ or "table"
    if kind == "table" and out is None:
        yield _Table(columns, json_columns)
        return
    if kind == "parquet" and out is None and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="--out FILE, or send it into a pipe")
    with _binary(out) as file:
        output: RowOutput
        if kind == "parquet":
            output = _Parquet(file, arrow_schema(), json_columns)
        elif kind == "csv":
            output = _Csv(file, columns, json_columns)
        elif kind == "jsonl":
            output = _JsonLines(file, wrapped=as_json)
        else:
            raise UsageError("a table is for reading, not for a file", hint="--format jsonl, csv or parquet")
        yield output
        output.close()


@contextmanager
def _binary(out: Path | None) -> Iterator[BinaryIO]:
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if out.exists():
        raise OutputExists(out)
    staged = out.with_name(f".{out.name}.{token_hex(8)}")  # a kill leaves it, and nothing under `out`
    try:
        file = staged.open("xb")
    except OSError as error:
        raise UnavailableError(
            f"cannot write {out}: {error}", hint="name a file in a folder of yours"
        ) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(staged, out)
    except FileExistsError as error:
        raise OutputExists(out) from error
    finally:
        staged.unlink(missing_ok=True)


class OutputExists(UsageError):
    """The file that rows were to be written into is there already."""

    def __init__(self, out: Path) -> None:
        super().__init__(f"{out} is there already", hint="name a new file, or remove that one")
        self.out = str(out)


class _Table:
    def __init__(self, columns: Sequence[str], json_columns: Collection[str]) -> None:
        self._columns, self._json_columns, self._is_first = columns, json_columns, True

    def write(self, page: Page) -> None:
        for first in range(0, len(page), _TABLE_ROWS):
            part = _with_texts(page[first : first + _TABLE_ROWS], self._json_columns)
            rows = [[_cell(row.get(name)) for name in self._columns] for row in part]
            print_table([name.upper() for name in self._columns], rows, with_headers=self._is_first)
            self._is_first = False

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, file: BinaryIO, *, wrapped: bool) -> None:
        self._file, self._wrapped = file, wrapped

    def write(self, page: Page) -> None:
        lines = (_json({"row": plain(row)} if self._wrapped else plain(row)) for row in page)
        self._file.write(b"".join(lines))

    def close(self) -> None: ...


class _Csv:
    def __init__(self, file: BinaryIO, columns: Sequence[str], json_columns: Collection[str]) -> None:
        self._columns, self._json_columns = columns, json_columns
        self._writer = csv.writer(_Encoded(file), lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, page: Page) -> None:
        rows = _with_texts(page, self._json_columns)
        self._writer.writerows([_field(row.get(name)) for name in self._columns] for row in rows)

    def close(self) -> None: ...


class _Encoded:
    """A text file on a binary one, which stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


class _Parquet:
    def __init__(self, file: BinaryIO, schema: Any, json_columns: Collection[str]) -> None:
        import pyarrow.parquet as pq

        self._schema, self._json_columns = schema, json_columns
        self._writer = pq.ParquetWriter(file, schema)

    def write(self, page: Page) -> None:
        import pyarrow as pa

        rows = _with_texts(page, self._json_columns)
        self._writer.write_table(pa.Table.from_pylist(rows, self._schema))

    def close(self) -> None:
        self._writer.close()


# Values


def plain(value: Any) -> Any:
    """A value as JSON has it. A column never changes its JSON type with its value."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return value
    if kind is float:
        return (
            value
            if math.isfinite(value)
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if kind is list or kind is tuple:
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, datetime):
        utc = value.astimezone(UTC) if value.tzinfo else value
        return utc.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return str(value)  # decimals, intervals


def _with_texts(page: Page, json_columns: Collection[str]) -> list[dict[str, Any]]:
    rows = [dict(row) for row in page]
    for name in json_columns:
        for row in rows:
            if row.get(name) is not None:
                row[name] = orjson.dumps(row[name]).decode()
    return rows


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _field(value: Any) -> Any:
    made = plain(value)
    if type(made) is bool:
        return "true" if made else "false"
    return orjson.dumps(made).decode() if type(made) in (list, dict) else made


def _cell(value: Any) -> Any:
    if type(value) is int:
        return value
    return "" if value is None else str(_field(value))
