"""History that is brought in beside retention and sinks: old rows stay until they were delivered, and come to
sinks that are past older ones (F-20, L-BF-14, L-RET-3, L-RET-4)."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.config.config import FILE_NAME
from strandline.maintenance.retention.prune import PruneResult
from strandline.node.node import Node, open_node
from strandline.rows.dataset import Strand
from tests.backfill.rig import SETTINGS, numbers
from tests.delivery.rig import blob_rows, once
from tests.maintenance.house import START_US, HandClock, blob_sink

NOW = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=START_US)
CONFIG = """
[datasets.old]
columns = {{ id = "string", n = "bigint", ts = "timestamp" }}
identity = {{ key = "id" }}
timestamp = "ts"
[retention]
default_days = 90
min_residence_h = 24
[backfill.history]
type = "files"
path = "history"
dataset = "old"
source = "a"
frame_bytes = {frame_bytes}
"""


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def frame_bytes() -> int:
    """Rows of files come in by append; where a test says 1, by load."""
    return 2**40


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path, clock: HandClock, frame_bytes: int) -> Iterator[Node]:
    """With a sink, and a provider of files."""
    home = tmp_path / "node"
    (home / "history").mkdir(parents=True)
    settings = SETTINGS + CONFIG.format(frame_bytes=frame_bytes) + blob_sink(tmp_path)
    (home / FILE_NAME).write_text(settings)
    with open_node(home, clock=clock) as opened:
        yield opened


def year_old(node: Node, *ids: int) -> None:
    """A file of the provider's, of rows from a year before."""
    path = node.config.home / "history" / f"{ids[0]}.parquet"
    times = pa.array([NOW - timedelta(days=365)] * len(ids), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": [f"k{id_}" for id_ in ids], "n": ids, "ts": times}), path)
    modified = (NOW - timedelta(days=30)).timestamp()
    os.utime(path, (modified, modified))


def live(node: Node, clock: HandClock, ids: Sequence[int]) -> None:
    now = NOW + timedelta(microseconds=clock.now - START_US)
    node.append("old", [{"id": f"k{id_}", "n": id_, "ts": now} for id_ in ids], source="a")
    node.flush("old")


def backfilled(node: Node) -> int:
    result = node.backfills.run("history")
    assert (result.status, result.tally.doubts) == ("done", 0)
    node.flush("old")
    return result.tally.written


def pruned(node: Node) -> PruneResult:
    result = node.keeping.prune()["old"]
    assert isinstance(result, PruneResult), result
    return result


def mark(node: Node) -> int:
    return node.site.standing.lines().line("archive", Strand("old", "a")).mark


@pytest.mark.parametrize("frame_bytes", [2**40, 1], ids=["chunks", "frame"])
def test_year_old_rows_are_delivered_and_go_only_when_they_were_here_for_a_day(
    node: Node, clock: HandClock, tmp_path: Path
) -> None:
    """F-20, L-RET-3: the window is 90 days."""
    year_old(node, 1, 2, 3)
    assert backfilled(node) == 3

    assert pruned(node).rows == 0
    node.sync("archive")
    assert blob_rows(tmp_path / "archive") == once([1, 2, 3])
    clock.forward(hours=23)
    assert (pruned(node).rows, numbers(node, "old")) == (0, [1, 2, 3])  # delivered, but not a day here

    clock.forward(hours=2)
    assert (pruned(node).rows, numbers(node, "old")) == (3, [])


def test_year_old_rows_wait_for_a_sink_that_comes_late(
    node: Node, clock: HandClock, tmp_path: Path
) -> None:  # F-20, L-RET-4
    year_old(node, 1, 2, 3)
    backfilled(node)
    clock.forward(days=3)

    held = pruned(node)

    assert (held.rows, dict(held.held)) == (0, {"archive": 3})
    node.sync("archive")
    assert blob_rows(tmp_path / "archive") == once([1, 2, 3])
    assert pruned(node).rows == 3


@pytest.mark.parametrize("frame_bytes", [2**40, 1], ids=["chunks", "frame"])
def test_a_sink_that_is_past_newer_rows_delivers_what_was_brought_in_behind_them(
    node: Node, clock: HandClock, tmp_path: Path
) -> None:
    """L-BF-14: new seqs, each row once, and none of those that it has already."""
    live(node, clock, [10, 11, 12])
    node.sync("archive")
    assert mark(node) == 3
    year_old(node, 1, 2, 11)

    assert backfilled(node) == 2
    node.sync("archive")

    assert mark(node) == 5
    assert blob_rows(tmp_path / "archive") == once([1, 2, 10, 11, 12])
    assert backfilled(node) == 0
    node.sync("archive")
    assert (mark(node), blob_rows(tmp_path / "archive")) == (5, once([1, 2, 10, 11, 12]))


def test_rows_that_retention_has_removed_are_not_brought_back_by_the_same_provider(
    node: Node, clock: HandClock
) -> None:  # L-BF-10, L-RET-3
    year_old(node, 1, 2)
    backfilled(node)
    node.sync("archive")
    clock.forward(days=3)
    assert pruned(node).rows == 2
    year_old(node, 3)

    assert backfilled(node) == 1
    assert numbers(node, "old") == [3]
