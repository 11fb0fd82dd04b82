"""`strandline persist kv`: current values by key."""

from itertools import islice

import click

from strandline.cli.command_group import command, confirmed
from strandline.cli.parse_values import parse_value, read_stdin
from strandline.cli.show import json_text, print_conflict, print_json, print_table, shown
from strandline.cli.store_options import Target, store_options
from strandline.errors import NotFoundError, UsageError
from strandline.persist.event import ABSENT, Conflict
from strandline.persist.features.kv import kv_cas, kv_delete, kv_get_or, kv_has, kv_items, kv_put
from strandline.persist.features.log import PAGE
from strandline.persist.reserved import guard
from strandline.persist.value import check_limit, check_name


@command("get")
@click.argument("key")
@store_options
def get_(target: Target, as_json: bool, key: str) -> None:
    """Print the value of KEY; an absent one is an error.

    For example: strandline persist kv get leader --store events.db
    """
    with target.opened() as b:
        value = kv_get_or(b, key, ABSENT)
    if value is ABSENT:
        raise _not_there(key)
    print_json({"key": key, "value": value} if as_json else value)


@command("put")
@click.argument("key")
@click.argument("value")
@store_options
def put_(target: Target, as_json: bool, key: str, value: str) -> None:
    """Put VALUE, which is JSON, or `-` for stdin, under KEY.

    For example: strandline persist kv put leader '"a"' --store events.db
    """
    parsed = parse_value(read_stdin() if value == "-" else value, "the value")
    with target.opened(create=True) as b:
        kv_put(b, key, parsed)
    print_json({"key": key, "value": parsed} if as_json else parsed)


@command("cas")
@click.argument("key")
@click.argument("value")
@click.option("--expect", metavar="JSON", help="The value that must be there; an absent key reads as null.")
@click.option("--absent", is_flag=True, help="The key must not be there.")
@store_options
def cas_(target: Target, as_json: bool, key: str, value: str, expect: str | None, absent: bool) -> int:
    """Put VALUE under KEY if the present one is as expected; a conflict is shown and ends with 1.

    For example: strandline persist kv cas leader '"a"' --absent --store events.db
    """
    if (expect is None) is not absent:
        raise UsageError("cas needs either --expect or --absent", hint="say what must be there now")
    expected = ABSENT if expect is None else parse_value(expect, "--expect")
    parsed = parse_value(read_stdin() if value == "-" else value, "the value")
    with target.opened(create=True) as b:
        outcome = kv_cas(b, key, expected, parsed)
    if isinstance(outcome, Conflict):
        return print_conflict("strandline persist kv cas", outcome, as_json)
    print_json({"key": key, "value": parsed} if as_json else parsed)
    return 0


@command("delete")
@click.argument("key")
@click.option("--dry-run", is_flag=True, help="Tell the count, delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
def delete_(target: Target, as_json: bool, key: str, dry_run: bool, yes: bool) -> int:
    """Remove KEY.

    For example: strandline persist kv delete leader --store events.db --dry-run
    """
    guard("key", check_name("key", key))
    with target.opened() as b:
        count = int(kv_has(b, key))
        if count and not dry_run:
            if not confirmed(f"Delete the key {key!r} with its value?", yes=yes):
                return 1
            kv_delete(b, key)
    if as_json:
        print_json({"key": key, "deleted": count, "dry_run": dry_run})
    else:
        click.echo(f"{count} key {'would be ' if dry_run else ''}deleted")
    return 0


@command("list")
@click.option("--prefix", default="", metavar="TEXT", help="Only those that start so.")
@click.option("--all", "is_all", is_flag=True, help="Also those that the store keeps for itself.")
@click.option("--limit", type=int, metavar="N", help="At most this many.")
@store_options
def list_(target: Target, as_json: bool, prefix: str, is_all: bool, limit: int | None) -> None:
    """List keys with their values, in order; with --json one object a line.

    For example: strandline persist kv list --prefix lease/ --store events.db
    """
    if limit is not None:
        check_limit(limit)
    with target.opened() as b:
        items = islice(kv_items(b, prefix=prefix, reserved=is_all), limit)
        is_first = True
        while page := list(islice(items, PAGE)):
            if as_json:
                for key, value in page:
                    print_json({"key": key, "value": value})
            else:
                rows = [(shown(key), json_text(value)) for key, value in page]
                print_table(("KEY", "VALUE"), rows, with_headers=is_first)
            is_first = False


def _not_there(key: str) -> NotFoundError:
    return NotFoundError(f"there is no key {key!r}", hint="`strandline persist kv list` shows what there is")
