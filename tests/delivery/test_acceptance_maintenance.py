"""Delivery with real Spark to a real node and a real S3 server while retention and compaction do their work
beside it (L-ACC-2): the same promises for both sinks."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings
from strandline.delivery.owed import Terms
from strandline.delivery.result import SyncResult
from strandline.ingest.append import append
from strandline.maintenance.retention.prune import PruneResult
from strandline.maintenance.table_upkeep import Maintained
from strandline.sinks.sink import Sink
from tests.delivery import test_acceptance_remote as remote
from tests.delivery.rig import once
from tests.delivery.test_acceptance_remote import Centre, Destination, check_verified
from tests.delivery.wire import Pass, Say
from tests.maintenance.compacting import FORCE, compact, paths, seqs_of
from tests.maintenance.house import House, blob_sink

destination = remote.destination
ROWS = 16_000
ROW_BYTES = 1_200
NEW = 100


@pytest.fixture
def house(spark: SparkSession, spark_lake: LakeSettings, tmp_path: Path) -> Iterator[House]:
    made = House(spark, spark_lake, tmp_path)
    yield made
    made.site.b.close()


def prune(house: House, **retention: object) -> PruneResult:
    """A run of retention that knows of the sink `centre`: it asks how far that is, not what it is."""
    return house.prune(house.config(blob_sink(house.folder, "centre"), **retention))


def compact_all(house: House) -> Maintained:
    """No file stays, and those that came of it hold their rows in order, apart from each other."""
    before = house.files()
    done = compact(house, FORCE)
    assert done.walk.runs
    assert not before & house.files()
    held = [seqs_of(path) for path in paths(house)]
    assert sorted(held) == sorted(sorted(seqs) for seqs in held)
    return done


def check_idle(house: House, destination: Destination, sink: Sink, terms: Terms | None = None) -> None:
    """L-COST-1: no job, no file, no request, no write."""
    crossed, position = len(destination.wire.crossings), house.site.standing.position()
    idle = house.sync(sink, terms)
    assert (idle.status, idle.requests, idle.control_writes) == ("idle", 0, 0)
    assert (idle.counters.jobs, idle.counters.files_opened, idle.counters.bytes) == (0, 0, 0)
    assert len(destination.wire.crossings) == crossed
    assert house.site.standing.position() == position


def check_costs_what_is_new(house: House, sink: Sink, count: int = 5) -> list[int]:
    """L-COST-2: one file, its rows and no other."""
    before = house.files()
    values = house.land(count)
    (new,) = house.files() - before
    size = house.sql(f"SELECT file_size_in_bytes FROM {{table}}.files WHERE file_path = '{new}'")[0][0]
    tick = house.sync(sink)
    assert (tick.rows, tick.units) == (count, 1)
    read = tick.counters
    assert (read.files_opened, read.rows_decoded, read.bytes) == (1, count, size)
    return values


def test_each_row_arrives_once_across_runs_of_retention(house: House, destination: Destination) -> None:
    """L-ACC-2, L-RET-4, F-18: what is not delivered stays; what is goes, and neither tick nor idle tick is
    the worse for it."""
    sink = destination.sink()
    values = house.land(60)
    house.sync(sink)
    values += house.land(60)
    house.clock.forward(days=95)

    first = prune(house)
    assert (first.rows, dict(first.held), house.seqs()) == (60, {"centre": 60}, list(range(61, 121)))
    check_verified(house, sink)
    assert house.sync(sink).rows == 60
    assert prune(house).rows == 60
    assert house.seqs() == []
    check_idle(house, destination, sink)
    values += check_costs_what_is_new(house, sink)

    assert destination.rows(house.dataset) == once(values)
    assert house.line().mark == 125
    assert house.strand_state().removed_rows == 120
    check_verified(house, sink)


def test_each_row_that_retention_left_arrives_once(house: House, destination: Destination) -> None:
    """L-ACC-2, L-RET-6, G-2: a sink that is not waited for lacks what its stream says it lacks, no more."""
    sink = destination.sink()
    values = house.land(30)
    house.sync(sink)
    lost = house.land(50)
    house.clock.forward(days=60)
    values += house.land(40)
    house.clock.forward(days=60)

    result = prune(house, wait_for_sinks="none")
    assert (result.rows, result.evicted) == (80, 50)
    assert house.line().evicted == len(lost)
    assert house.sync(sink).rows == 40
    check_idle(house, destination, sink)

    assert destination.rows(house.dataset) == once(values)
    assert house.line().mark == 120
    check_verified(house, sink)


def test_each_row_arrives_once_across_compactions(house: House, destination: Destination) -> None:
    """L-ACC-2, L-CMP-9, F-17: every file is another one, also of rows that are still to be delivered."""
    sink = destination.sink()
    values = house.land(30) + house.land(30)
    house.sync(sink)
    compact_all(house)
    check_idle(house, destination, sink)
    values += check_costs_what_is_new(house, sink)
    values += house.land(30) + house.land(30)
    compact_all(house)
    assert house.sync(sink).rows == 60
    check_idle(house, destination, sink)

    assert destination.rows(house.dataset) == once(values)
    assert house.line().mark == 125
    check_verified(house, sink)


def test_each_row_arrives_once_across_both_with_an_intent_open(
    house: House, destination: Destination
) -> None:
    """L-ACC-2, L-WM-8, L-WM-11: the intent keeps its range and its units; what is old goes from in front of
    it and, where the sink is not waited for, from within it."""
    sink, wire = destination.sink(), destination.wire
    values = house.land(70)
    house.clock.forward(days=60)
    values += house.land(110)
    refusal = Say(500) if isinstance(destination, Centre) else Say(400)  # no client of S3 repeats that one
    wire.judge = lambda each: refusal if destination.is_of(each, 40, 80) else Pass()
    assert house.sync(sink).status == "partial"
    assert house.line().mark == 40
    intent = house.line().intent
    assert intent is not None
    arrived = destination.rows(house.dataset)

    house.clock.forward(days=60)
    compact_all(house)
    assert prune(house).rows == 40
    more = house.land(5)
    compact_all(house)
    check_open(house, intent.id)
    assert prune(house, wait_for_sinks="none").rows == 30  # of (40, 70], in the midst of a unit
    more += house.land(5)
    compact_all(house)
    check_open(house, intent.id)
    wire.judge = lambda _: Pass()
    assert house.sync(sink, is_command=True).status == "exported"
    check_idle(house, destination, sink)
    more += check_costs_what_is_new(house, sink)

    gone = set(range(41, 71)) - set(arrived)
    assert destination.rows(house.dataset) == once([n for n in values + more if n not in gone])
    assert house.line().mark == 195
    check_verified(house, sink)


def check_open(house: House, intent: str) -> None:
    line = house.line()
    assert line.mark == 40
    assert line.intent is not None
    assert line.intent.id == intent


def land_wide(house: House, count: int) -> None:
    """Rows that do not become smaller in a file, each of about ROW_BYTES."""
    numbers, chosen = range(house.next, house.next + count), Random(house.next)
    house.next += count
    texts = [chosen.randbytes(ROW_BYTES // 2).hex() for _ in numbers]
    table = pa.table({"n": pa.array(numbers, pa.int64()), "text": texts})
    append(house.site, house.dataset, table, source="web-1")
    house.flush()


def test_rows_that_were_compacted_before_their_delivery_cost_a_row_group_at_each_end(
    house: House, destination: Destination
) -> None:
    """L-COST-3, L-SCH-3: old rows in the same file are passed by, delivered ones too; afterwards a tick costs
    what is new."""
    sink = destination.sink(1_000)
    terms = Terms("centre", include=(house.dataset,), start="now")
    land_wide(house, ROWS)
    assert house.sync(sink, terms).rows == 0
    land_wide(house, NEW)
    compact_all(house)

    tick = house.sync(sink, terms)
    (path,) = paths(house)
    groups = row_groups(path)
    assert len(groups) > 2
    wanted = [len(seqs) for seqs in groups if seqs[-1] > ROWS]
    assert tick.rows == NEW
    check_read(tick, sum(wanted))
    assert sum(wanted) <= NEW + 2 * max(map(len, groups)) < ROWS
    check_idle(house, destination, sink, terms)

    more = house.land(5)
    again = house.sync(sink, terms)
    assert again.rows == 5
    check_read(again, 5)
    new = range(ROWS + 1, ROWS + NEW + 1)
    assert destination.rows(house.dataset) == once([*new, *more])


def check_read(tick: SyncResult, rows: int) -> None:
    assert (tick.counters.files_opened, tick.counters.rows_decoded) == (1, rows)


def row_groups(path: Path) -> list[list[int]]:
    """The seqs of each, in the order of the file."""
    file = pq.ParquetFile(path)
    return [
        file.read_row_group(at, ["_sl_seq"]).column("_sl_seq").to_pylist()
        for at in range(file.num_row_groups)
    ]
