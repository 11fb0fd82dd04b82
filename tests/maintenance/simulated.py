"""Everything that keeps a node small, purges and a backfill in the simulated world: beside producers, flushes
and sinks that a seed interleaves, stalls and kills. Whatever happens, each row that stays arrives once; what
goes is on record and never comes back; a backfill writes no row that was there before."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from strandline.backfill.frame import write_frame
from strandline.backfill.result import BackfillCounts, BackfillResult
from strandline.backfill.run import Order, run
from strandline.base.ranges import Range, RangeSet
from strandline.config.keys import CompactionSection
from strandline.config.sinks import SinkConfig
from strandline.delivery.audit.prove import prove
from strandline.delivery.owed import owed
from strandline.delivery.run import sync
from strandline.errors import UnavailableError
from strandline.flush.flush import flush
from strandline.lake.jobs.count_rows import Counted
from strandline.lake.ports.lookup import Lookup, RowKey, SpoolAnswer, SpooledRun
from strandline.lake.ports.purge import Purger
from strandline.maintenance.retention.prune import prune
from strandline.maintenance.retention.rules import RetentionRules
from strandline.maintenance.store_upkeep import tidy
from strandline.maintenance.table_upkeep import UpkeepAsked, maintain
from strandline.rows.dataset import Dataset, Identity, Strand
from strandline.sources.provider import Chunk, FrameProvider, Item, Provider, Window
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld
from strandline.state.sink_progress import sink_stream
from strandline.storage import ContentStore
from tests.delivery.destinations import Bucket, Server, TableCourier
from tests.delivery.simulated import Destinations, sender
from tests.maintenance.history import HistoryTable, SimRewriter, SimUpkeep
from tests.maintenance.simulated_frame import (
    FRAMES,
    OLDEN,
    Frames,
    Key,
    SimFrameLookup,
    committed_keys,
    spooled_keys,
)
from tests.maintenance.simulated_purge import (
    WHERES,
    SimPurger,
    bad_row,
    check_purged,
    check_quarantine,
    chosen_purge,
    name_of,
    purges,
    rows_at,
    run_purge,
)
from tests.simulation import (
    DATASET,
    FAILURES,
    SOURCES,
    Process,
    SimDisk,
    TableError,
    TableRow,
    World,
    flushes,
    produce,
    settle_everything,
)

STEPS: Final = 4_000
END_US: Final = 2**63 - 1
SEQ_BUCKET: Final = 32
GRACE_S: Final = 400  # longer than any process of this world stalls
FOLD_S: Final = 500
SETTINGS: Final = CompactionSection(
    file_count=3,
    tier_bytes=(500, 2_000),
    max_tick_s=60,
    min_snapshots=3,
    max_snapshot_age_h=0.02,
    max_snapshots=12,
)
KEPT: Final = Dataset(DATASET, identity=Identity("key"), seq_bucket=SEQ_BUCKET)
COLLAPSED: Final = replace(KEPT, collapse=True)
BAD: Final = [bad_row(number) for number in range(9)]
HISTORY: Final = "history"  # the provider, and what its rows say they are by


def table_of(world: World) -> HistoryTable:
    assert isinstance(world.table, HistoryTable)
    return world.table


class Disk(SimDisk):
    """Rows are quarantined under the same name once more where an append is tried again: what was durable
    before stays so, whatever becomes of the second try."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._again: set[str] = set()

    def _keep(self, name: str, data: bytes) -> None:
        if name not in self._stored:
            self._again.discard(name)
        elif name not in self._unsynced:
            self._again.add(name)
        super()._keep(name, data)

    def lose_power(self) -> None:
        self._unsynced -= self._again
        super().lose_power()


# Keeping it small


def chosen_rules(chosen: random.Random) -> RetentionRules:
    """As if the configuration were changed between two runs."""
    return RetentionRules(
        keep_us=chosen.choice((0, 60, 60, 200)) * 1_000_000,
        max_rows=chosen.choice((0, 0, 40)),
        residence_us=chosen.choice((0, 20)) * 1_000_000,
        wait_for=chosen.choice(("all", "all", "all", "none", ("server",))),
        hold_us=chosen.choice((0, 100)) * 1_000_000,
        is_evicting=chosen.random() < 0.3,
        sinks=(configured("bucket"), configured("server")),
    )


def configured(name: str) -> SinkConfig:
    return SinkConfig(
        instance=name,
        type="simulated",
        schedule="* * * * *",
        enabled=True,
        include=("*",),
        exclude=(),
        start="all",
        max_intent_rows=30,
        max_lag_s=60,
        keys={},
    )


