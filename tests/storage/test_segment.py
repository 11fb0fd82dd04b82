"""Segments: what is written comes back, whole or not at all."""

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.errors import CorruptionError, UnavailableError
from strandline.persist import BlobRef
from strandline.rows.dataset import Column, Dataset
from strandline.rows.validate import accept, arrow_schema
from strandline.storage import ContentStore, open_content, segment_reader
from strandline.storage import segment as segments
from strandline.storage.objects import MemoryObjects
from strandline.storage.segment import (
    MISSING,
    Segment,
    SegmentRun,
    SegmentUnreadable,
    write_segment,
)
from strandline.storage.segment_fault import segment_fault
from strandline.storage.segment_reader import open_segment, read_segment

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"source": "b", "n": 1, "t": "x", "at": NOON, "j": {"a": [1]}, "d": Decimal("1.25"), "raw": b"\0"},
    {"source": "a", "n": 2, "x": 0.5, "ok": True},
    {"source": "b", "n": 3, "t": "é"},
]


def written(content: ContentStore, rows: list[dict[str, Any]], append_id: str = "one") -> Segment:
    found = accept(Dataset("d"), rows)
    return write_segment(content, found.dataset, found.table, append_id)


def read(content: ContentStore, ref: BlobRef, first_row: int, rows: int, schema: Any) -> Any:
    batches = read_segment(content, ref, first_row=first_row, rows=rows, schema=schema)
    return pa.Table.from_batches(batches, schema)


def test_rows_come_back_by_their_runs(content: ContentStore) -> None:  # L-SPOOL-1, L-SPOOL-2
    found = accept(Dataset("d"), ROWS)

    made = write_segment(content, found.dataset, found.table, "one")

    assert made.rows == 3
    assert made.runs == (SegmentRun("b", 0, 2), SegmentRun("a", 2, 1))
    assert segment_fault(content, made.ref, 3) is None
    schema = arrow_schema(found.dataset)
    assert read(content, made.ref, 0, 3, schema).equals(found.table)
    for run in made.runs:
        assert read(content, made.ref, run.first_row, run.rows, schema).equals(
            found.table.slice(run.first_row, run.rows)
        )
    assert read(content, made.ref, 3, 0, schema).num_rows == 0


def test_the_footer_tells_format_dataset_schema_version_and_append(
    content: ContentStore,
) -> None:  # L-SPOOL-2
    made = written(content, ROWS, "append-7")

    data = content.get(made.ref.cid)

    assert data is not None
    metadata = pq.read_metadata(io.BytesIO(data)).metadata
    assert {key: value for key, value in metadata.items() if key.startswith(b"strandline.")} == {
        b"strandline.format": b"1",
        b"strandline.dataset": b"d",
        b"strandline.schema_version": b"1",
        b"strandline.append_id": b"append-7",
    }


def test_two_appends_of_equal_rows_are_two_segments(content: ContentStore) -> None:  # L-SPOOL-2
    assert written(content, ROWS, "one").ref != written(content, ROWS, "two").ref
    assert written(content, ROWS, "one").ref == written(content, ROWS, "one").ref


@pytest.fixture
def local() -> ContentStore:
    return ContentStore(MemoryObjects())


