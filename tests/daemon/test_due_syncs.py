"""What a driver starts, when, and how often: over the real store, the real delivery and flush code, and a
clock that a test moves."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from strandline.base.clock import SystemClock
from strandline.config.config import FILE_NAME, load_config
from strandline.daemon import due_syncs as driving
from strandline.daemon.due_syncs import STOP_S, Driver, Ended, Tick
from strandline.delivery.api import Deliveries
from strandline.delivery.instance import DestinationChanged
from strandline.delivery.result import SyncResult
from strandline.errors import StoreUnavailable
from strandline.flush.flush import FlushReport, flush
from strandline.ingest.append import append
from strandline.node.status import status_of
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Outcome, Patience, Sink, Unit
from strandline.state.context import Site
from strandline.state.flush_plan import Reason
from strandline.state.lease import LeaseHeld, take_lease
from tests.delivery.destinations import Keys, Server, ServerSink, TableCourier
from tests.simulation import DATASET, World

MINUTE = "* * * * *"
NIGHTLY = "0 2 * * *"
TIMEOUT_S = 30


@dataclass(slots=True)
class StallingServer(Server):
    """One that does not answer until it is let go."""

    gate: threading.Event = field(default_factory=threading.Event)
    in_flight: int = 0
    most: int = 0
    asked: threading.Event = field(default_factory=threading.Event)

    def post(self, unit: Unit, keys: Keys, lo: int, hi: int) -> Outcome:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.asked.set()
        assert self.gate.wait(TIMEOUT_S)
        self.in_flight -= 1
        return Server.post(self, unit, keys, lo, hi)


class Wired(Deliveries):
    """The sinks of a configuration, with destinations in memory."""

    wired: Mapping[str, Sink]

    def sink(self, name: str) -> Sink:
        return self.wired[name]


class Bench:
    """A node with a sink for each schedule, and a driver of it."""

    def __init__(self, folder: Path, schedules: Mapping[str, str]) -> None:
        self.world = World(0)
        self.world.is_calm = True
        self.site = self.world.site()
        text = "version = 1\n" + "".join(
            f'[sinks.{name}]\ntype = "forward"\nurl = "http://{name}.example"\nschedule = "{schedule}"\n'
            for name, schedule in schedules.items()
        )
        (folder / FILE_NAME).write_text(text)
        self.config = load_config(folder / FILE_NAME)
        self.sinks = {name: ServerSink(Server(self.world), place=name) for name in schedules}
        self.courier = TableCourier(self.world)
        self.ended: list[Ended] = []
        self.flushes: list[Reason] = []
        self.is_broken = False
        self.drivers: list[Driver] = []
        self.driver = self.started()

    def started(self, site: Site | None = None) -> Driver:
        """As a process does when it starts."""
        site = site or self.world.site()
        deliveries = Wired(self.config, site, lambda: self.courier)
        deliveries.wired = self.sinks
        made = Driver(site, deliveries, self._flush, self.ended.append)
        self.drivers.append(made)
        return made

    def _flush(self, dataset: str, reason: Reason) -> FlushReport:
        self.flushes.append(reason)
        if self.is_broken:
            raise StoreUnavailable("no Spark", hint="later")
        return flush(self.site, self.world.table, dataset, reason=reason, timeout_s=0)

    def append(self, first: int, last: int, source: str = "web-1") -> None:
        rows = [{"key": str(number)} for number in range(first, last + 1)]
        append(self.site, DATASET, rows, source=source)

    def land(self, first: int, last: int, source: str = "web-1") -> None:
        self.append(first, last, source)
        flush(self.site, self.world.table, DATASET)

    def at(self, text: str) -> None:
        self.world.now_us = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000

    def later(self, seconds: float) -> None:
        self.world.now_us += int(seconds * 1_000_000)

    def tick(self) -> Tick:
        """A tick, and all that it began."""
        tick = self.driver.tick()
        assert self.driver.wait(TIMEOUT_S) == []
        return tick

    def mark(self, instance: str = "centre") -> int:
        return self.site.standing.lines().line(instance, Strand(DATASET, "web-1")).mark

    def results(self) -> list[SyncResult]:
        return [each.result for each in self.ended if isinstance(each.result, SyncResult)]

    def errors(self) -> list[Exception]:
        return [each.result for each in self.ended if isinstance(each.result, Exception)]


Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Benches, whose drivers are stopped in the end."""
    made: list[Bench] = []

    def bench(**schedules: str) -> Bench:
        made.append(Bench(tmp_path, schedules))
        return made[-1]

    yield bench
    for each in made:
        for driver in each.drivers:
            assert driver.stop() == []


