"""`strandline backfill`: rows from before, each once, whatever is there already."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.command_group import Group, Subcommand, command, exit_code, tell
from strandline.cli.node_options import Home, home_options
from strandline.cli.show import print_json, print_table, progress
from strandline.errors import StrandlineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from strandline.backfill.result import BackfillCounts, BackfillResult
    from strandline.cli.show import Progress
    from strandline.node.node import Node

backfill = Group(
    "backfill",
    help="Rows from before, each once; without a command it lists the providers.",
    subcommands={
        "list": Subcommand("strandline.cli.verbs.backfill:list_", "List the providers, and their last runs."),
        "plan": Subcommand(
            "strandline.cli.verbs.backfill:plan_", "Tell what a run would write; write nothing."
        ),
        "run": Subcommand(
            "strandline.cli.verbs.backfill:run_", "Write what providers have and the node has not."
        ),
    },
    default="list",
)

_HEADS = (
    "PROVIDER",
    "STATUS",
    "ITEMS",
    "WAITING",
    "ROWS",
    "COMMITTED",
    "SPOOLED",
    "IN CHUNK",
    "CHUNK KNOWN",
    "BAD",
    "DOUBTS",
    "FAILED",
)
_MOST_FAILURES = 10


@command("list")
@home_options
def list_(home: Home, as_json: bool) -> None:
    """List the providers that are configured, and the kinds that can be. It starts no Spark.

    With --json one object a provider: provider, type, configured, enabled, can_run (without keys of its own),
    schedule, last_at (UTC microseconds), last (as `run --json` had it, or null).

    For example: strandline backfill list
    """
    with home.node() as node:
        found = node.backfills.listed()
    if as_json:
        for each in found:
            print_json(
                {
                    "provider": each.name,
                    "type": each.type,
                    "configured": each.is_configured,
                    "enabled": each.is_enabled,
                    "can_run": each.can_run,
                    "schedule": each.schedule,
                    "last_at": each.last_at,
                    "last": each.last,
                }
            )
        return
    lines = [
        (
            each.name,
            each.type,
            "enabled" if each.is_enabled else "configured" if each.is_configured else "",
            each.schedule,
            "" if each.last_at is None else _time(each.last_at),
            "" if each.last is None else str(each.last["status"]),
            "" if each.last is None else f"{each.last['written']:,}",
        )
        for each in found
    ]
    print_table(("PROVIDER", "TYPE", "STATE", "SCHEDULE", "LAST RUN", "STATUS", "ROWS"), lines)


def _window_options(function: "Callable[..., Any]") -> "Callable[..., Any]":
    for option in (
        click.argument("provider", required=False),
        click.option("--since", metavar="TIME", help="ISO; else as far back as rows are kept."),
        click.option("--until", metavar="TIME", help="ISO; else now."),
        click.option("--dataset", help="Rows of this dataset alone."),
    ):
        function = option(function)
    return function


@command("plan")
@_window_options
@home_options
def plan_(
    home: Home,
    as_json: bool,
    provider: str | None,
    since: str | None,
    until: str | None,
    dataset: str | None,
) -> int:
    """Tell what a run of PROVIDER, or of each that is enabled, would write and leave out. Writes nothing.

    With --json as `run`, with dry_run true.

    For example: strandline backfill plan archive --since 2026-01-01
    """
    return _run_all(home, as_json, provider, since, until, dataset, is_dry=True)


@command("run")
@_window_options
@click.option("--dry-run", is_flag=True, help="The same as `plan`.")
@home_options
def run_(
    home: Home,
    as_json: bool,
    provider: str | None,
    since: str | None,
    until: str | None,
    dataset: str | None,
    dry_run: bool,
) -> int:
    """Write the rows that PROVIDER, or each that is enabled, has and the node has not.

    Rows that are committed or spooled already are left out by their identity; a chunk that was written before
    is not looked at again. Run it again after a crash, or as often as you like. Ends with 1 if something
    failed.

    With --json one object a provider: provider, status (done, partial, failed), dry_run, items, waiting,
    written, left_out (committed, spooled, in_chunk, chunk_known), quarantined, doubts, doubt_texts, skipped,
    failed, failures (item, kind, text), error (kind and text, or null).

    For example: strandline backfill run archive --dry-run
    """
    return _run_all(home, as_json, provider, since, until, dataset, is_dry=dry_run)


def _run_all(
    home: Home,
    as_json: bool,
    provider: str | None,
    since: str | None,
    until: str | None,
    dataset: str | None,
    *,
    is_dry: bool,
) -> int:
    window = {"since": _instant("--since", since), "until": _instant("--until", until)}
    with home.node() as node:
        names = node.backfills.names() if provider is None else [provider]
        if not names:
            click.echo("no provider is enabled; `strandline backfill list` shows what there is", err=True)
        codes, results = [0], []
        for name in names:
            try:
                results.append(_run(node, name, {**window, "dataset": dataset, "is_dry": is_dry}))
            except StrandlineError as error:
                if provider is not None:
                    raise
                codes.append(_told(name, error))
    if as_json:
        for each in results:
            print_json(each.facts())
    elif results:
        print_table(_HEADS, [_line(each) for each in results])
    codes += [_tell_result(each) for each in results]
    return max(codes, key=lambda code: (code == 1, code))


def _run(node: "Node", name: str, options: dict[str, Any]) -> "BackfillResult":
    with progress(f"backfill {name}") as shown:
        return node.backfills.run(name, tell=lambda item, tally: _show(shown, item, tally), **options)


def _show(shown: "Progress", item: str, tally: "BackfillCounts") -> None:
    shown.show(
        f"{tally.items:,} items, {tally.written:,} rows written, {tally.left_out:,} left out; {item[-60:]}"
    )


def _line(result: "BackfillResult") -> tuple[Any, ...]:
    tally = result.tally
    return (
        result.provider,
        "planned" if result.is_dry and result.status == "done" else result.status,
        tally.items,
        tally.waiting,
        tally.written,
        tally.committed,
        tally.spooled,
        tally.in_chunk,
        tally.chunk_known,
        tally.quarantined,
        tally.doubts,
        result.failed,
    )


def _tell_result(result: "BackfillResult") -> int:
    where = f"strandline backfill {result.provider}"
    for text in result.tally.doubt_texts[:_MOST_FAILURES]:
        click.echo(f"{where}: doubt: {text}; its rows were written all the same", err=True)
    for each in result.tally.failures[:_MOST_FAILURES]:
        tell(where, each.kind, f"{each.item}: {each.text}", None, 1)
    if (more := result.failed - _MOST_FAILURES) > 0:
        click.echo(f"{where}: {more:,} more items failed; --json names them", err=True)
    if result.error is not None:
        return tell(where, result.error.kind, result.error.text, "put that right, and run it again", 1)
    return 0 if result.status == "done" else 1


def _told(name: str, error: StrandlineError) -> int:
    return tell(f"strandline backfill {name}", error.kind, error.message, error.hint, exit_code(error))


def _instant(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{option} is {text!r:.80}, which is no time", hint="such as 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
