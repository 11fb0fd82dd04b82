"""`strandline spool quarantine`: rows that could not be stored, looked at, tried again, or given up."""

from collections.abc import Sequence
from typing import Any

import click

from strandline.cli.command_group import command, confirmed, exit_code, tell
from strandline.cli.node_options import Home, home_options
from strandline.cli.show import print_json, print_table, shown
from strandline.cli.show_rows import plain
from strandline.cli.verbs.spool import at_text, datasets_of
from strandline.errors import StrandlineError, UsageError
from strandline.ingest.quarantine import QuarantineEntry, entries, entry_named, refused_of


@command("list")
@click.argument("dataset", required=False)
@home_options
def list_(home: Home, as_json: bool, dataset: str | None) -> None:
    """List the entries of DATASET, or of all: the rows of one batch that were refused together.

    With --json one object an entry: dataset, entry, at (UTC microseconds), rows, source, reasons (the first
    100).

    For example: strandline spool quarantine list logs
    """
    with home.site() as site:
        found = [each for name in datasets_of(site, dataset) for each in entries(site.b, name)]
    if as_json:
        for each in found:
            print_json(_facts(each))
    elif found:
        lines = [
            (each.dataset, each.entry, at_text(each.at), each.count, (each.reasons or ("",))[0])
            for each in found
        ]
        print_table(("DATASET", "ENTRY", "AT", "ROWS", "FIRST REASON"), lines)
    else:
        click.echo("nothing is in quarantine", err=True)


@command("show")
@click.argument("dataset")
@click.argument("entry", type=int)
@home_options
def show_(home: Home, as_json: bool, dataset: str, entry: int) -> None:
    """Print the rows of ENTRY as JSON lines; the reasons go to stderr, in the same order.

    With --json each line is {"row": …, "reason": …}.

    For example: strandline spool quarantine show logs 3
    """
    with home.site() as site:
        found = refused_of(site.content, entry_named(site.b, dataset, entry))
    for row, reason in found:
        print_json({"row": plain(row), "reason": reason} if as_json else plain(row))
        if reason is not None and not as_json:
            click.echo(shown(reason), err=True)


@command("retry")
@click.argument("dataset")
@click.argument("numbers", type=int, nargs=-1, metavar="[ENTRY]…")
@click.option("--all", "is_all", is_flag=True, help="Every entry of DATASET.")
@home_options
def retry_(home: Home, as_json: bool, dataset: str, numbers: tuple[int, ...], is_all: bool) -> int:
    """Append the rows of each ENTRY once more; those that still do not fit get a new one, and it ends with 1.

    An entry leaves quarantine in the transaction that stores its rows. With --json one object an entry:
    dataset, entry, rows, quarantined, ranges ([lo, hi] by source, without lo).

    For example: strandline spool quarantine retry logs --all
    """
    codes = [0]
    with home.node() as node:
        for number in _chosen(node.quarantined(dataset), numbers, is_all):
            try:
                receipt = node.retry_quarantined(dataset, number)
            except StrandlineError as error:
                path = f"strandline spool quarantine retry {dataset} {number}"
                codes.append(tell(path, error.kind, error.message, error.hint, exit_code(error)))
                continue
            codes.append(1 if receipt.quarantined else 0)
            if as_json:
                ranges = {source: [each.lo, each.hi] for source, each in receipt.ranges.items()}
                counts = {"rows": receipt.rows, "quarantined": receipt.quarantined}
                print_json({"dataset": dataset, "entry": number, **counts, "ranges": ranges})
            else:
                click.echo(f"{dataset} {number}: {receipt.rows:,} rows stored, {receipt.quarantined:,} not")
    return codes[-1] if len(codes) == 2 else int(any(codes))


@command("drop")
@click.argument("dataset")
@click.argument("numbers", type=int, nargs=-1, metavar="[ENTRY]…")
@click.option("--all", "is_all", is_flag=True, help="Every entry of DATASET.")
@click.option("--reason", default="by command", show_default=True, metavar="TEXT", help="Why; it is kept.")
@click.option("--dry-run", is_flag=True, help="Tell the count, drop nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def drop_(
    home: Home,
    as_json: bool,
    dataset: str,
    numbers: tuple[int, ...],
    is_all: bool,
    reason: str,
    dry_run: bool,
    yes: bool,
) -> int:
    """Give the rows of each ENTRY up, for good. With --json: dataset, entries, rows, dry_run.

    For example: strandline spool quarantine drop logs 3 --reason "rows of a test" --dry-run
    """
    with home.node() as node:
        there = node.quarantined(dataset)
        chosen = _chosen(there, numbers, is_all)
        rows = sum(
            each.count
            for each in (there if is_all else [entry_named(node.site.b, dataset, n) for n in chosen])
        )
        if not dry_run and chosen:
            if not confirmed(f"Give up {rows:,} rows of {dataset!r} in quarantine for good?", yes=yes):
                return 1
            rows = sum(node.drop_quarantined(dataset, number, reason=reason) for number in chosen)
    if as_json:
        print_json({"dataset": dataset, "entries": chosen, "rows": rows, "dry_run": dry_run})
    else:
        click.echo(f"{rows:,} rows {'would be ' if dry_run else ''}dropped")
    return 0


def _chosen(there: Sequence[QuarantineEntry], numbers: tuple[int, ...], is_all: bool) -> list[int]:
    if bool(numbers) == is_all:
        raise UsageError("name each ENTRY, or --all", hint="`strandline spool quarantine list` shows them")
    return [each.entry for each in there] if is_all else list(dict.fromkeys(numbers))


def _facts(entry: QuarantineEntry) -> dict[str, Any]:
    return {
        "dataset": entry.dataset,
        "entry": entry.entry,
        "at": entry.at,
        "rows": entry.count,
        "source": entry.source,
        "reasons": list(entry.reasons),
    }