def server_of(bench: Bench, name: str = "centre") -> Server:
    return bench.sinks[name].server


def stall(bench: Bench, name: str = "centre") -> StallingServer:
    server = StallingServer(bench.world)
    bench.sinks[name] = ServerSink(server, place=name)
    return server


def keys(server: Server) -> list[str]:
    return [key for _, key in server.rows]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


# By schedule


def test_a_sink_is_due_at_each_minute_of_its_schedule_and_not_between(make: Make) -> None:
    """L-DRV-1."""
    bench = make(centre=MINUTE)
    bench.at("2024-05-01T10:00:30")
    assert bench.tick().runs == ("centre",)  # it never ran
    bench.later(29)
    assert bench.tick().runs == ()
    bench.later(1)
    assert bench.tick().runs == ("centre",)
    assert bench.tick().runs == ()


def test_a_nightly_run_whose_minute_no_tick_saw_happens_once(make: Make) -> None:
    """F-32, L-DRV-1: the clock jumps over 02:00."""
    bench = make(centre=NIGHTLY)
    bench.at("2024-05-01T12:00:00")
    bench.tick()
    bench.land(1, 3)
    bench.at("2024-05-02T01:59:59")
    assert bench.tick().runs == ()
    bench.at("2024-05-02T09:30:00")
    assert bench.tick().runs == ("centre",)
    assert keys(server_of(bench)) == numbers(1, 3)
    for _ in range(3):
        bench.later(3600)
        assert bench.tick().runs == ()


def test_many_missed_runs_become_one(make: Make) -> None:
    """L-DRV-1."""
    bench = make(centre=MINUTE)
    bench.tick()
    bench.later(86_400)
    assert [bench.tick().runs, bench.tick().runs] == [("centre",), ()]


def test_after_a_restart_a_run_that_delivered_is_known_and_an_idle_one_is_looked_at_once_more(
    make: Make,
) -> None:
    """L-DRV-1, L-COST-1."""
    bench = make(centre=NIGHTLY)
    bench.at("2024-05-02T02:00:00")
    bench.land(1, 3)
    bench.tick()
    bench.at("2024-05-02T09:00:00")
    bench.driver = bench.started()
    assert bench.tick().runs == ()  # what it delivered is in the store
    bench.at("2024-05-03T02:00:00")
    assert bench.tick().runs == ("centre",)  # nothing new
    bench.at("2024-05-03T09:00:00")
    bench.driver = bench.started()
    assert [bench.tick().runs, bench.tick().runs] == [("centre",), ()]
    assert [each.status for each in bench.results()] == ["exported", "idle", "idle"]


def test_a_clock_that_goes_back_stops_no_schedule(make: Make) -> None:
    """L-DRV-1."""
    bench = make(centre=MINUTE)
    bench.at("2024-05-02T02:00:00")
    bench.tick()
    bench.at("2024-05-01T02:00:00")
    bench.tick()
    bench.later(60)
    assert bench.tick().runs == ("centre",)


def test_a_sink_that_is_off_never_runs(make: Make, tmp_path: Path) -> None:
    bench = make(centre=MINUTE)
    text = (tmp_path / FILE_NAME).read_text()
    (tmp_path / FILE_NAME).write_text(text + "enabled = false\n")
    bench.config = load_config(tmp_path / FILE_NAME)
    bench.driver = bench.started()
    assert bench.tick() == Tick()


# One at a time


def test_a_server_that_stalls_gets_one_request_however_often_it_ticks(make: Make) -> None:
    """F-31, L-DRV-2: three minutes, a tick each second; overlapping ones are skipped and counted."""
    bench = make(centre=MINUTE)
    server = stall(bench)
    bench.at("2024-05-01T10:00:00")
    bench.land(1, 3)
    assert bench.driver.tick().runs == ("centre",)
    assert server.asked.wait(TIMEOUT_S)
    skipped = 0
    for _ in range(180):
        bench.later(1)
        tick = bench.driver.tick()
        assert tick.runs == ()
        skipped += len(tick.skipped)
    assert (server.in_flight, server.most, skipped, bench.driver.ticks_skipped) == (1, 1, 3, 3)
    server.gate.set()
    assert bench.driver.wait(TIMEOUT_S) == []
    assert keys(server) == numbers(1, 3)
    assert bench.tick().runs == ("centre",)  # the runs that were missed meanwhile, as one
    assert keys(server) == numbers(1, 3)


