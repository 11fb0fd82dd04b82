"""How a node stands, as one value: what is pending, landed and delivered, what is wrong, and what repairs it.

It comes from the store and the configuration alone. No table is looked at, nothing is asked of a destination,
nothing is written, and Spark is not imported. The same holds for a time that is past: the store keeps events,
so how it stood then can be told, with the configuration of now.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from strandline.base.ranges import Range
from strandline.config.config import Config
from strandline.config.sinks import SinkConfig
from strandline.delivery.owed import numbered_at
from strandline.delivery.result import NOT_TAKEN
from strandline.delivery.sink_history import standing_at
from strandline.ingest.quarantine import entries
from strandline.maintenance.dataset_status import (
    CompactionStatus,
    RetentionStatus,
    compaction_status,
    retention_status,
)
from strandline.rows.dataset import Strand
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.flush_plan import flush_stream
from strandline.state.pending_rows import pending
from strandline.state.sink_progress import SinkProgress, SinkStop, Trouble
from strandline.state.sink_progress_fold import UNREADABLE
from strandline.state.strand_entries import Lost, entry_of
from strandline.state.strand_state import StrandState

Health = Literal["ok", "degraded", "held", "failed"]

VERSION: Final = 1
_LEVELS: Final[tuple[Health, ...]] = ("ok", "degraded", "held", "failed")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is not as it should be, and the command that repairs it, or shows how."""

    level: Health
    kind: str
    text: str
    repair: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows (lo, hi] of a source that wait for a damaged segment, or were given up with it."""

    source: str
    segment: str
    lo: int
    hi: int
    reason: str


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """Times are UTC microseconds. `flushed_at` and `oldest_pending_at` are None where there is none."""

    dataset: str
    schema_version: int
    strands: int
    pending_rows: int
    pending_bytes: int
    oldest_pending_at: int | None
    oldest_pending_s: float | None
    quarantined: int
    held: tuple[Gap, ...]
    lost: tuple[Gap, ...]
    last_flush: int
    visible_flush: int
    flushed_at: int | None
    open_flush: int | None
    open_loads: tuple[int, ...]
    retention: RetentionStatus
    compaction: CompactionStatus
    counters: Mapping[str, int]  # what was ever done, by name: they only grow


@dataclass(frozen=True, slots=True)
class IntentStatus:
    """The rows (lo, hi] that are under way, and up to where they are known to have arrived."""

    lo: int
    hi: int
    done_through: int


@dataclass(frozen=True, slots=True)
class StrandStatus:
    """How far a sink is on a strand. `lag_s` is the age of the oldest row that is visible and not delivered,
    0 where there is none, None where the ledger does not know it any more."""

    dataset: str
    source: str
    line: int
    visible_through: int
    lag_rows: int
    lag_s: float | None
    delivered_at: int | None
    trouble: Trouble | None
    hold: SinkStop | None
    intent: IntentStatus | None
    rows: int
    bytes: int
    withheld: int
    dead_letters: int
    evicted: int


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """`type` and `schedule` are None for a sink that is recorded and not configured any more."""

    sink: str
    type: str | None
    enabled: bool
    destination: str
    schedule: str | None
    next_due_at: int | None
    hold: SinkStop | None
    strands: tuple[StrandStatus, ...]
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    at: int
    causes: tuple[Cause, ...]
    datasets: tuple[DatasetStatus, ...]
    sinks: tuple[SinkStatus, ...]
    notes: tuple[str, ...] = ()  # what is odd in the configuration: no cause of anything yet
    backfills: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # counters by provider

    @property
    def health(self) -> Health:
        return max((each.level for each in self.causes), key=_LEVELS.index, default="ok")


def status_of(config: Config, site: Site, *, at: int | None = None) -> Status:
    """How it stands now, or stood at a time (UTC microseconds)."""
    if at is not None:
        site = replace(site, standing=standing_at(site, at))
    now = site.clock.now_us() if at is None else at
    names = sorted({*config.sinks, *site.standing.lines().instances()})
    datasets = tuple(
        _dataset(config, site, name, now, is_past=at is not None) for name in site.standing.datasets()
    )
    sinks = tuple(_sink(config.sinks.get(name), site, name, now) for name in names)
    causes = [cause for each in datasets for cause in _dataset_causes(each, config)]
    for each in sinks:
        causes += _sink_causes(each, config.sinks.get(each.sink))
    causes.sort(key=lambda cause: -_LEVELS.index(cause.level))
    counts = site.standing.counts()
    backfills = {name: counts.of("provider", name) for name in counts.providers()}
    return Status(now, tuple(causes), datasets, sinks, config.warnings, backfills)


# Datasets


def _dataset(config: Config, site: Site, dataset: str, now: int, *, is_past: bool) -> DatasetStatus:
    standing = site.standing
    waiting, numbers, strand_states = (
        standing.pending(dataset),
        standing.numbers(dataset),
        standing.strand_states(dataset),
    )
    firsts = (
        next(pending(site.b, Strand(dataset, source), strand_state), None)
        for source, strand_state in waiting.items()
    )
    oldest = min((first.at for first in firsts if first is not None), default=None)
    counters = standing.counts().of("dataset", dataset)
    kinds = {number: _opening(site, dataset, event) for number, event in numbers.open.items()}
    return DatasetStatus(
        dataset,
        standing.schema_event(dataset),
        len(strand_states),
        sum(each.pending_rows for each in waiting.values()),
        sum(each.pending_bytes for each in waiting.values()),
        oldest,
        None if oldest is None else _seconds(now - oldest),
        sum(each.count for each in entries(site.b, dataset, until=now)),
        tuple(
            Gap(source, hold.segment, hold.lo, hold.hi, hold.reason)
            for source, strand_state in sorted(waiting.items())
            for hold in strand_state.holds
        ),
        tuple(
            gap
            for source, strand_state in sorted(strand_states.items())
            for gap in _lost(site, dataset, source, strand_state)
        ),
        numbers.last,
        numbers.visible,
        numbers.flushed_at or None,
        next((number for number, kind in kinds.items() if kind == "planned"), None),
        tuple(number for number, kind in kinds.items() if kind == "loading"),
        retention_status(config, site, dataset, now, is_past=is_past),
        compaction_status(site, dataset, is_past=is_past),
        counters,
    )


def _opening(site: Site, dataset: str, event: int) -> str | None:
    found = site.b.event_at(flush_stream(dataset), event)
    return None if found is None else found.type


def _lost(site: Site, dataset: str, source: str, strand_state: StrandState) -> Iterator[Gap]:
    """Yield the gaps of a strand. Its state knows where rows are missing; only the ledger says why."""
    for event in past_events(site, Strand(dataset, source).ledger) if strand_state.empty.ranges else ():
        if event.type == "lost":
            entry = entry_of(event)
            assert isinstance(entry, Lost)
            if strand_state.empty.covers(Range(entry.lo, entry.hi)):  # by then
                yield Gap(source, entry.segment, entry.lo, entry.hi, entry.reason)


def _dataset_causes(each: DatasetStatus, config: Config) -> Iterator[Cause]:
    for segment in sorted({gap.segment for gap in each.held}):
        rows = sum(gap.hi - gap.lo for gap in each.held if gap.segment == segment)
        text = f"{rows:,} rows of {each.dataset} wait for damaged segment {segment}"
        put_back = f"put it back from a copy and `strandline flush {each.dataset}`"
        repair = f"{put_back}, or `strandline spool lost {segment}`"
        yield Cause("held", "segment_held", text, repair)
    if each.quarantined:
        text = f"{each.quarantined:,} rows of {each.dataset} are in quarantine"
        yield Cause("degraded", "quarantine", text, f"`strandline spool quarantine list {each.dataset}`")
    yield from _retention_causes(each.dataset, each.retention, config)
    if failed := [found for found in each.compaction.left if found.is_failed]:
        text = f"{len(failed):,} parts of the table of {each.dataset} cannot be rewritten: {failed[0].reason}"
        repair = f"`strandline maintain {each.dataset} --force` tries them again"
        yield Cause("degraded", "compaction_failed", text, repair)


def _retention_causes(dataset: str, found: RetentionStatus, config: Config) -> Iterator[Cause]:
    if found.is_open:
        text = f"a run that takes rows out of {dataset} was cut short, or is under way"
        yield Cause("degraded", "retention_open", text, f"`strandline retention run {dataset}`")
    for sink, rows in sorted(found.held.items()):
        limit = ", over the limit of [retention]" if found.is_over_limit else ""
        text = f"up to {rows:,} rows of {dataset} could go and wait for sink {sink}{limit}"
        if config.sinks[sink].enabled:
            repair = f"`strandline sync {sink}`"
        else:
            text += ", which is not enabled"
            repair = f"write `enabled = true` in [sinks.{sink}], or take it out of the configuration"
        yield Cause("degraded", "retention_blocked", text, repair)


# Sinks


def _sink(configured: SinkConfig | None, site: Site, name: str, now: int) -> SinkStatus:
    lines = site.standing.lines()
    instance, strands = lines.instance(name), set(lines.of(name))
    strand_states = {dataset: site.standing.strand_states(dataset) for dataset in site.standing.datasets()}
    # One that starts with what comes is owed nothing before it has begun.
    if configured is not None and (instance.is_open or configured.start == "all"):
        for dataset in filter(configured.takes, strand_states):
            strands |= {Strand(dataset, source) for source in strand_states[dataset]}

    def strand(each: Strand) -> StrandStatus:
        strand_state = strand_states.get(each.dataset, {}).get(each.source, StrandState())
        return _strand(site, each, lines.line(name, each), strand_state, now)

    is_on = configured is not None and configured.enabled
    due = configured.cron.next_after(_time(now)) if configured is not None and is_on else None
    return SinkStatus(
        name,
        configured.type if configured else None,
        is_on,
        instance.fingerprint,
        configured.schedule if configured else None,
        None if due is None else (due - _EPOCH) // timedelta(microseconds=1),
        instance.hold,
        tuple(map(strand, sorted(strands))),
        site.standing.counts().of("sink", name),
    )


def _strand(
    site: Site, strand: Strand, line: SinkProgress, strand_state: StrandState, now: int
) -> StrandStatus:
    since = max(line.mark, strand_state.bare)
    owed = [
        hole
        for each in strand_state.empty.holes(Range(since, max(since, strand_state.visible_through)))
        for hole in line.done.holes(each)
    ]
    oldest = numbered_at(site.b, strand, owed[0].lo + 1) if owed else now
    intent = line.intent
    left = line.left()
    return StrandStatus(
        strand.dataset,
        strand.source,
        line.mark,
        strand_state.visible_through,
        sum(map(len, owed)),
        None if oldest is None else _seconds(now - oldest),
        line.at or None,
        line.trouble,
        line.hold,
        None if intent is None else IntentStatus(intent.lo, intent.hi, left[0].lo if left else intent.hi),
        line.rows,
        line.bytes,
        len(line.withheld),
        len(line.letters),
        line.evicted,
    )


def _sink_causes(each: SinkStatus, configured: SinkConfig | None) -> Iterator[Cause]:
    name = each.sink
    if letters := sum(strand.dead_letters for strand in each.strands):
        text = f"sink {name}: {letters:,} dead letters wait for a decision"
        yield Cause("degraded", "dead_letter", text, f"`strandline dlq list {name}`")
    if configured is None or not each.enabled:
        return
    if each.hold is not None:
        text = f"sink {name}: {each.hold.kind}: {each.hold.text}"
        is_damage = each.hold.kind == UNREADABLE
        repair = f"`strandline sink bind {name} --keep`" if is_damage else f"`strandline sync {name}`"
        yield Cause("failed" if is_damage else "held", each.hold.kind, text, repair)
    yield from _held_causes(each, configured)
    yield from _trouble_causes(each)
    owed = [strand for strand in each.strands if configured.takes(strand.dataset)]
    late = [strand for strand in owed if strand.lag_s is None or strand.lag_s > configured.max_lag_s]
    if late:
        lag_s = max(strand.lag_s or 0 for strand in late)
        where = f"{late[0].dataset}/{late[0].source}" if len(late) == 1 else f"{len(late):,} strands"
        text = f"sink {name}: {where} up to {lag_s:,.0f} s late, over max_lag_s = {configured.max_lag_s:,.0f}"
        yield Cause("degraded", "lag", text, f"`strandline sync {name}`")


def _held_causes(each: SinkStatus, configured: SinkConfig) -> Iterator[Cause]:
    for strand in each.strands:
        if strand.hold is None:
            continue
        if strand.hold.kind == NOT_TAKEN and not configured.takes(strand.dataset):
            continue  # it was left out since
        kind, place = strand.hold.kind, f"{strand.dataset} --source {strand.source}"
        text = f"sink {each.sink}: {strand.dataset}/{strand.source}: {kind}: {strand.hold.text}"
        if kind == UNREADABLE:
            yield Cause("failed", kind, text, f"`strandline sink rewind {each.sink} {place} --abort-intent`")
        elif kind == NOT_TAKEN:
            repair = f"`exclude` in [sinks.{each.sink}]; `strandline sync {each.sink}` if it can take it now"
            yield Cause("held", kind, text, repair)
        else:
            yield Cause("held", kind, text, f"`strandline sync {each.sink}`")


def _trouble_causes(each: SinkStatus) -> Iterator[Cause]:
    """Where a destination asked for a pause nothing has failed. Where no strand gets through the sink has."""
    owed = [strand for strand in each.strands if strand.lag_rows and strand.hold is None]
    failing: dict[str, list[StrandStatus]] = {}
    for strand in each.strands:
        if strand.trouble is not None and not strand.trouble.is_pace and strand.hold is None:
            failing.setdefault(strand.trouble.kind, []).append(strand)
    is_whole = sum(map(len, failing.values())) >= len(owed)
    for kind, strands in sorted(failing.items()):
        first = strands[0]
        assert first.trouble is not None
        where = f"{first.dataset}/{first.source}" if len(strands) == 1 else f"{len(strands):,} strands"
        text = f"sink {each.sink}: {where}: {kind} at try {first.trouble.attempts:,}: {first.trouble.text}"
        yield Cause("failed" if is_whole else "degraded", kind, text, f"`strandline sync {each.sink}`")


def _seconds(us: int) -> float:
    return max(us, 0) / 1e6


def _time(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
