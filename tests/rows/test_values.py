"""Values that no column keeps: nested too deep, or times too fine (L-SPOOL-8, L-SPOOL-9)."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.rows.dataset import Column, Dataset
from strandline.rows.row_files import parse_row, read_rows
from strandline.rows.validate import BadRows, accept, raise_refusals
from strandline.rows.values import MAX_DEPTH, TooDeep, is_too_deep, too_deep

LOGS = Dataset("logs")
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def nested(levels: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "mapping"])
def test_a_value_may_be_100_deep(kind: str) -> None:
    judged = accept(LOGS, [{"v": nested(MAX_DEPTH, kind)}])

    assert judged.refusals == []
    assert judged.table["v"][0].as_py() == orjson.dumps(nested(MAX_DEPTH, kind)).decode()


@pytest.mark.parametrize("kind", ["list", "mapping"])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 300, 3_000, 100_000])
def test_a_deeper_value_refuses_its_row_by_row_and_column(levels: int, kind: str) -> None:
    rows = [{"n": 1}, {"n": 2, "v": nested(levels, kind)}, {"n": 3}]

    judged = accept(LOGS, rows)

    (refusal,) = judged.refusals
    assert (refusal.row, refusal.column) == (1, "v")
    assert refusal.found == "a value nested over 100 levels deep"
    assert judged.table["n"].to_pylist() == [1, 3]
    with pytest.raises(BadRows, match=r"row 1, column 'v': a value nested over 100 levels deep"):
        raise_refusals(LOGS, judged.refusals)


def test_a_value_that_holds_itself_is_too_deep() -> None:
    looped: list[Any] = []
    looped += [looped, {"x": looped}]

    assert is_too_deep(looped)
    assert too_deep(looped).json == '[…,{"x":…}]'
    assert accept(LOGS, [{"v": looped}]).refusals[0].column == "v"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 300, 3_000, 100_000])
def test_a_line_of_json_that_is_too_deep_refuses_its_row_and_not_its_file(
    tmp_path: Path, levels: int
) -> None:
    deep = "[" * levels + '"]}",' + "1" + "]" * levels
    lines = ['{"n": 1}', '{"a": "},{", "v": ' + deep + ', "b": {"c": [1]}}', '{"n": 3}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))

    (chunk,) = read_rows(tmp_path / "rows.jsonl")
    judged = accept(LOGS, chunk)

    assert (chunk[1]["a"], chunk[1]["b"]) == ("},{", {"c": [1]})
    assert [(each.row, each.column) for each in judged.refusals] == [(1, "v")]
    assert judged.table["n"].to_pylist() == [1, 3]


def test_a_csv_field_that_is_too_deep_refuses_its_row(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"n,v\n1,{'[' * 3_000 + ']' * 3_000}\n2,[]\n")
    dataset = Dataset("logs", (Column("n", "bigint"), Column("v", "json")))

    (chunk,) = read_rows(tmp_path / "rows.csv", dataset=dataset)

    assert [(each.row, each.column) for each in accept(dataset, chunk).refusals] == [(0, "v")]


@pytest.mark.parametrize("line", ["[" * 5_000 + "]" * 5_000, '{"v": ' + "[" * 5_000])
def test_deep_text_that_is_no_object_is_no_row(line: str) -> None:
    with pytest.raises(ValueError, match="too deep"):
        parse_row(line.encode())


@given(VALUES)
def test_what_is_kept_of_a_deep_value_is_its_json(value: Any) -> None:
    assert json.loads(too_deep([value]).json) == [value]


def test_all_of_a_deep_line_is_kept() -> None:
    deep = "[" * 3_000 + "]" * 3_000

    row = parse_row(f'{{"v": {deep} }}'.encode())

    assert row == {"v": TooDeep(deep)}


# Times


@pytest.mark.parametrize("declared", [None, "timestamp"])
def test_a_time_finer_than_a_microsecond_is_refused_as_what_it_is(declared: str | None) -> None:
    dataset = Dataset("logs", (Column("at", declared),) if declared else ())
    at = pa.array([1_700_000_000_123_456_789, 1_700_000_000_123_456_000], pa.timestamp("ns", "UTC"))

    judged = accept(dataset, pa.table({"at": at}))

    assert [(each.row, each.column, each.found, each.wanted, each.kind) for each in judged.refusals] == [
        (0, "at", "2023-11-14T22:13:20.123456789Z, finer than a microsecond", "timestamp", "bad_rows")
    ]
    assert judged.table["at"].to_pylist() == [datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)]
    assert repr(judged.refused_rows[0]["at"]) == "2023-11-14T22:13:20.123456789Z, finer than a microsecond"


def test_a_text_that_is_a_finer_time_is_refused_as_that() -> None:
    dataset = Dataset("logs", (Column("at", "timestamp"),))

    fine, other = accept(dataset, [{"at": "2026-01-01T00:00:00.123456789Z"}, {"at": "1.123456789"}]).refusals

    assert fine.found == "2026-01-01T00:00:00.123456789Z, finer than a microsecond"
    assert fine.kind == "bad_rows"
    assert (other.found, other.kind) == ("str '1.123456789'", "schema_breaking")
