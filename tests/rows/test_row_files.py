"""Rows out of files: what they hold comes out exactly, and what is wrong with one is said with its place."""

import gzip
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import NotFoundError
from strandline.rows import row_files
from strandline.rows.dataset import Column, Dataset
from strandline.rows.row_files import CHUNK_BYTES, CHUNK_ROWS, BadFile, parse_lines, parse_row, read_rows
from strandline.rows.validate import accept


def rows_of(path: Path | str, **options: Any) -> list[dict[str, Any]]:
    return [
        row
        for chunk in read_rows(path, **options)
        for row in (chunk if isinstance(chunk, list) else chunk.to_pylist())
    ]


def zstd(data: bytes) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(data)
    return bytes(buffer.getvalue())


def file_of(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


LINES = b'{"a":1,"b":"x"}\n\n{"a": 2, "b": null}\r\n{"b":"\xc3\xa9"}'
EXPECTED = [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"b": "é"}]


@pytest.mark.parametrize("name", ["x.jsonl", "x.NDJSON", "x.jsonl.gz", "x.ndjson.zst", "plain.jsonl"])
def test_json_lines_come_out_as_rows_compressed_or_not(tmp_path: Path, name: str) -> None:
    packed = {".gz": gzip.compress, ".zst": zstd}.get(Path(name).suffix, bytes)(LINES)

    assert rows_of(file_of(tmp_path, name, packed)) == EXPECTED


@pytest.mark.parametrize("pack", [gzip.compress, zstd, bytes])
def test_what_is_compressed_is_known_by_its_first_bytes(tmp_path: Path, pack: Any) -> None:
    assert rows_of(file_of(tmp_path, "x.jsonl", pack(LINES))) == EXPECTED
    assert rows_of(file_of(tmp_path, "x.dat", pack(LINES)), format="jsonl") == EXPECTED


def test_several_members_of_a_compressed_file_are_one(tmp_path: Path) -> None:
    one, other = b'{"a":1}\n', b'{"a":2}\n'

    for name, pack in (("x.jsonl.gz", gzip.compress), ("x.jsonl.zst", zstd)):
        assert rows_of(file_of(tmp_path, name, pack(one) + pack(other))) == [{"a": 1}, {"a": 2}]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    assert rows_of(file_of(tmp_path, "x.jsonl", b'\xef\xbb\xbf{"a":1}')) == [{"a": 1}]
    assert rows_of(file_of(tmp_path, "x.csv", b"\xef\xbb\xbfa\n1\n")) == [{"a": "1"}]


def test_standard_input_is_json_lines() -> None:
    code = "from strandline.rows.row_files import read_rows; print(*read_rows('-'))"

    for data in (LINES, gzip.compress(LINES)):
        found = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
        assert found.stdout.decode().strip() == str(EXPECTED)


# JSON stays exact


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ('{"a":9007199254740993}', {"a": 2**53 + 1}),
        ('{"a":18446744073709551616}', {"a": 2**64}),
        ('{"a": -9223372036854775809}', {"a": -(2**63) - 1}),
        ('{"a":1.0,"b":1}', {"a": 1.0, "b": 1}),
        ('{"a":1e2}', {"a": 100.0}),
        ('{"a":"\\u00e9"}', {"a": "é"}),
        ('{"a":{"b":[1,{"c":null}]}}', {"a": {"b": [1, {"c": None}]}}),
        ("{}", {}),
    ],
)
def test_a_json_line_is_read_exactly(line: str, row: dict[str, Any]) -> None:  # L-FWD-5
    found = parse_row(line.encode())

    assert found == row
    assert list(map(type, found.values())) == list(map(type, row.values()))


def test_an_integer_beyond_64_bits_is_refused_and_never_wrapped(tmp_path: Path) -> None:  # L-SPOOL-8
    [chunk] = read_rows(file_of(tmp_path, "x.jsonl", '{"a":1}\n{"a":18446744073709551617}\n'))

    found = accept(Dataset("d"), chunk)

    assert [(refusal.row, refusal.column) for refusal in found.refusals] == [(1, "a")]


