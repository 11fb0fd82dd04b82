"""`strandline persist append`, `read`, `follow` and `streams`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import click

from strandline.cli.command_group import command
from strandline.cli.parse_values import now_us, parse_at, parse_value, read_stdin
from strandline.cli.show import (
    print_conflict,
    print_event,
    print_json,
    print_positioned,
    print_table,
)
from strandline.cli.store_options import Target, store_options
from strandline.errors import UsageError
from strandline.persist.backend import Append, AtomicBackend, ExpectSeq
from strandline.persist.event import Compacted, Conflict, Event, Scalar
from strandline.persist.features.batch import commit
from strandline.persist.features.consumer import ack, consumer, poll
from strandline.persist.features.gaps import follows_on, global_page, past_gap
from strandline.persist.features.global_order import global_events
from strandline.persist.features.log import PAGE, events
from strandline.persist.reserved import GLOBAL, is_reserved
from strandline.persist.value import MAX_SEQ, check_limit, check_name

_WAIT_S: Final = 60.0
_BATCH_KEYS: Final = frozenset({"type", "data", "at", "stream", "seq"})


@command("append")
@click.argument("stream")
@click.argument("type_", metavar="TYPE", required=False)
@click.argument("data", required=False)
@click.option("--at", metavar="JSON", help="A number or a text in JSON; without it UTC microseconds.")
@click.option("--once", metavar="KEY", help="Has one effect however often it is repeated.")
@click.option("--expect", type=int, metavar="N", help="Only if the last seq is N; 0 is a new stream.")
@click.option("--globally", is_flag=True, help="Put it into the global order as well.")
@click.option(
    "--batch", is_flag=True, help='Read {"type": …, "data": …, "at": …} lines from stdin, all or none.'
)
@store_options
def append_(
    target: Target,
    as_json: bool,
    stream: str,
    type_: str | None,
    data: str | None,
    at: str | None,
    once: str | None,
    expect: int | None,
    globally: bool,
    batch: bool,
) -> int:
    """Append to STREAM an event of TYPE with DATA, which is JSON, `-` for stdin, or null if it is left out.

    The stored events are printed. A conflict of --expect or --once is shown and ends with 1.

    Of the lines of --batch, `at` may be missing; `stream` and `seq`, as `read --json` prints them, are not
    looked at.

    For example: strandline persist append cart-1 opened '{"by": "ann"}' --store events.db
    """
    stamp = now_us() if at is None else parse_at(at, "--at")
    if batch:
        if type_ is not None:
            raise UsageError("--batch reads types and data from stdin", hint="leave TYPE and DATA out")
        writes = [_batch_append(stream, line, n, stamp, globally) for n, line in _stdin_lines()]
    elif type_ is None:
        raise UsageError("TYPE is missing", hint="append STREAM TYPE [DATA], or --batch")
    else:
        text = "null" if data is None else read_stdin() if data == "-" else data
        writes = [Append(stream, type_, stamp, parse_value(text), globally=globally)]
    preconditions = [] if expect is None else [ExpectSeq(stream, expect)]
    with target.opened(create=True) as b:
        if not writes:
            return 0
        outcome = commit(b, preconditions, writes, once=None if once is None else (stream, once))
    if isinstance(outcome, Conflict):
        return print_conflict("strandline persist append", outcome, as_json)
    for event in outcome:
        print_event(event, as_json)
    return 0


def _stdin_lines() -> Iterator[tuple[int, str]]:
    return ((n, line) for n, line in enumerate(read_stdin().split("\n"), 1) if line.strip())


def _batch_append(stream: str, line: str, n: int, stamp: Scalar, globally: bool) -> Append:
    item = parse_value(line, f"line {n}")
    if not isinstance(item, dict) or not {"type", "data"} <= item.keys() <= _BATCH_KEYS:
        raise UsageError(f"line {n} is no event", hint='such as {"type": "opened", "data": {}}')
    return Append(stream, item["type"], item.get("at", stamp), item["data"], globally=globally)


@command("read")
@click.argument("stream", required=False)
@click.option("--global", "is_global", is_flag=True, help="Read the global order instead of a stream.")
@click.option("--first", type=int, default=1, metavar="N", help="From this seq on (with --global: position).")
@click.option("--last", type=int, metavar="N", help="Up to this seq (with --global: position).")
@click.option("--type", "type_", metavar="TYPE", help="Only events of this type.")
@click.option("--since", metavar="JSON", help="Only events whose `at` is this or later.")
@click.option("--until", metavar="JSON", help="Only events whose `at` is this or earlier.")
@click.option("--limit", type=int, metavar="N", help="At most this many.")
@store_options
def read_(
    target: Target,
    as_json: bool,
    stream: str | None,
    is_global: bool,
    first: int,
    last: int | None,
    type_: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
) -> None:
    """Print the stored events of STREAM, oldest first; with --json one JSON object a line.

    For example: strandline persist read cart-1 --first 1 --limit 10 --store events.db
    """
    if limit is not None:
        check_limit(limit)
    start = None if since is None else parse_at(since, "--since")
    end = None if until is None else parse_at(until, "--until")
    if is_global:
        if stream is not None or type_ is not None or since is not None or until is not None:
            raise UsageError("--global takes --first, --last and --limit only", hint="leave the others out")
        with target.opened() as b:
            for position, event in islice(global_events(b, first=first), limit):
                if last is not None and position > last:
                    break
                print_positioned(position, event, as_json)
        return
    with target.opened() as b:
        found = events(
            b, _named(stream), first=first, last=last, type=type_, start=start, end=end, limit=limit
        )
        for event in found:
            print_event(event, as_json)


@command("follow")
@click.argument("stream", required=False)
@click.option("--global", "is_global", is_flag=True, help="Follow the global order instead of a stream.")
@click.option("--consumer", "name", metavar="NAME", help="Go on from this durable cursor, and move it.")
@click.option(
    "--from", "first", type=int, metavar="N", help="From this seq on; sets the cursor of --consumer."
)
@click.option("--limit", type=int, metavar="N", help="End after this many.")
@store_options
def follow_(
    target: Target,
    as_json: bool,
    stream: str | None,
    is_global: bool,
    name: str | None,
    first: int | None,
    limit: int | None,
) -> int:
    """Print the events of STREAM from the first one on, then each as it comes; Ctrl-C ends it.

    With --consumer what was printed is acknowledged page by page: after a crash the last page may come again.

    For example: strandline persist follow --global --consumer mailer --store events.db
    """
    if limit is not None:
        check_limit(limit)
    if is_global and stream is not None:
        raise UsageError("both STREAM and --global", hint="leave one out")
    followed = GLOBAL if is_global else _named(stream)
    start = None if first is None else max(first, 1) - 1
    most = sys.maxsize if limit is None else limit
    with target.opened(create=name is not None) as b, suppress(KeyboardInterrupt):
        if name is not None:
            return _follow_as_consumer(b, name, followed, start, most, as_json)
        _follow(b, followed, start or 0, most, as_json)
    return 0


def _follow(b: AtomicBackend, stream: str, seq: int, left: int, as_json: bool) -> None:
    """Print what follows `seq`. What was truncated before is left out; a truncation under way raises."""
    seq, is_under_way = max(seq, b.truncated_through(stream)), False
    while left > 0:
        page = _page_after(b, stream, seq, min(left, PAGE), is_under_way=is_under_way)
        if page:
            _print_page(page, as_json)
            left, seq, is_under_way = left - len(page), _place(page[-1]), True
        else:
            b.wait(stream, seq, timeout_s=_WAIT_S)


def _page_after(
    b: AtomicBackend, stream: str, seq: int, limit: int, *, is_under_way: bool
) -> list[Event | tuple[int, Event | Compacted]]:
    """What follows `seq`, every event of it. Raise HistoryGap or EventCorrupt if some are gone."""
    if stream == GLOBAL:
        return [*global_page(b, seq + 1, limit)]
    page = [*b.read_range(stream, seq + 1, MAX_SEQ, limit=limit)]
    if not page or not follows_on(page, seq + 1):
        page = past_gap(b, stream, page, seq + 1, MAX_SEQ, has_begun=is_under_way)
    return [*page[:limit]]


def _follow_as_consumer(
    b: AtomicBackend, name: str, stream: str, start: int | None, left: int, as_json: bool
) -> int:
    cursor = consumer(b, name, stream, start=start)
    while left > 0:
        page = poll(cursor, limit=min(left, PAGE), timeout_s=_WAIT_S)
        if page:
            _print_page(page, as_json)
            outcome = ack(cursor, _place(page[-1]))  # a crash before it: the page comes again
            if isinstance(outcome, Conflict):
                return print_conflict("strandline persist follow", outcome, as_json)
            left -= len(page)
    return 0


def _place(item: "Event | tuple[int, Event | Compacted]") -> int:
    return item.seq if isinstance(item, Event) else item[0]


def _print_page(page: "Sequence[Event | tuple[int, Event | Compacted]]", as_json: bool) -> None:
    for item in page:
        if isinstance(item, Event):
            print_event(item, as_json)
        else:
            print_positioned(*item, as_json)
    sys.stdout.flush()


def _named(stream: str | None) -> str:
    if stream is None:
        raise UsageError("STREAM is missing", hint="name a stream, or --global")
    return check_name("stream", stream)


@command("streams")
@click.option("--prefix", default="", metavar="TEXT", help="Only those that start so.")
@click.option("--all", "is_all", is_flag=True, help="Also those that the store keeps for itself.")
@click.option("--limit", type=int, metavar="N", help="At most this many.")
@store_options
def streams_(target: Target, as_json: bool, prefix: str, is_all: bool, limit: int | None) -> None:
    """List the streams: name, last seq, and how far they are truncated.

    For example: strandline persist streams --prefix cart- --store events.db
    """
    left = sys.maxsize if limit is None else check_limit(limit)
    after, is_first = "", True
    with target.opened() as b:
        while left > 0 and (page := b.stream_scan(prefix, after=after, limit=PAGE)):
            after = page[-1].name
            heads = [head for head in page if is_all or not is_reserved(head.name)][:left]
            left -= len(heads)
            if as_json:
                for head in heads:
                    print_json(head._asdict())
            elif heads:
                print_table(("STREAM", "LAST SEQ", "TRUNCATED THROUGH"), heads, with_headers=is_first)
                is_first = False
