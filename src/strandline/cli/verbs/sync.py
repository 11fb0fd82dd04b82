"""`strandline sync`: what sinks are owed is delivered, now."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.command_group import command, exit_code, tell
from strandline.cli.node_options import Home, home_options
from strandline.cli.show import bar, print_json, print_table
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.delivery.api import Owing
    from strandline.delivery.result import StrandResult, SyncResult
    from strandline.node.node import Node

_PATH: Final = "strandline sync"
_HELD: Final = 3
_CODES: Final = {"exported": 0, "idle": 0, "partial": 1, "failed": 1, "held": _HELD}
_MOST_TROUBLES: Final = 10  # of one sink, in words; --json has all


@command("sync")
@click.argument("sink", required=False)
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing.")
@home_options
def sync_(home: Home, as_json: bool, sink: str | None, dry_run: bool) -> int:
    """Deliver everything that SINK, or each sink, is owed. What is pending is flushed first.

    Sinks run side by side, and one whose destination is dead delays no other. What is held is tried again; a
    pause that a destination asked for is kept. Ends with 1 if something failed, with 3 if it is held.

    With --json one object a sink: sink, status (exported, partial, failed, idle, held), rows, bytes, units,
    requests, withheld, dead_letters, control_writes, strands, jobs, files_opened, bytes_read, rows_decoded
    (null: Spark does not tell), troubles (dataset, source, kind, text, not_before, held); or sink, error.
    With --dry-run one object a strand: sink, dataset, source, ranges ([lo, hi], without lo), rows, bytes
    (estimated), pending, held (kind and text, or null), not_before.

    For example: strandline sync centre --dry-run
    """
    with home.node() as node:
        if dry_run:
            return _print_owing(node, sink, as_json)
        with bar("delivering rows", lambda: _rows_owed(node, sink)) as shown:
            report = node.sync(sink, tell=lambda result: shown.show(result.instance, _rows_done(result)))
    codes = [_told_error(f"{_PATH} {name}", each) for name, each in report.flushes.items() if _is_error(each)]
    runs = {name: each for name, each in report.runs.items() if not isinstance(each, StrandlineError)}
    if as_json:
        for name, each in report.runs.items():
            print_json(_error_facts(name, each) if isinstance(each, StrandlineError) else result_facts(each))
    elif runs:
        print_results(list(runs.values()))
    elif not report.runs:
        click.echo("no sink is configured", err=True)
    for name, each in report.runs.items():
        codes.append(
            _told_error(f"{_PATH} {name}", each)
            if isinstance(each, StrandlineError)
            else tell_result(_PATH, each)
        )
    return worst(codes)


def worst(codes: list[int]) -> int:
    """One for all: what failed goes before what is held."""
    others = [code for code in codes if code not in (0, _HELD)]
    return others[0] if len(codes) == 1 and others else 1 if others else max(codes, default=0)


def _rows_owed(node: "Node", sink: str | None) -> int:
    """At most: what is pending is flushed first, and of a range some rows may be gone."""
    names = node.deliveries.names() if sink is None else [sink]
    return sum(each.rows + each.pending for name in names for each in node.deliveries.owing(name))


def _rows_done(result: "SyncResult") -> int:
    return result.rows + result.withheld


def _is_error(each: Any) -> bool:
    return isinstance(each, StrandlineError)


def _told_error(path: str, error: Any) -> int:
    return tell(path, error.kind, error.message, error.hint, exit_code(error))


# What runs did


def print_results(results: "list[SyncResult]") -> None:
    lines = [
        (
            each.instance,
            each.status,
            each.rows,
            each.bytes,
            each.requests,
            _told(each.counters.jobs),
            _told(each.counters.files_opened),
            each.withheld,
            each.dead_letters,
        )
        for each in results
    ]
    heads = (
        "SINK",
        "STATUS",
        "ROWS",
        "BYTES",
        "REQUESTS",
        "JOBS",
        "FILES OPENED",
        "WITHHELD",
        "DEAD LETTERS",
    )
    print_table(heads, lines)


def _told(counter: int | None) -> int | str:
    return "?" if counter is None else counter


def tell_result(path: str, result: "SyncResult") -> int:
    """What was not delivered, on stderr; the exit code."""
    where = f"{path} {result.instance}"
    for each in result.troubles[:_MOST_TROUBLES]:
        tell(where, each.kind, f"{each.dataset}/{each.source}: {each.text}", _hint(result.instance, each), 0)
    if (more := len(result.troubles) - _MOST_TROUBLES) > 0:
        click.echo(f"{where}: {more:,} more strands are not delivered in full; --json names them", err=True)
    if result.dead_letters:
        text = f"{result.dead_letters:,} units or parts of units were refused for good, and set aside"
        tell(where, "dead_letters", text, f"`strandline dlq list {result.instance}` shows them", 0)
    return _CODES[result.status]


def _hint(name: str, trouble: "StrandResult") -> str:
    if trouble.kind == "not_taken":
        return f"leave the dataset out: `exclude` in [sinks.{name}]"
    if trouble.kind == "unexpected_answer" and not trouble.not_before:
        return f"check url in [sinks.{name}] and the proxies on the way, then `strandline sync {name}`"
    if trouble.kind == "stopped":
        return "nothing is lost; the next run goes on from there"
    if trouble.not_before:
        return f"nothing is lost; it is tried again from {_time(trouble.not_before)} on"
    return f"it is held: put right what that says, then `strandline sync {name}`"


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def result_facts(result: "SyncResult") -> dict[str, Any]:
    counters = result.counters
    return {
        "sink": result.instance,
        "status": result.status,
        "rows": result.rows,
        "bytes": result.bytes,
        "units": result.units,
        "requests": result.requests,
        "withheld": result.withheld,
        "dead_letters": result.dead_letters,
        "control_writes": result.control_writes,
        "strands": result.strands,
        "jobs": counters.jobs,
        "files_opened": counters.files_opened,
        "bytes_read": counters.bytes,
        "rows_decoded": counters.rows_decoded,
        "troubles": [
            {
                "dataset": each.dataset,
                "source": each.source,
                "kind": each.kind,
                "text": each.text,
                "not_before": each.not_before,
                "held": each.is_held,
            }
            for each in result.troubles
        ],
    }


def _error_facts(name: str, error: StrandlineError) -> dict[str, Any]:
    return {"sink": name, "error": {"kind": error.kind, "message": error.message, "hint": error.hint}}


# What a run would do


def _print_owing(node: "Node", sink: str | None, as_json: bool) -> int:
    names = node.deliveries.names() if sink is None else [sink]
    found = [(name, each) for name in names for each in node.deliveries.owing(name)]
    if as_json:
        for name, each in found:
            print_json(_owing_facts(name, each))
    elif found:
        lines = [
            (
                name,
                each.strand.dataset,
                each.strand.source,
                _spans(each),
                each.rows,
                each.bytes,
                each.pending,
                each.hold.kind if each.hold else _time(each.not_before) if each.not_before else "",
            )
            for name, each in found
        ]
        print_table(("SINK", "DATASET", "SOURCE", "SEQS", "ROWS", "BYTES", "PENDING", "HELD"), lines)
    else:
        click.echo("nothing is owed", err=True)
    return 0


def _spans(owing: "Owing") -> str:
    if not owing.ranges:
        return ""
    more = f" and {len(owing.ranges) - 3:,} more" if len(owing.ranges) > 3 else ""
    return ", ".join(f"{each.lo + 1}-{each.hi}" for each in owing.ranges[:3]) + more


def _owing_facts(name: str, owing: "Owing") -> dict[str, Any]:
    return {
        "sink": name,
        "dataset": owing.strand.dataset,
        "source": owing.strand.source,
        "ranges": [[each.lo, each.hi] for each in owing.ranges],
        "rows": owing.rows,
        "bytes": owing.bytes,
        "pending": owing.pending,
        "held": {"kind": owing.hold.kind, "text": owing.hold.text} if owing.hold else None,
        "not_before": owing.not_before,
    }
