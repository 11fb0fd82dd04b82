"""Pieces of segments become rows with their places (L-STAMP-6), whatever the order in which they are read."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.lake.jobs.segment_batches import placed_batches, placed_schema, reading_order, shares
from strandline.rows.dataset import Dataset
from strandline.rows.validate import accept
from strandline.state.landing import SegmentPiece
from strandline.storage import ContentStore
from strandline.storage.objects import MemoryObjects
from strandline.storage.segment import write_segment


class Counting(MemoryObjects):
    """Objects that count how often they are read."""

    reads = 0

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        self.reads += 1
        return super().stream(name, first=first, size=size)


def made(sources: list[list[int]]) -> tuple[Counting, ContentStore, Dataset, list[SegmentPiece]]:
    """A segment for each list: as many rows of the sources 0, 1, 2 … as it says."""
    objects = Counting()
    content, dataset, pieces = ContentStore(objects), Dataset("logs"), []
    his: dict[str, int] = {}
    for number, counts in enumerate(sources):
        rows = [
            {"n": f"{number}/{source}/{i}", "source": f"s{source:03}"}
            for source, count in enumerate(counts)
            for i in range(count)
        ]
        judged = accept(dataset, rows)
        dataset = judged.dataset
        segment = write_segment(content, dataset, judged.table, f"append {number}")
        for run in segment.runs:
            lo = his.get(run.source, 0)
            pieces.append(SegmentPiece(run.source, segment.ref, run.first_row, run.rows, lo, 1_000 + number))
            his[run.source] = lo + run.rows
    return objects, content, dataset, sorted(pieces, key=lambda piece: (piece.source, piece.lo))


def rows_of(content: ContentStore, pieces: Any, dataset: Dataset) -> list[tuple[str, int, str]]:
    table = pa.Table.from_batches(placed_batches(content, pieces, dataset), placed_schema(dataset))
    return [(row["source"], row["_sl_seq"], row["n"]) for row in table.to_pylist()]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_any_order_and_any_cut_gives_the_same_rows(sources: list[list[int]], tasks: int) -> None:
    _, content, dataset, pieces = made(sources)
    one_by_one = [row for piece in pieces for row in rows_of(content, [piece], dataset)]

    ordered, is_scattered = reading_order(pieces)
    found = [row for share in shares(ordered, tasks) for row in rows_of(content, share, dataset)]

    assert one_by_one == sorted(one_by_one)
    assert sorted(found) == one_by_one
    if not is_scattered:
        assert found == one_by_one


def test_a_segment_of_many_sources_is_read_once() -> None:
    objects, content, dataset, pieces = made([[2] * 200, [1] * 200])
    ordered, is_scattered = reading_order(pieces)
    objects.reads = 0

    found = rows_of(content, ordered, dataset)

    assert is_scattered
    assert len(found) == 600
    assert objects.reads == 2


def test_a_piece_may_be_part_of_a_run() -> None:
    _, content, dataset, (first, second) = made([[10, 10]])
    cut = [replace(first, first_row=3, rows=4, lo=3), replace(second, first_row=12, rows=1, lo=2)]

    assert rows_of(content, cut, dataset) == [
        *(("s000", 4 + i, f"0/0/{3 + i}") for i in range(4)),
        ("s001", 3, "0/1/2"),
    ]


def test_few_sources_a_segment_need_no_sorting() -> None:
    *_, pieces = made([[3], [3], [3, 2]])

    assert reading_order(pieces) == (tuple(pieces), False)


@pytest.mark.parametrize("rows", [1, 5_000, 10_000])
def test_batches_are_few(rows: int) -> None:
    _, content, dataset, pieces = made([[rows], [rows]])

    assert sum(batch.num_rows for batch in placed_batches(content, pieces, dataset)) == 2 * rows
