"""Encoding: the same rows are the same bytes, in bounded memory."""

import gzip
import io
import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.rows.dataset import Column, Dataset
from strandline.rows.validate import arrow_schema
from strandline.sinks.blob import encode
from strandline.sinks.blob.encode import GROUP_BYTES, EncodeFailed, Encoding
from tests.sinks.shipping import DATASET, batch

ENCODERS = ("parquet:snappy", "parquet:zstd", "jsonl", "jsonl.gz")
WIDE = Dataset("wide", (Column("n", "bigint"), Column("text", "string"), Column("raw", "binary")))


def wide(texts: list[str | None], first: int = 0) -> pa.RecordBatch:
    rows = [
        {"source": "web", "n": first + at, "text": text, "raw": text and text.encode()}
        for at, text in enumerate(texts)
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(WIDE))


def encoded(encoder: str, batches: list[pa.RecordBatch], dataset: Dataset = WIDE) -> bytes:
    return b"".join(Encoding(encoder, dataset, batches))


@pytest.mark.parametrize("encoder", ENCODERS)
@given(
    texts=st.lists(st.none() | st.text(max_size=30), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    group_bytes=st.sampled_from([1, 100, 400, GROUP_BYTES]),
)
def test_equal_rows_are_equal_bytes_however_they_are_batched(
    encoder: str, texts: list[str | None], cuts: list[int], group_bytes: int
) -> None:  # L-BLOB-3, L-BLOB-5
    whole = wide(texts)
    edges = [0, *sorted(min(cut, len(texts)) for cut in cuts), len(texts)]
    pieces = [whole.slice(lo, hi - lo) for lo, hi in pairwise(edges) if hi > lo]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encode, "GROUP_BYTES", group_bytes)
        patched.setattr(encode, "BLOCK_BYTES", max(group_bytes // 10, 1))
        first = encoded(encoder, [whole])

        assert encoded(encoder, pieces) == first
        assert encoded(encoder, [wide([text], at) for at, text in enumerate(texts)]) == first


@pytest.mark.parametrize("encoder", ENCODERS)
def test_pages_and_blocks_end_where_rows_say_and_not_where_batches_do(encoder: str) -> None:  # L-BLOB-3
    whole = wide([sha256(b"%d" % at).hexdigest() for at in range(60_000)])
    pieces = [whole.slice(first, 777) for first in range(0, 60_000, 777)]

    assert encoded(encoder, pieces) == encoded(encoder, [whole])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_encoding_tells_its_rows_and_its_size(encoder: str) -> None:  # L-BLOB-7
    encoding = Encoding(encoder, DATASET, [batch("web", [1, 2]), batch("web", [3])])

    data = b"".join(encoding)

    assert (encoding.rows, encoding.size) == (3, len(data))
    if encoder.startswith("parquet"):
        meta = pq.read_metadata(io.BytesIO(data))
        assert meta.num_rows == 3
        assert meta.row_group(0).column(0).compression == encoder.removeprefix("parquet:").upper()
        assert meta.metadata == {
            b"strandline.format": b"1",
            b"strandline.dataset": b"logs",
            b"strandline.schema_version": b"3",
        }
    else:
        text = gzip.decompress(data) if encoder.endswith("gz") else data
        assert [json.loads(line)["n"] for line in text.splitlines()] == [1, 2, 3]


def test_a_row_larger_than_a_group_is_one_by_itself() -> None:  # L-BLOB-9
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encode, "GROUP_BYTES", 200)
        data = encoded("parquet:snappy", [wide(["a", "b", "x" * 300]), wide(["c", "y" * 300])])

    meta = pq.read_metadata(io.BytesIO(data))
    assert [meta.row_group(at).num_rows for at in range(meta.num_row_groups)] == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("encoder", "count", "bound"), [("parquet:snappy", 64, 3 * GROUP_BYTES), ("jsonl", 16, GROUP_BYTES)]
)
def test_memory_is_bounded_by_a_row_group_and_not_by_the_object(
    encoder: str, count: int, bound: int
) -> None:  # L-BLOB-9
    made = wide([f"{at:01000}" for at in range(2_000)])  # 4 MB

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(count):
            yield copied(made)

    before = pa.total_allocated_bytes()
    most = 0
    for chunk in Encoding(encoder, WIDE, batches()):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(chunk) <= 2 * GROUP_BYTES

    assert made.nbytes * count > 1.9 * bound
    assert most < bound


def copied(made: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with memory of its own, as one that came from elsewhere has."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    return next(iter(pa.ipc.open_stream(sink.getvalue())))


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl"])
def test_what_cannot_be_encoded_says_why(encoder: str) -> None:  # L-BLOB-10
    with pytest.raises(EncodeFailed) as failed:
        encoded(encoder, [batch("web", [1]).drop_columns(["n"])], DATASET)

    assert failed.value.kind == "encode_failed"
    assert "'logs'" in failed.value.message


def test_an_encoder_of_a_later_version_is_refused() -> None:  # L-WM-7
    with pytest.raises(EncodeFailed, match="avro"):
        encoded("avro", [wide(["a"])])
