"""`strandline purge`: rows go for good, from the table, the spool and quarantine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.command_group import command, confirmed
from strandline.cli.node_options import Home, home_options, note, note_holder
from strandline.cli.show import print_json, print_table

if TYPE_CHECKING:
    from strandline.maintenance.purge import PurgeResult


@command("purge")
@click.argument("dataset")
@click.option("--where", metavar="SQL", help="Rows for which this holds, over the dataset's columns.")
@click.option("--source", help="Rows of this source; with --where those for which both hold.")
@click.option("--dry-run", is_flag=True, help="Count what would go, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def purge_(
    home: Home, as_json: bool, dataset: str, where: str | None, source: str | None, dry_run: bool, yes: bool
) -> int:
    """Take rows of DATASET out for good. What is pending is flushed first; then the rows go from the table
    and from quarantine, the segments that brought them go, and so do the snapshots that still have them.

    Numbers, tokens and sinks stay where they are. It tells which sinks the rows had left through: what is
    elsewhere it cannot reach. A purge that was cut short is finished by repeating it.

    Ends with 3 if something may be left: a damaged segment or a quarantined row that cannot be looked at, a
    dead letter that waits, a flush or load that is open and keeps old snapshots, a file below the table that
    no snapshot names and that could not be removed.

    With --json: dataset, where, source, rows, strands (source: rows), left (sink, source, rows), quarantined,
    undecided (rows in quarantine), held (source, segment, rows), letters, segments, snapshots,
    snapshots_left, open_numbers, files (that no snapshot named: removed), files_left (the first 100 that
    stay), files_left_count, files_left_reason, pending (rows a dry run did not look at), whole, resumed,
    dry_run.

    For example: strandline purge orders --where "customer = 'ann'" --dry-run
    """
    with home.node() as node:
        note_holder(node.site, f"maintain/{dataset}")

        def run(is_dry: bool) -> "PurgeResult":
            return node.keeping.purge(
                dataset, where=where, source=source, flush=lambda: node.flush(dataset), dry_run=is_dry
            )

        if not dry_run and not yes:
            found = run(is_dry=True)
            count = f"{found.rows:,} rows of {dataset} and {found.quarantined.rows:,} in quarantine"
            more = f", and those of {found.pending:,} pending ones" if found.pending else ""
            if not confirmed(f"Take {count}{more} out for good?", yes=yes):
                return 1
        done = run(dry_run)
    if as_json:
        print_json(_facts(done))
    else:
        _print(done)
    return 0 if dry_run or done.is_whole else 3


def _print(done: "PurgeResult") -> None:
    would = "would go" if done.is_dry else "are gone"
    if done.strands:
        print_table(("SOURCE", "ROWS"), sorted(done.strands.items()))
    click.echo(f"{done.rows:,} rows {would}, and {done.quarantined.rows:,} in quarantine")
    for line in _left(done):
        note(line)


def _left(done: "PurgeResult") -> Iterator[str]:
    """What the operator must know, or see to."""
    for left in done.left:
        yield f"{left.rows:,} of them, of {left.source}, had left through sink {left.sink}"
    if done.quarantined.undecided:
        yield (
            f"{done.quarantined.undecided:,} rows in quarantine could not be judged: "
            f"`strandline spool quarantine list {done.dataset}`"
        )
    for held in done.held:
        yield (
            f"{held.rows:,} rows of {held.source} are in damaged segment {held.segment}, which nobody can "
            f"look into: `strandline spool lost {held.segment}` gives it up"
        )
    for letter in done.letters:
        yield f"dead letter {letter} may hold some: `strandline dlq show {letter}`, then `dlq drop`"
    if done.snapshots_left or (done.open_numbers and not done.is_dry):
        what, verb = ", ".join(map(str, done.open_numbers)), "flush"
        if not what:
            what, verb = "a rewrite", "maintain"
        yield f"old snapshots stay while {what} is open: `strandline {verb} {done.dataset}`, then again"
    if done.files.removed:
        yield f"{done.files.removed:,} files that a killed job had left were removed"
    if done.files.is_left:
        count = (
            f"{done.files.count:,} files that no snapshot names" if done.files.count else "there may be files"
        )
        yield f"{count} may hold some: {done.files.reason}"
    for file in done.files.left:
        yield f"left: {file}"
    if done.pending:
        yield f"{done.pending:,} pending rows were not looked at"


def _facts(done: "PurgeResult") -> dict[str, Any]:
    return {
        "dataset": done.dataset,
        "where": done.where,
        "source": done.source,
        "rows": done.rows,
        "strands": dict(done.strands),
        "left": [{"sink": each.sink, "source": each.source, "rows": each.rows} for each in done.left],
        "quarantined": done.quarantined.rows,
        "undecided": done.quarantined.undecided,
        "held": [{"source": each.source, "segment": each.segment, "rows": each.rows} for each in done.held],
        "letters": list(done.letters),
        "segments": done.segments,
        "snapshots": done.snapshots,
        "snapshots_left": done.snapshots_left,
        "open_numbers": list(done.open_numbers),
        "files": done.files.removed,
        "files_left": list(done.files.left),
        "files_left_count": done.files.count,
        "files_left_reason": done.files.reason,
        "pending": done.pending,
        "whole": done.is_whole,
        "resumed": done.is_resumed,
        "dry_run": done.is_dry,
    }