def test_a_json_fraction_is_refused_in_a_decimal_column_and_a_text_is_exact(
    tmp_path: Path,
) -> None:  # L-FWD-5
    dataset = Dataset("d", (Column("c", "decimal(9,2)"),))
    [chunk] = read_rows(file_of(tmp_path, "x.jsonl", '{"c":1.1}\n{"c":"1.1"}\n{"c":1}\n'))

    found = accept(dataset, chunk)

    assert [refusal.row for refusal in found.refusals] == [0]
    assert found.table["c"].to_pylist() == [Decimal("1.10"), Decimal("1.00")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a":1,"a":2}', "the name 'a' is there twice"),
        ('{"o":{"a":1,"b":0,"a":2}}', "the name 'a' is there twice"),
        ('{"a":NaN}', "NaN is no JSON"),
        ('{"a":-Infinity}', "-Infinity is no JSON"),
        ('{"a":1e400}', "larger than any double"),
        ('{"a":1', "no JSON"),
        ('{"a":1}{"a":2}', "no JSON"),
        ("[1]", "a JSON object is wanted, not list"),
        ("5", "a JSON object is wanted, not int"),
        ('{"a":"\x01"}', "no JSON"),
        ('{"a":' * 100_000, "too deep"),
        ('{"a":' + "9" * 5000 + "}", "limit"),
    ],
)
def test_a_bad_line_in_the_middle_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = file_of(tmp_path, "x.jsonl", '{"a":1}\n\n' + line + '\n{"a":3}\n')

    with pytest.raises(BadFile, match=reason) as caught:
        rows_of(path)

    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert pickle.loads(pickle.dumps(caught.value)).line == 3
    assert f"{path}, line 3" in caught.value.message


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.floats()))
def test_what_json_writes_is_read_back(row: dict[str, Any]) -> None:
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # a NaN, a lone surrogate
        return

    assert repr(parse_row(line)) == repr(row)
    assert repr(parse_row(json.dumps(row, separators=(",", ":")).encode())) == repr(row)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1}\n{"a":2}\n',
        "",
        "{}\n",
        '{"a":1},{"b":2}\n{"c":[{"d":1}\n{"e":2}]}\n',  # three rows in three lines, and no line is one
        '{"a":1},{"b":2}\n',
        '{"a":1}\n\n{"a":2}\n',
        '{"a":1}\n{"a":2}',
        '{"a": 1}\n',
        '{"a":1,"a":2}\n',
        '{"a":18446744073709551616}\n',
        '{"a":1e2}\n',
        "[1]\n",
        "5\n6\n",
        "]\n[\n",
        '{"a":"\x01"}\n',
    ],
)
def test_lines_are_read_at_once_only_where_each_would_be_read_as_the_same(text: str) -> None:
    found = parse_lines(text.encode())

    if found is not None:
        assert found == [parse_row(line.encode()) for line in text.split("\n")[:-1]]
    assert (found is None) is (text not in ('{"a":1}\n{"a":2}\n', "", "{}\n"))


# CSV


def test_csv_fields_are_texts_and_empty_ones_null(tmp_path: Path) -> None:
    path = file_of(tmp_path, "x.csv", 'a,b,c\r\n1,"x ""y"", z",\r\n\r\ntrue,"two\nlines",""\n')

    assert rows_of(path) == [{"a": "1", "b": 'x "y", z'}, {"a": "true", "b": "two\nlines"}]


