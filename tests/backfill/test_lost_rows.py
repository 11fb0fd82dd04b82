"""Rows that are given up after their chunk was written come with the next run, and no others do (L-BF-10)."""

from typing import Any

import pytest

from strandline.ingest.spool import declare_lost
from strandline.lake.jobs.table_schema import table_name
from strandline.node.node import Node
from strandline.rows.dataset import Strand
from strandline.state.pending_rows import pending
from strandline.state.strand_entries import Removed, append_of
from tests.backfill.rig import Given, backfill, given, left_out, numbers, parts


def lose(node: Node, source: str = "a") -> None:
    """Damage all spooled segments of a strand, and give their rows up."""
    strand = Strand("parts", source)
    found = list(pending(node.site.b, strand, node.site.standing.strand_state(strand)))
    segments = dict.fromkeys(each.entry.segment.cid for each in found)
    for segment in segments:
        (path,) = (node.config.home / "content").rglob(segment.removeprefix("sha256-"))
        path.write_bytes(b"damaged")
    for segment in segments:  # a strand waits for one at a time
        node.flush("parts")
        declare_lost(node.site, "parts", segment, reason="the disk")


def test_rows_that_were_left_out_as_spooled_and_lost_come_with_the_next_run(node: Node) -> None:  # L-BF-10
    node.append("parts", parts(*range(24)), source="a")
    provider = given(*range(24))
    assert left_out(backfill(node, provider)) == (0, 24, 0, 0)
    assert left_out(backfill(node, provider)) == (0, 0, 0, 24)
    lose(node)

    again = backfill(node, provider)

    assert (again.tally.written, left_out(again), again.tally.doubts) == (24, (0, 0, 0, 0), 0)
    assert numbers(node) == list(range(24))
    assert left_out(backfill(node, provider)) == (0, 0, 0, 24)


def test_rows_that_a_run_wrote_and_that_were_lost_come_with_the_next_run(node: Node) -> None:  # L-BF-10
    node.append("parts", parts(1), source="a")
    node.flush("parts")
    provider = given(1, 2, 3)
    backfill(node, provider)
    lose(node)
    assert numbers(node) == [1]

    again = backfill(node, provider)

    assert (again.tally.written, left_out(again)) == (2, (1, 0, 0, 0))
    assert numbers(node) == [1, 2, 3]


def test_a_row_without_identity_is_never_written_a_second_time(node: Node) -> None:  # L-BF-10
    rows: list[dict[str, Any]] = [*parts(1, 2), {"n": 7}, {"n": "no number"}]
    node.append("parts", parts(1), source="a")
    provider = Given({"item": [rows]})
    first = backfill(node, provider)
    assert (first.tally.written, first.tally.quarantined) == (2, 1)
    lose(node)

    again = backfill(node, provider)

    assert (again.tally.written, again.tally.quarantined, again.tally.chunk_known) == (2, 0, 2)
    assert numbers(node) == [1, 2]  # nobody can say whether the row without identity is missing


@pytest.mark.parametrize("source", ["a", "b"])
def test_what_was_lost_elsewhere_has_no_chunk_looked_at_again(node: Node, source: str) -> None:  # L-BF-10
    provider = given(1, 2)
    backfill(node, provider)
    node.flush("parts")
    node.append("parts", parts(5), source=source)
    lose(node, source)

    assert left_out(backfill(node, provider)) == (0, 0, 0, 2)
    assert numbers(node) == [1, 2]


def test_rows_that_were_removed_are_not_brought_back_with_those_that_were_lost(node: Node) -> None:  # L-BF-10
    """L-RET-5: which of the rows that are nowhere were lost, nobody can say then. It is told."""
    provider = given(1, 2, 3, 4)
    node.append("parts", parts(1, 2), source="a")
    backfill(node, provider)
    lose(node)
    node.append("parts", parts(3), source="a")
    node.flush("parts")
    node.spark.sql(f"DELETE FROM {table_name('parts')} WHERE n = 3").collect()
    removed = Removed("run", "retention", 0, 9, 1, 0)
    node.site.b.commit([], [append_of(Strand("parts", "a").ledger, removed, node.site.clock.now_us())])

    again = backfill(node, provider)

    assert (again.tally.written, left_out(again), again.tally.doubts) == (0, (0, 0, 0, 4), 1)
    assert "rows of parts/a were lost after it was written" in again.tally.doubt_texts[0]
    assert numbers(node) == []
