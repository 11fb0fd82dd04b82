"""Rows as JSON lines: one text for a row, read back as what it was (L-FWD-5)."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.rows.dataset import Column, Dataset
from strandline.rows.row_files import parse_row
from strandline.rows.validate import accept, arrow_schema
from strandline.sinks.ndjson import ndjson_lines

ALL = Dataset(
    "all",
    (
        Column("text", "string"),
        Column("small", "int"),
        Column("n", "bigint"),
        Column("single", "float"),
        Column("rate", "double"),
        Column("ok", "boolean"),
        Column("at", "timestamp"),
        Column("day", "date"),
        Column("price", "decimal(20,8)"),
        Column("raw", "binary"),
        Column('odd "name"\n', "string"),
        Column("more", "json"),
    ),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "small": st.integers(-(2**31), 2**31 - 1),
    "n": st.integers(-(2**63), 2**63 - 1),
    "single": st.floats(width=32),
    "rate": st.floats(),
    "ok": st.booleans(),
    "at": st.datetimes(timezones=st.just(UTC)),
    "day": st.dates(),
    "price": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-8)),
    "raw": st.binary(max_size=20),
    'odd "name"\n': TEXTS,
    "more": JSON.filter(lambda value: value is not None),
}
ROWS = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=8)


def table_of(rows: list[dict[str, Any]], dataset: Dataset = ALL) -> pa.Table:
    """As a sink gets them: all columns, and nothing else."""
    found = accept(dataset, rows, source="web-1")
    assert not found.refusals
    assert found.dataset.columns == dataset.columns
    wanted = arrow_schema(dataset)
    columns = [
        found.table[name]
        if name in found.table.column_names
        else pa.nulls(len(rows), wanted.field(name).type)
        for name in wanted.names
    ]
    return pa.table(columns, schema=wanted)


def lines_of(rows: list[dict[str, Any]], dataset: Dataset = ALL, **options: bool) -> bytes:
    (batch,) = table_of(rows, dataset).combine_chunks().to_batches()
    return ndjson_lines(dataset, batch, **{"with_source": False, "with_row_id": False, **options})


def one_line(name: str, type_: str, value: Any) -> str:
    return lines_of([{name: value}], Dataset("d", (Column(name, type_),))).decode()


@given(ROWS)
def test_what_is_written_is_read_back_as_it_was(rows: list[dict[str, Any]]) -> None:  # L-FWD-5, L-SPOOL-8
    lines = lines_of(rows).splitlines(keepends=True)

    again = table_of([parse_row(line.removesuffix(b"\n")) for line in lines])

    assert all(line.endswith(b"\n") for line in lines)
    assert _comparable(again) == _comparable(table_of(rows))
    assert lines_of([parse_row(line.removesuffix(b"\n")) for line in lines]) == b"".join(
        lines
    )  # a second hop


def _comparable(table: pa.Table) -> list[str]:
    """NaN equals itself, and 0 is not -0."""
    return [repr(row) for row in table.to_pylist()]


@given(ROWS, st.data())
def test_a_line_does_not_depend_on_the_rows_around_it(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    # L-FWD-5
    (batch,) = table_of(rows).combine_chunks().to_batches()
    place = data.draw(st.integers(0, len(rows) - 1))

    alone = ndjson_lines(ALL, batch.slice(place, 1), with_source=False, with_row_id=False)

    assert alone == ndjson_lines(ALL, batch, with_source=False, with_row_id=False).splitlines(True)[place]


def test_a_row_is_one_line_of_json_with_its_keys_in_the_order_of_the_schema() -> None:  # L-FWD-5
    row = dict.fromkeys(VALUES) | {
        "more": {"b": [1, {"c": "ä"}], "a": None},
        "raw": b"\0\1",
        "price": Decimal("1.5"),
        "day": date(2026, 3, 1),
        "at": datetime(2026, 3, 1, 10, tzinfo=UTC),
        "ok": True,
        "rate": 0.1,
        "single": 0.5,
        "n": 2**53 + 1,
        "small": -7,
        "text": 'a "b"\n\u2028é\\',
    }

    assert lines_of([row]).decode() == (
        '{"text":"a \\"b\\"\\n\u2028é\\\\","small":-7,"n":9007199254740993,"single":0.5,"rate":0.1,"ok":true,'
        '"at":"2026-03-01T10:00:00.000000Z","day":"2026-03-01","price":"1.50000000","raw":"AAE=",'
        '"more":{"a":null,"b":[1,{"c":"ä"}]}}\n'
    )


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("bigint", 2**53 - 1, "9007199254740991"),
        ("bigint", 2**53 + 1, "9007199254740993"),
        ("bigint", -(2**63), "-9223372036854775808"),
        ("double", 1.0, "1.0"),
        ("double", -0.0, "-0.0"),
        ("double", math.nan, '"NaN"'),
        ("double", math.inf, '"Infinity"'),
        ("double", -math.inf, '"-Infinity"'),
        ("float", -math.inf, '"-Infinity"'),
        ("float", 0.10000000149011612, "0.10000000149011612"),  # what a float makes of 0.1
        ("timestamp", datetime(1, 1, 1, tzinfo=UTC), '"0001-01-01T00:00:00.000000Z"'),
        ("timestamp", datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC), '"1969-12-31T23:59:59.000005Z"'),
        ("timestamp", datetime.max.replace(tzinfo=UTC), '"9999-12-31T23:59:59.999999Z"'),
        ("decimal(12,8)", Decimal("1E-8"), '"0.00000001"'),
        ("decimal(12,8)", Decimal(0), '"0.00000000"'),
        ("decimal(38,0)", Decimal(10) ** 37, f'"1{"0" * 37}"'),
        ("json", "text", '"text"'),
        ("json", 5, "5"),
    ],
)
def test_each_type_has_its_form(type_: str, value: Any, text: str) -> None:  # L-FWD-5, F-40
    assert one_line("c", type_, value) == f'{{"c":{text}}}\n'


def test_a_column_has_one_json_type_whatever_its_values() -> None:  # F-40
    lines = lines_of([{"n": n} for n in (0, 2**53 - 1, 2**53 + 1, 2**63 - 1)]).splitlines()

    assert [json.loads(line)["n"] for line in lines] == [0, 2**53 - 1, 2**53 + 1, 2**63 - 1]
    assert {type(json.loads(line)["n"]) for line in lines} == {int}


def test_a_row_of_nothing_but_nulls_is_an_empty_object() -> None:  # L-FWD-5
    assert lines_of([{}, {"n": 1}, {}]) == b'{}\n{"n":1}\n{}\n'
    assert lines_of([{}, {}], Dataset("none")) == b"{}\n{}\n"


def test_source_and_row_id_come_last_and_only_if_asked_for() -> None:  # L-FWD-6, L-STAMP-9
    dataset = Dataset("d", (Column("n", "int"),))
    (batch,) = table_of([{"n": 1}], dataset).to_batches()
    batch = batch.append_column("_sl_seq", pa.array([7])).append_column("_sl_row_id", pa.array(["ab"]))

    assert ndjson_lines(dataset, batch, with_source=False, with_row_id=False) == b'{"n":1}\n'
    both = ndjson_lines(dataset, batch, with_source=True, with_row_id=True)
    assert both == b'{"n":1,"source":"web-1","_sl_row_id":"ab"}\n'


def test_no_rows_are_no_lines() -> None:  # L-FWD-5
    (batch,) = table_of([{"n": 1}]).to_batches()

    assert ndjson_lines(ALL, batch.slice(1), with_source=False, with_row_id=False) == b""


def test_columns_in_other_arrow_types_of_the_same_values_are_written_alike() -> None:  # L-FWD-5
    dataset = Dataset("d", (Column("s", "string"), Column("t", "timestamp"), Column("b", "binary")))
    at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=3)
    narrow = table_of([{"s": "x", "t": at, "b": b"y"}], dataset)
    wide = narrow.cast(
        pa.schema(
            [
                pa.field("source", pa.large_string()),
                ("s", pa.large_string()),
                ("t", pa.timestamp("us", "Europe/Berlin")),
                ("b", pa.large_binary()),
            ]
        )
    )

    texts = {
        ndjson_lines(dataset, table.to_batches()[0], with_source=True, with_row_id=False)
        for table in (narrow, wide)
    }

    assert texts == {b'{"s":"x","t":"2026-03-01T00:00:00.000003Z","b":"eQ==","source":"web-1"}\n'}


@given(TEXTS)
def test_texts_are_escaped_as_json_has_them(text: str) -> None:  # L-FWD-5
    assert one_line("c", "string", text) == f'{{"c":{orjson.dumps(text).decode()}}}\n'
