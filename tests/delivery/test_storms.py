"""The real delivery code and the real receiver over real HTTP, while everything between them goes wrong.

Whatever the weather, in the end the receiver has each row once, and both sides agree on it (G-1, L-SRV-3).
Time is a test's own, so that no pause is slept through.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from strandline.base.secret import Secret
from strandline.config.config import FILE_NAME, load_config
from strandline.config.keys import ServerSection
from strandline.daemon.due_syncs import Driver
from strandline.delivery.audit.verify import verify
from strandline.delivery.owed import Terms, owed
from strandline.delivery.result import SyncResult
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.errors import StrandlineError
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.rows.dataset import Strand
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.state.context import Site, open_site
from strandline.state.lease import LeaseHeld
from strandline.state.sink_progress import SinkProgress
from tests.daemon.test_due_syncs import MINUTE, Bench, Wired
from tests.delivery.destinations import TableCourier
from tests.delivery.wire import Act, Crossing, Cut, Pass, Say, Wire, wire_to
from tests.server.receivers import ORIGIN, receiving
from tests.server.test_receiver_process import ReceiverProcess, strandline
from tests.simulation import DATASET, World
from tests.sites import spooled_rows

SOURCES = ("web-1", "web-2")
SENDER = Sender(ORIGIN, "edge", lambda name: name)
TRIES = 500
TIMEOUT_S = 60


def sink_to(wire: Wire, token: str, **keys: Any) -> ForwardSink:
    return ForwardSink(url=wire.url, token=Secret("env:TOKEN", Path(), token), max_unit_rows=5, **keys)


@dataclass
class End:
    """A receiver, the wire to it, and what it has."""

    wire: Wire
    sink: ForwardSink
    site: Callable[[], Site]
    terms: Terms = field(default_factory=lambda: Terms("centre"))

    def rows(self) -> Counter[str]:
        site = self.site()
        return Counter(
            row["key"] for source in SOURCES for _, row in spooled_rows(site, DATASET, f"edge/{source}")
        )


@dataclass
class Node:
    """What sends: the real store and delivery code over a simulated table."""

    world: World
    site: Site
    sent: Counter[str] = field(default_factory=Counter)

    def land(self, count: int, source: str = "web-1") -> None:
        keys = [f"{source}/{len(self.sent) + number}" for number in range(count)]
        append(self.site, DATASET, [{"key": key} for key in keys], source=source)
        flush(self.site, self.world.table, DATASET)
        self.sent.update(keys)

    def run(self, end: End, site: Site | None = None) -> SyncResult:
        return sync(site or self.site, lambda: TableCourier(self.world), end.sink, end.terms, SENDER)

    def line(self, end: End, source: str = "web-1") -> SinkProgress:
        return self.site.standing.lines().line(end.terms.name, Strand(DATASET, source))

    def deliver(self, end: End) -> int:
        """Run after run, each as soon as it may, until all has left; how many it took."""
        until = time.monotonic() + TIMEOUT_S
        for tries in range(1, TRIES):
            self.run(end)
            if not owed(self.site, end.terms):
                return tries
            assert time.monotonic() < until
            self.world.now_us += 301_000_000
        pytest.fail(f"after {TRIES} runs {owed(self.site, end.terms)} is still owed")

    def check(self, *ends: End) -> None:
        for end in ends:
            end.wire.judge = lambda _: Pass()
            assert end.rows() == self.sent
            verdicts = list(verify(self.site, end.sink, end.terms, SENDER))
            assert [each.status for each in verdicts] == ["ok"] * len(verdicts), verdicts
            assert {each.rows for each in verdicts} != {0}


@pytest.fixture
def node(world: World, site: Site) -> Node:
    return Node(world, site)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Callable[..., End]]:
    """Receivers, each at the end of a wire of its own."""
    with ExitStack() as stack:

        def make(name: str = "centre", **settings: Any) -> End:
            (tmp_path / name).mkdir()
            receiver = stack.enter_context(receiving(tmp_path / name, settings=ServerSection(**settings)))
            wire = stack.enter_context(wire_to(receiver.url))
            return End(wire, sink_to(wire, receiver.token), lambda: receiver.site, Terms(name))

        yield make


@pytest.fixture
def end(ends: Callable[..., End]) -> End:
    return ends()


def weather(seed: int, *acts: Act, share: float = 0.5) -> Callable[[Crossing], Act]:
    """Some of the requests fare badly, questions for the ranges too."""
    chance = random.Random(seed)
    return lambda _: chance.choice(acts) if chance.random() < share else Pass()


STORMS: dict[str, tuple[Act, ...]] = {
    "busy": (
        Say(429),
        Say(503, headers={"Retry-After": "7"}),
        Say(503, headers={"Retry-After": "0"}),
        Say(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Say(503, headers={"Retry-After": "400"}),
    ),
    "broken": (Say(500), Say(502, b"<html>"), Say(504), Say(408)),
    "cut": (Cut(),),
    "unheard": (Pass("lost"),),
    "all at once": (Say(429), Say(503, b""), Say(500), Cut(), Pass("lost")),
}


@pytest.mark.parametrize("storm", STORMS)
@pytest.mark.parametrize("seed", range(3))
def test_each_row_arrives_once_through_a_storm(node: Node, end: End, storm: str, seed: int) -> None:
    """F-12, F-30, L-FWD-7, L-FWD-9, L-FWD-11: rows of two strands, more of them while it lasts."""
    random.seed(seed)
    end.wire.judge = weather(seed, *STORMS[storm])
    for count in (23, 9):
        for source in SOURCES:
            node.land(count, source)
        node.deliver(end)

    passed = Counter(end.wire.posts())
    assert any(count > 1 for count in passed.values()) or len(end.wire.crossings) > len(passed)
    node.check(end)


def test_a_receiver_that_takes_little_at_a_time_gets_halves_and_a_row_too_large_becomes_a_letter(
    node: Node, ends: Callable[..., End]
) -> None:
    """L-FWD-12, F-28: the 413 is the receiver's own."""
    end = ends(max_body_bytes=60)  # three of these rows
    node.land(20)
    large = {"key": "k" * 100}
    append(node.site, DATASET, [large], source="web-1")
    node.land(7)
    node.deliver(end)

    assert end.wire.posts()[:3] == [(0, 5), (0, 2), (2, 5)]
    (letter,) = node.line(end).letters
    assert letter
    node.check(end)


