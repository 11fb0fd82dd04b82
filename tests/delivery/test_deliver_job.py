"""Rows of one strand go to their tasks without a shuffle: whole units, in order, each row once (L-DRV-11)."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from strandline.base.ranges import Range, RangeSet
from strandline.base.secret import Secret
from strandline.delivery.audit.verify import verify
from strandline.delivery.owed import Terms
from strandline.delivery.result import SyncResult
from strandline.delivery.session import Sender
from strandline.errors import StrandlineError
from strandline.lake.jobs.deliver import SparkCourier, runs_of, side_by_side
from strandline.lake.jobs.table_schema import SEQ
from strandline.lake.ports.deliver import JobsCancelled
from strandline.rows.dataset import Dataset
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.sink import Limits
from strandline.sinks.unit_runner import IntentPart
from tests.delivery.rig import Rig
from tests.delivery.wire import Pass, Wire, wire_to
from tests.server.receivers import receiving


def test_units_of_one_strand_are_written_side_by_side_each_in_order(rig: Rig, tmp_path: Path) -> None:
    """L-DRV-11, L-BLOB-5: a unit is one task's, also where its rows lie in two files."""
    values = rig.land(6_000) + rig.land(6_000) + rig.land(3_000)
    archive = BlobSink("local", dir=str(tmp_path / "archive"), encoder="jsonl", max_object_rows=4_000)

    result = rig.sync(archive)

    assert (result.status, result.rows, result.units) == ("exported", 15_000, 4)
    objects = sorted((tmp_path / "archive").rglob("*.jsonl"))
    written = [[orjson.loads(line)["n"] for line in each.read_bytes().splitlines()] for each in objects]
    assert [len(each) for each in written] == [4_000, 4_000, 4_000, 3_000]
    assert [n for each in written for n in each] == values


def test_each_run_of_a_strand_has_a_task_of_its_own(each_spark: SparkSession) -> None:
    """L-DRV-11: Spark 4.1 would make one task of two parts that have one each."""
    rows = each_spark.range(1, 11).withColumnRenamed("id", SEQ)

    cut = side_by_side(rows, [Range(0, 5), Range(5, 10)])

    found = cut.selectExpr("spark_partition_id()", SEQ).collect()
    assert [tuple(row) for row in found] == [((seq - 1) // 5, seq) for seq in range(1, 11)]


def test_requests_of_one_strand_go_one_after_another(rig: Rig, tmp_path: Path) -> None:
    """L-DRV-11, L-FWD-15: a sink that keeps an order is hosted by one task."""
    rig.land(8_000)
    rig.land(4_000)
    (tmp_path / "centre").mkdir()
    with receiving(tmp_path / "centre", datasets=(Dataset(rig.dataset),)) as receiver:
        token = Secret("file:token", tmp_path, receiver.token)
        centre = ForwardSink(url=receiver.url, token=token, max_unit_rows=5_000)

        result = rig.sync(centre)

        assert (result.status, result.rows, result.units, result.requests) == ("exported", 12_000, 3, 3)
        assert receiver.app.counts == {"rows_stored": 12_000, "units_stored": 3}


@given(
    since=st.integers(0, 50),
    width=st.integers(1, 30),
    cuts=st.lists(st.integers(0, 200), min_size=2, max_size=8, unique=True),
    tasks=st.integers(1, 9),
)
def test_a_strand_is_cut_at_units_so_that_every_task_has_some(
    since: int, width: int, cuts: list[int], tasks: int
) -> None:
    """L-DRV-11: all that is left is in one of the runs, and no unit is in two."""
    bounds = [since + each for each in sorted(cuts)]
    left = [Range(lo, hi) for lo, hi in zip(bounds[::2], bounds[1::2], strict=False)]
    part = IntentPart("i", 0, "web-1", since, bounds[-1], 0, tuple(left), Limits(width))

    runs = runs_of(part, tasks)

    assert 1 <= len(runs) <= tasks
    assert all(RangeSet.of(runs).covers(each) for each in left)
    assert all(before.hi == after.lo for before, after in pairwise(runs))
    assert all((run.lo - since) % width == 0 == (run.hi - since) % width for run in runs)


@pytest.fixture
def stalled(rig: Rig, tmp_path: Path) -> "Iterator[tuple[Wire, ForwardSink, threading.Event]]":
    """A receiver that does not answer until it is let go."""
    (tmp_path / "centre").mkdir()
    gate = threading.Event()
    with (
        receiving(tmp_path / "centre", datasets=(Dataset(rig.dataset),)) as receiver,
        wire_to(receiver.url) as wire,
    ):
        token = Secret("file:token", tmp_path, receiver.token)
        wire.judge = lambda _: Pass(gate=gate)
        yield wire, ForwardSink(url=wire.url, token=token, max_unit_rows=5_000), gate
        gate.set()


def begun(rig: Rig, sink: ForwardSink, wire: Wire, requests: int) -> tuple[threading.Thread, list[object]]:
    """A run in a thread of its own, that has so many requests under way; what it ends with."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(rig.sync(sink))
        except StrandlineError as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until = time.monotonic() + 120
    while wire.in_flight < requests:
        assert thread.is_alive(), ended
        assert time.monotonic() < until
        time.sleep(0.01)
    return thread, ended


def test_a_job_that_is_cancelled_ends_at_once_and_its_intent_stays(
    rig: Rig, stalled: "tuple[Wire, ForwardSink, threading.Event]"
) -> None:
    """L-DRV-9: a request in flight is cut off with its task, and is no failure; the next start asks first."""
    wire, sink, gate = stalled
    rig.land(12_000)
    thread, ended = begun(rig, sink, wire, 1)

    rig.courier.cancel()
    thread.join(30)

    assert [type(each) for each in ended] == [JobsCancelled]
    line = rig.line()
    assert (line.intent is not None, line.mark, line.trouble, line.hold) == (True, 0, None, None)
    gate.set()
    with pytest.raises(JobsCancelled):
        rig.sync(sink)
    rig.courier = SparkCourier(rig.spark, rig.lake)
    assert rig.sync(sink).status == "exported"
    (verdict,) = verify(
        rig.site,
        sink,
        Terms("centre"),
        Sender(rig.site.origin, "edge", lambda name: name),
        dataset=rig.dataset,
    )
    assert (verdict.status, verdict.mark) == ("ok", 12_000)


def test_a_request_that_hangs_keeps_no_process_from_ending(
    rig: Rig, stalled: "tuple[Wire, ForwardSink, threading.Event]"
) -> None:
    """L-DRV-9: few rows are sent by the process itself, in threads that end with it."""
    wire, sink, gate = stalled
    rig.land(3, "web-1")
    rig.land(3, "web-2")
    before = set(threading.enumerate())
    thread, ended = begun(rig, sink, wire, 2)

    hosting = [
        each for each in threading.enumerate() if each not in before and "process_request" not in each.name
    ]
    gate.set()
    thread.join(30)

    assert len(hosting) >= 3
    assert all(each.daemon for each in hosting)
    assert [each.status for each in ended if isinstance(each, SyncResult)] == ["exported"]
