"""Destinations in memory for the real delivery code: a server that keeps ranges and a bucket that keeps
objects, both of which answer late, twice or never; and a courier that reads the simulated table."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from strandline.base.ranges import Range, RangeSet
from strandline.errors import StoreUnavailable
from strandline.lake.ports.deliver import Carried, PolicyUnreadable
from strandline.lake.ports.scan_counters import ScanCounters
from strandline.rows.dataset import Dataset
from strandline.sinks.sink import Holdings, Limits, Outcome, Patience, Shipment, Sink, Stored, Unit
from strandline.sinks.unit_runner import WITHHELD, IntentPart, deliver
from tests.simulation import TableRow, World

Keys = tuple[str, ...]


class TableCourier:
    """Reads the simulated table as Spark reads a real one: whole units, in order, a snapshot at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs = 0

    def rows(self) -> list[TableRow]:
        return self._world.table.rows

    def carry(
        self, sink: Sink, shipment: Shipment, parts: Sequence[IntentPart], *, withhold: str | None
    ) -> Carried:
        self.jobs += 1
        self._world.effect("job")
        rows = [
            row
            for row in self.rows()
            for part in parts
            if row.source == part.source and any(row.seq in each for each in part.ranges)
        ]
        batch = _batch(rows, withhold)
        by_source = {part.source: part for part in parts}
        told = tuple(deliver(sink, shipment, by_source, [batch] if batch.num_rows else []))
        return Carried(told, ScanCounters(1, 1, batch.nbytes, len(rows)))

    def fetch(self, dataset: Dataset, source: str, seqs: Range) -> pa.Table:
        rows = [row for row in self.rows() if row.source == source and row.seq in seqs]
        return pa.Table.from_batches([_batch(rows, None)])

    def check(self, dataset: Dataset, withhold: str) -> None:
        if "LIKE '" not in withhold:
            raise PolicyUnreadable(dataset.name, withhold, "it is no LIKE")

    def withheld(self, dataset: Dataset, source: str, ranges: Sequence[Range], withhold: str) -> list[Range]:
        rows = [row for row in self.rows() if row.source == source]
        batch = _batch([row for row in rows if any(row.seq in each for each in ranges)], withhold)
        seqs = batch.filter(batch.column(WITHHELD)).column("_sl_seq").to_pylist()
        return list(RangeSet.of(Range(seq - 1, seq) for seq in seqs).ranges)


def _batch(rows: Sequence[TableRow], withhold: str | None) -> pa.RecordBatch:
    ordered = sorted(rows, key=lambda row: (row.source, row.seq))
    columns: dict[str, Any] = {
        "key": pa.array([row.key for row in ordered], pa.string()),
        "source": pa.array([row.source for row in ordered], pa.string()),
        "_sl_seq": pa.array([row.seq for row in ordered], pa.int64()),
    }
    if withhold is not None:  # the one predicate that this table can judge: a key that begins so
        start = withhold.split("'")[1].rstrip("%")
        columns[WITHHELD] = pa.array([row.key.startswith(start) for row in ordered], pa.bool_())
    return pa.RecordBatch.from_pydict(columns)


@dataclass(slots=True)
class Request:
    unit: Unit
    keys: Keys


def arrive(world: World, late: list[Callable[[], object]]) -> None:
    """Now and then what was on its way for long comes in, before whoever asks is answered."""
    if late and world.chance(0.2):
        late.pop(world.random.randrange(len(late)))()


@dataclass(slots=True)
class Server:
    """Keeps the set of ranges that it has stored, in the same step as their rows (L-SRV-2)."""

    world: World
    ranges: dict[tuple[int, str], RangeSet] = field(default_factory=dict)
    rows: list[tuple[str, str]] = field(default_factory=list)  # source and key, as they came
    requests: list[Request] = field(default_factory=list)
    answers: list[Outcome | None] = field(default_factory=list)  # scripted: what to say next, None: be honest
    newest: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)  # seq and intent
    forgets_ranges: bool = False  # a planted bug
    late: list[Callable[[], object]] = field(default_factory=list)

    def post(self, unit: Unit, keys: Keys, lo: int, hi: int) -> Outcome:
        self.requests.append(Request(unit, keys))
        self.world.effect("post")
        arrive(self.world, self.late)
        if self.answers and (said := self.answers.pop(0)) is not None:
            return _at(said, lo, hi)
        if self.world.chance(0.06):
            return Outcome(lo, hi, "failed", kind="connection", text="no connection", requests=1)
        if self.world.chance(0.02):
            self.late.append(lambda: self.store(unit, keys, lo, hi))
            return Outcome(lo, hi, "failed", kind="timeout", text="it is stored later", requests=1)
        outcome = self.store(unit, keys, lo, hi)
        self.world.effect("posted")
        if self.world.chance(0.03):
            return Outcome(lo, hi, "failed", kind="timeout", text="the answer is lost", requests=1)
        return outcome

    def store(self, unit: Unit, keys: Keys, lo: int, hi: int) -> Outcome:
        strand = (unit.epoch, unit.source)
        held = self.ranges.get(strand, RangeSet())
        target = f"{unit.epoch}/{unit.source}/{lo}-{hi}"
        seq, intent = self.newest.get(strand, (0, unit.intent))
        if seq > unit.through and intent != unit.intent:  # no world here has a sender of another life
            return Outcome(lo, hi, "held", kind="other_life", text=f"{seq} is here", requests=1)
        if not self.forgets_ranges:
            if held.covers(Range(lo, hi)):
                return Outcome(lo, hi, "known", len(keys), 1, "d", target, requests=1)
            if held.within(Range(lo, hi)):
                return Outcome(lo, hi, "failed", kind="range_conflict", text="it has a part", requests=1)
        self.ranges[strand] = held.with_(Range(lo, hi))
        if hi >= seq:
            self.newest[strand] = hi, unit.intent
        self.rows += [(unit.source, key) for key in keys]
        return Outcome(lo, hi, "stored", len(keys), sum(map(len, keys)), "d", target, requests=1)

    def deliver_late(self) -> None:
        while self.late:
            self.late.pop()()