def test_row_groups_are_bounded_by_rows_and_by_bytes(
    local: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-10
    monkeypatch.setattr(segments, "GROUP_ROWS", 100)
    monkeypatch.setattr(segments, "GROUP_BYTES", 5_000)
    rows = [{"n": n, "t": "x" * (n if n < 200 else 6_000 if n == 200 else 1)} for n in range(500)]

    made = written(local, rows)

    metadata = pq.read_metadata(io.BytesIO(local.get(made.ref.cid) or b""))
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    assert max(group.num_rows for group in groups) == 100
    assert sum(group.num_rows for group in groups) == 500
    assert [group.num_rows for group in groups if group.total_byte_size > 5_500] == [1]
    schema = pa.schema([("n", pa.int64())])
    assert read(local, made.ref, 150, 120, schema)["n"].to_pylist() == [*range(150, 270)]


def test_row_groups_outside_the_run_are_not_read(
    local: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-10
    monkeypatch.setattr(segments, "GROUP_ROWS", 10)
    made = written(local, [{"n": n} for n in range(100)])

    with open_segment(local, made.ref) as opened:
        batches = [*opened.batches(first_row=35, rows=10, schema=pa.schema([("n", pa.int64())]))]

    assert [batch.num_rows for batch in batches] == [5, 5]


def test_older_and_narrower_rows_are_read_in_the_schema_of_now(
    local: ContentStore,
) -> None:  # L-SCH-5, L-SCH-7
    old = Dataset(
        "d", (Column("n", "int"), Column("x", "float"), Column("d", "decimal(5,2)"), Column("t", "string"))
    )
    found = accept(old, [{"n": 1, "x": 0.5, "d": "1.25", "t": "left out"}])
    made = write_segment(local, old, found.table, "one")
    now = Dataset(
        "d",
        (Column("new", "json"), Column("d", "decimal(9,2)"), Column("x", "double"), Column("n", "bigint")),
    )

    table = read(local, made.ref, 0, 1, arrow_schema(now))

    assert table.schema == arrow_schema(now)
    assert table.to_pylist() == [{"source": "unknown", "new": None, "d": Decimal("1.25"), "x": 0.5, "n": 1}]


def test_a_column_of_another_type_is_unreadable_and_never_cast(local: ContentStore) -> None:  # L-SPOOL-10
    made = written(local, [{"n": 1}])

    with pytest.raises(SegmentUnreadable, match="column 'n' is int64, which does not fit string"):
        read(local, made.ref, 0, 1, pa.schema([("n", pa.string())]))


def test_rows_beyond_the_last_are_never_made_up(local: ContentStore) -> None:
    made = written(local, [{"n": 1}])

    with pytest.raises(SegmentUnreadable, match="rows 0 to 2 are asked of its 1"):
        read(local, made.ref, 0, 2, pa.schema([("n", pa.int64())]))


def test_rows_without_columns_are_rows(local: ContentStore) -> None:  # L-SPOOL-1
    made = written(local, [{"source": "a"}, {"source": "a"}])

    [batch] = read_segment(local, made.ref, first_row=1, rows=1, schema=pa.schema([]))

    assert batch.num_rows == 1
    assert read(local, made.ref, 0, 2, pa.schema([("n", pa.int8())]))["n"].to_pylist() == [None, None]


# Faults: each way in which a segment can be bad


def a_parquet(**metadata: str) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}).replace_schema_metadata(metadata), buffer)
    return buffer.getvalue()


def spoil(folder: Path, ref: BlobRef, change: Callable[[bytes], bytes]) -> None:
    digest = ref.cid.removeprefix("sha256-")
    path = folder / "sha256" / digest[:2] / digest
    path.write_bytes(change(path.read_bytes()))


def flipped(data: bytes) -> bytes:
    return bytes([*data[:20], data[20] ^ 1]) + data[21:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flipped, "digest"),
        (lambda data: data[:-1], "the reference says"),
        (lambda data: data + b"x", "the reference says"),
        (lambda data: data[:0], "0 bytes"),
    ],
)
def test_changed_bytes_are_a_fault(
    tmp_path: Path, change: Callable[[bytes], bytes], reason: str
) -> None:  # L-SPOOL-7
    content = open_content(tmp_path)
    made = written(content, ROWS)

    spoil(tmp_path, made.ref, change)

    assert reason in (segment_fault(content, made.ref, 3) or "")
    with pytest.raises(SegmentUnreadable) as caught:
        read(content, made.ref, 0, 3, pa.schema([("n", pa.int64())]))
    assert caught.value.segment == made.ref.cid
    assert pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason
    assert isinstance(caught.value, CorruptionError)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no parquet at all", "footer is unreadable"),
        (a_parquet(), "format version is none"),
        (a_parquet(**{"strandline.format": "2"}), "format version is 2"),
    ],
)
def test_bytes_that_are_no_segment_of_this_format_are_a_fault(
    local: ContentStore, data: bytes, reason: str
) -> None:  # L-SPOOL-7
    cid = local.put(data, segments.MIME)

    assert reason in (segment_fault(local, BlobRef(cid, len(data), segments.MIME), 1) or "")


