"""A world in one thread at a time: processes that a seed interleaves, kills, stalls and restarts, over a
disk that forgets what was not synced and a table that answers late, twice or never.

The ledger, plan, append, flush, load, lease and resume code is the real one. Only what it stands on is not:
the table (`SimTable`, which has Iceberg's rules for WAP ids), the disk (`SimDisk`), the clock, and a store
in memory that loses answers. The same seed gives the same run.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from strandline.base.ranges import Range
from strandline.config.keys import FlushSection, SpoolSection
from strandline.errors import (
    NotFoundError,
    OutcomeUnknown,
    StoreUnavailable,
    StrandlineError,
    UnavailableError,
)
from strandline.flush.flush import flush
from strandline.flush.scratch_tables import AGAIN_S, sweep_scratch
from strandline.ingest.append import Receipt, append
from strandline.ingest.load import LoadResult, load
from strandline.lake.jobs.segment_batches import placed_batches
from strandline.lake.ports.stage import BURNED, LandingSnapshots, Published, Staged
from strandline.persist import AtomicBackend, Event
from strandline.persist.backend import Expectation, Once, Outcome, StreamHead, Write
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.event import Storable
from strandline.rows.dataset import Dataset, Identity, Strand
from strandline.rows.validate import accept
from strandline.state.context import Site
from strandline.state.landing import FixedInput, FlushLanding, Landing
from strandline.state.node_state import Standing
from strandline.storage import ContentStore
from strandline.storage.objects import Chunks, MemoryObjects, Name

DATASET: Final = "logs"
SOURCES: Final = ("web-1", "web-2", "a/b")
ROW_BYTES: Final = 64  # in a data file
KEYS: Final = 40  # of a dataset with an identity: few, so that they repeat
IDENTIFIED: Final = Dataset(DATASET, identity=Identity("key"), collapse=True, dedupe_on_flush=True)
STEPS: Final = 1_000
START_US: Final = 1_700_000_000_000_000


class Killed(BaseException):
    """SIGKILL: nothing that this process does has an effect any more."""


class TableError(Exception):
    """What Spark would raise: anything."""


@dataclass(frozen=True, slots=True)
class Plant:
    """Bugs that a run can be given, to see that it finds them."""

    accepts_ids_twice: bool = False  # the table publishes a WAP id again
    skips_sync: bool = False  # the disk says "durable" before it is
    restages_under_new_seqs: bool = False  # a second staging numbers rows anew
    skips_burn: bool = False  # a load is released and its staged copy can still be published


# What runs


def _closed() -> threading.Lock:
    """A gate that one passes for each release: as one waits at a time a lock does, and costs half of what a
    semaphore does."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Process:
    """A thread that runs only while the world lets it."""

    def __init__(self, world: "World", name: str, body: Callable[["Process"], None]) -> None:
        self.world, self.name, self.is_killed, self.is_done = world, name, False, False
        self.error: BaseException | None = None
        self.asleep_until = 0
        self._body = body
        self._go = _closed()
        self.random = random.Random(world.random.random())
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.is_killed:
                self.world.current.process = self
                self._body(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # shown by the world
            self.error = error
        finally:
            self.is_done = True
            self.world.back.release()

    def resume(self) -> None:
        self._go.release()
        self.world.back.acquire()

    def pause(self) -> None:
        """Called by the process itself at every effect: others may run now, or it may die."""
        if self.is_killed:
            raise Killed
        self.world.back.release()
        self._go.acquire()
        if self.is_killed:
            raise Killed


class World:
    """Everything that outlives a process, and the schedule."""

    def __init__(
        self,
        seed: int,
        plant: Plant | None = None,
        *,
        has_identity: bool = False,
        declared: Dataset | None = None,
        table: "Callable[[World], SimTable] | None" = None,
    ) -> None:
        self.seed, self.plant, self.has_identity = seed, plant or Plant(), has_identity
        self.declared = declared or (IDENTIFIED if has_identity else None)
        self.random = random.Random(seed)
        self.now_us = START_US
        self.current = threading.local()
        self.back = _closed()
        self.processes: list[Process] = []
        self.is_calm = False
        self.damages = True  # whether segments go bad now and then
        self.counts: Counter[str] = Counter()
        self.b = SimStore(self)
        self.disk = SimDisk(self)
        self.content = ContentStore(self.disk)
        self.table = (table or SimTable)(self)
        self.requests: dict[str, Request] = {}
        self.readers: dict[str | None, Following] = {source: Following() for source in (*SOURCES, None)}
        self.kills = self.power_cuts = 0

    # The clock of this world

    def now(self) -> int:
        return self.now_us

    def effect(self, name: str) -> None:
        """A point at which the world may go on with another process, or without this one."""
        self.counts[name] += 1
        process = getattr(self.current, "process", None)
        if process is not None:
            process.pause()

    def chance(self, share: float) -> bool:
        return not self.is_calm and self.random.random() < share

    def site(self) -> Site:
        """A process's own hold on the node."""
        hexes = random.Random(self.random.random())
        return Site(
            self.b,
            self.content,
            SimClock(self),
            Standing(self.b.whole),
            SpoolSection(append_timeout_s=30),
            FlushSection(max_rows=25),
            declared=lambda _: self.declared,
            random_hex=lambda: f"{hexes.getrandbits(128):032x}",
        )

    def start(self, name: str, body: Callable[[Process], None]) -> Process:
        process = Process(self, name, body)
        self.processes.append(process)
        return process

    def run(self, bodies: Mapping[str, Callable[[Process], None]], steps: int = STEPS) -> None:
        """Interleave, kill, restart; then let everything that is left die, and look after it calmly."""
        running = {name: self.start(name, body) for name, body in bodies.items()}
        names, draw = list(running), self.random.random
        for _ in range(steps):
            self.now_us += self.random.randrange(1, 2_000)
            if draw() < 0.01:
                self.now_us += self.random.randrange(1, 100) * 1_000_000  # everyone stalls: leases end
            self.table.deliver_late()
            self.disk.change()
            name = self.random.choice(names)
            process = running[name]
            if process.is_done or (draw() < 0.005 and self.kill(process)):
                self._raise(process)
                running[name] = self.start(name, bodies[name])
            elif draw() < 0.0008:
                self._cut_power(running)
                running = {each: self.start(each, body) for each, body in bodies.items()}
            elif process.asleep_until <= self.now_us:
                process.resume()
                if draw() < 0.01:  # stalled, as by SIGSTOP, for longer than any lease
                    process.asleep_until = self.now_us + self.random.randrange(1, 150) * 1_000_000
        for process in running.values():
            self.kill(process)
            self._raise(process)
        self.is_calm = True

    def calmly(self, body: Callable[[Process], None]) -> None:
        """One process, to its end, with nothing going wrong but what was under way already."""
        self.now_us += 200_000_000
        process = self.start("calm", body)
        while not process.is_done:
            self.now_us += 1_000
            self.table.deliver_late()
            process.resume()
        self._raise(process)

    def kill(self, process: Process) -> bool:
        self.kills += 1
        process.is_killed = True
        while not process.is_done:
            process.resume()
        return True

    def _cut_power(self, running: Mapping[str, Process]) -> None:
        self.power_cuts += 1
        for process in running.values():
            self.kill(process)
            self._raise(process)
        self.disk.lose_power()

    def _raise(self, process: Process) -> None:
        if process.error is not None:
            raise process.error


def calm_world() -> World:
    """One in which nothing goes wrong by itself."""
    made = World(0)
    made.is_calm = True
    return made


@dataclass(slots=True)
class SimClock:
    world: World

    def now_us(self) -> int:
        return self.world.now_us

    def sleep(self, seconds: float) -> None:
        self.world.now_us += int(seconds * 1_000_000)
        self.world.effect("sleep")


# What it stands on


class CountedListings(MemoryBackend):
    """Counts the looks at the whole catalogue. They are no place for another process to act."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def streams(self) -> list[str]:
        self._counts["listing"] += 1
        return super().streams()

    def kv_keys(self) -> list[str]:
        self._counts["listing"] += 1
        return super().kv_keys()

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        self._counts["listing"] += 1
        return super().stream_scan(prefix, after=after, limit=limit)

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        self._counts["listing"] += 1
        return super().kv_scan(prefix, after=after, limit=limit)


class SimStore:
    """A store in memory whose answers get lost."""

    def __init__(self, world: World) -> None:
        self._world, self._b = world, CountedListings(world.counts)

    @property
    def whole(self) -> AtomicBackend:
        """The same one, for a look that is taken in a single step."""
        return self._b

    def __getattr__(self, name: str) -> Any:
        return getattr(self._b, name)

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        world = self._world
        world.effect("commit")
        if world.chance(0.01):
            raise StoreUnavailable("the store does not answer", hint="later")
        if world.chance(0.015):
            raise OutcomeUnknown("no answer, and nothing was done", once=None)
        outcome = self._b.commit(preconditions, writes, once=once)
        world.effect("committed")
        if world.chance(0.015):
            raise OutcomeUnknown("done, but the answer is lost", once=None)
        return outcome

    def read_range(self, *args: Any, **options: Any) -> Iterator[Event]:
        self._world.effect("read")
        return self._b.read_range(*args, **options)

    def last_seq(self, stream: str) -> int:
        self._world.effect("last_seq")
        return self._b.last_seq(stream)


class SimDisk(MemoryObjects):
    """Bytes are seen as soon as they are written, and survive a power cut once they are synced."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._unsynced: set[str] = set()
        self._hidden: dict[str, bytes] = {}

    def replace(self, name: Name, chunks: Chunks) -> None:
        world = self._world
        world.effect("disk.write")
        data = chunks if isinstance(chunks, bytes) else b"".join(chunks)
        final = name if isinstance(name, str) else name()
        super().replace(final, data)
        self._unsynced.add(final)
        world.effect("disk.written")
        if world.chance(0.01):
            raise UnavailableError("the disk is full", hint="make room")
        if not world.plant.skips_sync:
            self._unsynced.discard(final)
        world.effect("disk.synced")

    def _keep(self, name: str, data: bytes) -> None:
        super()._keep(name, data)
        self._stored[name] = data, datetime.fromtimestamp(self._world.now_us / 1_000_000, UTC)

    def lose_power(self) -> None:
        for name in self._unsynced:
            self.delete(name)
        self._unsynced.clear()

    def change(self) -> None:
        """Now and then a segment is damaged, and later put back from a copy."""
        if self._world.damages and self._world.chance(0.005):
            spared = {*self._unsynced, *self._hidden}
            newest = sorted((each.modified, each.name) for each in self.scan() if each.name not in spared)[
                -4:
            ]
            if newest:
                name = self._world.random.choice(newest)[1]
                self._hidden[name] = self.read(name)
                MemoryObjects.replace(self, name, b"damaged")
        if self._hidden and self._world.chance(0.02):
            self.put_back()

    def put_back(self) -> None:
        for name, data in self._hidden.items():
            MemoryObjects.replace(self, name, data)
        self._hidden.clear()


@dataclass(slots=True)
class SimSnapshot:
    id: int
    wap: str
    version: int
    rows: list["TableRow"]
    parent: int = 0  # what was current when it was staged


@dataclass(frozen=True, slots=True)
class TableRow:
    source: str
    seq: int
    flush: int
    at: int
    key: str
    by: str = ""  # who brought it, where that is told


class SimTable:
    """Snapshots with Iceberg's rules: staged ones are not seen, an id is published once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_made = False
        self.staged: dict[int, SimSnapshot] = {}
        self.published: list[SimSnapshot] = []
        self.inputs: dict[str, list[Mapping[str, Any]]] = {}
        self._late: list[Callable[[], None]] = []
        self._ids = iter(range(1, 1 << 30))
        self._burned: list[SimSnapshot] = []  # as if burned: only where that is the planted bug
        self.refused = 0

    @property
    def rows(self) -> list[TableRow]:
        return [row for snapshot in self.published for row in snapshot.rows]

    @property
    def current(self) -> int:
        return self.published[-1].id if self.published else 0

    def _call(self, name: str, act: Callable[[], None]) -> None:
        """Do it: now, twice, later and unseen, or not at all."""
        world = self._world
        world.effect(f"table.{name}")
        if world.chance(0.02):
            raise TableError(f"{name}: no answer, and nothing was done")
        if world.chance(0.3 if world.plant.skips_burn and name == "stage" else 0.02):
            self._late.append(act)
            raise TableError(f"{name}: no answer; it is done later")
        act()
        if world.chance(0.02):
            self._late.append(act)  # a repeat on its way
        world.effect(f"table.{name} done")
        if world.chance(0.02):
            raise TableError(f"{name}: done, but the answer is lost")

    def deliver_late(self) -> None:
        if self._late and (self._world.is_calm or self._world.random.random() < 0.02):
            act = self._late.pop(self._world.random.randrange(len(self._late)))
            with suppress(TableError):  # nobody waits for this answer any more
                act()

    def ensure(self, dataset: Dataset, *, has_landed: bool = False) -> None:
        self._world.effect("table.ensure")
        assert self.is_made or not has_landed
        self.is_made = True

    def stage(self, landing: Landing, *, settle: Any = None) -> None:
        rows = list(self._landing_rows(landing))
        if landing.dataset.dedupe_on_flush:
            rows = self._without_known(rows, landing)

        def act() -> None:
            snapshot = SimSnapshot(next(self._ids), landing.id, landing.version, rows, self.current)
            self.staged[snapshot.id] = snapshot
            if any(each.wap == landing.id for each in self._burned):
                self._late.append(partial(self._pick, snapshot.id))  # by its old owner, who knows nothing

        self._call("stage", act)

    def _landing_rows(self, landing: Landing) -> Iterator[TableRow]:
        skew = 1 if self._world.plant.restages_under_new_seqs and self._world.chance(0.3) else 0
        if isinstance(landing, FlushLanding):
            for batch in placed_batches(self._world.content, landing.pieces, landing.dataset):
                for row in batch.to_pylist():
                    at = int(row["_sl_at"].timestamp() * 1_000_000)
                    by = row.get("by") or ""
                    yield TableRow(row["source"], row["_sl_seq"] + skew, landing.number, at, row["key"], by)
            return
        if landing.input.table not in self.inputs:
            raise TableError("the scratch table is gone")
        next_seq = {source: lo + 1 + skew for source, lo in landing.los.items()}
        for row in self.inputs[landing.input.table]:
            source = row["source"]
            yield TableRow(source, next_seq[source], landing.number, landing.at, row["key"])
            next_seq[source] += 1

    def _without_known(self, rows: list[TableRow], landing: Landing) -> list[TableRow]:
        """L-STAMP-7, L-FLUSH-9: the lowest seq of each key, unless another number has brought it."""
        others = [row for row in self.rows if row.flush > landing.looked and row.flush != landing.number]
        known = {(row.source, row.key) for row in others}
        if landing.looked:
            return [row for row in rows if (row.source, row.key) not in known]
        first: dict[tuple[str, str], TableRow] = {}
        for row in sorted(rows, key=lambda row: row.seq):
            if (row.source, row.key) not in known:
                first.setdefault((row.source, row.key), row)
        return list(first.values())

    def look(self, dataset: str, id: str) -> LandingSnapshots:
        self._world.effect("table.look")
        if not self.is_made:
            raise NotFoundError("no table")
        published = next((each for each in (*self.published, *self._burned) if each.wap == id), None)
        staged = tuple(
            Staged(
                each.id,
                each.version,
                len(each.rows),
                ROW_BYTES * len(each.rows),
                is_behind=each.parent != self.current,
            )
            for each in self.staged.values()
            if each.wap == id
        )
        shown = (
            None
            if published is None
            else Published(
                published.id, published.version, len(published.rows), ROW_BYTES * len(published.rows), 1
            )
        )
        return LandingSnapshots(shown, staged)

    def keep_highest(self, dataset: str, seq: int, flush: int) -> None:
        """A restore is not simulated."""

    def publish(self, dataset: str, snapshot: int) -> None:
        self._call("publish", lambda: self._pick(snapshot))

    def _pick(self, snapshot: int) -> None:
        found = self.staged[snapshot]
        if any(each.wap == found.wap for each in self.published) and not self._world.plant.accepts_ids_twice:
            self.refused += 1
            raise TableError("duplicate WAP commit")
        self.published.append(found)

    def burn(self, dataset: str, id: str) -> None:
        self._world.effect("table.burn")
        if self._world.plant.skips_burn:
            staged = [each.id for each in self.staged.values() if each.wap == id]
            self._late += [partial(self._pick, each) for each in staged]
            self._burned.append(SimSnapshot(next(self._ids), id, BURNED, []))
        elif not any(each.wap == id for each in self.published):
            self.published.append(SimSnapshot(next(self._ids), id, BURNED, []))

    def fix_input(
        self, df: Any, dataset: Dataset, load_id: str, *, source: str | None
    ) -> tuple[FixedInput, Dataset]:
        self._world.effect("table.fix")
        judged = accept(dataset, df, source=source)
        rows = judged.table.to_pylist()
        self.inputs[load_id] = rows
        self._world.effect("table.fixed")
        return FixedInput(load_id, 1, dict(Counter(row["source"] for row in rows))), judged.dataset

    def columns_of(self, df: Any) -> dict[str, str]:
        return dict.fromkeys({name for row in df for name in row}, "any")

    def count_of(self, df: Any) -> int:
        return len(df)

    def drop_input(self, load: str) -> None:
        self._world.effect("table.drop")
        self.inputs.pop(load, None)

    def has_input(self, input: FixedInput) -> bool:
        if self._world.chance(0.8 if self._world.plant.skips_burn else 0.2):
            self.inputs.pop(input.table, None)  # someone cleared the scratch tables
        return input.table in self.inputs


# What the processes do


@dataclass(slots=True)
class Request:
    """Rows that a producer wants stored, under an id that it repeats until it is told that they are."""

    id: str
    rows: list[dict[str, Any]]
    is_load: bool
    is_acknowledged: bool = False
    result: Receipt | LoadResult | None = None


@dataclass(slots=True)
class Following:
    """A reader that keeps a token: how far it is, and the rows it has had."""

    at: int = 0
    rows: list[TableRow] = field(default_factory=list)


FAILURES: Final = (StrandlineError, TableError)


def produce(process: Process) -> None:
    world, site = process.world, process.world.site()
    while True:
        request = _next_request(process)
        try:
            if request.is_load:
                result = load(site, world.table, DATASET, request.rows, request_id=request.id)  # type: ignore[arg-type]
            else:
                result = append(site, DATASET, request.rows, request_id=request.id)  # type: ignore[assignment]
        except FAILURES:
            world.counts["produce failed"] += 1
            continue
        request.is_acknowledged, request.result = True, result


def _next_request(process: Process) -> Request:
    world = process.world
    left = [each for each in world.requests.values() if not each.is_acknowledged]
    if left and process.random.random() < 0.7:
        return process.random.choice(left)
    name = f"r{len(world.requests)}"
    is_load = process.random.random() < 0.2
    count = process.random.randrange(1, 30 if is_load else 12)
    keys = [
        f"{process.random.randrange(KEYS)}" if world.has_identity else f"{name}/{i}" for i in range(count)
    ]
    rows = [{"key": key, "source": process.random.choice(SOURCES), **_more(process.random)} for key in keys]
    world.requests[name] = Request(name, rows, is_load)
    return world.requests[name]


def _more(chosen: random.Random) -> dict[str, Any]:
    return {f"extra{chosen.randrange(3)}": chosen.randrange(100)} if chosen.random() < 0.2 else {}


def flushes(process: Process) -> None:
    world, site = process.world, process.world.site()
    while True:
        try:
            flush(site, world.table, DATASET, timeout_s=5)
        except FAILURES:
            world.counts["flush failed"] += 1
        site.clock.sleep(0.05)


def follows(process: Process) -> None:
    site = process.world.site()
    while True:
        read_on(process.world, site)
        site.clock.sleep(0.05)


def read_on(world: World, site: Site) -> None:
    """What each reader gets: the rows between its token and what is visible, as the table has them."""
    for source, reader in world.readers.items():
        if source is None:
            until = site.standing.numbers(DATASET).visible
            new = [row for row in world.table.rows if reader.at < row.flush <= until]
            new.sort(key=lambda row: (row.flush, row.source, row.seq))
        else:
            until = site.standing.strand_state(Strand(DATASET, source)).visible_through
            new = [row for row in world.table.rows if row.source == source and reader.at < row.seq <= until]
            new.sort(key=lambda row: row.seq)
        assert until >= reader.at or source is None, f"V of {source} went back from {reader.at} to {until}"
        world.effect("read")
        reader.rows += new
        reader.at = max(reader.at, until)


def settle_everything(world: World) -> None:
    """The producers repeat what was not acknowledged, the spool lands, the readers catch up."""
    world.disk.put_back()

    def body(process: Process) -> None:
        site = world.site()
        for request in [each for each in world.requests.values() if not each.is_acknowledged]:
            if process.random.random() < 0.5:
                continue  # this producer never comes back
            if request.is_load:
                request.result = load(site, world.table, DATASET, request.rows, request_id=request.id)  # type: ignore[arg-type]
            else:
                request.result = append(site, DATASET, request.rows, request_id=request.id)
            request.is_acknowledged = True
        if site.standing.datasets():
            flush(site, world.table, DATASET)
            assert not site.standing.pending(DATASET), f"still pending: {site.standing.pending(DATASET)}"
            assert not site.standing.numbers(DATASET).open
        for _ in range(2):
            sweep_scratch(site, world.table, DATASET)
            world.now_us += AGAIN_S * 1_000_000
        assert not list(world.b.kv_scan("scratch/", after="", limit=1)), "a scratch table is remembered"
        assert not world.table.inputs, "a scratch table is left"
        read_on(world, site)

    world.calmly(body)


# What must hold


def check(world: World) -> None:
    rows = world.table.rows
    places = Counter((row.source, row.seq) for row in rows)
    assert not [place for place, count in places.items() if count > 1], "a seq names two rows"
    _check_readers(world, rows)
    if world.has_identity:
        _check_identities(world, rows)
        return
    keys = Counter(row.key for row in rows)
    for request in world.requests.values():
        found = [keys[row["key"]] for row in request.rows]
        assert max(found) <= 1, f"{request.id}: a row is there twice"
        assert len(set(found)) == 1, f"{request.id}: it is there in part"
        if request.is_acknowledged:
            assert min(found) == 1, f"{request.id}: it was acknowledged and is lost"
            _check_numbers(request, rows)


def _check_identities(world: World, rows: Sequence[TableRow]) -> None:
    """L-FLUSH-9: each key once a strand, whoever brought it, and none that nobody brought."""
    found = Counter((row.source, row.key) for row in rows)
    assert not [key for key, count in found.items() if count > 1], "a key is there twice"
    sent: set[tuple[str, str]] = set()
    for request in world.requests.values():
        keys = {(row["source"], row["key"]) for row in request.rows}
        sent |= keys
        assert keys <= set(found) or not request.is_acknowledged, f"{request.id}: acknowledged and lost"
    assert set(found) <= sent, "a key is there that nobody sent"


def _check_readers(world: World, rows: Sequence[TableRow]) -> None:
    for source, reader in world.readers.items():
        wanted = [row for row in rows if source is None or row.source == source]
        assert len(reader.rows) == len(set(reader.rows)), f"the reader of {source} has a row twice"
        assert set(reader.rows) == set(wanted), f"the reader of {source} missed a row"
        if source is not None:
            seqs = [row.seq for row in reader.rows]
            assert seqs == sorted(seqs), f"the reader of {source} had rows out of order"


def _check_numbers(request: Request, rows: Sequence[TableRow]) -> None:
    assert request.result is not None
    by_key = {row.key: row for row in rows}
    next_seq = {source: each.lo + 1 for source, each in request.result.ranges.items()}
    for row in request.rows:
        found = by_key[row["key"]]
        assert found.seq == next_seq[found.source], f"{request.id}: the receipt says another number"
        next_seq[found.source] += 1
    assert {
        source: Range(each.lo, next_seq[source] - 1) for source, each in request.result.ranges.items()
    } == dict(request.result.ranges)


def simulate(
    seed: int, plant: Plant | None = None, *, steps: int = STEPS, has_identity: bool = False
) -> World:
    """One run: the world as it is at its end. AssertionError if a promise was broken."""
    world = World(seed, plant, has_identity=has_identity)
    bodies = {
        "producer 1": produce,
        "producer 2": produce,
        "flusher 1": flushes,
        "flusher 2": flushes,
        "reader": follows,
    }
    world.run(bodies, steps)
    settle_everything(world)
    check(world)
    return world
