"""A store that is behind, compared with its tables and its sinks when it is opened for writing."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.base.ranges import Range
from strandline.flush.reconcile import StoreBehindTables
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Limits
from strandline.state.sink_progress import Intent, event_of, instance_stream, intended, sink_stream
from tests.node.test_node import numbers, open_here


def test_numbers_of_a_store_that_is_behind_go_on_above_every_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    """L-SEQ-9: above what the table has, each line, and each open intent, also of a strand without a row."""
    home = tmp_path / "node"
    with open_here(home) as node:
        node.append("ahead", numbers(1, 2), source="a")
        node.flush("ahead")
    (home / "strandline.db").rename(tmp_path / "lost.db")
    with open_here(home) as anew:
        at = anew.site.clock.now_us()
        intent = Intent("i", 0, 30, 0, 0, Limits(5), 1, 0, at=at)
        events = [
            event_of(instance_stream("centre"), "opened", at, fingerprint="x", start="all"),
            event_of(sink_stream("centre", "ahead", "a"), "started", at, mark=9, epoch=0),
            event_of(sink_stream("centre", "ahead", "b"), "started", at, mark=20, epoch=0),
            intended(sink_stream("centre", "ahead", "c"), intent),
        ]
        anew.site.b.commit([], events)

        with pytest.warns(StoreBehindTables, match="ahead"):
            first = anew.append("ahead", numbers(3), source="a")

        assert first.ranges == {"a": Range(9, 10)}
        assert anew.append("ahead", numbers(4), source="b").ranges == {"b": Range(20, 21)}
        assert anew.append("ahead", numbers(5), source="c").ranges == {"c": Range(30, 31)}
        assert anew.append("ahead", numbers(6), source="d").ranges == {"d": Range(0, 1)}
        assert anew.site.standing.strand_state(Strand("ahead", "a")).visible_through == 9
