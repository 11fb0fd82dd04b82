"""Files of rows that a command reads, twice if it must: pipes are kept in a temporary file first."""

import csv
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from io import TextIOWrapper
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import orjson

from strandline.errors import NotFoundError, UnavailableError
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    from strandline.rows.row_files import Chunk

Advance = Callable[[int], None]  # by so many bytes

STDIN: Final = "-"
_TEXT_KINDS: Final = ("jsonl", "csv")


class FileChanged(UnavailableError):
    """A file was written to while it was read."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was changed while it was read", hint="wait until it is whole, then append it again"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file under the name that it was given. `is_pipe`: what it holds came once, and nothing names it."""

    name: str
    path: Path
    format: str | None
    is_pipe: bool
    size: int
    modified_ns: int

    def chunks(self, dataset: Dataset, advance: Advance) -> "Iterator[Chunk]":
        """Its rows. BadFile names what is no row; of a pipe nothing at all is fine."""
        from strandline.rows.row_files import BadFile, read_rows

        done = 0

        def seen(bytes_: int, _total: int | None) -> None:
            nonlocal done
            advance(bytes_ - done)
            done = bytes_

        if self.is_pipe and not self.size:
            return
        try:
            for chunk in read_rows(self.path, format=self.format, dataset=dataset, progress=seen):
                self.check_unchanged()
                yield chunk
        except BadFile as error:
            if not self.is_pipe:
                raise
            raise BadFile(self.name, error.reason, line=error.line, hint=error.hint) from error

    def check_unchanged(self) -> None:
        found = self.path.stat()
        if (found.st_size, found.st_mtime_ns) != (self.size, self.modified_ns):
            raise FileChanged(self.name)

    def identity(self, source: str | None) -> str:
        """The same for the same bytes that nobody has written anew: equal rows that come again in a file that
        was written again are other rows."""
        with self.path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        self.check_unchanged()
        return "file-" + sha256(orjson.dumps([digest, self.modified_ns, source])).hexdigest()


@contextmanager
def opened(name: str, format_: str | None) -> Iterator[InputFile]:
    """The file, or what comes through a pipe: JSON lines, unless `format_` says so. `-` is stdin."""
    if name == STDIN:
        if sys.stdin.isatty():
            click.echo("reading JSON lines from the terminal; Ctrl-D ends them", err=True)
        with _kept("stdin", sys.stdin.buffer, format_ or "jsonl") as kept:
            yield kept
        return
    path = Path(name)
    found = _stat(name)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        yield InputFile(name, path, format_, False, found.st_size, found.st_mtime_ns)
        return
    with path.open("rb") as pipe, _kept(name, pipe, format_ or "jsonl") as kept:
        yield kept


def _stat(name: str) -> os.stat_result:
    try:
        return Path(name).stat()
    except FileNotFoundError as error:
        raise NotFoundError(f"{name}: there is no such file", hint="look at the path") from error
    except OSError as error:
        raise UnavailableError(f"cannot read {name}: {error}", hint="look at the path") from error


@contextmanager
def _kept(name: str, pipe: BinaryIO, format_: str) -> Iterator[InputFile]:
    with NamedTemporaryFile(prefix="strandline-append-") as file:
        shutil.copyfileobj(pipe, file, 1024 * 1024)
        file.flush()
        found = os.fstat(file.fileno())
        yield InputFile(name, Path(file.name), format_, True, found.st_size, found.st_mtime_ns)


def lines_of(file: InputFile, rows: Sequence[int]) -> dict[int, int]:
    """The line at which each of `rows`, rising and from 0, begins; none where rows have no lines."""
    endings = [ending.lower() for ending in file.path.suffixes]
    kind = file.format or next((each[1:] for each in endings if each[1:] in (*_TEXT_KINDS, "ndjson")), "")
    if kind not in (*_TEXT_KINDS, "ndjson"):
        return {}
    found: dict[int, int] = {}
    wanted = set(rows)
    for row, line in enumerate(_row_lines(file.path, is_csv=kind == "csv")):
        if row in wanted:
            found[row] = line
            if len(found) == len(wanted):
                break
    return found


def _row_lines(path: Path, *, is_csv: bool) -> Iterator[int]:
    import pyarrow as pa

    with pa.input_stream(path, compression=_packing(path)) as packed, TextIOWrapper(packed, "utf-8") as text:
        if not is_csv:
            yield from (number for number, line in enumerate(text, 1) if not line.isspace())
            return
        reader = csv.reader(text)
        begins = 1
        for place, fields in enumerate(reader):
            if place and fields:
                yield begins
            begins = reader.line_num + 1


def _packing(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(4)
    return "gzip" if start.startswith(b"\x1f\x8b") else "zstd" if start == b"\x28\xb5\x2f\xfd" else None


@contextmanager
def file_bar(total: int) -> Iterator[Advance]:
    """On a terminal a bar of bytes; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns: tuple[Any, ...] = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda bytes_: bar.advance(task, bytes_)
