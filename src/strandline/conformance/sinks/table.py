"""A table in memory and its courier, who breaks deliveries on demand.

The courier does what Spark does to a sink: it pickles it for each job, hands it the rows of its units in
order and in batches of any size, and now and then runs one task twice at once. What breaks is named by a
Fault, one for each unit to come:

    untried   the sink is not called, and the unit has failed
    cut       the rows end in an error after the first
    lost      the unit is delivered, and told to have failed
    killed    the unit is delivered, and the process is gone before anything is recorded
"""

import pickle
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from strandline.base.ranges import Range, RangeSet
from strandline.lake.jobs.segment_batches import placed_batches, producer_schema
from strandline.lake.ports.deliver import Carried, PolicyUnreadable
from strandline.lake.ports.scan_counters import ScanCounters
from strandline.lake.ports.stage import LandingSnapshots, Published, Settle, Staged
from strandline.rows.dataset import SOURCE, Dataset
from strandline.sinks.ndjson import ROW_ID
from strandline.sinks.sink import Delivery, Limits, Outcome, Shipment, Sink, Status, Unit
from strandline.sinks.unit_runner import SEQ, WITHHELD, IntentPart, Told, deliver
from strandline.state.landing import FixedInput, FlushLanding, Landing
from strandline.storage import ContentStore

Fault: TypeAlias = Literal["untried", "cut", "lost", "killed"]

_STATUSES: Final = frozenset(get_args(Status))
_RULE: Final = re.compile(r"n IN \(([0-9, ]+)\)")


class Killed(BaseException):
    """The end of a process that delivers: nothing after it happens."""


class CutOff(Exception):
    """What a sink gets instead of the rest of its rows."""


class MemoryTables:
    """One table, with as much of Iceberg as a flush needs: staged rows are not seen, published ones are."""

    def __init__(self, content: ContentStore) -> None:
        self._content = content
        self._staged: dict[str, pa.Table] = {}
        self._published: dict[str, pa.Table] = {}
        self.rows: pa.Table | None = None
        self.batch_rows = 4

    def ensure(self, dataset: Dataset, *, has_landed: bool = False) -> None: ...

    def stage(self, landing: Landing, *, settle: Settle | None = None) -> None:  # noqa: ARG002
        assert isinstance(landing, FlushLanding), "nothing is loaded here"
        found = placed_batches(self._content, landing.pieces, landing.dataset)
        self._staged[landing.id] = pa.Table.from_batches(list(found))

    def look(self, dataset: str, id: str) -> LandingSnapshots:  # noqa: ARG002
        def facts(rows: pa.Table) -> tuple[int, int, int, int]:
            return self._number(id), 0, rows.num_rows, rows.nbytes

        published = Published(*facts(self._published[id])) if id in self._published else None
        return LandingSnapshots(published, (Staged(*facts(self._staged[id])),) if id in self._staged else ())

    def publish(self, dataset: str, snapshot: int) -> None:  # noqa: ARG002
        id_ = list(self._staged)[snapshot - 1]
        new = self._published[id_] = self._staged[id_]
        tables = [new] if self.rows is None else [self.rows, new]
        self.rows = pa.concat_tables(tables, promote_options="default")

    def keep_highest(self, dataset: str, seq: int, flush: int) -> None: ...

    def burn(self, dataset: str, id: str) -> None: ...

    def drop_input(self, load: str) -> None: ...

    def has_input(self, input: FixedInput) -> bool:  # noqa: ARG002
        return False

    def remove(self, *numbers: int) -> None:
        """As retention does: the rows of these `n` are gone."""
        assert self.rows is not None
        self.rows = self.rows.filter(pc.invert(pc.is_in(self.rows.column("n"), pa.array(numbers))))

    def compact(self) -> None:
        """The rows come from other files, so in other batches; each keeps its seq."""
        assert self.rows is not None
        self.rows = self.rows.sort_by([("n", "descending")]).combine_chunks()
        self.batch_rows = 3 if self.batch_rows != 3 else 7

    def leaving(self, dataset: Dataset, source: str, ranges: Sequence[Range]) -> pa.Table:
        """The rows of a strand in order, as they were of this version: its columns, `source`, `_sl_seq`."""
        assert self.rows is not None
        mine = self.rows.filter(pc.equal(self.rows.column(SOURCE), source)).sort_by(SEQ)
        asked = [any(seq in each for each in ranges) for seq in mine.column(SEQ).to_pylist()]
        mine = mine.filter(pa.array(asked, pa.bool_()))
        own = producer_schema(dataset)
        columns = {
            each.name: mine.column(each.name).cast(each.type)
            if each.name in mine.column_names
            else pa.nulls(mine.num_rows, each.type)
            for each in own
        }
        return pa.table({**columns, SOURCE: mine.column(SOURCE), SEQ: mine.column(SEQ)})

    def _number(self, id_: str) -> int:
        return list(self._staged).index(id_) + 1


