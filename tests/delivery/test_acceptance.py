"""Delivery with real Spark and real Iceberg (L-ACC-1, L-ACC-2): exactly once, at a cost that follows the new
rows, whatever retention and compaction do."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.delivery.owed import Terms
from strandline.delivery.result import SyncResult
from strandline.node.node import Node
from strandline.server.received_ranges import receive
from strandline.sinks.blob.blob_sink import BlobSink
from tests.delivery.rig import Rig, blob_rows, once
from tests.node.test_node import open_here
from tests.server.receivers import ndjson, unit_of


@pytest.fixture
def archive(tmp_path: Path) -> BlobSink:
    return BlobSink("local", dir=str(tmp_path / "archive"), encoder="jsonl", max_object_rows=40)


def test_a_tick_delivers_what_is_new_and_an_idle_one_costs_nothing(
    rig: Rig, archive: BlobSink, tmp_path: Path
) -> None:
    """L-COST-1, L-COST-2, L-COST-4, L-ACC-2, on classic Spark and on Connect."""
    values = rig.land(100, "web-1") + rig.land(30, "a/b")
    result = rig.sync(archive)
    assert (result.status, result.rows) == ("exported", 130)
    assert blob_rows(tmp_path / "archive") == once(values)
    assert result.counters.files_opened == 2
    assert result.counters.rows_decoded == 130

    idle = rig.sync(archive)
    assert idle.status == "idle"
    assert (idle.requests, idle.control_writes) == (0, 0)
    assert (idle.counters.jobs, idle.counters.files_opened, idle.counters.bytes) == (0, 0, 0)

    values += rig.land(5)
    result = rig.sync(archive)
    assert (result.rows, result.counters.files_opened, result.counters.rows_decoded) == (5, 1, 5)
    assert blob_rows(tmp_path / "archive") == once(values)


def test_a_large_intent_is_delivered_by_tasks_of_spark(rig: Rig, tmp_path: Path) -> None:
    """L-DRV-11: above 10,000 seqs the sink runs where the rows are, units of a strand side by side."""
    values = rig.land(15_000, "web-1") + rig.land(300, "web-2")
    archive = BlobSink("local", dir=str(tmp_path / "archive"), encoder="jsonl", max_object_rows=4_000)
    result = rig.sync(archive)
    assert (result.status, result.rows, result.units) == ("exported", 15_300, 5)
    assert blob_rows(tmp_path / "archive") == once(values)
    names = sorted(path.name for path in (tmp_path / "archive").rglob("source=web-1/*.jsonl"))
    assert names[0] == f"{0:020}-{4_000:020}.jsonl"
    assert names[-1] == f"{12_000:020}-{15_000:020}.jsonl"


def test_exactly_once_across_compaction_and_deletes_with_an_intent_open(
    rig: Rig, archive: BlobSink, tmp_path: Path
) -> None:
    """L-ACC-2, L-WM-11, L-CMP-9: the rows of an open intent are rewritten, and some of them go."""
    values = rig.land(40)
    rig.sync(archive)
    values += rig.land(80)
    folder = tmp_path / "archive" / rig.dataset / "source=web-1"
    blocked = folder / f"{40:020}-{80:020}.jsonl"
    blocked.write_text("something else\n")  # holds one unit back, and with it the line
    assert rig.sync(archive).status == "partial"
    assert rig.line().mark == 40
    assert rig.line().intent is not None

    rig.compact()
    rig.delete("_sl_seq > 70 AND _sl_seq <= 90")
    more = rig.land(10)
    blocked.unlink()
    hold = rig.line().hold
    assert hold is not None
    assert hold.kind == "key_conflict"
    result = rig.sync(archive, is_command=True)

    assert result.status == "exported"
    gone = set(range(71, 81))  # 81 to 90 had left before they were deleted
    assert blob_rows(tmp_path / "archive") == once([n for n in [*values, *more] if n not in gone])
    assert rig.line().mark == 130


def test_the_cost_of_a_tick_does_not_grow_with_old_rows(rig: Rig, tmp_path: Path) -> None:
    """L-COST-3, F-16: also after a compaction."""
    archive = BlobSink("local", dir=str(tmp_path / "archive"), encoder="jsonl")
    terms = Terms("centre", include=(rig.dataset,), start="now")
    rig.land(1_000)
    rig.sync(archive, terms)
    rig.land(100)
    small = rig.sync(archive, terms).counters
    rig.land(60_000)
    rig.sync(archive, terms)
    rig.compact()
    rig.land(100)
    large = rig.sync(archive, terms).counters
    assert small.rows_decoded == large.rows_decoded == 100
    assert small.files_opened == large.files_opened == 1
    assert small.bytes is not None
    assert large.bytes is not None
    assert large.bytes <= 1.5 * small.bytes


def test_new_columns_reach_a_sink_without_a_restart(rig: Rig, archive: BlobSink, tmp_path: Path) -> None:
    """L-SCH-11: an object has the schema of its intent."""
    rig.land(2)
    rig.sync(archive)
    rig.land(2, level="info")
    rig.sync(archive)
    texts = [path.read_text() for path in sorted((tmp_path / "archive").rglob("*.jsonl"))]
    assert ["level" in text for text in texts] == [False, True]


def test_rows_arrive_whichever_way_they_came_in(spark: SparkSession, tmp_path: Path) -> None:
    """F-2, L-STAMP-1: after a first delivery, rows by append, writer, load, import, and from another node."""
    home = tmp_path / "node"
    settings = '[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "archive"\nencoder = "jsonl"\n'
    with open_here(home, settings) as node:
        node.append("rows", [{"n": 1}], source="a")
        assert _synced(node) == 1

        node.append("rows", [{"n": 2}], source="a")
        with node.writer("rows", source="a") as writer:
            writer.write({"n": 3})
        node.load("rows", node.spark.createDataFrame([(4,)], "n bigint"), source="a")
        pq.write_table(pa.table({"n": pa.array([5], pa.int64())}), tmp_path / "old.parquet")
        node.import_rows("rows", str(tmp_path / "old.parquet"), kind="parquet", source="a")
        unit = replace(unit_of(ndjson([{"n": 6}]), 0, 1, 1), dataset="rows")
        receive(node.site, unit, "rows", "edge/a", [{"n": 6}])

        assert _synced(node) == 5
        assert blob_rows(home / "archive") == once([1, 2, 3, 4, 5, 6])
        assert _synced(node) == 0


def _synced(node: Node) -> int:
    result = node.sync("archive").runs["archive"]
    assert isinstance(result, SyncResult), result
    return result.rows