def run_retention(world: World, site: Site, rules: RetentionRules, to: Destinations | None = None) -> int:
    """Where nobody purges, there are no destinations to tell of it."""
    upkeep = SimUpkeep(table_of(world))
    pointer = upkeep.pointers().get(DATASET)

    def purger() -> Purger:
        assert to is not None, "nobody purges here"
        world.counts["purges ended by retention"] += 1
        return SimPurger(site, table_of(world), to)

    return prune(site, upkeep, DATASET, rules, pointer=pointer, purger=purger, timeout_s=0).rows


def run_maintenance(world: World, site: Site, *, force: bool) -> int:
    rewriter = SimRewriter(table_of(world), SEQ_BUCKET)
    done = maintain(site, rewriter, SETTINGS, DATASET, UpkeepAsked(force=force), timeout_s=0)
    return len(done.walk.runs)


def keeps(to: Destinations) -> Callable[[Process], None]:
    """As a daemon does it: where another keeps house right now, that is as good."""

    def body(process: Process) -> None:
        world, site = process.world, process.world.site()
        while True:
            with _counted(world, "keeping failed"):
                turn = process.random.random()
                if turn < 0.35:
                    run_retention(world, site, chosen_rules(process.random), to)
                elif turn < 0.45:
                    run_purge(world, site, to, *chosen_purge(process.random))
                else:
                    run_maintenance(world, site, force=process.random.random() < 0.1)
            site.clock.sleep(0.2)

    return body


def tidies(process: Process) -> None:
    world, site = process.world, process.world.site()
    while True:
        with _counted(world, "tidy failed"):
            tidy(site, grace_s=GRACE_S, fold_age_s=FOLD_S)
        site.clock.sleep(5)


@contextmanager
def _counted(world: World, name: str) -> Iterator[None]:
    """What a process of this world lives with."""
    try:
        yield
    except FAILURES:
        world.counts[name] += 1


# A backfill of what producers bring as well


@dataclass
class History:
    """The rows of every other request, whether they were stored already, are at this moment, or never; and
    some that nobody else has."""

    world: World

    def items(self, window: Window) -> Iterator[Item]:
        yield Item("old", DATASET)
        yield from (Item(name, DATASET) for name in self._names())

    def _names(self) -> list[str]:
        return [each.id for each in self.world.requests.values() if int(each.id[1:]) % 2 == 0]

    def rows(self, item: Item) -> Iterator[Chunk]:
        if item.id == "old":
            for number, chunk in enumerate(OLD):
                yield from (chunk, BAD[3 * number : 3 * number + 3])
            return
        rows = [_row(each["key"], each["source"]) for each in self.world.requests[item.id].rows]
        yield from (rows[:5], rows[5:])


def _row(key: str, source: str) -> dict[str, Any]:
    return {"key": key, "source": source, "by": HISTORY}


OLD: Final = [[_row(f"old{chunk}/{n}", SOURCES[n % 3]) for n in range(7)] for chunk in range(3)]


@dataclass
class Means:
    """See strandline.backfill.run.Means; the lookup is this too. It fails now and then, never for good."""

    world: World
    site: Site
    failed: int = 0

    def lookup(self) -> Lookup:
        return self

    def land(self, dataset: str) -> None:
        try:
            with suppress(LeaseHeld):
                flush(self.site, self.world.table, dataset, timeout_s=5)
        except TableError as error:
            raise UnavailableError(str(error), hint="later") from error

    def write_frame(
        self, instance: str, provider: FrameProvider, item: Item, *, is_dry: bool
    ) -> BackfillCounts:
        tables: Any = self.world.table  # in which a Frame is a DataFrame
        lookup: Any = SimFrameLookup(self.world, self.site, self._asked)
        frame = provider.frame(item, None)  # type: ignore[arg-type]
        return write_frame(self.site, tables, lookup, instance, item, frame, is_dry=is_dry)

    def _asked(self, name: str) -> None:
        self.world.effect(name)
        if self.failed < 2 and self.world.chance(0.05):
            self.failed += 1
            raise UnavailableError("no answer", hint="later")
        self.failed = 0

    def ids(self, dataset: Dataset, table: Any) -> list[str | None]:
        self._asked("ids")
        return [f"k{key}" for key in table["key"].to_pylist()]

    def spooled(self, dataset: Dataset, asked: Sequence[RowKey], runs: Sequence[SpooledRun]) -> SpoolAnswer:
        self._asked("spooled")
        known, faults = spooled_keys(self.site, dataset, runs)
        return SpoolAnswer(_among(known, asked), faults, {})

    def committed(
        self,
        dataset: Dataset,
        asked: Sequence[RowKey],
        within: Mapping[str, Sequence[Range]] | None = None,
        *,
        by_columns: bool = False,
    ) -> frozenset[RowKey]:
        self._asked("committed")
        return _among(committed_keys(self.world, within), asked)


