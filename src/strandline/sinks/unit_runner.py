"""Hosts any sink: rows of many strands go in as Arrow batches, outcomes come out.

Spark runs it in its tasks, a small delivery runs it in the driver; it knows nothing of either. The rows of a
strand come in order of seq, each strand's together. Every unit that has a row, withheld or not, gives an
outcome: so a unit without one had no row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.base.ranges import Range, RangeSet
from strandline.rows.batches import cut
from strandline.rows.dataset import SOURCE
from strandline.sinks.sink import Delivery, Limits, Outcome, Shipment, Sink, Unit

SEQ: Final = "_sl_seq"
WITHHELD: Final = "_sl_withheld"  # true on rows that a policy keeps here
_AHEAD_ROWS: Final = 5_000
_AHEAD_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IntentPart:
    """What of one strand is under way: those `ranges` of its intent `(since, until]` that are not done.

    Where only single rows of the intent are asked for (`is_sparse`), a unit is as wide as any other, so that
    no two have one name.
    """

    intent: str
    epoch: int
    source: str
    since: int
    until: int
    chain_hi: int
    ranges: tuple[Range, ...]
    limits: Limits
    is_sparse: bool = False
    through: int = 0  # up to here the destination may hold rows of earlier intents

    def unit_at(self, shipment: Shipment, seq: int) -> Unit | None:
        """The unit that holds a seq; None if it is done or none of ours."""
        part = next((each for each in self.ranges if seq in each), None)
        if part is None:
            return None
        width = self.limits.unit_rows
        lo = self.since + (seq - 1 - self.since) // width * width
        whole = Range(lo, min(lo + width, self.until))
        asked = whole if self.is_sparse else whole.meets(part)
        assert asked is not None  # both hold the seq
        return self._unit(shipment, whole, asked)

    def _unit(self, shipment: Shipment, whole: Range, asked: Range) -> Unit:
        after = self.chain_hi if whole.lo == self.since else whole.lo
        place = (self.epoch, self.source, asked.lo, asked.hi, after)
        return Unit(shipment, self.intent, *place, self.limits, self.through)


@dataclass(frozen=True, slots=True)
class Told:
    """An outcome, the strand it is of, and the rows of its unit that a policy withheld, as ranges."""

    source: str
    outcome: Outcome
    withheld: tuple[Range, ...] = ()


def deliver(
    sink: Sink, shipment: Shipment, parts: Mapping[str, IntentPart], batches: Iterable[pa.RecordBatch]
) -> Iterator[Told]:
    """Deliver what `batches` bring of the parts, by source."""
    with sink.opened() as delivery:
        stopped: set[str] = set()
        rows = _Rows(_prepared(sink, shipment, batches) if sink.prepares else batches)
        while (place := rows.place()) is not None:
            source, seq = place
            unit = parts[source].unit_at(shipment, seq) if source in parts else None
            if unit is None:
                rows.skip()  # of the same file or bucket, and not asked for
                continue
            yield from _unit(sink, delivery, unit, rows, stopped)


def _unit(sink: Sink, delivery: Delivery, unit: Unit, rows: "_Rows", stopped: set[str]) -> Iterator[Told]:
    run = _Run(rows, unit)
    if unit.source in stopped:
        run.drain()
        yield Told(unit.source, Outcome(unit.lo, unit.hi, "put_off"))
        return
    first = next(run, None)
    if first is None:  # a policy keeps all of it here
        yield Told(unit.source, Outcome(unit.lo, unit.hi, "stored"), run.withheld())
        return
    told = _told_of(delivery, unit, _chained(first, run))
    rows.check()
    run.drain()
    told = sorted([*told, *(_silent(each) for each in run.without(told))], key=lambda each: each.lo)
    if sink.is_ordered and not all(each.goes_on for each in told):
        stopped.add(unit.source)
    withheld = run.withheld()
    for index, each in enumerate(told):
        yield Told(unit.source, each, withheld if index == 0 else ())


def _told_of(delivery: Delivery, unit: Unit, rows: Iterator[pa.RecordBatch]) -> list[Outcome]:
    """What a sink tells of a unit. One that raises has told up to there, and the rest of the unit failed."""
    told: list[Outcome] = []
    try:
        for outcome in delivery.deliver(unit, rows):
            told.append(outcome)  # noqa: PERF402  # what came before an error counts
    except Exception as error:  # noqa: BLE001  # whatever a sink raises is its outcome
        text = f"{type(error).__name__}: {error}"[:2048]
        lo = max((each.hi for each in told), default=unit.lo)
        if lo < unit.hi:
            told.append(Outcome(lo, unit.hi, "failed", kind="sink_error", text=text))
    return told


def _silent(rows: Range) -> Outcome:
    return Outcome(
        rows.lo, rows.hi, "failed", kind="sink_silent", text="the sink did not tell what became of these rows"
    )


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _prepared(sink: Sink, shipment: Shipment, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches in small pieces, each prepared while the one before it is delivered."""

    def prepare(rows: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return sink.prepared(shipment.dataset, rows)
        except Exception:  # noqa: BLE001  # the sink meets it again in its turn, and then it is an outcome
            return rows

    pieces = chain.from_iterable(cut(each, rows=_AHEAD_ROWS, size=_AHEAD_BYTES) for each in batches)
    with ThreadPoolExecutor(1, "prepare") as thread:
        following = thread.submit(lambda: _next_prepared(pieces, prepare))
        while (rows := following.result()) is not None:
            following = thread.submit(lambda: _next_prepared(pieces, prepare))
            yield rows


def _next_prepared(
    pieces: Iterator[pa.RecordBatch], prepare: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> pa.RecordBatch | None:
    rows = next(pieces, None)
    return None if rows is None else prepare(rows)


class _Rows:
    """Batches with a place in them."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._batch: pa.RecordBatch | None = None
        self._at = 0
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise what the batches have raised: a sink took it for its own, and it is not their end."""
        if self._error is not None:
            raise self._error

    def place(self) -> tuple[str, int] | None:
        """Source and seq of the next row, None behind the last."""
        while self._batch is None or self._at >= self._batch.num_rows:
            try:
                self._batch, self._at = next(self._batches, None), 0
            except Exception as error:
                self._error = error
                raise
            if self._batch is None:
                return None
        return self._batch.column(SOURCE)[self._at].as_py(), self._batch.column(SEQ)[self._at].as_py()

    def skip(self) -> None:
        self._at += 1

    def take(self, source: str, hi: int) -> pa.RecordBatch | None:
        """The next rows of `source` up to the seq `hi`, as many as the batch has; None if none come next."""
        place = self.place()
        if place is None or place[0] != source or place[1] > hi:
            return None
        assert self._batch is not None
        rest = self._batch.slice(self._at)
        inside = pc.and_(pc.equal(rest.column(SOURCE), source), pc.less_equal(rest.column(SEQ), hi))
        end = pc.index(inside, pa.scalar(value=False)).as_py()
        count = rest.num_rows if end < 0 else end
        self._at += count
        return rest.slice(0, count)


class _Run:
    """The rows of one unit that may leave, batch by batch; what is withheld is kept as ranges."""

    def __init__(self, rows: _Rows, unit: Unit) -> None:
        self._rows, self._unit = rows, unit
        self._withheld: list[Range] = []
        self._seqs: list[pa.Array] = []

    def __iter__(self) -> "_Run":
        return self

    def __next__(self) -> pa.RecordBatch:
        while (batch := self._rows.take(self._unit.source, self._unit.hi)) is not None:
            kept = self._leaving(batch)
            if kept.num_rows:
                self._seqs.append(pc.add(kept.column(SEQ), 0))  # a copy: the column holds its whole batch
                return kept
        raise StopIteration

    def drain(self) -> None:
        for _ in self:
            pass

    def without(self, told: list[Outcome]) -> list[Range]:
        """Where rows are of which no outcome tells: none of them may pass for delivered."""
        covered = RangeSet.of(Range(each.lo, each.hi) for each in told)
        holes = covered.holes(self._unit.range)
        if not holes:
            return []
        seqs = pa.chunked_array(self._seqs, pa.int64())
        return [
            hole
            for hole in holes
            if pc.any(pc.and_(pc.greater(seqs, hole.lo), pc.less_equal(seqs, hole.hi))).as_py()
        ]

    def withheld(self) -> tuple[Range, ...]:
        return tuple(self._withheld)

    def _leaving(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if WITHHELD not in batch.schema.names:
            return batch
        flags = batch.column(WITHHELD)
        for seq in batch.filter(flags).column(SEQ).to_pylist():
            if self._withheld and self._withheld[-1].hi == seq - 1:
                self._withheld[-1] = Range(self._withheld[-1].lo, seq)
            else:
                self._withheld.append(Range(seq - 1, seq))
        return batch.filter(pc.invert(flags)).drop_columns([WITHHELD])
