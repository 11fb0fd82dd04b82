"""Everything that `strandline status` tells in numbers, as Prometheus reads it: `GET /metrics`.

Labels are datasets, sinks, providers and kinds of trouble, never sources: there may be a million of those. So
the page is as long as the node has datasets and sinks, however many rows.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from strandline.errors import UsageError
from strandline.observe.process_counts import RUN_COUNTERS, Live

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
except ImportError as error:
    raise UsageError(
        f"[observe] metrics needs {error.name}, which is not installed",
        hint='pip install "strandline[observe]"',
    ) from error

if TYPE_CHECKING:
    from strandline.node.status import DatasetStatus, SinkStatus, Status

FRESH_S: Final = 1.0
_LEVELS: Final = ("ok", "degraded", "held", "failed")
_HERE: Final = " Counted by this process since it started."

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float | None]]


# Counters of the store, and what each counts.
_DATASET_COUNTERS: Final = {
    "rows_spooled": "Rows that were numbered and made durable.",
    "rows_flushed": "Rows that flushes landed.",
    "rows_loaded": "Rows that loads landed.",
    "bytes_landed": "Bytes of the data files that flushes and loads wrote.",
    "files_landed": "Data files that flushes and loads wrote.",
    "flush_duplicates": "Rows that a flush or load left out as repeats.",
    "settled_drop": "Rows that a settle hook dropped.",
    "rows_quarantined": "Rows that went to quarantine.",
    "rows_lost": "Rows that were given up with a damaged segment.",
}
_SINK_COUNTERS: Final = {
    "rows_sent": "Rows that arrived.",
    "bytes_sent": "Bytes in which they arrived.",
    "units_sent": "Requests or objects that arrived.",
    "units_retried": "Tries that did not get through.",
    "duplicates_acked": "Ranges that the destination had already.",
    "rows_withheld": "Rows that stayed here by policy.",
    "dead_letters": "Units that were given up as dead letters.",
    "backpressure_wait_s": "Seconds that its destination asked strands to wait, added up.",
}
_PROVIDER_COUNTERS: Final = {
    "backfill_runs": "Runs that came to their end.",
    "backfill_written": "Rows that were written.",
    "backfill_skipped": "Rows that the node had already.",
}
_METRICS: Final = {  # else as the counter is called
    "backfill_written": "backfill_rows_written",
    "backpressure_wait_s": "backpressure_wait_seconds",
}
_RUN_ABOUT: Final = {
    "spark_jobs": "Spark jobs of runs.",
    "files_opened": "Data files that runs opened.",
    "data_bytes_read": "Sizes of the data files that runs opened.",
    "rows_read": "Rows that runs decoded.",
    "requests": "Requests that runs made.",
    "control_writes": "Writes to the store that runs made.",
}


class Metrics:
    """The page, made at most once in FRESH_S. Safe for threads."""

    def __init__(self, look: "Callable[[], Status]", live: Live) -> None:
        self._look, self._live = look, live
        self._lock = threading.Lock()
        self._made: tuple[float, bytes] | None = None

    def page(self, http: Mapping[str, int], waits: Mapping[str, int]) -> bytes:
        """`http` is what came of requests, by name; `waits` the seconds for which senders were put off, by
        why."""
        with self._lock:
            now = time.monotonic()
            if self._made is None or now - self._made[0] >= FRESH_S:
                self._made = (now, page_of(self._look(), self._live, http, waits))
            return self._made[1]


def page_of(status: "Status", live: Live, http: Mapping[str, int], waits: Mapping[str, int]) -> bytes:
    found = [
        _gauge("info", "Always 1; the version that runs.", ("version",), [((version("strandline"),), 1)]),
        *_health(status),
        *_datasets(status.datasets),
        *_sinks(status.sinks),
        *_counters(_PROVIDER_COUNTERS, "provider", status.backfills.items()),
        *_live(live),
        _counter(
            "http_requests",
            f"What came of requests that bring rows, and rows that they brought.{_HERE}",
            ("what",),
            [((what,), number) for what, number in sorted(http.items())],
        ),
        _counter(
            "http_backpressure_wait_seconds",
            f"Seconds that senders were told to wait, with 429 or 503, added up.{_HERE}",
            ("why",),
            [((why,), seconds) for why, seconds in sorted(waits.items())],
        ),
    ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(found))
    return generate_latest(registry)


class _Collected:
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield from self._found


# By what


def _health(status: "Status") -> Iterator[Metric]:
    level = _LEVELS.index(status.health)
    yield _gauge("health", "0 ok, 1 degraded, 2 held, 3 failed.", (), [((), level)])
    causes: dict[Labels, float] = {}
    for each in status.causes:
        causes[each.level, each.kind] = causes.get((each.level, each.kind), 0) + 1
    yield _gauge("causes", "Things that are not as they should be.", ("level", "kind"), causes.items())


def _datasets(datasets: "Iterable[DatasetStatus]") -> Iterator[Metric]:
    found = list(datasets)

    def gauge(name: str, about: str, read: "Callable[[DatasetStatus], float | None]") -> Metric:
        return _gauge(name, about, ("dataset",), [((each.dataset,), read(each)) for each in found])

    def counter(name: str, about: str, read: "Callable[[DatasetStatus], float]") -> Metric:
        return _counter(name, about, ("dataset",), [((each.dataset,), read(each)) for each in found])

    yield gauge("strands", "Sources that have rows, or had.", lambda each: each.strands)
    yield gauge("spool_rows", "Rows that have not landed yet.", lambda each: each.pending_rows)
    yield gauge("spool_bytes", "Bytes of rows that have not landed yet.", lambda each: each.pending_bytes)
    yield gauge(
        "spool_oldest_seconds",
        "Age of the oldest row that has not landed yet.",
        lambda each: each.oldest_pending_s or 0,
    )
    yield gauge("quarantine_rows", "Rows in quarantine now.", lambda each: each.quarantined)
    yield gauge(
        "held_rows",
        "Rows that wait for a damaged segment.",
        lambda each: sum(gap.hi - gap.lo for gap in each.held),
    )
    yield gauge("visible_flush", "The flush up to which all is visible.", lambda each: each.visible_flush)
    yield gauge(
        "last_flush_timestamp_seconds", "When rows last landed.", lambda each: _time_s(each.flushed_at)
    )
    yield gauge("open_loads", "Loads that are under way.", lambda each: len(each.open_loads))
    yield gauge("table_files", "Data files, as of the last walk.", lambda each: each.compaction.files)
    yield gauge("table_rows", "Rows, as of the last walk.", lambda each: each.compaction.rows)
    yield gauge("table_bytes", "Bytes, as of the last walk.", lambda each: each.compaction.bytes)
    yield gauge("table_snapshots", "Snapshots, as of the last walk.", lambda each: each.compaction.snapshots)
    yield _gauge(
        "retention_held_rows",
        "Rows, at most, that could go and wait for a sink.",
        ("dataset", "sink"),
        [((each.dataset, sink), rows) for each in found for sink, rows in each.retention.held.items()],
    )
    yield from _counters(_DATASET_COUNTERS, "dataset", [(each.dataset, each.counters) for each in found])
    yield _flush_seconds(found)
    yield counter("rows_evicted", "Rows that retention took out.", lambda each: each.retention.rows)
    yield counter(
        "evicted_unexported",
        "Rows that retention took out before each sink had them.",
        lambda each: each.retention.evicted,
    )
    yield counter("compactions", "Rewrites of files.", lambda each: each.compaction.compactions)
    yield counter(
        "compactions_ineffective",
        "Rewrites that left as many files as there were.",
        lambda each: each.compaction.ineffective,
    )
    yield counter(
        "rows_rewritten", "Rows that compaction rewrote.", lambda each: each.compaction.rows_rewritten
    )
    yield counter(
        "compaction_duplicates",
        "Repeats that compaction took out.",
        lambda each: each.compaction.duplicates,
    )


def _flush_seconds(datasets: "Iterable[DatasetStatus]") -> Metric:
    found = SummaryMetricFamily(
        "strandline_flush_seconds", "How long flushes took, from stage to record.", labels=("dataset",)
    )
    for each in datasets:
        found.add_metric((each.dataset,), each.counters["flushes"], each.counters["flush_ms"] / 1_000)
    return found


def _sinks(sinks: "Iterable[SinkStatus]") -> Iterator[Metric]:
    found = list(sinks)

    def gauge(name: str, about: str, read: "Callable[[SinkStatus], float | None]") -> Metric:
        return _gauge(f"sink_{name}", about, ("sink",), [((each.sink,), read(each)) for each in found])

    yield gauge("enabled", "1 where it delivers at all.", lambda each: each.enabled)
    yield gauge("strands", "Strands that it is owed, or has.", lambda each: len(each.strands))
    yield gauge("lag_rows", "Rows that it has not got yet.", lambda each: _sum(each, "lag_rows"))
    yield gauge(
        "lag_seconds",
        "Age of the oldest row that it has not got yet.",
        lambda each: max((strand.lag_s or 0 for strand in each.strands), default=0),
    )
    yield gauge(
        "lagging_strands",
        "Strands of which it has not got all yet.",
        lambda each: sum(strand.lag_rows > 0 for strand in each.strands),
    )
    yield gauge(
        "failing_strands",
        "Strands whose last try did not get through.",
        lambda each: sum(strand.trouble is not None for strand in each.strands),
    )
    yield gauge(
        "holds",
        "Strands that wait for a person, and the sink itself if it does.",
        lambda each: sum(strand.hold is not None for strand in each.strands) + (each.hold is not None),
    )
    yield gauge(
        "open_intents",
        "Ranges that are under way.",
        lambda each: sum(strand.intent is not None for strand in each.strands),
    )
    yield gauge(
        "dead_letters_waiting",
        "Dead letters that wait for a decision.",
        lambda each: _sum(each, "dead_letters"),
    )
    yield gauge(
        "last_success_timestamp_seconds",
        "When something last arrived.",
        lambda each: _time_s(max((strand.delivered_at or 0 for strand in each.strands), default=0)),
    )
    yield gauge(
        "next_due_timestamp_seconds", "When it delivers next.", lambda each: _time_s(each.next_due_at)
    )
    yield from _counters(_SINK_COUNTERS, "sink", [(each.sink, each.counters) for each in found])


def _live(live: Live) -> Iterator[Metric]:
    def counter(what: str, metric: str, about: str, labels: Labels) -> Metric:
        samples = live.counted(what).items()
        return _counter(
            metric, about + _HERE, labels, [(each[: len(labels)], number) for each, number in samples]
        )

    yield counter("runs", "sink_runs", "Runs that are over, by what came of them.", ("sink", "status"))
    yield counter("skipped", "ticks_skipped", "Runs that were due and not begun.", ("sink",))
    yield counter("errors", "errors", "Flushes, runs and chores that failed.", ("what", "name"))
    for name in RUN_COUNTERS:
        yield counter(name, name, _RUN_ABOUT[name], ("sink",))
    yield counter(
        "unknown",
        "counters_unknown",
        "Runs of which Spark did not tell a counter: what that lacks.",
        ("sink", "counter"),
    )


# How


def _counters(
    counters: Mapping[str, str], label: str, found: Iterable[tuple[str, Mapping[str, int]]]
) -> Iterator[Metric]:
    named = list(found)
    for counter, about in counters.items():
        samples = [((name,), counted[counter]) for name, counted in named]
        yield _counter(_METRICS.get(counter, counter), about, (label,), samples)


def _gauge(name: str, about: str, labels: Labels, samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(f"strandline_{name}", about, labels=labels), samples)


def _counter(name: str, about: str, labels: Labels, samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(f"strandline_{name}", about, labels=labels), samples)


def _filled(family: Any, samples: Samples) -> Metric:
    """What is not known is left out, and never 0."""
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    made: Metric = family
    return made


def _time_s(at_us: int | None) -> float | None:
    return at_us / 1e6 if at_us else None


def _sum(sink: "SinkStatus", name: str) -> int:
    return sum(getattr(strand, name) for strand in sink.strands)
