"""`strandline persist consumers`: durable cursors and how far they lag."""

import click

from strandline.cli.command_group import command, confirmed
from strandline.cli.show import print_json, print_table
from strandline.cli.store_options import Target, store_options
from strandline.errors import NotFoundError
from strandline.persist.features.consumer import consumer_drop, consumers
from strandline.persist.value import check_name


@command("list")
@store_options
def list_(target: Target, as_json: bool) -> None:
    """List the consumers: name, stream, seq and lag in events.

    For example: strandline persist consumers list --store events.db
    """
    with target.opened() as b:
        found = consumers(b)
    if as_json:
        for status in found:
            print_json(status._asdict())
    elif found:
        print_table(("CONSUMER", "STREAM", "SEQ", "LAG"), found)


@command("drop")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Tell the count, drop nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
def drop_(target: Target, as_json: bool, name: str, dry_run: bool, yes: bool) -> int:
    """End the consumer NAME: its cursor and its hold go, so compaction no longer waits for it.

    For example: strandline persist consumers drop mailer --store events.db --dry-run
    """
    check_name("consumer", name)
    with target.opened() as b:
        status = next((each for each in consumers(b) if each.name == name), None)
        if status is None:
            raise NotFoundError(
                f"there is no consumer {name!r}", hint="`strandline persist consumers` lists them"
            )
        if not dry_run:
            question = f"Drop the consumer {name!r}, {status.lag:,} events behind on {status.stream!r}?"
            if not confirmed(question, yes=yes):
                return 1
            consumer_drop(b, name)
    if as_json:
        print_json({**status._asdict(), "dropped": 1, "dry_run": dry_run})
    else:
        click.echo(f"1 consumer {'would be ' if dry_run else ''}dropped")
    return 0
