"""When providers ran, and when they are due: `backfill/<provider>`, one event at each end of a run.

    scheduled  {schedule}                  the first look at a schedule: it counts from here
    began      {run, why, since, until}    why: command, schedule or start
    ended      {run, …}                    what it did, as BackfillResult.facts has it

A run that was killed has no end. What is tied to the first start is done when a run has ended, so it is run
again; others are run by their schedule or on command.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from strandline.backfill.result import BackfillResult
from strandline.config.sources import ProviderConfig
from strandline.persist import Append, AtomicBackend, Conflict, Event, ExpectSeq
from strandline.sources.provider import Window
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseLost, holder_of

Why = Literal["command", "schedule", "start"]
_PAGE: Final = 64
_REST_US: Final = 60_000_000  # before what was cut short is begun again: what broke it may still be there
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Due(NamedTuple):
    """A provider that should run now, and why."""

    instance: str
    why: Why


def backfill_stream(instance: str) -> str:
    return f"backfill/{instance}"


def began(site: Site, lease: Lease, instance: str, run: str, why: Why, window: Window) -> None:
    since, until = (None if each is None else each.isoformat() for each in (window.since, window.until))
    _write(site, lease, instance, "began", {"run": run, "why": why, "since": since, "until": until})


def ended(site: Site, lease: Lease, instance: str, run: str, result: BackfillResult) -> None:
    _write(site, lease, instance, "ended", {"run": run, **result.facts()})


def _write(site: Site, lease: Lease, instance: str, type_: str, data: Mapping[str, Any]) -> None:
    event = Append(backfill_stream(instance), type_, site.clock.now_us(), data, globally=True)
    if isinstance(site.b.commit([lease.guard], [event]), Conflict):
        raise LeaseLost(lease.scope)


def last_ended(b: AtomicBackend, instance: str) -> Event | None:
    return next((event for event in _newest(b, instance) if event.type == "ended"), None)


def due(site: Site, providers: Mapping[str, ProviderConfig], now_us: int) -> list[Due]:
    """What is to run now, by schedule or since the node starts for the first time. It costs a small read a
    provider that has either."""
    found = []
    for instance, each in providers.items():
        if each.enabled and (why := _why(site, instance, each, now_us)) is not None:
            found.append(Due(instance, why))
    return found


def _why(site: Site, instance: str, config: ProviderConfig, now_us: int) -> Why | None:
    if config.on_start and _is_first_due(site, instance, now_us):
        return "start"
    cron = config.cron
    if cron is None:
        return None
    looked = next(
        (event for event in _newest(site.b, instance) if event.type in ("began", "scheduled")), None
    )
    if looked is None:
        _note_schedule(site, instance, config.schedule, now_us)
        return None
    # Where a clock went back, the run counts as one of now: else none would be due for as long.
    last = min(int(looked.at), now_us)
    return "schedule" if cron.due(_time(last), _time(now_us)) else None


def _is_first_due(site: Site, instance: str, now_us: int) -> bool:
    """Whether no run has come to its end yet, and none is under way."""
    last: Event | None = None
    for event in _newest(site.b, instance):
        if event.type == "ended":
            return False
        if event.type == "began" and last is None:
            last = event
    if last is None:
        return True
    has_rested = not 0 <= now_us - int(last.at) < _REST_US
    return has_rested and holder_of(site.b, site.clock, f"backfill/{instance}") is None


def _note_schedule(site: Site, instance: str, schedule: str, at: int) -> None:
    """Whoever comes second finds it noted."""
    stream = backfill_stream(instance)
    event = Append(stream, "scheduled", at, {"schedule": schedule}, globally=True)
    site.b.commit([ExpectSeq(stream, 0)], [event])


def _newest(b: AtomicBackend, instance: str) -> Iterator[Event]:
    stream = backfill_stream(instance)
    last = b.last_seq(stream)
    while last > 0:
        first = max(last - _PAGE + 1, 1)
        yield from reversed(list(b.read_range(stream, first, last, limit=_PAGE)))
        last = first - 1


def _time(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
