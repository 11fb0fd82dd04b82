"""Chunks and their marks, without Spark: however an item grew, what was written stays as it was (L-BF-10)."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.backfill.chunk import ChunkPart, mark_key, measured, parts
from strandline.backfill.write import Bundle
from strandline.persist import AtomicBackend, kv_put, open_store
from strandline.sources.provider import Chunk, Item
from strandline.state.strand_entries import ControlUnreadable

ITEM = Item("log", "plain")


@pytest.fixture
def b() -> Iterator[AtomicBackend]:
    opened = open_store("memory:")
    yield opened
    opened.close()


def written(b: AtomicBackend, chunks: list[Chunk], item: Item = ITEM) -> tuple[list[Any], int]:
    """The rows that a run writes, with their marks, and how many it knows."""
    rows: list[Any] = []
    known = 0
    for part in parts(b, "p", item, chunks):
        if isinstance(part, int):
            known += part
        else:
            assert isinstance(part, ChunkPart)
            rows += part.rows if isinstance(part.rows, list) else part.rows.to_pylist()
            b.commit([part.expected], [part.write])
    return rows, known


def rows_of(numbers: range) -> list[dict[str, Any]]:
    return [{"n": n} for n in numbers]


def cut(rows: list[Any], sizes: list[int]) -> list[Chunk]:
    """In chunks of these sizes, the last of them as often as it takes."""
    chunks, at, sizes = [], 0, [*sizes]
    while at < len(rows):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        chunks.append(rows[at : at + size])
        at += size
    return chunks


runs = st.lists(
    st.tuples(st.integers(0, 12), st.lists(st.integers(1, 7), min_size=1, max_size=5)), min_size=1, max_size=6
)


@given(runs)
def test_each_row_of_an_item_that_grows_is_written_once(runs: list[tuple[int, list[int]]]) -> None:
    b = open_store("memory:")
    have = 0
    everything: list[Any] = []
    for more, sizes in runs:
        before, have = have, have + more
        new, known = written(b, cut(rows_of(range(have)), sizes))
        assert known == before
        everything += new
    assert everything == rows_of(range(have))
    b.close()


def test_chunks_of_arrow_are_cut_and_joined_alike(b: AtomicBackend) -> None:
    table = pa.table({"n": range(10)})
    written(b, [table.slice(0, 4), table.slice(4, 2)])

    rows, known = written(b, [table.slice(0, 5), table.slice(5, 5)])

    assert (known, rows) == (6, rows_of(range(6, 10)))


def test_a_chunk_with_other_rows_is_not_known(b: AtomicBackend) -> None:
    written(b, [rows_of(range(3)), rows_of(range(3, 6))])

    rows, known = written(b, [[{"n": 0}, {"n": 99}, {"n": 2}], rows_of(range(3, 6))])

    assert (known, rows) == (3, [{"n": 0}, {"n": 99}, {"n": 2}])
    assert written(b, [[{"n": 0}, {"n": 99}, {"n": 2}], rows_of(range(3, 6))]) == ([], 6)


def test_an_item_that_shrank_is_not_known_where_it_ends(b: AtomicBackend) -> None:
    written(b, [rows_of(range(3)), rows_of(range(3, 6))])

    assert written(b, [rows_of(range(4))]) == (rows_of(range(3, 4)), 3)


def test_marks_of_items_and_datasets_are_apart(b: AtomicBackend) -> None:
    written(b, [rows_of(range(3))])

    assert written(b, [rows_of(range(3))], Item("log", "other"))[1] == 0
    assert written(b, [rows_of(range(3))], Item("other", "plain"))[1] == 0


def test_a_mark_that_cannot_be_read_stops_the_item(b: AtomicBackend) -> None:  # L-CTL-4
    kv_put(b, mark_key("p", ITEM, 0), {"rows": "three"})

    with pytest.raises(ControlUnreadable, match="backfilled/p/"):
        written(b, [rows_of(range(3))])


def digest_of(rows: Chunk) -> str:
    return measured(rows)[0]


def test_the_digest_of_a_chunk_is_of_its_values_not_of_the_order_of_their_names() -> None:
    assert digest_of([{"a": 1, "b": 2}]) == digest_of([{"b": 2, "a": 1}])
    assert digest_of([{"a": 1}]) != digest_of([{"a": 1.5}])
    assert digest_of([{"a": 2**70}]) != digest_of([{"a": 2**70 + 1}])
    assert digest_of([{"a": b"1"}]) != digest_of([{"a": b"2"}])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3, 4], pa.int32()),
        pa.array(["a", None, "", "ä"]),
        pa.array(["a", None, "", "ä"], pa.large_string()),
        pa.array(["a", None, "a", "b"]).dictionary_encode(),
        pa.array([True, None, False, True]),
        pa.array([Decimal("1.20"), None, Decimal(3), Decimal(4)], pa.decimal128(5, 2)),
        pa.array([0, None, 1, 2], pa.timestamp("ns", "UTC")),
        pa.array([[1], None, [], [2]]),
        pa.array([{"x": 1}, None, {"x": None}, {"x": 2}]),
    ],
    ids=lambda column: str(column.type),
)
def test_the_digest_of_a_table_is_of_its_values_however_it_is_held(column: Any) -> None:
    """L-BF-10: flat columns are digested whole, others by rows."""
    table = pa.table({"n": range(4), "a": column})
    pieces = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    batch = table.combine_chunks().to_batches()[0]

    assert digest_of(table) == digest_of(pieces) == digest_of(batch)
    assert digest_of(table.slice(1, 2)) == digest_of(table.take([1, 2]))
    assert digest_of(table.select(["a", "n"])) == digest_of(table)
    others = [table.take([0, 1, 3, 2]), table.slice(0, 3), table.set_column(0, "m", table["n"])]
    assert len({digest_of(each) for each in (table, *others)}) == 4


def test_a_bundle_is_full_by_the_bytes_of_its_rows_whatever_holds_them(
    b: AtomicBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.backfill.write.BUNDLE_BYTES", 10_000)
    long = [{"text": "x" * 6_000}]
    for chunks in ([long] * 2, [pa.Table.from_pylist(long)] * 2):
        bundle = Bundle()
        for part in parts(b, "p", ITEM, chunks):
            assert isinstance(part, ChunkPart)
            assert bundle.takes(part)
            bundle.add(part)
        assert bundle.is_full