def test_a_receiver_that_is_killed_again_and_again_has_each_row_once(
    node: Node, tmp_path: Path
) -> None:  # G-1, L-SRV-2, L-WM-10
    home = tmp_path / "centre"
    home.mkdir()
    (home / "strandline.toml").write_text(f"version = 1\n[datasets.{DATASET}]\n")
    token = strandline(home, "server", "token", "new", "test").strip()
    chance, over = random.Random(1), threading.Event()

    with wire_to("http://127.0.0.1:1") as wire:

        def come_and_go() -> None:
            for _ in range(3):
                with ReceiverProcess(home) as receiver:
                    wire.target = receiver.url
                    over.wait(chance.uniform(0.1, 0.4))
            over.set()

        site = open_site(load_config(home / "strandline.toml"))
        end = End(wire, sink_to(wire, token), lambda: site)
        restarting = threading.Thread(target=come_and_go)
        restarting.start()
        try:
            while not over.is_set() and sum(node.sent.values()) < 4_000:
                node.land(40)
                node.run(end)
                node.world.now_us += 301_000_000
        finally:
            over.set()
            restarting.join(TIMEOUT_S)
        with ReceiverProcess(home) as receiver, closing(site.b):
            wire.target = receiver.url
            node.deliver(end)
            node.check(end)


def test_a_sender_that_lost_its_lease_in_the_middle_of_a_request_doubles_nothing(
    node: Node, end: End
) -> None:
    """L-DRV-2, L-CTL-5, L-SRV-5: two of them deliver the same intent, and the slower one records nothing."""
    gate = threading.Event()
    end.wire.judge = lambda _: Pass(gate=gate) if len(end.wire.crossings) == 2 else Pass()
    node.land(23)
    errors: list[StrandlineError] = []

    def first() -> None:
        try:
            node.run(end, node.world.site())
        except StrandlineError as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: len(end.wire.crossings) == 2)
    with pytest.raises(LeaseHeld):
        node.run(end)
    node.world.now_us += 120_000_000
    assert node.run(end).status == "exported"
    recorded = node.line(end).event
    gate.set()
    thread.join(TIMEOUT_S)

    assert node.line(end).event == recorded
    assert [type(each).__name__ for each in errors] == ["LeaseLost"]
    node.check(end)


def test_a_sink_that_fails_holds_up_no_other_on_the_same_rows(node: Node, ends: Callable[..., End]) -> None:
    """F-15, L-DRV-3, L-WM-4."""
    good, bad = ends("good"), ends("bad")
    bad.wire.judge = weather(0, Say(500), Cut(), share=1.0)
    for _ in range(4):
        node.land(12)
        assert node.run(good).status == "exported"
        assert node.run(bad).status in ("failed", "partial")
        node.world.now_us += 60_000_000
    assert good.rows() == node.sent
    assert bad.rows() == Counter()

    bad.wire.judge = lambda _: Pass()
    node.deliver(bad)
    node.check(good, bad)


# Drivers


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


class HandClock:
    """Time that a test moves, and that a sleeper waits for."""

    def __init__(self, world: World) -> None:
        self._world, self._moved = world, threading.Condition()

    def now_us(self) -> int:
        return self._world.now_us

    def sleep(self, seconds: float) -> None:
        until = self._world.now_us + int(seconds * 1e6)
        with self._moved:
            self._moved.wait_for(lambda: self._world.now_us >= until, timeout=seconds)

    def later(self, seconds: float) -> None:
        with self._moved:
            self._world.now_us += int(seconds * 1e6)
            self._moved.notify_all()


