"""Carries rows from a table to a sink: one job of Spark for the ranges of many strands.

    scan of the ranges ──▶ a task for each strand, or unit ──▶ sorted by source, seq ──▶ host ──▶ outcomes

The driver decides which task delivers what, so every try of a task brings the same rows in the same order.
Rows of a single strand go to their tasks as they are read; those of many by a shuffle.
Few rows are not worth a Python task: the driver fetches them in order, and hosts the sink itself.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range, RangeSet, pairs_of, ranges_of
from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.scan import LakeReader, ScanRange
from strandline.lake.jobs.table_schema import ROW_ID, SEQ, literal, quoted
from strandline.lake.ports.deliver import Carried, PolicyUnreadable
from strandline.lake.spark.cancel_jobs import Jobs
from strandline.lake.spark.python_task import ArrowMap, Batches, lean
from strandline.lake.spark.scan_meter import ScanMeter
from strandline.lake.spark.session import slots
from strandline.rows.dataset import SOURCE, Dataset
from strandline.sinks.sink import Outcome, Shipment, Sink
from strandline.sinks.unit_runner import WITHHELD, IntentPart, Told, deliver

IN_DRIVER: Final = 10_000  # seqs
_TASK: Final = "_sl_task"
_ONE_NAME: Final = re.compile(r"`(?:[^`]|``)+`")
_MOST_SCANS: Final = 2  # of one job: a file may be opened by each, and at most twice its bytes are read
_TOLD_AT_ONCE: Final = 1_000
_THREADS: Final = 4  # of the driver, where a sink does not say how many

_TOLD: Final = pa.schema(
    [
        ("source", pa.string()),
        ("lo", pa.int64()),
        ("hi", pa.int64()),
        ("status", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("digest", pa.string()),
        ("target", pa.string()),
        ("requests", pa.int64()),
        ("kind", pa.string()),
        ("text", pa.string()),
        ("http_status", pa.int64()),
        ("wait_s", pa.float64()),
        ("scope", pa.string()),
        ("withheld", pa.binary()),  # [[lo, hi], …] as JSON
    ]
)
_TOLD_SQL: Final = (
    "source string, lo bigint, hi bigint, status string, rows bigint, bytes bigint, digest string, "
    "target string, requests bigint, kind string, text string, http_status bigint, wait_s double, "
    "scope string, withheld binary"
)


class SparkCourier:
    """By Spark, classic or Connect."""

    def __init__(self, spark: SparkSession, lake: LakeSettings) -> None:
        self._spark, self._reader, self._meter = spark, LakeReader(spark, lake), ScanMeter(spark)
        self._jobs = Jobs(spark)
        self._slots: int | None = None

    def carry(
        self, sink: Sink, shipment: Shipment, parts: Sequence[IntentPart], *, withhold: str | None
    ) -> Carried:
        pieces = [ScanRange(part.source, each) for part in parts for each in part.ranges]
        also = [ROW_ID] if sink.wants_row_id else []
        rows = self._leaving(shipment.dataset, pieces, withhold, also)
        by_source = {part.source: part for part in parts}
        with self._jobs.running(), self._reader.reading(shipment.dataset):
            if sum(len(each) for part in parts for each in part.ranges) <= IN_DRIVER:
                return self._in_driver(sink, shipment, by_source, rows)
            return self._in_tasks(sink, shipment, by_source, rows)

    def cancel(self) -> None:
        """End the jobs that carry rows now, each with JobsCancelled; none is begun after it."""
        self._jobs.cancel()

    def fetch(self, dataset: Dataset, source: str, seqs: Range) -> pa.Table:
        rows = self._reader.leaving(dataset, [ScanRange(source, seqs)])
        with self._reader.reading(dataset):
            return rows.coalesce(1).sortWithinPartitions(SEQ).toArrow()

    def check(self, dataset: Dataset, withhold: str) -> None:
        self._leaving(dataset, [], withhold)

    def withheld(self, dataset: Dataset, source: str, ranges: Sequence[Range], withhold: str) -> list[Range]:
        rows = self._leaving(dataset, [ScanRange(source, each) for each in ranges], withhold)
        with self._reader.reading(dataset):
            found = rows.where(WITHHELD).select(SEQ).toArrow().column(SEQ).to_pylist()
        return list(RangeSet.of(Range(seq - 1, seq) for seq in found).ranges)

    def _leaving(
        self, dataset: Dataset, pieces: Sequence[ScanRange], withhold: str | None, also: Sequence[str] = ()
    ) -> DataFrame:
        """The rows of the pieces, each with whether it stays. A column that the table does not have is null:
        then the rule says what becomes of its rows. What else Spark cannot read is PolicyUnreadable."""
        if withhold is None:
            return self._reader.leaving(dataset, pieces, also=also)
        flag = f"NOT coalesce(NOT ({withhold}), false) AS {WITHHELD}"
        self._reader.leaving(dataset, [])  # the table is there: what Spark says from here on is of the rule
        absent: list[str] = []
        with self._reader.reading(dataset):
            while True:
                nulls = [f"NULL AS {name}" for name in absent]
                try:
                    rows = self._reader.leaving(dataset, pieces, also=[*also, *nulls, flag])
                    kept = [name for name in map(quoted, rows.columns) if name not in absent]  # analysed here
                    return rows.select(*kept)
                except (AnalysisException, ParseException) as error:
                    name = _lacking(error)
                    if name is None or name in absent:
                        raise PolicyUnreadable(dataset.name, withhold, _first_line(error)) from error
                    absent.append(name)

    def _in_driver(
        self, sink: Sink, shipment: Shipment, parts: Mapping[str, IntentPart], rows: DataFrame
    ) -> Carried:
        ordered = rows.coalesce(1).sortWithinPartitions(SOURCE, SEQ)
        table, counters = self._meter.counted(ordered, lambda found: found.toArrow())
        shares = _shares(parts.values(), min(sink.parallel or _THREADS, len(parts)))
        told = _at_once(lambda share: list(deliver(sink, shipment, share, _of(table, share))), shares)
        return Carried(tuple(each for share in told for each in share), counters)

    def _in_tasks(
        self, sink: Sink, shipment: Shipment, parts: Mapping[str, IntentPart], rows: DataFrame
    ) -> Carried:
        if self._slots is None:
            self._slots = slots(self._spark)
        tasks = min(self._slots, sink.parallel or self._slots)
        only = next(iter(parts.values())) if len(parts) == 1 else None
        if only is not None and (sink.is_ordered or tasks <= _MOST_SCANS):
            ordered = side_by_side(rows, runs_of(only, 1 if sink.is_ordered else tasks))
        else:
            task = task_sql(list(parts.values()), tasks, by_unit=not sink.is_ordered)
            placed = rows.selectExpr("*", f"{task} AS {_TASK}").repartitionById(tasks, _TASK)
            ordered = placed.drop(_TASK).sortWithinPartitions(SOURCE, SEQ)
        told = ordered.mapInArrow(lean(_hosted(sink, shipment, parts)), _TOLD_SQL)
        table, counters = self._meter.counted(told, lambda found: found.toArrow())
        return Carried(tuple(_told_of(table)), counters)


def _lacking(error: PySparkException) -> str | None:
    """The column, quoted, that a predicate names and the table does not have; None if that is not it."""
    if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
        return None
    name: str = (error.getMessageParameters() or {}).get("objectName", "")
    return name if _ONE_NAME.fullmatch(name) else None


def _first_line(error: PySparkException) -> str:
    return (str(error).splitlines() or [""])[0]


def runs_of(part: IntentPart, tasks: int) -> list[Range]:
    """What is left of a strand, cut at bounds of units into one range a task, or fewer."""
    width = part.limits.unit_rows
    first = (part.ranges[0].lo - part.since) // width
    last = -((part.since - part.ranges[-1].hi) // width)
    each = -((first - last) // tasks)
    starts = range(first, last, each)
    return [Range(part.since + at * width, part.since + min(at + each, last) * width) for at in starts]


def side_by_side(rows: DataFrame, runs: Sequence[Range]) -> DataFrame:
    """Rows of one strand, a task for each run of them, in order. Each task scans its own run: a file holds
    neighbours, so nothing is read twice that a shuffle would have to move."""
    tasks = [
        rows.where(f"{SEQ} > {run.lo} AND {SEQ} <= {run.hi}").coalesce(1).sortWithinPartitions(SEQ)
        for run in runs
    ]
    return reduce(DataFrame.unionAll, tasks)


def task_sql(parts: Sequence[IntentPart], tasks: int, *, by_unit: bool) -> str:
    """The task of a row, by arithmetic on its source and seq alone."""
    if by_unit:  # the units of a strand go round the tasks
        first = {part.source: index for index, part in enumerate(parts)}
        since = {part.source: part.since for part in parts}
        width = {part.source: part.limits.unit_rows for part in parts}
        unit = f"({SEQ} - {_of_source(since)} - 1) div {_of_source(width)}"
        return f"cast(pmod({_of_source(first)} + {unit}, {tasks}) AS int)"
    chosen = {source: task for task, share in enumerate(_shares(parts, tasks)) for source in share}
    return f"cast({_of_source(chosen)} AS int)"


def _shares(parts: Iterable[IntentPart], count: int) -> list[dict[str, IntentPart]]:
    """The parts by who delivers them: the largest first, each to the one with the least to do."""
    load = [0] * count
    shares: list[dict[str, IntentPart]] = [{} for _ in range(count)]
    for part in sorted(parts, key=lambda each: (-sum(map(len, each.ranges)), each.source)):
        least = load.index(min(load))
        shares[least][part.source] = part
        load[least] += sum(map(len, part.ranges))
    return shares


def _at_once(
    work: Callable[[dict[str, IntentPart]], list[Told]], shares: Sequence[dict[str, IntentPart]]
) -> list[list[Told]]:
    """Each share in a daemon thread: a request that hangs must not keep the process from ending, and those
    of a pool would. The first error of any is raised once all have ended."""
    told: list[list[Told]] = [[] for _ in shares]
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            told[index] = work(shares[index])
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread that asked
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return told


def _of(table: pa.Table, share: Mapping[str, IntentPart]) -> list[pa.RecordBatch]:
    """The rows of these strands, in the order they have."""
    mine = pc.is_in(table.column(SOURCE), pa.array(sorted(share), pa.string()))
    found: list[pa.RecordBatch] = table.filter(mine).to_batches()
    return found


def _of_source(values: Mapping[str, int]) -> str:
    pairs = ", ".join(f"{literal(source)}, {value}L" for source, value in values.items())
    return f"map({pairs})[{SOURCE}]"


def _hosted(sink: Sink, shipment: Shipment, parts: Mapping[str, IntentPart]) -> ArrowMap:
    """Outcomes in as few batches as may be: Spark hands them on when the whole job is over, not before."""

    def host(batches: Batches) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        for told in deliver(sink, shipment, parts, batches):
            rows.append(_told_row(told))
            if len(rows) == _TOLD_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=_TOLD)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_TOLD)

    return host


def _told_row(told: Told) -> dict[str, Any]:
    outcome = told.outcome
    row: dict[str, Any] = {name: getattr(outcome, name) for name in _TOLD.names[1:-1]}
    row["source"] = told.source
    row["withheld"] = orjson.dumps(pairs_of(told.withheld))
    return row


def _told_of(table: pa.Table) -> Iterator[Told]:
    for row in table.to_pylist():
        source = row.pop("source")
        withheld = ranges_of(orjson.loads(row.pop("withheld")))
        yield Told(source, Outcome(**row), withheld)