def _at(said: Outcome, lo: int, hi: int) -> Outcome:
    return replace(said, lo=lo, hi=hi, requests=1)


@dataclass(frozen=True)
class ServerSink(Sink):
    """Forward in small: one unit after another, the holes of what the server has."""

    server: Server
    unit_rows: int = 5
    place: str = "server"
    patient: Patience = field(default_factory=Patience)

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def asks_first(self) -> bool:
        return True

    @property
    def patience(self) -> Patience:
        return self.patient

    @property
    def fingerprint(self) -> str:
        return self.place

    def limits(self, mean_row_bytes: float) -> Limits:
        return Limits(self.unit_rows)

    @contextmanager
    def opened(self) -> Iterator["ServerSink"]:
        yield self

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        found = [(row["_sl_seq"], row["key"]) for batch in rows for row in batch.to_pylist()]
        outcome = self.server.post(unit, tuple(key for _, key in found), unit.lo, unit.hi)
        if outcome.kind != "range_conflict":
            yield outcome
            return
        held = self.server.ranges[unit.epoch, unit.source]
        pieces = sorted([*held.within(unit.range), *held.holes(unit.range)])
        for piece in pieces:
            keys = tuple(key for seq, key in found if seq in piece)
            if held.covers(piece):
                yield Outcome(piece.lo, piece.hi, "known", len(keys), 1, "d", "there")
            elif keys:
                outcome = self.server.post(unit, keys, piece.lo, piece.hi)
                yield outcome
                if not outcome.goes_on:
                    yield Outcome(piece.hi, unit.hi, "put_off") if piece.hi < unit.hi else outcome
                    return

    def holdings(self, shipment: Shipment, source: str, epoch: int) -> Holdings | None:
        self.server.world.effect("ranges")
        arrive(self.server.world, self.server.late)
        if self.server.world.chance(0.05):
            raise StoreUnavailable("the server does not answer", hint="later")
        held = self.server.ranges.get((epoch, source), RangeSet())
        newest = self.server.newest.get((epoch, source))
        return Holdings(tuple(Stored(each.lo, each.hi) for each in held.ranges), newest=newest)


@dataclass(slots=True)
class Bucket:
    """Objects that are created once."""

    world: World
    objects: dict[str, tuple[str, Keys]] = field(default_factory=dict)  # key: intent and rows
    late: list[Callable[[], object]] = field(default_factory=list)

    def put(self, key: str, intent: str, keys: Keys) -> str:
        self.world.effect("put")
        arrive(self.world, self.late)
        if self.world.chance(0.08):
            return "failed"
        if self.world.chance(0.02):
            self.late.append(lambda: self.objects.setdefault(key, (intent, keys)))
            return "failed"
        is_new = key not in self.objects
        self.objects.setdefault(key, (intent, keys))
        self.world.effect("put done")
        if self.world.chance(0.03):
            return "failed"
        return "stored" if is_new else "known" if self.objects[key][0] == intent else "held"

    def deliver_late(self) -> None:
        while self.late:
            self.late.pop()()

    def rows(self) -> Counter[str]:
        return Counter(key for _, keys in self.objects.values() for key in keys)


@dataclass(frozen=True)
class BucketSink(Sink):
    """Blob in small: units in any order, names from the intent."""

    bucket: Bucket
    unit_rows: int = 7

    @property
    def fingerprint(self) -> str:
        return "bucket"

    def limits(self, mean_row_bytes: float) -> Limits:
        return Limits(self.unit_rows)

    @contextmanager
    def opened(self) -> Iterator["BucketSink"]:
        yield self

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        keys = tuple(key for batch in rows for key in batch.column("key").to_pylist())
        name = f"{unit.source}/{unit.epoch}/{unit.after:020}-{unit.hi:020}"
        status: Any = self.bucket.put(name, unit.intent, keys)
        there = self.bucket.objects[name][1] if status == "known" else keys  # an earlier try had more
        yield Outcome(unit.lo, unit.hi, status, len(there), 1, "d", name, kind="put_failed", text=status)
