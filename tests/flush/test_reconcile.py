"""A store that is behind, compared with its tables and its sinks when it is opened for writing."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.base.ranges import Range
from strandline.flush.reconcile import StoreBehindTables
from strandline.lake.jobs.delete import delete_rows
from strandline.persist import backup as copy
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


def test_numbers_of_rows_that_are_gone_from_the_table_are_not_given_out_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """L-SEQ-1, L-SEQ-9: rows were delivered, retention took them, and the store was put back from before."""
    home, backup = tmp_path / "node", tmp_path / "before.db"
    with open_here(home) as node:
        node.append("pruned", numbers(*range(10)), source="a")
        node.flush("pruned")
        copy(node.site.b, backup)
        node.append("pruned", numbers(*range(40)), source="a")
        node.append("pruned", numbers(1, 2), source="b")
        last = node.flush("pruned").flushes[0].number
        delete_rows(node.spark, node.config.lake_settings(), "pruned", "_sl_seq > 10 OR source = 'b'")
    restored(backup, home)

    with open_here(home) as anew:
        with pytest.warns(StoreBehindTables, match="pruned"):
            again = anew.append("pruned", numbers(3), source="a")
        assert again.ranges == {"a": Range(50, 51)}
        assert anew.append("pruned", numbers(4), source="b").ranges == {
            "b": Range(50, 51)
        }  # it is not told apart
        assert anew.flush("pruned").flushes[0].number > last


def test_numbers_of_repeats_that_a_flush_left_out_are_not_given_out_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """L-SEQ-1: the last rows of a strand were repeats, so no row of the table shows their numbers."""
    home, backup = tmp_path / "node", tmp_path / "before.db"
    columns = '[datasets.repeats]\ncolumns = { n = "bigint" }\nidentity = { key = "n" }\n'
    with open_here(home, columns) as node:
        node.append("repeats", numbers(1, 2), source="a")
        node.flush("repeats")
        copy(node.site.b, backup)
        node.append("repeats", numbers(3, 1, 2), source="a")
        node.flush("repeats")
    restored(backup, home)

    with open_here(home, columns) as anew, pytest.warns(StoreBehindTables, match="repeats"):
        assert anew.append("repeats", numbers(4), source="a").ranges == {"a": Range(5, 6)}


def restored(backup: Path, home: Path) -> None:
    """The store as it was when it was copied."""
    for path in home.glob("strandline.db*"):
        path.unlink()
    shutil.copy(backup, home / "strandline.db")
