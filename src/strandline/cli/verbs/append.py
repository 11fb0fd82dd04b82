"""`strandline append`: rows of files, or of stdin, are stored and numbered.

Files are read twice. The first pass judges every row, so that a bad one in the middle leaves nothing behind;
the second appends, chunk by chunk. Each chunk has a request id of its own, which is the same when the command
is repeated: a kill between two chunks leaves the first, and the repeat adds only what is missing.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click

from strandline.base.ranges import RangeSet
from strandline.cli.command_group import command, tell
from strandline.cli.input_file import STDIN, InputFile, file_bar, lines_of, opened
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import print_json, print_table
from strandline.errors import OutcomeUnknown, StrandlineError
from strandline.rows.dataset import MOST_LISTED, Dataset, Refusal

if TYPE_CHECKING:
    from strandline.ingest.append import OnBad, Receipt
    from strandline.node.node import Node

_SHOWN: Final = 20


@command("append")
@click.argument("dataset")
@click.argument("files", nargs=-1, metavar="[FILE]…")
@click.option("--source", metavar="SOURCE", help="The source of all rows; else each row's own, or `unknown`.")
@click.option("--request-id", metavar="ID", help="Has one effect however often it is repeated; see above.")
@click.option(
    "--on-bad",
    type=click.Choice(("refuse", "quarantine")),
    default="refuse",
    show_default=True,
    help="A row that cannot be stored refuses everything, or is set aside with the reason.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(("jsonl", "csv", "parquet")),
    help="Of the files; else their endings tell: .jsonl, .ndjson, .csv (both also .gz, .zst), .parquet.",
)
@home_options
def append_(
    home: Home,
    as_json: bool,
    dataset: str,
    files: tuple[str, ...],
    source: str | None,
    request_id: str | None,
    on_bad: "OnBad",
    format_: str | None,
) -> int:
    """Store the rows of each FILE in DATASET, number them, and return when they survive a power cut.

    Without a FILE, or for `-`, JSON lines are read from stdin. Where a line cannot be read or a row cannot be
    stored, the file, line and column are named, and nothing of any FILE is appended.

    A command that was interrupted can be repeated and adds only what is missing: a file is known by its
    content and its time of modification, for as long as request ids are kept (24 hours at least). What comes
    through a pipe has no such name: give it a --request-id, which names each FILE by its place.
    The same file under another --request-id is appended again.

    With --json one object a chunk of at most 10,000 rows: file, dataset, request_id, rows, bytes, ranges
    ([lo, hi] by source, without lo), segment, quarantined, repeat.

    For example: strandline append logs rows.jsonl --source web-1
    """
    with ExitStack() as stack:
        node = stack.enter_context(home.node())
        inputs = [stack.enter_context(opened(name, format_)) for name in files or (STDIN,)]
        schema = node.site.schema(dataset).dataset
        advance = stack.enter_context(file_bar(2 * sum(each.size for each in inputs)))
        judge = _Judge(schema, source, node.site.spool.max_row_bytes)
        for each in inputs:
            refusals = judge.refused(each.chunks(schema, advance))
            if refusals and on_bad == "refuse":
                return _refuse(dataset, each, refusals)
        job = _Job(node, dataset, source, on_bad, as_json)
        base = request_id or uuid4().hex
        with _said_if_partial(job, inputs, base):
            for place, each in enumerate(inputs, 1):
                is_named = request_id is not None or each.is_pipe
                request = f"{base}.{place}" if is_named else each.identity(source)
                job.append(each, request, each.chunks(schema, advance))
    job.print()
    return 0


# The first pass


class _Judge:
    """Whether rows can be stored, chunk after chunk and file after file, as the dataset grows with them."""

    def __init__(self, dataset: Dataset, source: str | None, max_row_bytes: int) -> None:
        self._dataset, self._source, self._max_row_bytes = dataset, source, max_row_bytes

    def refused(self, chunks: Iterator[Any]) -> list[Refusal]:
        """The first hundred rows of a file that cannot be, counted from 0. What is no row at all raises."""
        from strandline.rows.validate import accept

        refusals: list[Refusal] = []
        before = 0
        for chunk in chunks:
            verdict = accept(self._dataset, chunk, source=self._source, max_row_bytes=self._max_row_bytes)
            self._dataset = verdict.dataset
            left = MOST_LISTED - len(refusals)
            refusals += [each._replace(row=before + each.row) for each in verdict.refusals[:left]]
            before += len(chunk)
        return refusals


def _refuse(dataset: str, file: InputFile, refusals: Sequence[Refusal]) -> int:
    kinds = {refusal.kind for refusal in refusals}
    kind = kinds.pop() if len(kinds) == 1 else "bad_rows"
    lines = lines_of(file, [each.row for each in refusals])
    count = "a row" if len(refusals) == 1 else f"{len(refusals)} rows"
    more = " or more" if len(refusals) == MOST_LISTED else ""
    listed = "".join(
        f"\n  {_where(file, each, lines.get(each.row))}: {each.found} does not fit {each.wanted}"
        for each in refusals
    )
    return tell(
        "strandline append",
        kind,
        f"dataset {dataset!r} refuses {count}{more} of {file.name}, and nothing was appended:{listed}",
        "correct them, or --on-bad quarantine sets them aside",
        2,
    )


def _where(file: InputFile, refusal: Refusal, line: int | None) -> str:
    place = f"row {refusal.row + 1:,}" if line is None else f"line {line:,}"
    return f"{file.name}, {place}" + (f", column {refusal.column!r}" if refusal.column else "")


# The second pass


@dataclass(slots=True)
class _Tally:
    """What was appended of one file."""

    rows: int = 0
    repeated: int = 0
    seqs: dict[str, RangeSet] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    """Appends chunks and keeps what the receipts say."""

    node: "Node"
    dataset: str
    source: str | None
    on_bad: "OnBad"
    as_json: bool
    quarantined: int = 0
    files: dict[str, _Tally] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files.values())

    def append(self, file: InputFile, request: str, chunks: Iterator[Any]) -> None:
        tally = self.files.setdefault(file.name, _Tally())
        for number, chunk in enumerate(chunks, 1):
            receipt = self.node.append(
                self.dataset,
                chunk,
                source=self.source,
                request_id=f"{request}.{number}",
                on_bad=self.on_bad,
            )
            self._keep(file.name, tally, receipt)

    def _keep(self, name: str, tally: _Tally, receipt: "Receipt") -> None:
        tally.rows += receipt.rows
        tally.repeated += receipt.rows if receipt.is_repeat else 0
        self.quarantined += receipt.quarantined
        if self.as_json:
            print_json({"file": name, **_facts(receipt)})
        for source, each in receipt.ranges.items():
            tally.seqs[source] = tally.seqs.get(source, RangeSet()).with_(each)

    def print(self) -> None:
        if not self.as_json:
            self._print_table()
        for name, tally in self.files.items():
            if tally.repeated:
                note(
                    f"{tally.repeated:,} rows of {name} were stored by an earlier call, and not again; "
                    "another --request-id stores them again"
                )
        if self.quarantined:
            listing = f"`strandline spool quarantine list {self.dataset}` shows why"
            note(f"{self.quarantined:,} rows are in quarantine; {listing}")

    def _print_table(self) -> None:
        lines = [
            (name, source, _count(seqs), _text(seqs))
            for name, tally in self.files.items()
            for source, seqs in sorted(tally.seqs.items())
        ]
        if lines:
            print_table(("FILE", "SOURCE", "ROWS", "SEQS"), lines[:_SHOWN])
        if len(lines) > _SHOWN:
            click.echo(f"and {len(lines) - _SHOWN:,} more sources", err=True)
        repeated = sum(each.repeated for each in self.files.values())
        click.echo(f"{self.rows - repeated:,} rows stored", err=True)


@contextmanager
def _said_if_partial(job: _Job, inputs: Sequence[InputFile], base: str) -> Iterator[None]:
    """Where it ends early, say what is stored and how to go on: also if a signal ends it."""
    is_open = True  # whether something may be stored that no receipt tells
    try:
        yield
        is_open = False
    except StrandlineError as error:
        is_open = bool(job.rows) or isinstance(error, OutcomeUnknown)
        raise
    finally:
        if is_open:
            again = f" with --request-id {base}" if any(each.is_pipe for each in inputs) else ""
            note(f"{job.rows:,} rows are stored; the same command{again} adds the others, and none twice")


def _facts(receipt: "Receipt") -> dict[str, Any]:
    return {
        "dataset": receipt.dataset,
        "request_id": receipt.request_id,
        "rows": receipt.rows,
        "bytes": receipt.bytes,
        "ranges": {source: [each.lo, each.hi] for source, each in receipt.ranges.items()},
        "segment": receipt.segment,
        "quarantined": receipt.quarantined,
        "repeat": receipt.is_repeat,
    }


def _count(seqs: RangeSet) -> int:
    return sum(len(each) for each in seqs.ranges)


def _text(seqs: RangeSet) -> str:
    shown = [f"{each.lo + 1}-{each.hi}" for each in seqs.ranges[:3]]
    return ", ".join(shown) + (", …" if len(seqs.ranges) > 3 else "")
