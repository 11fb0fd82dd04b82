"""`strandline dlq`: rows that a destination refused, looked at, sent once more, or given up."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.command_group import Group, Subcommand, command, confirmed, exit_code, tell
from strandline.cli.node_options import Home, home_options
from strandline.cli.show import print_json, print_table
from strandline.cli.verbs.spool import at_text
from strandline.cli.verbs.sync import worst
from strandline.errors import StrandlineError, UsageError

if TYPE_CHECKING:
    from strandline.delivery.dead_letter_files import DeadLetter
    from strandline.node.node import Node

dlq = Group(
    "dlq",
    help="Dead letters: rows that a destination refused; without a command it lists them.",
    subcommands={
        "drop": Subcommand("strandline.cli.verbs.dlq:drop_", "Give the rows of a letter up."),
        "list": Subcommand("strandline.cli.verbs.dlq:list_", "List the letters."),
        "retry": Subcommand("strandline.cli.verbs.dlq:retry_", "Send a letter once more."),
        "show": Subcommand("strandline.cli.verbs.dlq:show_", "Print the rows of a letter, and the answer."),
    },
    default="list",
)


@command("list")
@click.argument("sink", required=False)
@home_options
def list_(home: Home, as_json: bool, sink: str | None) -> None:
    """List the dead letters of SINK, or of all, oldest first. It only reads.

    With --json one object a letter: letter, sink, dataset, source, at (UTC microseconds), lo, hi, epoch,
    rows, bytes, kind, http_status, answer, unit.

    For example: strandline dlq list centre
    """
    with home.node() as node:
        found = node.deliveries.letters(sink)
    if as_json:
        for each in found:
            print_json(_facts(each))
    elif found:
        lines = [
            (each.id, at_text(each.at), f"{each.lo + 1}-{each.hi}", each.rows, each.kind, each.http_status)
            for each in found
        ]
        print_table(("LETTER", "AT", "SEQS", "ROWS", "KIND", "HTTP"), lines)
    else:
        click.echo("no dead letter waits", err=True)


@command("show")
@click.argument("letter")
@home_options
def show_(home: Home, as_json: bool, letter: str) -> None:
    """Print the rows of LETTER as they would have been sent; what the destination answered goes to stderr.

    With --json: as in `list`, and body.

    For example: strandline dlq show centre/logs/web-1:7
    """
    with home.node() as node:
        found = node.deliveries.letter(letter)
        body = node.deliveries.letter_body(letter)
    if as_json:
        print_json({**_facts(found), "body": body.decode()})
        return
    sys.stdout.write(body.decode())
    click.echo(f"{found.kind}, HTTP {found.http_status}: {found.answer}", err=True)


@command("retry")
@click.argument("letters", nargs=-1, metavar="[LETTER]…")
@click.option("--all", "sink", metavar="SINK", help="Every letter of SINK.")
@home_options
def retry_(home: Home, as_json: bool, letters: tuple[str, ...], sink: str | None) -> int:
    """Send each LETTER once more, as the same unit: what the destination has of it is not stored twice.

    Ends with 1 if one is refused again; it stays. With --json one object a letter: letter, sent, rows,
    requests, kind and text (of what was refused).

    For example: strandline dlq retry --all centre
    """
    with home.node() as node:
        codes = [_retry_one(node, each, as_json) for each in _chosen(node, letters, sink)]
    return worst(codes)


def _retry_one(node: "Node", letter: str, as_json: bool) -> int:
    path = f"strandline dlq retry {letter}"
    try:
        done = node.deliveries.retry_letter(letter)
    except StrandlineError as error:
        if as_json:
            print_json({"letter": letter, "sent": False, "kind": error.kind, "text": error.message})
        return tell(path, error.kind, error.message, error.hint, exit_code(error))
    first = done.outcomes[0] if done.outcomes else None
    if as_json:
        facts = {"letter": letter, "sent": done.is_sent, "rows": done.rows, "requests": done.requests}
        print_json({**facts, "kind": first and first.kind, "text": first and first.text})
    if first is None:
        if not as_json:
            click.echo(f"{letter}: {done.rows:,} rows sent")
        return 0
    hint = "put right what that says and try again, or give it up: `strandline dlq drop`"
    return tell(path, first.kind or first.status, first.text or "it was not taken", hint, 1)


@command("drop")
@click.argument("letters", nargs=-1, metavar="[LETTER]…")
@click.option("--all", "sink", metavar="SINK", help="Every letter of SINK.")
@click.option("--reason", default="by command", show_default=True, metavar="TEXT", help="Why; it is kept.")
@click.option("--dry-run", is_flag=True, help="Tell the count, drop nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def drop_(
    home: Home,
    as_json: bool,
    letters: tuple[str, ...],
    sink: str | None,
    reason: str,
    dry_run: bool,
    yes: bool,
) -> int:
    """Give the rows of each LETTER up: its sink does not get them. They stay in the table.

    With --json: letters, rows, dry_run.

    For example: strandline dlq drop --all centre --reason "rows of a test" --dry-run
    """
    with home.node() as node:
        chosen = _chosen(node, letters, sink)
        rows = sum(node.deliveries.letter(each).rows for each in chosen)
        if chosen and not dry_run:
            if not confirmed(f"Give up {rows:,} rows in {len(chosen):,} dead letters?", yes=yes):
                return 1
            for each in chosen:
                node.deliveries.drop_letter(each, reason=reason)
    if as_json:
        print_json({"letters": list(chosen), "rows": rows, "dry_run": dry_run})
    else:
        click.echo(f"{rows:,} rows {'would be ' if dry_run else ''}dropped")
    return 0


def _chosen(node: "Node", letters: Sequence[str], sink: str | None) -> list[str]:
    if bool(letters) == (sink is not None):
        raise UsageError("name each LETTER, or --all SINK", hint="`strandline dlq list` shows them")
    return (
        list(dict.fromkeys(letters)) if sink is None else [each.id for each in node.deliveries.letters(sink)]
    )


def _facts(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "letter": letter.id,
        "sink": letter.instance,
        "dataset": letter.strand.dataset,
        "source": letter.strand.source,
        "at": letter.at,
        "lo": letter.lo,
        "hi": letter.hi,
        "epoch": letter.epoch,
        "rows": letter.rows,
        "bytes": letter.body.size,
        "kind": letter.kind,
        "http_status": letter.http_status,
        "answer": letter.answer,
        "unit": letter.unit,
    }