@dataclass
class TableCourier:
    """Brings rows of the table to a sink."""

    tables: MemoryTables
    faults: list[Fault | None] = field(default_factory=list)
    at_once: int = 1  # how many tasks deliver the same
    jobs: int = 0
    units: list[Unit] = field(default_factory=list)  # in the order in which the sink got them
    told: list[Outcome] = field(default_factory=list)  # by the sink, of units that were not cut off
    broken: list[str] = field(default_factory=list)  # promises of the sink, in words

    def carry(
        self, sink: Sink, shipment: Shipment, parts: Sequence[IntentPart], *, withhold: str | None
    ) -> Carried:
        self.jobs += 1
        rows = [self._batches(shipment.dataset, part, withhold, with_id=sink.wants_row_id) for part in parts]
        batches = [batch for each in rows for batch in each]
        by_source = {part.source: part for part in parts}
        start = threading.Barrier(self.at_once)

        def task(packed: bytes) -> list[Told]:
            hosted = _Watched(pickle.loads(packed), self)
            start.wait()
            return list(deliver(hosted, shipment, by_source, batches))

        with ThreadPoolExecutor(self.at_once) as pool:
            told = list(pool.map(task, [pickle.dumps(sink)] * self.at_once))
        return Carried(tuple(told[0]), ScanCounters(1, 1, 0, sum(each.num_rows for each in batches)))

    def fetch(self, dataset: Dataset, source: str, seqs: Range) -> pa.Table:
        return self.tables.leaving(dataset, source, [seqs])

    def check(self, dataset: Dataset, withhold: str) -> None:
        if not _RULE.search(withhold):
            raise PolicyUnreadable(dataset.name, withhold, "this table knows `n IN (1, 2)` alone")

    def withheld(self, dataset: Dataset, source: str, ranges: Sequence[Range], withhold: str) -> list[Range]:
        rows = self.tables.leaving(dataset, source, ranges)
        seqs = rows.filter(_stays(rows, withhold)).column(SEQ).to_pylist()
        return list(RangeSet.of(Range(seq - 1, seq) for seq in seqs).ranges)

    def _batches(
        self, dataset: Dataset, part: IntentPart, withhold: str | None, *, with_id: bool
    ) -> list[pa.RecordBatch]:
        rows = self.tables.leaving(dataset, part.source, part.ranges)
        if with_id:
            ids = [
                sha256(f"{part.source} {seq}".encode()).hexdigest() for seq in rows.column(SEQ).to_pylist()
            ]
            rows = rows.append_column(ROW_ID, pa.array(ids, pa.string()))
        if withhold is not None:
            rows = rows.append_column(WITHHELD, _stays(rows, withhold))
        found: list[pa.RecordBatch] = rows.combine_chunks().to_batches(max_chunksize=self.tables.batch_rows)
        return found


def _stays(rows: pa.Table, withhold: str) -> Any:
    """The one predicate that this table can judge."""
    found = _RULE.search(withhold)
    assert found is not None, "it was checked"
    return pc.is_in(rows.column("n"), pa.array([int(each) for each in found[1].split(",")]))


class _Watched(Sink):
    """A sink whose deliveries are broken as the courier is told, and held to what a Delivery promises."""

    def __init__(self, sink: Sink, courier: TableCourier) -> None:
        self._sink, self._courier = sink, courier

    @property
    def is_ordered(self) -> bool:
        return self._sink.is_ordered

    @property
    def fingerprint(self) -> str:
        return self._sink.fingerprint

    def limits(self, mean_row_bytes: float) -> Limits:
        return self._sink.limits(mean_row_bytes)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        with self._sink.opened() as delivery:
            yield _WatchedDelivery(delivery, self._courier)


class _WatchedDelivery:
    def __init__(self, delivery: Delivery, courier: TableCourier) -> None:
        self._delivery, self._courier = delivery, courier

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        courier = self._courier
        courier.units.append(unit)
        fault = courier.faults.pop(0) if courier.faults else None
        if fault == "untried":
            yield Outcome(unit.lo, unit.hi, "failed", kind="timeout", text="the suite did not call the sink")
            return
        if fault == "cut":
            yield from self._delivery.deliver(unit, _cut(rows))
            return
        seqs: list[int] = []
        told = list(self._delivery.deliver(unit, _noted(rows, seqs)))
        courier.told += told
        courier.broken += _broken(unit, seqs, told)
        if fault == "killed":
            raise Killed
        if fault == "lost":
            yield Outcome(unit.lo, unit.hi, "failed", kind="timeout", text="the suite lost the answer")
            return
        yield from told


def _cut(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(rows).slice(0, 1)
    raise CutOff("the suite cut the rows off")


def _noted(rows: Iterator[pa.RecordBatch], seqs: list[int]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        seqs += batch.column(SEQ).to_pylist()
        yield batch


def _broken(unit: Unit, seqs: Sequence[int], told: Sequence[Outcome]) -> Iterator[str]:
    """What a sink told of a whole unit that it may not tell."""

    def say(text: str) -> str:
        return f"unit ({unit.lo}, {unit.hi}]: {text}"

    before = unit.lo
    for each in told:
        rows = sum(each.lo < seq <= each.hi for seq in seqs)
        if each.status not in _STATUSES:
            yield say(f"it has an outcome of status {each.status!r}")
        if not before <= each.lo < each.hi <= unit.hi:
            yield say(f"the outcome of ({each.lo}, {each.hi}] is not inside it, or not behind the one before")
        elif each.status == "stored" and each.rows != rows:
            yield say(f"{rows} rows of ({each.lo}, {each.hi}] were stored, and {each.rows} are told")
        before = each.hi
    missed = [seq for seq in seqs if not any(each.lo < seq <= each.hi for each in told)]
    if missed:
        yield say(f"no outcome is of the seqs {missed[:10]}")
