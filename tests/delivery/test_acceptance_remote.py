"""Delivery with real Spark to a real node and a real S3 server, over a wire that counts what crosses it and
can be told to fail (L-ACC-1, L-ACC-2): the same promises for both sinks."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.base.secret import Secret
from strandline.config.lake_settings import LakeSettings
from strandline.delivery.audit.verify import verify
from strandline.delivery.owed import Terms
from strandline.delivery.session import Sender
from strandline.ingest.append import append
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.sink import Sink
from strandline.storage.objects import Objects, open_objects
from tests.delivery.rig import Rig, once
from tests.delivery.wire import Crossing, Pass, Say, Wire, wire_to
from tests.server.receivers import Sender as Receiving
from tests.server.receivers import receiving
from tests.sites import StillClock, spooled_rows
from tests.storage.places import BUCKET, s3_options

UNIT_ROWS = 40
KINDS = ("forward", "s3")


@dataclass
class Destination(ABC):
    """A real server at the end of a wire, and a sink that delivers to it."""

    wire: Wire

    @abstractmethod
    def sink(self, unit_rows: int = UNIT_ROWS) -> Sink: ...

    @abstractmethod
    def rows(self, dataset: str) -> Counter[int]:
        """`n` of every row that it has."""

    @abstractmethod
    def is_of(self, crossing: Crossing, lo: int, hi: int) -> bool:
        """Whether a request stores this unit."""


@dataclass
class Centre(Destination):
    receiver: Receiving
    folder: Path

    def sink(self, unit_rows: int = UNIT_ROWS) -> Sink:
        token = Secret("file:token", self.folder, self.receiver.token)
        return ForwardSink(url=self.wire.url, token=token, max_unit_rows=unit_rows)

    def rows(self, dataset: str) -> Counter[int]:
        return Counter(row["n"] for _, row in spooled_rows(self.receiver.site, dataset, "edge/web-1"))

    def is_of(self, crossing: Crossing, lo: int, hi: int) -> bool:
        return crossing.method == "POST" and crossing.range == (lo, hi)


@dataclass
class Store(Destination):
    prefix: str

    def sink(self, unit_rows: int = UNIT_ROWS) -> Sink:
        options = s3_options(self.wire.url)
        keys = {name: value for name, value in options.items() if name not in ("endpoint", "region")}
        return BlobSink(
            "s3",
            bucket=BUCKET,
            prefix=self.prefix,
            region=options["region"],
            endpoint=self.wire.url,
            encoder="jsonl",
            max_object_rows=unit_rows,
            credentials=keys,
        )

    def names(self) -> list[str]:
        return [each.name for each in self._objects().scan()]

    def _objects(self) -> Objects:
        return open_objects(f"s3://{BUCKET}/{self.prefix}", **s3_options(self.wire.target))

    def rows(self, dataset: str) -> Counter[int]:
        objects = self._objects()
        return Counter(
            orjson.loads(line)["n"]
            for each in objects.scan()
            for line in objects.read(each.name).splitlines()
        )

    def is_of(self, crossing: Crossing, lo: int, hi: int) -> bool:
        return crossing.method == "PUT" and f"{lo:020}-{hi:020}" in crossing.path


@pytest.fixture(params=KINDS)
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Destination]:
    if request.param == "s3":
        with wire_to(request.getfixturevalue("s3_endpoint")) as wire:
            yield Store(wire, uuid4().hex)
        return
    (tmp_path / "centre").mkdir()
    with receiving(tmp_path / "centre", is_strict=False) as receiver, wire_to(receiver.url) as wire:
        yield Centre(wire, receiver, tmp_path)


@pytest.fixture
def rig(each_spark: SparkSession, each_spark_lake: LakeSettings, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(each_spark, each_spark_lake, tmp_path)
    made.site.clock = StillClock(made.site.clock.now_us())  # no pause of a run is waited for
    yield made
    made.site.b.close()


def check_verified(rig: Rig, sink: Sink) -> None:
    sender = Sender(rig.site.origin, "edge", lambda name: name)
    verdicts = list(verify(rig.site, sink, Terms("centre", include=(rig.dataset,)), sender))
    assert [each.status for each in verdicts] == ["ok"], verdicts


def test_a_tick_costs_what_is_new_and_an_idle_one_nothing_at_all(rig: Rig, destination: Destination) -> None:
    """L-COST-1, L-COST-2, L-FWD-16: no job, no file, no request, no write; then one file and one unit."""
    sink = destination.sink()
    values = rig.land(100)
    first = rig.sync(sink)
    assert (first.status, first.rows, first.units) == ("exported", 100, 3)
    assert len(destination.wire.crossings) == first.requests

    crossed, events = len(destination.wire.crossings), rig.site.standing.position()
    idle = rig.sync(sink)
    assert (idle.status, idle.requests, idle.control_writes) == ("idle", 0, 0)
    assert (idle.counters.jobs, idle.counters.files_opened, idle.counters.bytes) == (0, 0, 0)
    assert len(destination.wire.crossings) == crossed
    assert rig.site.standing.position() == events

    before = rig.files()
    values += rig.land(5)
    (new,) = rig.files() - before
    size = rig.sql(f"SELECT file_size_in_bytes FROM {{table}}.files WHERE file_path = '{new}'")[0][0]
    tick = rig.sync(sink)
    assert (tick.rows, tick.units) == (5, 1)
    assert (tick.counters.files_opened, tick.counters.rows_decoded, tick.counters.bytes) == (1, 5, size)
    assert len(destination.wire.crossings) - crossed == tick.requests <= 3
    assert destination.rows(rig.dataset) == once(values)
    check_verified(rig, sink)


def test_each_row_arrives_once_across_a_delete(rig: Rig, destination: Destination) -> None:
    """L-ACC-2, L-WM-2: what is gone was delivered, or never is; nothing else comes again."""
    sink = destination.sink()
    values = rig.land(60)
    rig.sync(sink)
    more = rig.land(60)
    rig.delete("_sl_seq <= 50 OR (_sl_seq > 90 AND _sl_seq <= 110)")
    assert rig.sync(sink).status == "exported"
    more += rig.land(10)
    assert rig.sync(sink).status == "exported"

    gone = set(range(91, 111))
    assert destination.rows(rig.dataset) == once([n for n in values + more if n not in gone])
    assert rig.line().mark == 130
    check_verified(rig, sink)


def test_each_row_arrives_once_across_a_compaction(rig: Rig, destination: Destination) -> None:
    """L-ACC-2, L-CMP-9, F-17: every file is another one, also of rows that are still to be delivered."""
    sink = destination.sink()
    values = rig.land(60)
    rig.sync(sink)
    rig.compact()  # asserts that no file stayed
    crossed = len(destination.wire.crossings)
    assert rig.sync(sink).status == "idle"
    assert len(destination.wire.crossings) == crossed
    values += rig.land(30) + rig.land(30)
    rig.compact()
    assert rig.sync(sink).rows == 60

    assert destination.rows(rig.dataset) == once(values)
    check_verified(rig, sink)


def test_each_row_arrives_once_across_both_with_an_intent_open(rig: Rig, destination: Destination) -> None:
    """L-ACC-2, L-WM-8, L-WM-11: the intent keeps its range and its units; an emptied one sends nothing."""
    sink, wire = destination.sink(), destination.wire
    values = rig.land(90) + rig.land(90)
    refusal = Say(500) if isinstance(destination, Centre) else Say(400)  # no client of S3 repeats that one
    wire.judge = lambda each: refusal if destination.is_of(each, 40, 80) else Pass()
    assert rig.sync(sink).status == "partial"
    assert rig.line().mark == 40
    intent = rig.line().intent
    assert intent is not None
    left_before = destination.rows(rig.dataset)

    rig.compact()
    rig.delete("_sl_seq > 70 AND _sl_seq <= 130")  # a part of (40, 80] and of (120, 160], all of (80, 120]
    more = rig.land(10)
    wire.judge = lambda _: Pass()
    assert rig.sync(sink, is_command=True).status == "exported"

    gone = set(range(71, 131)) - set(left_before)
    assert destination.rows(rig.dataset) == once([n for n in values + more if n not in gone])
    assert rig.line().mark == 190
    check_verified(rig, sink)


@pytest.fixture
def rigs(spark: SparkSession, spark_lake: LakeSettings, tmp_path: Path) -> Iterator[list[Rig]]:
    made = [Rig(spark, spark_lake, tmp_path) for _ in range(2)]
    yield made
    for each in made:
        each.site.b.close()


def land_many(rig: Rig, count: int) -> None:
    numbers = range(rig.next, rig.next + count)
    rig.next += count
    append(rig.site, rig.dataset, pa.table({"n": pa.array(numbers, pa.int64())}), source="web-1")
    rig.flush()


@pytest.mark.parametrize("many", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_tick_reads_the_same_however_many_old_rows_there_are(
    rigs: list[Rig], destination: Destination, many: int
) -> None:
    """L-COST-3, F-16: 100 new rows over 10,000 old ones, and over very many, compacted and thinned out."""
    small, large = rigs
    sink, read = destination.sink(1_000), []
    for rig, old in ((small, 10_000), (large, many)):
        terms = Terms(f"to-{rig.dataset}", include=(rig.dataset,), start="now")
        land_many(rig, old)
        assert rig.sync(sink, terms).rows == 0
        if rig is large:
            rig.compact()
            rig.delete(f"_sl_seq <= {old // 2}")
        crossed = len(destination.wire.crossings)
        rig.land(100)
        result = rig.sync(sink, terms)
        assert (result.rows, result.counters.files_opened, result.counters.rows_decoded) == (100, 1, 100)
        assert result.counters.bytes is not None
        read.append((result.counters.bytes, len(destination.wire.crossings) - crossed))
    (few_bytes, few_requests), (many_bytes, many_requests) = read
    assert many_bytes <= 1.5 * few_bytes
    assert many_requests == few_requests


@pytest.mark.parametrize("destination", ["s3"], indirect=True)
def test_an_object_that_is_emptied_between_two_tries_leaves_its_place_and_renames_none(
    rig: Rig, destination: Store
) -> None:
    """L-BLOB-2, L-WM-11: the name of a unit is of the intent, whatever became of the rows before it."""
    sink, wire = destination.sink(), destination.wire
    values = rig.land(150)
    wire.judge = lambda each: Pass() if each.method != "PUT" or destination.is_of(each, 0, 40) else Say(400)
    assert rig.sync(sink).status == "partial"
    rig.delete("_sl_seq > 40 AND _sl_seq <= 80")
    wire.judge = lambda _: Pass()
    assert rig.sync(sink, is_command=True).status == "exported"

    names = sorted(name.rpartition("/")[2] for name in destination.names())
    assert names == [f"{lo:020}-{hi:020}.jsonl" for lo, hi in ((0, 40), (80, 120), (120, 150))]
    assert destination.rows(rig.dataset) == once([n for n in values if not 40 < n <= 80])
    check_verified(rig, sink)