def _among(known: Iterable[Key], asked: Sequence[RowKey]) -> frozenset[RowKey]:
    return frozenset(RowKey(source, f"k{key}") for source, key in known) & frozenset(asked)


def backfills(process: Process) -> None:
    world, site = process.world, process.world.site()
    while True:
        name = process.random.choice((HISTORY, FRAMES))
        is_dry = process.random.random() < 0.05
        result = run_backfill(world, site, name, is_dry=is_dry)
        world.counts[f"backfilled as {name}"] += 0 if is_dry else result.tally.written
        if world.damages is False:
            assert not result.tally.doubts, result.tally.doubt_texts
        site.clock.sleep(1)


def run_backfill(world: World, site: Site, name: str, *, is_dry: bool = False) -> BackfillResult:
    provider: Provider = History(world) if name == HISTORY else Frames(world)
    return run(site, Means(world, site), provider, Order(name, Window(), is_dry=is_dry))


# Delivery


class Named(TableCourier):
    """Rows are told apart at their destination by their place, since keys repeat."""

    def rows(self) -> list[TableRow]:
        return [replace(row, key=name_of(row)) for row in super().rows()]


def delivers(to: Destinations, which: int) -> Callable[[Process], None]:
    def body(process: Process) -> None:
        world, site = process.world, process.world.site()
        while True:
            sink, terms = to.sinks(process.random.choice((3, 5, 8)))[which]  # limits change between tries
            with _counted(world, "sync failed"):
                sync(site, lambda: Named(world), sink, terms, sender())
            site.clock.sleep(0.05)

    return body


# The end of it


def settle(world: World, to: Destinations) -> None:
    """Everything that was cut short comes to its end; then nothing is left to do."""
    to.server.deliver_late()
    to.bucket.deliver_late()
    world.disk.put_back()
    world.calmly(_backfilled)
    settle_everything(world)

    def body(process: Process) -> None:
        site = world.site()
        for sink, terms in to.sinks(5):
            for _ in range(60):
                if not owed(site, terms):
                    break
                world.now_us += 400_000_000  # every pause is over
                sync(site, lambda: Named(world), sink, terms, sender(), is_command=True)
            assert not owed(site, terms), f"{terms.name} is still owed {owed(site, terms)}"
        run_maintenance(world, site, force=False)  # each ends what it left before the other goes on
        kept = RetentionRules(keep_us=10**15, sinks=(configured("bucket"), configured("server")))
        run_retention(world, site, kept, to)
        run_maintenance(world, site, force=True)
        assert not site.standing.prunings().of(DATASET).open
        assert not site.standing.rewrites().of(DATASET).begun
        assert not table_of(world).branches
        assert not run_maintenance(world, site, force=False)
        done = tidy(site, grace_s=GRACE_S, fold_age_s=FOLD_S)
        assert not done.errors, done.errors
        purged = run_purge(world, site, to, process.random.choice(WHERES), None)
        assert purged.is_whole, purged
        assert not run_purge(world, site, to, purged.where, None).rows

    world.calmly(body)


def _backfilled(process: Process) -> None:
    site = process.world.site()
    process.world.now_us += 200_000_000
    for name in (HISTORY, FRAMES):
        result = run_backfill(process.world, site, name)
        assert result.status == "done", result
        again = run_backfill(process.world, site, name)
        assert not again.tally.written, again.tally


# What must hold


def check(world: World, to: Destinations) -> None:
    table = table_of(world)
    assert not table.wrongs, table.wrongs
    places = Counter((row.source, row.seq) for row in table.landed)
    assert max(places.values(), default=1) == 1, "a seq names two rows"
    _check_landed(world, table)
    site = world.site()
    world.calmly(lambda _: _check_counts(site, table))
    world.calmly(lambda _: check_purged(site, table))
    world.calmly(lambda _: check_quarantine(site, [row["key"] for row in BAD]))
    for name, found in rows_at(to).items():
        world.calmly(lambda _, name=name, found=found: _check_sink(site, table, name, found))  # type: ignore[misc]
    world.calmly(lambda _: _check_proof(site, table, to))


def _check_landed(world: World, table: HistoryTable) -> None:
    """Acknowledged is landed, whatever became of it; what the provider has is there; and what it brought was
    not there before."""
    found = {(row.source, row.key) for row in table.landed}
    own = {(row["source"], row["key"]) for row in (*(row for chunk in OLD for row in chunk), *OLDEN)}
    assert own <= found, f"a backfill never brought {sorted(own - found)[:3]}"
    for request in world.requests.values():
        if request.is_acknowledged or int(request.id[1:]) % 2 == 0 or int(request.id[1:]) % 3 == 0:
            lost = {(row["source"], row["key"]) for row in request.rows} - found
            assert not lost, f"{request.id}: {sorted(lost)[:3]} never landed"
    if world.declared == COLLAPSED:
        keys = Counter((row.source, row.key) for row in table.rows)
        assert max(keys.values(), default=1) == 1, "a key is there twice"
    else:
        _check_backfilled(world, table)


