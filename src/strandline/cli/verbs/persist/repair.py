"""`strandline persist repair`."""

import click

from strandline.cli.command_group import command
from strandline.cli.show import print_json, progress
from strandline.cli.store_options import Target, store_options
from strandline.errors import UsageError
from strandline.persist.features.upkeep import repair
from strandline.persist.opening import sqlite_path


@command("repair")
@store_options
def repair_(target: Target, as_json: bool) -> None:
    """Add the page checksums that another SQLite program left out when it wrote to the store's file.

    All rows must match their own checksums, or nothing is changed. It needs as much room as the store takes.

    For example: strandline persist repair --store events.db
    """
    path = sqlite_path(target.url)
    if path is None:
        raise UsageError(f"store {target.url!r} is not in SQLite", hint="name a SQLite file with --store")
    with progress("repairing"):
        pages = repair(path)
    if as_json:
        print_json({"pages": pages})
    else:
        click.echo(f"{pages:,} pages repaired")