def test_a_sink_that_another_process_delivers_is_skipped_counted_once_and_due_until_that_is_over(
    make: Make,
) -> None:
    """L-DRV-2: across processes, by the lease."""
    bench = make(centre=NIGHTLY)
    bench.at("2024-05-02T02:00:00")
    bench.land(1, 3)
    lease = take_lease(bench.site.b, bench.site.clock, "sink/centre")
    for _ in range(5):
        bench.tick()
        bench.later(1)
    assert bench.driver.ticks_skipped == 1
    assert [type(each) for each in bench.errors()] == [LeaseHeld]
    lease.release()
    bench.tick()
    assert keys(server_of(bench)) == numbers(1, 3)
    assert bench.tick().runs == ()


def only_centre_is_on(bench: Bench) -> None:
    """The other run has ended: its mark moves a little before its thread does."""
    until = time.monotonic() + TIMEOUT_S
    while (on := bench.driver.wait(0.05)) != ["sink centre"] and time.monotonic() < until:
        pass
    assert on == ["sink centre"]


def test_a_destination_that_hangs_delays_no_other(make: Make) -> None:
    """L-DRV-3."""
    bench = make(centre=MINUTE, archive=MINUTE)
    server = stall(bench)
    bench.land(1, 3)
    bench.driver.tick()
    assert server.asked.wait(TIMEOUT_S)
    for count in (3, 6):
        only_centre_is_on(bench)
        bench.later(60)
        bench.append(count + 1, count + 3)  # nor does it delay capture
        flush(bench.site, bench.world.table, DATASET)
        assert bench.driver.tick().runs == ("archive",)
    only_centre_is_on(bench)
    assert keys(server_of(bench, "archive")) == numbers(1, 9)
    server.gate.set()


def test_what_a_run_raises_is_told_and_stops_nothing(make: Make) -> None:
    """L-DRV-3."""
    bench = make(centre=MINUTE, archive=MINUTE)
    bench.land(1, 3)
    bench.tick()
    bench.sinks["centre"] = replace(bench.sinks["centre"], place="elsewhere")
    bench.land(4, 6)
    bench.later(60)
    bench.tick()
    assert [type(each) for each in bench.errors()] == [DestinationChanged]
    assert keys(server_of(bench, "archive")) == numbers(1, 6)


# What a tick costs, and does not do


def test_an_idle_tick_writes_nothing_and_runs_no_job(make: Make) -> None:
    """L-COST-1, L-CTL-8: a few reads of the store."""
    bench = make(centre=MINUTE)
    for number in range(20):
        bench.append(number, number, source=f"web-{number}")
    flush(bench.site, bench.world.table, DATASET)
    bench.tick()
    bench.later(60)
    jobs, before = bench.courier.jobs, dict(bench.world.counts)
    assert bench.tick().runs == ("centre",)
    after = bench.world.counts
    assert bench.courier.jobs == jobs
    assert after["commit"] == before["commit"]
    assert after["read"] + after["last_seq"] - before["read"] - before["last_seq"] <= 5


def test_no_tick_lists_the_streams_or_the_keys(make: Make) -> None:
    """L-CTL-8: neither one that finds nothing, nor one that finds new rows to deliver or to flush."""
    bench = make(centre=MINUTE)
    for number in range(20):
        bench.land(number, number, source=f"web-{number}")
    bench.tick()
    bench.later(60)
    before = bench.world.counts["listing"]
    assert bench.tick().runs == ("centre",)
    assert bench.world.counts["listing"] == before
    bench.land(20, 20)
    bench.append(21, 21)
    bench.later(120)
    bench.is_broken = True  # a flush sweeps its scratch tables, which are few
    before = bench.world.counts["listing"]
    tick = bench.tick()
    assert (tick.runs, tick.flushes) == (("centre",), (DATASET,))
    assert bench.world.counts["listing"] == before


def test_a_run_by_schedule_leaves_the_spool_alone(make: Make) -> None:
    """L-FLUSH-11."""
    bench = make(centre=MINUTE)
    bench.append(1, 3)
    assert bench.tick() == Tick(("centre",), (), ())
    assert (bench.mark(), bench.flushes) == (0, [])