def test_csv_fields_are_read_by_the_declared_type(tmp_path: Path) -> None:  # L-SPOOL-8, L-FWD-5
    types = {
        "i": ("int", "-5", -5),
        "b": ("bigint", "9007199254740993", 2**53 + 1),
        "f": ("float", "0.5", 0.5),
        "x": ("double", "1e3", 1000.0),
        "nan": ("double", "NaN", math.nan),
        "ok": ("boolean", "true", True),
        "at": ("timestamp", "2026-11-15T12:00:00Z", datetime(2026, 11, 15, 12, tzinfo=UTC)),
        "day": ("date", "2026-11-15", date(2026, 11, 15)),
        "d": ("decimal(9,2)", "1.10", Decimal("1.10")),
        "raw": ("binary", "aGk=", b"hi"),
        "j": ("json", '"{""b"": 1, ""a"": [true]}"', '{"a":[true],"b":1}'),
        "t": ("string", "007", "007"),
    }
    dataset = Dataset("d", tuple(Column(name, type_) for name, (type_, _, _) in types.items()))
    header, line = ",".join(types), ",".join(text for _, text, _ in types.values())
    path = file_of(tmp_path, "x.csv", f"{header},new\n{line},5\n")

    [chunk] = read_rows(path, dataset=dataset)
    found = accept(dataset, chunk)

    assert found.refusals == []
    [row] = found.table.to_pylist()
    assert math.isnan(row.pop("nan"))
    assert row == {
        "source": "unknown",
        **{name: value for name, (_, _, value) in types.items() if name != "nan"},
        "new": "5",
    }


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", "1.0"),
        ("int", " 1"),
        ("int", "1_000"),
        ("bigint", "9223372036854775808"),
        ("bigint", "0x10"),
        ("double", "1,5"),
        ("double", "inf"),
        ("double", "1e400"),
        ("boolean", "True"),
        ("boolean", "1"),
        ("timestamp", "15.11.2026"),
        ("decimal(9,2)", "1.234"),
    ],
)
def test_a_csv_field_that_is_not_of_the_declared_type_is_refused_by_its_row(
    tmp_path: Path, type_: str, text: str
) -> None:  # L-SPOOL-9
    dataset = Dataset("d", (Column("c", type_),))
    [chunk] = read_rows(file_of(tmp_path, "x.csv", f'c,n\n"{text}",1\n,2\n'), dataset=dataset)

    found = accept(dataset, chunk)

    assert [(refusal.row, refusal.column) for refusal in found.refusals] == [(0, "c")]
    assert found.table["n"].to_pylist() == ["2"]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a,b\n1,2\n1,2,3\n", 3, "3 fields, the header has 2"),
        (b"a,b\n1\n", 2, "1 fields, the header has 2"),
        (b"a,A\n1,2\n", 1, "'A' is there twice"),
        (b"a,\n1,2\n", 1, "a column without a name"),
        (b"\n\n", 1, "no header"),
        (b'a\n"x\ny\n', 3, "unexpected end of data"),
        (b'a\n"x"y\n', 2, "no CSV"),
        (b"a\nx\n\xff\n", 3, "byte 1 is no UTF-8"),
        (b"a,j\n1,nonsense\n", 2, "column 'j' has no JSON"),
    ],
)
def test_a_bad_csv_line_is_named(tmp_path: Path, data: bytes, line: int, reason: str) -> None:
    path = file_of(tmp_path, "x.csv", data)

    with pytest.raises(BadFile, match=reason) as caught:
        rows_of(path, dataset=Dataset("d", (Column("j", "json"),)))

    assert caught.value.line == line


def test_a_long_csv_field_is_read(tmp_path: Path) -> None:
    assert rows_of(file_of(tmp_path, "x.csv", "a\n" + "x" * 500_000 + "\n")) == [{"a": "x" * 500_000}]


# Parquet


def parquet(folder: Path, table: Any, **options: Any) -> Path:
    path = folder / "x.parquet"
    pq.write_table(table, path, **options)
    return path


def test_parquet_comes_out_in_bounded_batches(tmp_path: Path) -> None:
    table = pa.table({"n": [*range(25_000)], "t": ["x" * 1000] * 25_000})

    chunks: list[Any] = [*read_rows(parquet(tmp_path, table, row_group_size=12_000))]

    assert all(isinstance(chunk, pa.RecordBatch) for chunk in chunks)
    assert max(chunk.num_rows for chunk in chunks) <= CHUNK_ROWS
    assert max(chunk.nbytes for chunk in chunks) <= CHUNK_BYTES
    assert pa.Table.from_batches(chunks).equals(table)


def test_parquet_without_rows_has_none(tmp_path: Path) -> None:
    assert [*read_rows(parquet(tmp_path, pa.table({"n": pa.array([], pa.int8())})))] == []


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path, pa.table({"n": [*range(1000)]}))
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(BadFile, match="no Parquet, or cut short"):
        rows_of(path)


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    noise = [os.urandom(50).hex() for _ in range(2000)]
    path = parquet(tmp_path, pa.table({"t": noise}), row_group_size=1000, use_dictionary=False)
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * 200 + data[start + 200 :])

    chunks: Iterator[Any] = read_rows(path)

    assert next(chunks).num_rows == 1000
    with pytest.raises(BadFile, match="row group 1 cannot be read"):
        next(chunks)


