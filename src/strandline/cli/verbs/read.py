"""`strandline read`: the visible rows of a dataset in order, and the token to go on from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import print_facts, print_json
from strandline.cli.show_rows import Row, format_options, row_output
from strandline.errors import UsageError
from strandline.rows.dataset import SOURCE, Dataset

if TYPE_CHECKING:
    from strandline.lake.metadata.explain import ScanPlan
    from strandline.node.node import Refresh
    from strandline.read.read import Scan
    from strandline.read.visible import DataAge, OnPruned

PAGE_ROWS: Final = 50_000


def refresh_option(function: Any) -> Any:
    """--refresh as `refresh`."""
    return click.option(
        "--refresh",
        type=click.Choice(("never", "auto", "always")),
        default="auto",
        show_default=True,
        help="Flush first: always, or if rows are pending and the last flush is over [spool] max_age_s old.",
    )(function)


@command("read")
@click.argument("dataset")
@click.option("--source", metavar="SOURCE", help="Rows of this source alone, in the order of their seqs.")
@click.option("--since", metavar="TOKEN", help="What follows this token; without it from the start.")
@click.option("--until", metavar="TOKEN", help="Up to this token; without it all that is visible.")
@click.option("--columns", metavar="A,B", help="These columns alone.")
@click.option(
    "--on-pruned",
    type=click.Choice(("error", "continue")),
    default="error",
    show_default=True,
    help="Where rows after --since were pruned: say so, or go on without them.",
)
@format_options
@refresh_option
@click.option("--explain", is_flag=True, help="Tell which files it would open, read nothing, start no Spark.")
@home_options
def read_(
    home: Home,
    as_json: bool,
    dataset: str,
    source: str | None,
    since: str | None,
    until: str | None,
    columns: str | None,
    on_pruned: "OnPruned",
    format_: str | None,
    out: Path | None,
    limit: int | None,
    refresh: "Refresh",
    explain: bool,
) -> None:
    """Print the rows of DATASET: of one source in the order of their seqs, else flush by flush.

    The token at which it ends goes to stderr as `token: …`: `--since` goes on from there. A token over all
    sources stands between flushes; where --limit ends inside a flush, its rows come again after it. Where
    retention has pruned rows after --since it ends with 3, unless --on-pruned is continue.

    With --json each row is a line {"row": …}, and the last line is {"end": {"token", "rows", "clamped",
    "pending_rows", "age_s"}}: what has not landed yet is not read, and the data is so old (null: no flush has
    landed any). With --explain:
    snapshot, files_considered, files_pruned, files_opened, delete_files, bytes, rows_at_most.

    For example: strandline read logs --source web-1 --limit 100 --format jsonl
    """
    with home.node() as node:
        if explain:
            plan = node.explain(dataset, source=source, since=since, until=until, on_pruned=on_pruned)
            _print_plan(plan, as_json)
            return
        known = node.site.known(dataset).dataset
        names = _names(known, columns)
        scan = node.scan(
            dataset,
            source=source,
            columns=None if columns is None else names,
            since=since,
            until=until,
            max_rows=min(limit or PAGE_ROWS, PAGE_ROWS),
            refresh=refresh,
            on_pruned=on_pruned,
        )
        known = node.site.known(dataset).dataset  # a flush may have made it grow
        names = _names(known, columns)
        reading = _Reading(scan, since, limit)
        with row_output(
            format_,
            out,
            names,
            lambda: _schema(known, names),
            as_json=as_json,
            json_columns=_json_columns(known),
        ) as output:
            for page in reading.pages():
                output.write(page)
        _tell_end(reading, scan, as_json)


class _Reading:
    """The rows of a scan up to a limit, counted, and the token to go on from."""

    def __init__(self, scan: "Scan", since: str | None, limit: int | None) -> None:
        self._scan, self._limit = scan, limit
        self.rows, self.token, self.is_inside = 0, since, False

    def pages(self) -> Iterator[Sequence[Row]]:
        for page in self._scan:
            left = len(page.rows) if self._limit is None else self._limit - self.rows
            if left < len(page.rows):
                self._end_at(page.afters[:left])
                yield page.rows[:left]
                return
            self._end_at((*page.afters[:-1], page.token))
            yield page.rows
            if self._limit == self.rows:
                return
        self.token, self.is_inside = self._scan.end, False

    def _end_at(self, afters: Sequence[str | None]) -> None:
        self.rows += len(afters)
        self.is_inside = afters[-1] is None
        self.token = next((each for each in reversed(afters) if each is not None), self.token)


def _names(dataset: Dataset, columns: str | None) -> list[str]:
    if columns is None:
        return [*(column.name for column in dataset.columns), SOURCE]
    names = [name.strip() for name in columns.split(",") if name.strip()]
    if not names:
        raise UsageError("--columns names none", hint="such as --columns ts,message")
    return names


def _json_columns(dataset: Dataset) -> frozenset[str]:
    return frozenset(column.name for column in dataset.columns if column.type == "json")


def _schema(dataset: Dataset, names: Sequence[str]) -> Any:
    import pyarrow as pa

    from strandline.rows.validate import arrow_schema

    whole = arrow_schema(dataset)
    return pa.schema([whole.field(name) for name in names])


def age_facts(age: "DataAge") -> dict[str, Any]:
    return {"pending_rows": age.pending_rows, "age_s": None if age.age_s is None else int(age.age_s)}


def _tell_end(reading: _Reading, scan: "Scan", as_json: bool) -> None:
    if as_json:
        end = {"token": reading.token, "rows": reading.rows, "clamped": scan.is_clamped}
        print_json({"end": {**end, **age_facts(scan.age)}})
        return
    if scan.age.pending_rows:
        note(f"{scan.age}; --refresh always flushes first")
    if scan.is_clamped:
        note("--until is past what is visible; the read ends where that ends")
    if reading.is_inside:
        note("the limit ends inside a flush, all of which comes after this token")
    click.echo(f"token: {reading.token or '(none: it ends inside the first flush)'}", err=True)


def _print_plan(plan: "ScanPlan", as_json: bool) -> None:
    facts = {
        "snapshot": plan.snapshot,
        "files_considered": plan.files_considered,
        "files_pruned": plan.files_pruned,
        "files_opened": plan.files_opened,
        "delete_files": plan.delete_files,
        "bytes": plan.bytes,
        "rows_at_most": plan.rows_at_most,
    }
    if as_json:
        print_json(facts)
    else:
        print_facts({**facts, "snapshot": str(plan.snapshot or "none")})