def test_another_number_of_rows_than_the_ledgers_name_is_a_fault(local: ContentStore) -> None:  # L-SPOOL-7
    made = written(local, ROWS)

    assert segment_fault(local, made.ref, 4) == "it has 3 rows, the ledgers name 4"


def test_a_missing_segment_is_a_fault(content: ContentStore) -> None:  # L-SPOOL-7
    gone = BlobRef("sha256-" + "0" * 64, 10, segments.MIME)

    assert segment_fault(content, gone, 1) == MISSING
    with pytest.raises(SegmentUnreadable) as caught:
        read(content, gone, 0, 1, pa.schema([]))
    assert caught.value.reason == MISSING


class Silent(MemoryObjects):
    """Storage that does not answer."""

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Any:
        raise UnavailableError("no answer", hint="later")


def test_storage_that_does_not_answer_is_no_verdict() -> None:  # L-SPOOL-7
    ref = BlobRef("sha256-" + "0" * 64, 10, segments.MIME)

    with pytest.raises(UnavailableError):
        segment_fault(ContentStore(Silent()), ref, 1)


def test_a_segment_put_back_is_valid_again(tmp_path: Path) -> None:  # L-SPOOL-13
    content = open_content(tmp_path)
    made = written(content, ROWS)
    spoil(tmp_path, made.ref, flipped)
    assert segment_fault(content, made.ref, 3)

    spoil(tmp_path, made.ref, flipped)

    assert segment_fault(content, made.ref, 3) is None


def test_an_error_of_the_reader_passes_as_it_is(local: ContentStore) -> None:
    made = written(local, ROWS)

    with pytest.raises(KeyError), open_segment(local, made.ref):
        raise KeyError("mine")


def test_a_large_segment_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-10
    content = open_content(tmp_path)
    made = written(content, ROWS)
    monkeypatch.setattr(segment_reader, "WHOLE_BYTES", made.ref.size - 1)
    monkeypatch.setattr(pa, "BufferReader", None)  # which holds it whole

    assert segment_fault(content, made.ref, 3) is None
    assert read(content, made.ref, 0, 3, pa.schema([("n", pa.int64())]))["n"].to_pylist() == [1, 3, 2]
    spoil(tmp_path, made.ref, flipped)
    assert "digest" in (segment_fault(content, made.ref, 3) or "")
    assert segment_fault(content, replace(made.ref, size=made.ref.size + 1), 3)


READER = """
import re, sys
import pyarrow as pa
from pathlib import Path
from strandline.storage import open_content
from strandline.storage.segment_reader import read_segment
from strandline.persist import BlobRef

def most_kib():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

folder, cid, size, rows = sys.argv[1:]
before = most_kib()
ref, schema = BlobRef(cid, int(size), "x/y"), pa.schema([("t", pa.string())])
found = read_segment(open_content(folder), ref, first_row=0, rows=int(rows), schema=schema)
print(sum(batch.num_rows for batch in found), most_kib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell it")
def test_a_segment_is_read_in_the_memory_of_few_row_groups(tmp_path: Path) -> None:  # L-SPOOL-10
    text = pa.array([os.urandom(32_768).hex() for _ in range(256)])
    table = pa.table({"source": ["a"] * 4096, "t": pa.chunked_array([text] * 16)})
    made = write_segment(open_content(tmp_path), Dataset("d"), table, "one")

    command = [sys.executable, "-c", READER, str(tmp_path), made.ref.cid, str(made.ref.size), str(made.rows)]
    rows, grown_kib = map(int, subprocess.check_output(command, text=True).split())

    assert rows == 4096
    assert made.ref.size > 200 * 2**20
    assert grown_kib < 6 * segments.GROUP_BYTES / 1024  # packed, unpacked, as Arrow has it, and some more
