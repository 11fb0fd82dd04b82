"""Delivery in the simulated world: two senders for each of two sinks, a server and a bucket that answer late,
twice or never, rows pruned between tries, rules that come and go, an operator who rewinds, skips, releases;
whatever happens, each row that stays arrives once, unless the operator said otherwise."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from strandline.delivery.operate_sink import release, rewind, skip
from strandline.delivery.owed import Terms, owed
from strandline.delivery.policy import Rule
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.errors import StrandlineError
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Patience, Sink
from strandline.state.context import Site
from tests.delivery.destinations import Bucket, BucketSink, Server, ServerSink, TableCourier
from tests.simulation import (
    DATASET,
    SOURCES,
    Process,
    TableError,
    TableRow,
    World,
    check,
    flushes,
    produce,
    settle_everything,
)

STEPS = 1_200
RULES = ((), (Rule((DATASET,), "key LIKE 'r1%'"),), (Rule((DATASET,), "key LIKE '2%'"),))
SERVER, BUCKET = Terms("server", max_intent_rows=30), Terms("bucket", max_intent_rows=40)


@dataclass(slots=True)
class Destinations:
    server: Server
    bucket: Bucket
    pruned: set[str]
    skipped: set[tuple[str, str]] = field(default_factory=set)  # sink and key: it may never arrive
    rewound: list[tuple[str, int]] = field(default_factory=list)  # source and seq: sent again from there

    def sinks(self, unit_rows: int) -> list[tuple[Sink, Terms]]:
        patience = Patience(inline_wait_s=10)
        return [
            (ServerSink(self.server, unit_rows, patient=patience), SERVER),
            (BucketSink(self.bucket, unit_rows + 2), BUCKET),
        ]


def delivers(to: Destinations, which: int) -> Callable[[Process], None]:
    def body(process: Process) -> None:
        world, site = process.world, process.world.site()
        while True:
            sink, terms = to.sinks(process.random.choice((3, 5, 8)))[which]  # limits change between tries
            try:
                sync(site, lambda: TableCourier(world), sink, terms, sender(process.random.choice(RULES)))
            except (StrandlineError, TableError):
                world.counts["sync failed"] += 1
            site.clock.sleep(0.05)

    return body


def prunes(to: Destinations) -> Callable[[Process], None]:
    """Retention and the removal of duplicates: rows go, seqs and lines stay."""

    def body(process: Process) -> None:
        world, site = process.world, process.world.site()
        while True:
            for snapshot in world.table.published:
                if snapshot.rows and process.random.random() < 0.05:
                    gone = process.random.choice(snapshot.rows)
                    snapshot.rows = [row for row in snapshot.rows if row is not gone]
                    to.pruned.add(gone.key)
            site.clock.sleep(0.5)

    return body


def operates(to: Destinations) -> Callable[[Process], None]:
    """By hand, beside everything else."""

    def body(process: Process) -> None:
        world, site = process.world, process.world.site()
        while True:
            which = process.random.randrange(2)
            sink, terms = to.sinks(5)[which]
            strand = Strand(DATASET, process.random.choice(SOURCES))
            try:
                _operate(process, site, to, sink, terms, strand)
            except (StrandlineError, TableError) as error:
                world.counts[f"operator {error.kind}" if isinstance(error, StrandlineError) else "table"] += 1
            site.clock.sleep(0.1)

    return body


def _operate(
    process: Process, site: Site, to: Destinations, sink: Sink, terms: Terms, strand: Strand
) -> None:
    line, chance = site.standing.lines().line(terms.name, strand), process.random.random()
    visible, counts = site.standing.strand_state(strand).visible_through, process.world.counts
    if chance < 0.4:
        counts["release"] += len(release(site, sink, terms, process.random.choice(RULES)))
    elif chance < 0.8 and line.mark:
        mark = process.random.randrange(max(line.mark - 10, 0), line.mark + 1)
        if not sink.asks_first:
            to.rewound.append((strand.source, mark))
        counts["rewind"] += len(
            rewind(site, sink, terms, strands=[strand], to=mark, reason="again", abort_intent=True)
        )
    elif line.mark < visible:
        least = line.intent.hi if line.intent is not None else line.mark + 1
        mark = min(max(least, line.mark + process.random.randrange(1, 4)), visible)
        keys = [row.key for row in _rows(process.world, strand) if line.mark < row.seq <= mark]
        to.skipped.update((terms.name, key) for key in keys)
        counts["skip"] += len(
            skip(site, sink, terms, strands=[strand], to=mark, reason="bad", abort_intent=True)
        )


def _rows(world: World, strand: Strand) -> list[TableRow]:
    return [row for row in world.table.rows if row.source == strand.source]


def sender(rules: tuple[Rule, ...] = ()) -> Sender:
    return Sender("origin", "edge", lambda name: name, rules)


def settle(world: World, to: Destinations) -> None:
    to.server.deliver_late()
    to.bucket.deliver_late()
    settle_everything(world)

    def body(process: Process) -> None:
        site = world.site()
        for sink, terms in to.sinks(5):
            for _ in range(60):
                if not owed(site, terms) and not release(site, sink, terms, ()):
                    break
                world.now_us += 400_000_000  # every pause is over
                sync(site, lambda: TableCourier(world), sink, terms, sender(), is_command=True)
            assert not owed(site, terms), f"{terms.name} is still owed {owed(site, terms)}"
            for source in SOURCES:
                line = site.standing.lines().line(terms.name, Strand(DATASET, source))
                assert not line.withheld.ranges, f"{terms.name} still withholds {line.withheld}"
                visible = site.standing.strand_state(Strand(DATASET, source)).visible_through
                assert line.mark == visible, f"{terms.name} is at {line.mark}, and {visible} is visible"

    world.calmly(body)


def check_delivered(world: World, to: Destinations) -> None:
    landed = {(row.source, row.key) for row in world.table.rows}
    for name, found in (
        ("server", Counter(key for _, key in to.server.rows)),
        ("bucket", to.bucket.rows()),
    ):
        extra = _again(world, to) if name == "bucket" else Counter()
        twice = [key for key, count in found.items() if count > 1 + extra[key]]
        assert not twice, f"the {name} has rows twice: {twice[:5]}"
        lost = {key for _, key in landed if (name, key) not in to.skipped} - set(found)
        assert not lost, f"the {name} has lost {sorted(lost)[:5]}"
        strangers = set(found) - {key for _, key in landed} - to.pruned
        assert not strangers, f"the {name} has rows that never landed: {sorted(strangers)[:5]}"
    _check_chain(to.bucket)


def _again(world: World, to: Destinations) -> Counter[str]:
    """How often a row may be there once more. Of one that is gone nobody tells where it was."""
    counts = Counter(dict.fromkeys(to.pruned, len(to.rewound)))
    for source, mark in to.rewound:
        counts.update(row.key for row in world.table.rows if row.source == source and row.seq > mark)
    return counts


def _check_chain(bucket: Bucket) -> None:
    """L-BLOB-2: never an overlap in the names."""
    chains: dict[str, list[tuple[int, int]]] = {}
    for name in bucket.objects:
        chain, _, bounds = name.rpartition("/")
        start, _, end = bounds.partition("-")
        chains.setdefault(chain, []).append((int(start), int(end)))
    for chain, pieces in chains.items():
        ordered = sorted(pieces)
        for (_, hi), (lo, _) in pairwise(ordered):
            assert hi <= lo, f"objects of {chain} overlap: {ordered}"


def simulate(seed: int, *, change: Callable[[Destinations], None] = lambda _: None) -> World:
    """One run. AssertionError if a promise was broken. `change` plants a bug."""
    random.seed(seed)  # for the jitter of pauses
    world = World(seed)
    to = Destinations(Server(world), Bucket(world), set())
    change(to)
    bodies = {
        "producer": produce,
        "flusher": flushes,
        "sender 1": delivers(to, 0),
        "sender 2": delivers(to, 0),
        "archiver 1": delivers(to, 1),
        "archiver 2": delivers(to, 1),
        "pruner": prunes(to),
        "operator": operates(to),
    }
    world.run(bodies, STEPS)
    settle(world, to)
    if not to.pruned:
        check(world)
    check_delivered(world, to)
    return world
