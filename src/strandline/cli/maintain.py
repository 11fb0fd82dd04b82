"""`strandline maintain`: what an operator does after the store or the warehouse was moved or put back."""

from typing import TYPE_CHECKING

import click

from strandline.cli.group import command, confirmed
from strandline.cli.home import Home, home_options, note
from strandline.cli.output import print_json, print_table
from strandline.errors import UsageError

if TYPE_CHECKING:
    from strandline.lake.relocate import Relocated


@command("maintain")
@click.option(
    "--relocate", is_flag=True, help="Re-point tables whose warehouse was moved to [lake] warehouse."
)
@click.option("--confirm-restore", is_flag=True, help="Let the orphan sweep go on after a restore.")
@click.option("--dry-run", is_flag=True, help="Tell what would be done, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def maintain_(
    home: Home, as_json: bool, relocate: bool, confirm_restore: bool, dry_run: bool, yes: bool
) -> int:
    """Re-point a warehouse that was moved, or confirm a restore; neither starts Spark.

    --relocate writes the metadata of each table anew, with the paths of [lake] warehouse, where the files
    must be already; data files are not touched. With --json one object a table: table, was, now (null with
    --dry-run).

    --confirm-restore says that what the restored store does not know may go: rows that were acknowledged
    after the backup are orphans now, and the sweep, which waits since, removes them. With --json: dataset,
    at, reason of what it waited for, dry_run; null if it did not wait.
    """
    if relocate == confirm_restore:
        raise UsageError("nothing to do is named, or two things", hint="--relocate, or --confirm-restore")
    return _relocate(home, as_json, dry_run) if relocate else _confirm(home, as_json, dry_run, yes)


def _relocate(home: Home, as_json: bool, dry_run: bool) -> int:
    from strandline.lake.relocate import relocate

    done = relocate(home.config().lake_settings(), dry_run=dry_run)
    if as_json:
        for each in done:
            print_json({"table": each.table, "was": each.was, "now": each.now})
    elif done:
        print_table(("TABLE", "WAS", "NOW"), [_line(each) for each in done])
    would = "would be " if dry_run else ""
    click.echo(f"{len(done):,} tables {would}re-pointed", err=True)
    return 0


def _line(moved: "Relocated") -> tuple[str, str, str]:
    return moved.table, moved.was, moved.now or ""


def _confirm(home: Home, as_json: bool, dry_run: bool, yes: bool) -> int:
    from strandline.pipeline.reconcile import confirm_restore, paused

    with home.site() as site:
        found = paused(site)
        if found is not None and not dry_run:
            question = f"Let go of what the restored store does not know? ({found['reason']})"
            if not confirmed(question, yes=yes):
                return 1
            confirm_restore(site)
    if as_json:
        print_json(None if found is None else {**found, "dry_run": dry_run})
    elif found is None:
        note("the orphan sweep does not wait for anything")
    else:
        click.echo(f"the orphan sweep {'would go' if dry_run else 'goes'} on; it waited: {found['reason']}")
    return 0