def test_a_failure_is_tried_again_no_sooner_than_the_store_says_and_leaves_no_trace_after_recovery(
    make: Make,
) -> None:
    """L-DRV-8, L-DRV-10, F-29: the open intent is all that is retried, also by another process."""
    bench = make(centre=MINUTE)
    server = server_of(bench)
    server.answers = [Outcome(0, 0, "failed", kind="connection", text="no route")] * 9
    bench.sinks["centre"] = replace(bench.sinks["centre"], patient=Patience(inline_wait_s=0))
    bench.land(1, 3)
    while server.answers:
        bench.tick()
        line = bench.site.standing.lines().line("centre", Strand(DATASET, "web-1"))
        assert line.trouble is not None
        posted = len(server.requests)
        assert bench.world.now_us < line.trouble.not_before
        bench.driver = bench.started()
        bench.tick()
        assert len(server.requests) == posted  # not before its time, after a restart too
        bench.world.now_us = line.trouble.not_before
        bench.later(60)
    assert status_of(bench.config, bench.site).health == "failed"
    bench.tick()
    assert keys(server) == numbers(1, 3)
    found = status_of(bench.config, bench.site)
    assert (found.health, found.causes) == ("ok", ())
    assert found.sinks[0].strands[0].trouble is None


# Flushes


def test_rows_that_trickle_in_are_flushed_by_age_and_not_by_sinks(make: Make) -> None:
    """F-41, L-FLUSH-11, L-SPOOL-11: a row a minute for an hour, three sinks, a tick each ten seconds."""
    bench = make(centre=MINUTE, archive=MINUTE, spare=MINUTE)
    for minute in range(60):
        bench.append(minute, minute)
        for _ in range(6):
            bench.tick()
            bench.later(10)
    assert set(bench.flushes) == {"age"}
    assert len(bench.flushes) <= 31
    bench.later(120)
    bench.tick()
    bench.later(60)
    bench.tick()
    assert keys(server_of(bench)) == numbers(0, 59)


def test_a_large_spool_is_flushed_at_once(make: Make) -> None:
    """L-SPOOL-11: by size."""
    bench = make()
    spool = with_fields(bench.site.spool, flush_bytes=1)
    bench.driver = bench.started(replace(bench.site, spool=spool))
    bench.append(1, 1)
    assert bench.tick().flushes == (DATASET,)
    assert bench.flushes == ["size"]


def test_a_flush_that_fails_is_tried_again_later_and_later(make: Make) -> None:
    """Not with every tick: each try costs a Spark job."""
    bench = make()
    bench.is_broken = True
    bench.append(1, 3)
    bench.later(120)
    for _ in range(300):
        bench.tick()
        bench.later(1)
    assert 5 <= len(bench.flushes) <= 9  # after 1, 2, 4, … seconds
    assert {type(each) for each in bench.errors()} == {StoreUnavailable}
    bench.is_broken = False
    bench.later(360)
    bench.tick()
    assert bench.site.standing.strand_state(Strand(DATASET, "web-1")).visible_through == 3


# The end


def test_a_stop_ends_a_wait_and_the_intent_stays(make: Make) -> None:
    """L-DRV-9."""
    bench = make(centre=MINUTE)
    server_of(bench).answers = [Outcome(0, 0, "pace", wait_s=200.0)]
    bench.land(1, 3)
    driver = bench.started(replace(bench.world.site(), clock=SystemClock()))
    driver.tick()
    assert driver.wait(0.6) == ["sink centre"]  # it waits for the pause to be over
    before = time.monotonic()
    assert driver.stop() == []
    assert time.monotonic() - before < 2 * STOP_S  # the bound, and as much for a machine that is busy
    assert driver.tick() == Tick()
    assert bench.site.standing.lines().line("centre", Strand(DATASET, "web-1")).intent is not None


def test_a_stop_does_not_wait_for_a_request_that_hangs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-DRV-9: what is under way is named."""
    monkeypatch.setattr(driving, "STOP_S", 0.05)
    bench = make(centre=MINUTE)
    server = stall(bench)
    bench.land(1, 3)
    bench.driver.tick()
    assert server.asked.wait(TIMEOUT_S)
    assert bench.driver.stop() == ["sink centre"]
    server.gate.set()
    assert bench.driver.wait(TIMEOUT_S) == []


def test_a_stop_cancels_what_does_not_end_by_itself_and_only_that(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-DRV-9."""
    monkeypatch.setattr(driving, "STOP_S", 0.2)
    bench = make(centre=MINUTE)
    server, cancelled = stall(bench), []

    def cancel() -> None:
        cancelled.append(True)
        server.gate.set()

    deliveries = Wired(bench.config, bench.site, lambda: bench.courier)
    deliveries.wired = bench.sinks
    idle, busy = (
        Driver(bench.site, deliveries, bench._flush, bench.ended.append, cancel=cancel) for _ in range(2)
    )
    assert (idle.stop(), cancelled) == ([], [])
    bench.land(1, 3)
    busy.tick()
    assert server.asked.wait(TIMEOUT_S)
    assert (busy.stop(), cancelled) == ([], [True])
