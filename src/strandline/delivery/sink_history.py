"""What became of a sink, event by event, and how everything stood at a past time.

An event's `at` is when its writer, by its own clock, decided it. So "at time T" means: all that was committed
up to the last event that was written at or before T. That is a piece of the one order in which everything was
committed, never a choice out of it: where the clocks of two machines differ, an event that one of them dated
a little after T may be in it, and no effect is ever there without its cause.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from strandline.errors import HistoryGap, NotFoundError
from strandline.persist import Event, global_events
from strandline.rows.dataset import Strand
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.node_state import Standing
from strandline.state.sink_progress import instance_stream, sink_stream
from strandline.state.sink_progress_fold import Lines

_SHOWN = 80  # of a text that others wrote


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a sink. `strand` is None for one of the instance as a whole."""

    at: int
    strand: Strand | None
    seq: int
    type: str
    text: str
    event: Event


class _Placed(NamedTuple):
    at: int
    stream: str
    seq: int
    moment: Moment


def history(
    site: Site,
    instance: str,
    *,
    dataset: str | None = None,
    source: str | None = None,
    since: int | None = None,
    until: int | None = None,
) -> Iterator[Moment]:
    """The events of an instance and of its strands, oldest first; those in [since, until] (UTC microseconds)
    where that is given. With a dataset or source only the strands that it names, and not the instance.

    It costs what those streams hold.
    """
    lines = site.standing.lines()
    streams: list[tuple[Strand | None, str]] = []
    if dataset is None and source is None:
        streams.append((None, instance_stream(instance)))
    streams += [
        (strand, sink_stream(instance, strand.dataset, strand.source))
        for strand in sorted(lines.of(instance))
        if dataset in (None, strand.dataset) and source in (None, strand.source)
    ]
    merged = heapq.merge(*(_placed(site, strand, stream) for strand, stream in streams))
    for placed in merged:
        at = placed.moment.at
        if (since is None or since <= at) and (until is None or at <= until):
            yield placed.moment


def _placed(site: Site, strand: Strand | None, stream: str) -> Iterator[_Placed]:
    """A stream keeps its own order, also where a clock went back."""
    newest = 0
    for event in past_events(site, stream):
        newest = max(newest, int(event.at))
        moment = Moment(int(event.at), strand, event.seq, event.type, told(event), event)
        yield _Placed(newest, stream, event.seq, moment)


# In words


def told(event: Event) -> str:
    """What an event of a sink says, as a line for people. One that cannot be understood says that."""
    data: Any = event.data
    try:
        return _told(event.type, data)
    except (TypeError, ValueError, KeyError, AttributeError):
        return "cannot be understood"


def _told(type_: str, data: Any) -> str:
    match type_:
        case "opened":
            return f"first seen, delivers to {data['fingerprint']}"
        case "bound":
            return f"now delivers to {data['fingerprint']} ({data['how']}): {data['reason']:.{_SHOWN}}"
        case "forgotten":
            return f"forgotten, owed nothing: {data['reason']:.{_SHOWN}}"
        case "started":
            return f"begins after {data['mark']:,}"
        case "intended":
            return _intended(data)
        case "delivered":
            return _delivered(data)
        case "failed":
            again = "is asked to wait" if data["is_pace"] else "failed"
            text = f"{again} at {_span(data)}, try {data['attempts']:,}: {data['kind']}"
            return f"{text}: {data['text']:.{_SHOWN}}" if data["text"] else text
        case "lettered":
            return f"gave up {_span(data)}, {data['rows']:,} rows: {data['kind']}"
        case "settled":
            return f"dead letter {data['letter']:,} {data['how']}: {data['reason']:.{_SHOWN}}"
        case "passed":
            return f"passed {_span(data)}: {data['reason']:.{_SHOWN}}"
        case "evicted":
            return f"retention took up to {data['rows']:,} rows of {_span(data)} before they were delivered"
        case "held":
            return f"held: {data['kind']}: {data['text']:.{_SHOWN}}"
        case "resumed":
            return f"goes on: {data['reason']:.{_SHOWN}}"
        case "moved":
            gave_up = ", the open intent given up" if data["aborts"] else ""
            return f"line put at {data['mark']:,}{_of(data['epoch'])}{gave_up}: {data['reason']:.{_SHOWN}}"
    return "of a kind that is not known here"


def _intended(data: Any) -> str:
    if data["ranges"] is not None:
        rows = sum(hi - lo for lo, hi in data["ranges"])
        return f"intends to release {rows:,} seqs{_of(data['epoch'])}"
    return f"intends {_span(data)}{_of(data['epoch'])}, {data['unit_rows']:,} rows a unit"


def _delivered(data: Any) -> str:
    units = data["units"]
    said = []
    if units:
        rows = sum(unit[2] for unit in units)
        said.append(f"{rows:,} rows in {len(units):,} units up to {max(unit[1] for unit in units):,}")
    for name, words in (("known", "known there"), ("void", "without rows"), ("withheld", "withheld")):
        if data[name]:
            said.append(f"{sum(hi - lo for lo, hi in data[name]):,} seqs {words}")
    return f"delivered {'; '.join(said) or 'nothing'}"


def _span(data: Any) -> str:
    return f"({data['lo']:,}, {data['hi']:,}]"


def _of(epoch: int) -> str:
    return f" in epoch {epoch}" if epoch else ""


# At a past time


class HistoryFolded(NotFoundError):
    """How everything stood at a time cannot be told any more: its events were folded into how it stood
    later."""

    def __init__(self, at: int) -> None:
        when = datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="seconds")
        super().__init__(
            f"how it stood at {when} is not known any more: history from then is folded",
            hint="ask for a time within the last 30 days; `strandline sink history` still has each event",
        )
        self.at = at


def position_at(site: Site, at: int) -> int:
    """How far the global order had come at a time (UTC microseconds); 0 before its first event. It reads all
    of the order that is there; HistoryFolded where that begins later."""
    folded = site.b.truncated_through("$global")
    found = 0
    for position, event in global_events(site.b, first=folded + 1):
        if isinstance(event, Event) and int(event.at) <= at:
            found = position
    if folded and not found:
        raise HistoryFolded(at)
    return found


def standing_at(site: Site, at: int) -> Standing:
    """Everything as it stood at a time: strands, flushes and sinks. It never catches up any further."""
    standing = Standing(site.b, until=position_at(site, at))
    try:
        standing.catch_up()
    except HistoryGap as error:
        raise HistoryFolded(at) from error
    return standing


def lines_at(site: Site, at: int) -> Lines:
    """How far each sink had got at a time."""
    return standing_at(site, at).lines()