# Files that are none


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("x.txt", b"x", "its name does not tell what it is"),
        ("x", b"x", "its name does not tell what it is"),
        ("x.gz", b"x", "its name does not tell what it is"),
        ("x.jsonl", b"", "it is empty"),
        ("x.csv", b"", "it is empty"),
        ("x.parquet", b"", "it is empty"),
        ("x.jsonl.gz", b"", "it is empty"),
        ("x.jsonl.gz", gzip.compress(b""), "it is empty"),
        ("x.jsonl.gz", LINES, "it is not compressed as gz"),
        ("x.jsonl.zst", gzip.compress(LINES), "it is not compressed as zst"),
        ("x.jsonl.gz", gzip.compress(LINES * 1000)[:-20], "cut short"),
        ("x.jsonl.gz", gzip.compress(LINES * 1000)[:60] + b"\xff" * 60, "damaged"),
        ("x.jsonl.zst", zstd(LINES * 1000)[:-4], "cut short"),
        ("x.jsonl.zst", zstd(LINES)[:8] + b"\xff" * 60, "damaged"),
        ("x.jsonl", b'{"a":1}\n{"a":"\xff"}\n', "line 2: byte 7 is no UTF-8"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,  # gzip tells the time
)
def test_a_file_that_is_not_what_it_says_is_refused(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    path = file_of(tmp_path, name, data)

    with pytest.raises(BadFile, match=reason) as caught:
        rows_of(path)

    assert caught.value.message.startswith(str(path))
    assert caught.value.hint


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"gone\.jsonl"):
        rows_of(tmp_path / "gone.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BadFile, match="directory"):
        rows_of(tmp_path / "folder.jsonl")


def test_an_unknown_format_and_a_piped_parquet_are_refused() -> None:
    with pytest.raises(BadFile, match="'xml' is unknown"):
        rows_of("x.jsonl", format="xml")
    with pytest.raises(BadFile, match="pipe"):
        rows_of("-", format="parquet")


def test_a_line_without_end_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "MAX_LINE_BYTES", 3 * 2**20)
    path = file_of(tmp_path, "x.jsonl", b'{"a":1}\n{"a":"' + b"x" * 5 * 2**20)

    with pytest.raises(BadFile, match="a line of over") as caught:
        rows_of(path)

    assert caught.value.line == 2


# Chunks


def test_chunks_are_bounded_by_rows_and_bytes_and_progress_is_told(tmp_path: Path) -> None:
    lines = [json.dumps({"n": n, "t": "x" * 2000}) for n in range(12_000)]
    seen: list[tuple[int, int | None]] = []
    path = file_of(tmp_path, "x.jsonl", "\n".join(lines))

    chunks = [*read_rows(path, progress=lambda done, total: seen.append((done, total)))]

    assert sum(map(len, chunks)) == 12_000
    assert max(map(len, chunks)) <= CHUNK_BYTES / 2000 + 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [len(chunk) for chunk in read_rows(file_of(tmp_path, "y.jsonl", '{"n":1}\n' * 10_001))] == [
        10_000,
        1,
    ]


def test_progress_of_packed_files_and_parquet_is_in_bytes_of_the_file(tmp_path: Path) -> None:
    packed = file_of(tmp_path, "x.jsonl.gz", gzip.compress((LINES + b"\n") * 50_000))
    table = parquet(tmp_path, pa.table({"n": [*range(10_000)]}), row_group_size=1000)

    for path in (packed, table):
        seen: list[tuple[int, int | None]] = []
        for _ in read_rows(path, progress=lambda done, total, seen=seen: seen.append((done, total))):  # type: ignore[misc]  # mypy takes a default for a parameter
            pass
        assert len(seen) > 5
        assert {total for _, total in seen} == {path.stat().st_size}
        assert seen[-1][0] == path.stat().st_size


def test_the_chunks_before_a_bad_line_were_whole(tmp_path: Path) -> None:
    chunks = read_rows(file_of(tmp_path, "x.jsonl", '{"n":1}\n' * 10_000 + "bad\n"))

    assert len(next(chunks)) == 10_000
    with pytest.raises(BadFile):
        next(chunks)
