"""`strandline status`: how a node stands, what is wrong with it, and what repairs that."""

import io
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options
from strandline.cli.show import print_json, print_table, shown
from strandline.cli.verbs.spool import at_text
from strandline.errors import UsageError

if TYPE_CHECKING:
    from strandline.node.status import DatasetStatus, SinkStatus, Status, StrandStatus

_MOST_STRANDS: Final = 20  # in words; --json has all
_EVERY_S: Final = 2.0
_LEAST_S: Final = 0.1
_MOST_S: Final = 3600.0
_INTERVAL: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m|h|)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


@command("status")
@click.option(
    "--at",
    "at_",
    metavar="TIME",
    help="As it stood then: ISO, such as 2026-05-01T02:00Z; UTC if it says none.",
)
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--every", metavar="TIME", help="With --watch: how often, such as 500ms or 1m; 2s if not said.")
@home_options
def status_(home: Home, as_json: bool, at_: str | None, watch: bool, every: str | None) -> None:
    """Print how the node stands: what is pending, how far each sink is, what is wrong and what repairs it.

    It only reads the store, and starts no Spark. With --at it tells how everything stood then, which reads
    all events; the configuration is the one of now. With --watch it is drawn anew on a terminal; in a pipe
    --json prints a line each time.

    For example: strandline status --watch --every 5s

    With --json one object: version (1), at (UTC microseconds, as all times), health (ok, degraded, held,
    failed), causes (level, kind, text, repair), datasets, sinks, notes (what is odd in the configuration),
    backfills (counters by provider). Counters are by name, and only grow.
    A dataset: dataset, schema_version, strands, pending_rows, pending_bytes, oldest_pending_at,
    oldest_pending_s, quarantined, held and lost (source, segment, lo, hi, reason), last_flush, visible_flush,
    flushed_at, open_flush, open_loads, retention (cutoff, looked_at, pruned_at, rows, evicted, held by sink,
    is_over_limit, is_open), compaction (walked_at, files, rows, bytes, snapshots, is_done, compactions,
    ineffective, compacted_at, rows_rewritten, duplicates, left (place, first, reason, is_failed), is_open),
    counters. A sink: sink, type (null: not configured any more), enabled, destination, schedule, next_due_at,
    hold (kind, text, at), strands, counters. A strand of it: dataset, source, line, visible_through,
    lag_rows, lag_s, delivered_at, trouble (kind, text, attempts, not_before, at, is_pace), hold, intent (lo,
    hi, done_through), rows, bytes, withheld, dead_letters, evicted.
    """
    from strandline.node.status import status_of

    at = None if at_ is None else _parsed(at_)
    if watch or every is not None:
        _watch(home, _interval_s(every, watch=watch, is_past=at is not None), as_json)
        return
    with home.site() as site:
        if at is not None and at > site.clock.now_us():
            raise UsageError(f"--at {at_!r:.40} has not come yet", hint="leave it out for now")
        found = status_of(home.config(), site, at=at)
    if as_json:
        print_json(status_facts(found))
    else:
        _print(found)


def _parsed(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--at {text!r:.40} is no time", hint="write it as 2026-05-01T02:00 or 2026-05-01T02:00+02:00"
        ) from error
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1e6)


# Again and again


def _interval_s(text: str | None, *, watch: bool, is_past: bool) -> float:
    if not watch or is_past:
        what = "--at tells of one time" if watch else "--every is how often --watch looks"
        raise UsageError(what, hint="leave one of the two out" if watch else "add --watch")
    if text is None:
        return _EVERY_S
    found = _INTERVAL.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not _LEAST_S <= seconds <= _MOST_S:
        raise UsageError(f"--every {text!r:.40} is no interval", hint="100ms to 1h, as in 500ms, 2s, 1m")
    return seconds