class Drivers(Bench):
    """Drivers of one node, whose sinks are real ones; what is spooled is flushed by the next tick."""

    def __init__(self, folder: Path, **ends: End) -> None:
        super().__init__(folder, dict.fromkeys(ends, MINUTE))
        text = (folder / FILE_NAME).read_text()
        (folder / FILE_NAME).write_text(f'{text}[node]\nname = "edge"\n')
        self.config = load_config(folder / FILE_NAME)
        self.ends, self.clock = ends, HandClock(self.world)
        self.sinks = {name: end.sink for name, end in ends.items()}  # type: ignore[misc]  # real ones
        self.site = replace(self.world.site(), clock=self.clock)
        self.sent: Counter[str] = Counter()
        self.driver = self.another()

    def another(self) -> Driver:
        """As another process has it."""
        site = self.world.site()
        spool = with_fields(site.spool, flush_bytes=1)
        return self.started(replace(site, clock=self.clock, spool=spool))

    def append_more(self, count: int, source: str = "web-1") -> None:
        keys = [f"{source}/{len(self.sent) + number}" for number in range(count)]
        append(self.site, DATASET, [{"key": key} for key in keys], source=source)
        self.sent.update(keys)

    def deliveries(self) -> Wired:
        made = Wired(self.config, self.site, lambda: self.courier)
        made.wired = self.sinks
        return made

    def has(self, name: str) -> bool:
        return self.ends[name].rows() == self.sent

    def check(self) -> None:
        sender = self.deliveries().sender
        for name, end in self.ends.items():
            assert self.has(name)
            verdicts = list(verify(self.site, end.sink, end.terms, sender))
            assert [each.status for each in verdicts] == ["ok"] * len(verdicts), verdicts


@pytest.fixture
def bench(tmp_path: Path, ends: Callable[..., End]) -> Iterator[Drivers]:
    made = Drivers(tmp_path, centre=ends("centre"), archive=ends("archive"))
    yield made
    for driver in made.drivers:
        assert driver.stop() == []


def test_a_destination_that_asks_for_a_minute_holds_up_neither_a_flush_nor_another_sink(
    bench: Drivers,
) -> None:
    """L-DRV-3, L-FWD-9, L-FWD-10: nothing is sent to it before its time, and then all."""
    wire = bench.ends["centre"].wire
    wire.judge = lambda _: Say(503, headers={"Retry-After": "60"})
    bench.append_more(12)
    flush(bench.site, bench.world.table, DATASET)
    assert bench.driver.tick().runs == ("archive", "centre")
    wait_until(lambda: bench.mark("archive") == 12 and wire.in_flight == 0 < len(wire.crossings))

    for _ in range(2):
        bench.clock.later(29)
        bench.append_more(12, "web-2")
        assert bench.driver.tick().flushes == (DATASET,)
        wait_until(lambda: bench.driver.wait(0) == ["sink centre"])
        bench.deliveries().sync("archive")
        assert bench.has("archive")
    assert len(wire.crossings) == 1

    wire.judge = lambda _: Pass()
    bench.clock.later(3)
    assert bench.driver.wait(TIMEOUT_S) == []
    bench.clock.later(60)
    bench.driver.tick()
    assert bench.driver.wait(TIMEOUT_S) == []
    bench.check()


def test_a_receiver_that_stalls_has_one_request_however_often_it_ticks(bench: Drivers) -> None:
    """F-31, L-DRV-2: three minutes, a tick each second."""
    wire, gate = bench.ends["centre"].wire, threading.Event()
    wire.judge = lambda _: Pass(gate=gate)
    bench.append_more(3)
    flush(bench.site, bench.world.table, DATASET)
    assert bench.driver.tick().runs == ("archive", "centre")
    wait_until(lambda: wire.in_flight == 1)
    skipped = 0
    for _ in range(180):
        bench.clock.later(1)
        tick = bench.driver.tick()
        assert "centre" not in tick.runs
        skipped += tick.skipped.count("centre")
    assert (wire.in_flight, wire.most, len(wire.crossings), skipped) == (1, 1, 1, 3)

    gate.set()
    assert bench.driver.wait(TIMEOUT_S) == []
    bench.check()


def test_two_drivers_deliver_each_row_once_through_a_storm(bench: Drivers) -> None:
    """L-DRV-2, G-1: each in its own time, on the same sinks."""
    for name, end in bench.ends.items():
        end.wire.judge = weather(len(name), *STORMS["all at once"], share=0.3)
    drivers = [bench.driver, bench.another()]
    for number in range(12):
        bench.append_more(11, SOURCES[number % 2])
        for driver in drivers:
            driver.tick()
        for driver in drivers:
            while driver.wait(0.01):
                bench.clock.later(30)  # a pause is over
        bench.clock.later(301)

    for end in bench.ends.values():
        end.wire.judge = lambda _: Pass()
    for _ in range(3):
        bench.clock.later(301)
        bench.driver.tick()
        assert bench.driver.wait(TIMEOUT_S) == []
    bench.check()