def _check_backfilled(world: World, table: HistoryTable) -> None:
    """Where two rows have a key, a backfill has brought the second only if the first had gone by then, or was
    a load's: that is seen when it has landed, and its numbers are older."""
    loads = {row["key"] for each in world.requests.values() if each.is_load for row in each.rows}
    first: dict[tuple[str, str], list[TableRow]] = {}
    for row in sorted(table.landed, key=lambda row: row.seq):
        others = first.setdefault((row.source, row.key), [])
        for other in others:
            is_loaded = other.by == FRAMES or (not other.by and row.key in loads)
            has_gone = table.gone_at.get(other, END_US) < row.at
            if row.by == other.by:  # only what a frame brings again, since it has grown
                assert has_gone, f"{other} was brought twice: {row}"
                assert row.by == FRAMES, f"{other} was brought twice: {row}"
            elif row.by and not is_loaded:
                assert has_gone, f"the backfill wrote {row}, and there was {other}"
        others.append(row)


def _check_counts(site: Site, table: HistoryTable) -> None:
    """Each row that went is in its ledger, once; nothing is where the ledger says that nothing is."""
    for source in SOURCES:
        tally = site.standing.strand_state(Strand(DATASET, source))
        gone = [row for row in table.deleted | table.repeated if row.source == source]
        assert tally.removed_rows == len(gone), f"{source}: {len(gone)} rows went, not {tally.removed_rows}"
        assert not [row for row in table.rows if row.source == source and row.seq <= tally.bare]
    pruned = site.standing.prunings().of(DATASET).rows
    assert pruned == len(table.deleted), f"{len(table.deleted)} rows were pruned, not {pruned}"


def _check_sink(site: Site, table: HistoryTable, name: str, found: Counter[str]) -> None:
    assert max(found.values(), default=1) == 1, f"the {name} has rows twice"
    strangers = set(found) - {name_of(row) for row in table.landed}
    assert not strangers, f"the {name} has rows that never landed: {sorted(strangers)[:3]}"
    for source in SOURCES:
        lacks = {row for row in table.landed if row.source == source and name_of(row) not in found}
        lost = lacks - table.deleted - table.repeated
        assert not lost, f"the {name} has lost {sorted(map(name_of, lost))[:3]}"
        told = [
            each.data
            for each in past_events(site, sink_stream(name, DATASET, source))
            if each.type == "evicted"
        ]
        untold = [
            row
            for row in lacks & table.deleted - table.purged
            if not any(each["lo"] < row.seq <= each["hi"] for each in told)
        ]
        assert not untold, f"the {name} lacks what nobody said would go: {untold[:3]}"
        evicted = sum(each["rows"] for each in told)
        assert evicted >= len(lacks & table.deleted - table.purged), f"the {name} lacks more than was told"


def _check_proof(site: Site, table: HistoryTable, to: Destinations) -> None:
    """As the product itself has it."""

    def census(_: Dataset) -> dict[str, Counted]:
        return {source: _counted_rows(table, source) for source in SOURCES}

    for proof in prove(site, census, to.sinks(5), sender()):
        assert not proof.faults, proof


def _counted_rows(table: HistoryTable, source: str) -> Counted:
    seqs = [row.seq for row in table.rows if row.source == source]
    return Counted(len(seqs), RangeSet.of(Range(seq - 1, seq) for seq in seqs))


def simulate(seed: int, *, steps: int = STEPS) -> World:
    """One run. AssertionError if a promise was broken. With an odd seed repeats collapse."""
    random.seed(seed)  # for the jitter of pauses
    is_collapse = bool(seed % 2)
    declared = COLLAPSED if is_collapse else KEPT
    world = World(seed, has_identity=is_collapse, declared=declared, table=HistoryTable)
    world.disk = Disk(world)
    world.content = ContentStore(world.disk)
    world.damages = is_collapse  # else a backfill would write what it cannot see
    to = Destinations(Server(world), Bucket(world), set())
    bodies = {
        "producer": produce,
        "flusher": flushes,
        "backfiller 1": backfills,
        "backfiller 2": backfills,
        "sender": delivers(to, 0),
        "archiver": delivers(to, 1),
        "keeper 1": keeps(to),
        "keeper 2": keeps(to),
        "purger": purges(to),
        "tidier": tidies,
    }
    world.run(bodies, steps)
    settle(world, to)
    check(world, to)
    return world