def _watch(home: Home, every_s: float, as_json: bool) -> None:
    """Until Ctrl-C, which is no failure. What is new is read, and nothing else: the store stays open."""
    from strandline.node.status import status_of

    if not as_json and not sys.stdout.isatty():
        raise UsageError("--watch draws on a terminal, and this is none", hint="add --json: a line each time")
    config = home.config()
    with home.site() as site, suppress(KeyboardInterrupt), nullcontext() if as_json else _screen() as screen:
        while True:
            found = status_of(config, site)
            if screen is None:
                print_json(status_facts(found))
                sys.stdout.flush()
            else:
                screen(_text(found))
            time.sleep(every_s)


@contextmanager
def _screen() -> Iterator[Callable[[str], None]]:
    """Draws a text in the place of the one before; what is longer than the terminal is cut off."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def _text(status: "Status") -> str:
    """As it is printed in a pipe."""
    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written):  # a note beside it would tear the drawing
        _print(status)
    return written.getvalue().rstrip()


# As JSON


def status_facts(status: "Status") -> dict[str, Any]:
    """The stable contract: fields only ever get more, or the version changes."""
    from strandline.node.status import VERSION

    return {
        "version": VERSION,
        "at": status.at,
        "health": status.health,
        "causes": [asdict(each) for each in status.causes],
        "datasets": [_dataset_facts(each) for each in status.datasets],
        "sinks": [_sink_facts(each) for each in status.sinks],
        "notes": list(status.notes),
        "backfills": {name: dict(each) for name, each in status.backfills.items()},
    }


def _dataset_facts(each: "DatasetStatus") -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(each).items()}


def _sink_facts(each: "SinkStatus") -> dict[str, Any]:
    return {
        "sink": each.sink,
        "type": each.type,
        "enabled": each.enabled,
        "destination": each.destination,
        "schedule": each.schedule,
        "next_due_at": each.next_due_at,
        "hold": None if each.hold is None else each.hold._asdict(),
        "strands": [_strand_facts(strand) for strand in each.strands],
        "counters": dict(each.counters),
    }


def _strand_facts(each: "StrandStatus") -> dict[str, Any]:
    names = ("kind", "text", "attempts", "not_before", "at", "is_pace")
    trouble = None if each.trouble is None else {name: getattr(each.trouble, name) for name in names}
    hold = None if each.hold is None else each.hold._asdict()
    intent = None if each.intent is None else asdict(each.intent)
    plain = ("dataset", "source", "line", "visible_through", "lag_rows", "lag_s", "delivered_at")
    sums = ("rows", "bytes", "withheld", "dead_letters", "evicted")
    return {
        **{name: getattr(each, name) for name in plain},
        "trouble": trouble,
        "hold": hold,
        "intent": intent,
        **{name: getattr(each, name) for name in sums},
    }


# In words


def _print(status: "Status") -> None:
    click.echo(f"{status.health}, as of {at_text(status.at)}")
    for cause in status.causes:
        click.echo(f"{cause.level}: {shown(cause.text)}")
        click.echo(f"  repair: {shown(cause.repair)}")
    if status.datasets:
        click.echo()
        _print_datasets(status.datasets)
        _print_retention(status.datasets)
        _print_compaction(status.datasets)
    if status.sinks:
        click.echo()
        _print_sinks(status.sinks)
        _print_strands(status.sinks)


def _print_datasets(datasets: "tuple[DatasetStatus, ...]") -> None:
    lines = [
        (
            each.dataset,
            each.strands,
            each.pending_rows,
            each.pending_bytes,
            _age(each.oldest_pending_s),
            sum(gap.hi - gap.lo for gap in each.held),
            sum(gap.hi - gap.lo for gap in each.lost),
            each.quarantined,
            each.visible_flush,
            _when(each.flushed_at),
            len(each.open_loads),
        )
        for each in datasets
    ]
    heads = (
        "DATASET",
        "STRANDS",
        "PENDING",
        "BYTES",
        "OLDEST",
        "HELD",
        "LOST",
        "QUARANTINED",
        "FLUSH",
        "LAST",
        "LOADS",
    )
    print_table(heads, lines)


def _print_retention(datasets: "tuple[DatasetStatus, ...]") -> None:
    lines = [
        (
            each.dataset,
            _when(each.retention.cutoff) or "none",
            _when(each.retention.looked_at),
            _when(each.retention.pruned_at),
            each.retention.rows,
            each.retention.evicted,
            ", ".join(f"{rows} for {sink}" for sink, rows in sorted(each.retention.held.items())),
        )
        for each in datasets
        if each.retention.looked_at or each.retention.pruned_at
    ]
    if lines:
        click.echo()
        print_table(("RETENTION", "CUTOFF", "LAST RUN", "LAST PRUNED", "ROWS", "EVICTED", "HELD"), lines)


def _print_compaction(datasets: "tuple[DatasetStatus, ...]") -> None:
    lines = [
        (
            each.dataset,
            each.compaction.files or 0,
            each.compaction.bytes or 0,
            each.compaction.snapshots or 0,
            _when(each.compaction.walked_at),
            "" if each.compaction.is_done else "more is due",
            each.compaction.compactions,
            each.compaction.duplicates,
            sum(found.is_failed for found in each.compaction.left),
        )
        for each in datasets
        if each.compaction.walked_at
    ]
    if lines:
        click.echo()
        heads = ("TABLE", "FILES", "BYTES", "SNAPSHOTS", "LAST WALK", "", "COMPACTIONS", "REPEATS", "FAILED")
        print_table(heads, lines)


def _print_sinks(sinks: "tuple[SinkStatus, ...]") -> None:
    lines = [
        (
            each.sink,
            each.type or "not configured",
            len(each.strands),
            sum(strand.lag_rows for strand in each.strands),
            _age(_longest(each)),
            sum(strand.rows for strand in each.strands),
            sum(strand.bytes for strand in each.strands),
            sum(strand.dead_letters for strand in each.strands),
            _when(max((strand.delivered_at or 0 for strand in each.strands), default=0)),
            _when(each.next_due_at) if each.enabled else "off",
        )
        for each in sinks
    ]
    heads = ("SINK", "TYPE", "STRANDS", "LAG ROWS", "LAG", "ROWS", "BYTES", "DEAD LETTERS", "LAST", "NEXT")
    print_table(heads, lines)


def _print_strands(sinks: "tuple[SinkStatus, ...]") -> None:
    behind = [
        (sink.sink, strand)
        for sink in sinks
        for strand in sink.strands
        if strand.lag_rows or strand.intent or strand.trouble or strand.hold
    ]
    if not behind:
        return
    behind.sort(key=lambda each: -(each[1].lag_s or 0))
    click.echo()
    lines = [
        (
            name,
            each.dataset,
            each.source,
            each.line,
            each.visible_through,
            each.lag_rows,
            _age(each.lag_s),
            ""
            if each.intent is None
            else f"{each.intent.done_through} of {each.intent.lo + 1}-{each.intent.hi}",
            each.hold.kind if each.hold else each.trouble.kind if each.trouble else "",
            each.trouble.attempts if each.trouble else 0,
            _when(each.trouble.not_before) if each.trouble else "",
        )
        for name, each in behind[:_MOST_STRANDS]
    ]
    heads = (
        "SINK",
        "DATASET",
        "SOURCE",
        "LINE",
        "VISIBLE",
        "LAG ROWS",
        "LAG",
        "UNDER WAY",
        "TROUBLE",
        "TRIES",
        "NOT BEFORE",
    )
    print_table(heads, lines)
    if (more := len(behind) - _MOST_STRANDS) > 0:
        click.echo(f"{more:,} more strands are behind; --json names them", err=True)


def _longest(sink: "SinkStatus") -> float | None:
    return max((strand.lag_s or 0 for strand in sink.strands), default=None)


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f} s"


def _when(at_us: int | None) -> str:
    return at_text(at_us) if at_us else ""
