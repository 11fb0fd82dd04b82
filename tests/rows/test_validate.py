"""Rows at the door: what becomes of them, singly and as whole columns, from mappings and from Arrow."""

import math
import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.rows.batches import ArrowBatch, RowBatch, cut
from strandline.rows.columns import Unsure
from strandline.rows.dataset import Column, Dataset, Refusal, SchemaBreaking, SourceInvalid
from strandline.rows.validate import (
    MAX_ROW_BYTES,
    Accepted,
    BadRows,
    RowTooLarge,
    _accept_each,
    _accept_whole,
    accept,
    arrow_schema,
    raise_refusals,
    rows_digest,
)

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOGS = Dataset(
    "logs",
    (
        Column("ts", "timestamp"),
        Column("level", "string"),
        Column("message", "string"),
        Column("n", "bigint"),
    ),
    version=1,
)


def one(type_: str) -> Dataset:
    return Dataset("d", (Column("c", type_),))


def kept(found: Accepted) -> list[dict[str, Any]]:
    """The rows, without what they lack."""
    return [
        {name: value for name, value in row.items() if value is not None} for row in found.table.to_pylist()
    ]


def same(one: Accepted, other: Accepted) -> bool:
    """Also where a NaN is in them, which equals nothing."""
    return (
        one.dataset == other.dataset
        and one.table.schema == other.table.schema
        and repr(one.table.to_pylist()) == repr(other.table.to_pylist())
        and repr(one[2:]) == repr(other[2:])
    )


# What is kept


def test_good_rows_become_a_table_in_the_types_of_the_dataset() -> None:  # L-SPOOL-8, L-SCH-4
    rows = [
        {"n": 1, "ts": "2026-11-15T12:00:00Z", "extra": {"b": 1, "a": None}},
        {"level": "info", "ts": "2026-11-15T13:00:00+01:00"},
    ]

    found = accept(LOGS, rows, source="web-1")

    assert found.refusals == []
    assert found.table.column_names == ["source", "ts", "level", "n", "extra"]
    assert found.table.schema == pa.schema(
        [field for field in arrow_schema(found.dataset) if field.name != "message"]
    )
    assert kept(found) == [
        {"source": "web-1", "ts": NOON, "n": 1, "extra": '{"a":null,"b":1}'},
        {"source": "web-1", "ts": NOON, "level": "info"},
    ]
    assert found.dataset.columns == (*LOGS.columns, Column("extra", "json"))
    assert found.dataset.version == 2


def test_each_type_has_one_arrow_type() -> None:  # L-SCH-4
    types = ["string", "int", "bigint", "float", "double", "boolean", "timestamp", "date", "binary", "json"]
    dataset = Dataset("d", (*(Column(f"c_{type_}", type_) for type_ in types), Column("x", "decimal(9,2)")))

    assert arrow_schema(dataset).types == [
        pa.string(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.bool_(),
        pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.binary(),
        pa.string(),
        pa.decimal128(9, 2),
    ]


def test_the_rows_of_a_source_are_one_run_in_their_order() -> None:  # L-SPOOL-2
    rows = [{"n": n, "source": source} for n, source in enumerate("bababca")]

    found = accept(LOGS, rows)

    assert [(row["source"], row["n"]) for row in kept(found)] == [
        ("b", 0),
        ("b", 2),
        ("b", 4),
        ("a", 1),
        ("a", 3),
        ("a", 6),
        ("c", 5),
    ]


def test_the_source_is_the_calls_else_the_rows_else_unknown() -> None:  # L-SCH-1
    dataset = Dataset("d", source_columns=("host", "port"))
    rows: list[dict[str, Any]] = [
        {"source": "s", "host": "h"},
        {"host": "", "port": 80},
        {"host": "h"},
        {"source": "", "x": 1},
    ]

    assert sorted(row["source"] for row in kept(accept(dataset, rows))) == ["80", "h", "s", "unknown"]
    assert {row["source"] for row in kept(accept(dataset, rows[1:], source="call"))} == {"call"}


def test_a_writer_that_lacks_a_column_leaves_it_alone() -> None:  # L-SCH-7
    found = accept(LOGS, [{"n": 1}])

    assert found.dataset is LOGS
    assert found.table.column_names == ["source", "n"]


def test_no_rows_make_an_empty_table() -> None:  # L-SPOOL-2
    found = accept(LOGS, [])

    assert found.table.num_rows == 0
    assert found.dataset is LOGS


# What grows


def test_a_column_takes_the_type_of_its_first_value() -> None:  # L-SCH-5, L-SPOOL-12
    found = accept(Dataset("d"), [{"b": None, "a": 1}, {"c": "x", "b": 1.5}, {"b": 2}])

    assert found.dataset.columns == (Column("a", "bigint"), Column("c", "string"), Column("b", "double"))
    assert found.dataset.version == 1


@pytest.mark.parametrize(
    ("type_", "value", "wider"),
    [
        ("int", 2**40, "bigint"),
        ("float", 0.1, "double"),
        ("decimal(3,2)", Decimal("123.45"), "decimal(38,2)"),
        ("decimal(3,2)", Decimal("123.5"), "decimal(38,2)"),
    ],
)
def test_a_safe_widening_is_made(type_: str, value: Any, wider: str) -> None:  # L-SCH-5
    found = accept(one(type_), [{"c": 1}, {"c": value}])

    assert found.refusals == []
    assert found.dataset.columns == (Column("c", wider),)
    assert found.table["c"].to_pylist() == [1, value]


def test_a_refused_row_grows_nothing_and_spoils_no_other() -> None:  # L-SCH-8, L-SPOOL-9
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "new", "a": "wrong"}, {"a": 2}]

    found = accept(Dataset("d"), rows)

    assert found.table["a"].to_pylist() == [1, 2]
    assert found.refusals == [Refusal(1, "a", "str 'wrong'", "bigint", "schema_breaking")]
    assert found.refused_rows == [rows[1]]
    assert [column.name for column in found.dataset.columns] == ["a"]


# What is refused


@pytest.mark.parametrize(
    ("type_", "value"),
    [("int", "1"), ("int", math.nan), ("bigint", 2**63), ("string", 5), ("timestamp", "2026-01-01T00:00:00")],
)
def test_a_refusal_names_row_column_and_both_types(type_: str, value: Any) -> None:  # L-SPOOL-8, L-SCH-6
    dataset = one(type_)

    found = accept(dataset, [{}, {"c": value}])

    assert found.dataset == dataset
    assert (found.refusals[0].row, found.refusals[0].column) == (1, "c")
    assert f"{type(value).__name__} {value!r} does not fit {type_}" in str(found.refusals[0])
    with pytest.raises(SchemaBreaking) as caught:
        raise_refusals(dataset, found.refusals)
    assert (caught.value.row, caught.value.column, caught.value.wanted) == (1, "c", type_)
    assert pickle.loads(pickle.dumps(caught.value)).refusals == tuple(found.refusals)


@pytest.mark.parametrize("name", ["_sl_seq", "_SL_x", "_file", "_row_id", "", "a\0b", 5, "Source", "N"])
def test_a_reserved_impossible_or_respelled_column_is_refused(name: Any) -> None:  # L-STAMP-8
    found = accept(LOGS, [{name: 1}, {name: None, "n": 1}])

    assert [refusal.row for refusal in found.refusals] == [0]
    assert kept(found) == [{"source": "unknown", "n": 1}]


def test_two_spellings_of_a_new_column_do_not_both_get_in() -> None:  # L-SCH-5
    found = accept(Dataset("d"), [{"a": 1, "A": 2}, {"A": 1}, {"a": 1}])

    assert [refusal.row for refusal in found.refusals] == [0, 2]
    assert found.dataset.columns == (Column("A", "bigint"),)


def test_a_row_that_lacks_a_column_contradicts_its_source_or_is_no_row_is_refused() -> None:  # L-SPOOL-8
    dataset = Dataset("d", (Column("id", "bigint", required=True), Column("t", "string")))
    rows: list[Any] = [
        {"t": "x"},
        {"id": 2, "source": "other"},
        {"id": 2, "source": 5},
        [("id", 2)],
        MappingProxyType({"id": 3, "source": "here"}),
    ]

    found = accept(dataset, rows, source="here")

    assert [refusal.row for refusal in found.refusals] == [0, 1, 2, 3]
    assert kept(found) == [{"id": 3, "source": "here"}]
    with pytest.raises(BadRows, match=r"refuses 4 rows:\n  row 0, column 'id': a missing value"):
        raise_refusals(dataset, found.refusals)


def test_a_row_over_the_limit_is_refused_as_too_large() -> None:  # L-SPOOL-12
    rows = [{"message": "x" * (20 * 2**20)}, {"message": "é" * 9 * 2**20}, {"message": "x" * (15 * 2**20)}]

    found = accept(LOGS, rows)

    assert [refusal.row for refusal in found.refusals] == [0, 1]
    assert "20,971,520 bytes does not fit the limit of 16,777,216" in str(found.refusals[0])
    with pytest.raises(RowTooLarge) as caught:
        raise_refusals(LOGS, found.refusals)
    assert caught.value.kind == "row_too_large"


@pytest.mark.parametrize("source", ["", "x" * 241, "a\0b"])
def test_a_source_that_could_never_land_is_refused(source: str) -> None:  # L-SCH-2
    found = accept(LOGS, [{"n": 1}], source=source)

    assert found.table.num_rows == 0
    with pytest.raises(SourceInvalid, match="row 0"):
        raise_refusals(LOGS, found.refusals)


def test_a_message_lists_a_hundred_refusals_and_the_error_has_all() -> None:  # L-SPOOL-9
    found = accept(LOGS, [{"n": n, "_sl_x": 1} for n in range(250)])

    with pytest.raises(BadRows) as caught:
        raise_refusals(LOGS, found.refusals)

    assert caught.value.message.count("\n") == 101
    assert "and 150 more" in caught.value.message
    assert len(caught.value.refusals) == 250
    assert caught.value.kind == "bad_rows"


def test_refusals_of_several_kinds_are_bad_rows() -> None:
    found = accept(LOGS, [{"n": "x"}, {"_sl_x": 1}])

    with pytest.raises(BadRows):
        raise_refusals(LOGS, found.refusals)


# Arrow


def array(type_: Any, *values: Any) -> Any:
    return pa.array(values, type_)


@pytest.mark.parametrize(
    ("given_", "type_", "value"),
    [
        (array(pa.int8(), -5), "int", -5),
        (array(pa.int32(), 5), "int", 5),
        (array(pa.uint16(), 5), "int", 5),
        (array(pa.uint32(), 2**31), "bigint", 2**31),
        (array(pa.int64(), 5), "bigint", 5),
        (array(pa.uint64(), 2**62), "bigint", 2**62),
        (array(pa.float16(), 0.5), "float", 0.5),
        (array(pa.float32(), 0.5), "float", 0.5),
        (array(pa.float64(), math.nan), "double", math.nan),
        (array(pa.bool_(), True), "boolean", True),
        (array(pa.string(), "x"), "string", "x"),
        (array(pa.large_string(), "x"), "string", "x"),
        (array(pa.string_view(), "x"), "string", "x"),
        (array(pa.string(), "x").dictionary_encode(), "string", "x"),
        (pa.RunEndEncodedArray.from_arrays([1], ["x"]), "string", "x"),
        (array(pa.large_binary(), b"x"), "binary", b"x"),
        (array(pa.binary(1), b"x"), "binary", b"x"),
        (array(pa.date32(), date(2026, 1, 2)), "date", date(2026, 1, 2)),
        (array(pa.date64(), date(2026, 1, 2)), "date", date(2026, 1, 2)),
        (array(pa.timestamp("s", "UTC"), NOON), "timestamp", NOON),
        (array(pa.timestamp("ns", "Europe/Berlin"), NOON), "timestamp", NOON),
        (array(pa.decimal128(5, 2), Decimal("1.25")), "decimal(5,2)", Decimal("1.25")),
        (array(pa.list_(pa.int8()), [1, None]), "json", "[1,null]"),
        (array(pa.struct([("b", pa.int8()), ("a", pa.string())]), {"b": 1}), "json", '{"a":null,"b":1}'),
        (array(pa.map_(pa.string(), pa.int8()), [("b", 1), ("a", 2)]), "json", '{"a":2,"b":1}'),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_an_arrow_column_becomes_the_type_that_holds_it(
    given_: Any, type_: str, value: Any
) -> None:  # L-SPOOL-8, L-SCH-4
    nothing = pa.array([None], given_.type) if not pa.types.is_run_end_encoded(given_.type) else given_
    table = pa.Table.from_arrays([pa.chunked_array([nothing, given_])], ["c"])

    found = accept(Dataset("d"), table)

    assert found.refusals == []
    assert found.dataset.columns == (Column("c", type_),)
    assert found.table["c"].to_pylist()[1] == value or math.isnan(value)
    assert same(found, _accept_each(Dataset("d"), ArrowBatch(table), None, MAX_ROW_BYTES))


@pytest.mark.parametrize(
    ("declared", "given_"),
    [
        ("int", array(pa.float64(), 1.0)),
        ("int", array(pa.float64(), math.nan)),
        ("bigint", array(pa.uint64(), 2**63)),
        ("double", array(pa.int64(), 2**53 + 1)),
        ("string", array(pa.int64(), 1)),
        ("string", pa.array([b"\xff"]).view(pa.string())),
        ("string", array(pa.binary(), b"x")),
        ("timestamp", array(pa.timestamp("us"), NOON.replace(tzinfo=None))),
        ("timestamp", array(pa.timestamp("ns", "UTC"), 1)),
        ("timestamp", array(pa.timestamp("s", "UTC"), 10**12)),
        ("timestamp", array(pa.string(), "2026-11-15T12:00:00.1234567Z")),
        ("date", array(pa.date32(), 10**7)),
        ("date", array(pa.int64(), 1).cast(pa.timestamp("ms")).view(pa.date64())),
        ("decimal(38,2)", array(pa.decimal128(5, 3), Decimal("1.234"))),
        ("json", array(pa.list_(pa.float64()), [math.nan])),
        ("json", array(pa.list_(pa.timestamp("us", "UTC")), [NOON])),
        ("json", array(pa.time64("us"), time(1))),
        (None, array(pa.timestamp("us"), NOON.replace(tzinfo=None))),
        (None, array(pa.timestamp("ns", "UTC"), 1)),
        (None, array(pa.duration("s"), timedelta(1))),
        (None, array(pa.uint64(), 2**63)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_an_arrow_value_that_would_change_is_refused(declared: str | None, given_: Any) -> None:  # L-SPOOL-8
    dataset = Dataset("d", (Column("c", declared),) if declared else ())
    table = pa.Table.from_arrays(
        [pa.chunked_array([given_, pa.array([None], given_.type)]), array(pa.int8(), 1, 2)], ["c", "n"]
    )

    found = accept(dataset, table)

    assert [(refusal.row, refusal.column) for refusal in found.refusals] == [(0, "c")]
    assert kept(found) == [{"source": "unknown", "n": 2}]
    assert found.refused_rows[0]["n"] == 1
    assert "c" in found.refused_rows[0]


@pytest.mark.parametrize(
    ("declared", "given_", "type_", "value"),
    [
        ("int", array(pa.int64(), 5), "int", 5),
        ("int", array(pa.int64(), 2**40), "bigint", 2**40),
        ("bigint", array(pa.int16(), 5), "bigint", 5),
        ("double", array(pa.int64(), 2**53), "double", 2.0**53),
        ("double", array(pa.int64(), 2**60), "double", 2.0**60),
        ("float", array(pa.float64(), 0.5), "float", 0.5),
        ("float", array(pa.float64(), 0.1), "double", 0.1),
        ("float", array(pa.int64(), 2**30), "float", 2.0**30),
        ("decimal(9,2)", array(pa.decimal128(3, 1), Decimal("1.5")), "decimal(9,2)", Decimal("1.50")),
        ("decimal(3,2)", array(pa.decimal128(9, 1), Decimal("123.5")), "decimal(38,2)", Decimal("123.50")),
        ("decimal(9,2)", array(pa.int8(), 5), "decimal(9,2)", Decimal("5.00")),
        ("timestamp", array(pa.string(), "2026-11-15T12:00:00Z"), "timestamp", NOON),
        ("timestamp", array(pa.string(), "20261115T120000,0Z"), "timestamp", NOON),
        ("binary", array(pa.string(), "aGk="), "binary", b"hi"),
        ("json", array(pa.string(), "text"), "json", '"text"'),
    ],
)
def test_an_arrow_value_is_judged_like_any_other_by_the_declared_type(
    declared: str, given_: Any, type_: str, value: Any
) -> None:  # L-SPOOL-8, L-SCH-5, L-FWD-5
    table = pa.Table.from_arrays([given_], ["c"])

    found = accept(one(declared), table)

    assert found.dataset.columns == (Column("c", type_),)
    assert found.table["c"].to_pylist() == [value]
    assert same(found, _accept_each(one(declared), ArrowBatch(table), None, MAX_ROW_BYTES))


@pytest.mark.parametrize(
    "nulls",
    [
        pa.nulls(2),
        array(pa.string(), None, None),
        pa.DictionaryArray.from_arrays([0, 0], array(pa.string(), None)),
        pa.RunEndEncodedArray.from_arrays([2], array(pa.string(), None)),
    ],
    ids=lambda value: str(value.type),
)
def test_an_arrow_column_of_nothing_but_nulls_grows_nothing(nulls: Any) -> None:  # L-SCH-8
    required = Dataset("d", (Column("c", "string", required=True),))
    table = pa.Table.from_arrays([nulls, array(pa.int8(), 1, 2)], ["c", "n"])

    assert accept(Dataset("d"), table).dataset.columns == (Column("n", "int"),)
    assert [refusal.column for refusal in accept(required, table).refusals] == ["c", "c"]


def test_an_arrow_column_twice_is_refused() -> None:
    with pytest.raises(BadRows, match="a column given twice"):
        accept(LOGS, pa.Table.from_arrays([array(pa.int8(), 1)] * 2, ["n", "n"]))


def test_an_arrow_table_without_columns_still_has_rows() -> None:
    table = pa.table({"n": [1, 2]}).select([])

    assert accept(LOGS, table, source="a").table.to_pydict() == {"source": ["a"] * table.num_rows}


def test_a_piece_is_never_empty_and_pieces_join_to_the_whole() -> None:
    table = pa.table({"t": ["x" * n for n in range(50)]})

    pieces = [*cut(table, rows=20, size=100)]

    assert pa.concat_tables(pieces).equals(table)
    assert all(piece.num_rows for piece in pieces)
    assert max(piece.num_rows for piece in pieces) <= 20
    assert [*cut(table.slice(0, 0), rows=20, size=100)] == []


# One judgement at two speeds

ZONES = [UTC, timezone(timedelta(hours=-7, minutes=-30)), ZoneInfo("Europe/Berlin"), None]
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**64), 2**64),
    "float": st.floats(width=32),
    "double": st.floats() | st.integers(-(2**54), 2**54),
    "string": st.text(max_size=5),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=4),
    "date": st.dates() | st.dates().map(date.isoformat),
    "timestamp": st.datetimes(timezones=st.sampled_from(ZONES))
    | st.datetimes(timezones=st.sampled_from(ZONES)).map(datetime.isoformat)
    | st.from_regex(
        r"\A20\d\d-[01]\d-[0-3]\d[T _][0-2]\d(:?[0-5]\d(:?[0-5]\d([.,]\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?\Z"
    ),
    "decimal(5,2)": st.decimals(allow_nan=False, places=2, min_value=-1000, max_value=1000)
    | st.from_regex(r"\A-?[0-9]{1,4}(\.[0-9]{1,3})?\Z"),
    "json": st.recursive(
        st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=2),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=3,
    ),
}
NAMES = ["a", "b", "c", "A", "source", "host", "_sl_x"]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Dataset, list[dict[str, Any]], str | None, int]:
    """Mostly batches that are fine, so that whole columns pass; and some of everything else."""
    names = draw(st.lists(st.sampled_from(NAMES[:3]), max_size=3, unique=True))
    declared = draw(st.lists(st.sampled_from(list(VALUES)), min_size=len(names), max_size=len(names)))
    required = draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    columns = tuple(
        Column(name, type_, needs) for name, type_, needs in zip(names, declared, required, strict=True)
    )
    dataset = Dataset("d", columns, source_columns=("host",))
    used = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    kinds = {column.name: column.type for column in columns}
    values = {
        name: VALUES[kinds.get(name) or draw(st.sampled_from(["string", *VALUES]))]
        | st.none()
        | (st.nothing() if draw(st.booleans()) else st.one_of(*VALUES.values()))
        for name in used
    }
    is_even = draw(st.booleans())
    row = st.fixed_dictionaries(values) if is_even else st.fixed_dictionaries({}, optional=values)
    rows = draw(st.lists(row, max_size=4))
    return dataset, rows, draw(st.sampled_from([None, None, "web", ""])), draw(st.sampled_from([30, 10**6]))


@settings(max_examples=300, deadline=None)
@given(batches())
def test_whole_columns_and_single_rows_get_one_verdict(
    batch: tuple[Dataset, list[dict[str, Any]], str | None, int],
) -> None:  # L-SPOOL-8: one function decides
    dataset, rows, source, limit = batch
    slow = _accept_each(dataset, RowBatch(rows), source, limit)

    try:
        quick = _accept_whole(dataset, RowBatch(rows), source, limit)
    except Unsure:
        return

    assert slow.refusals == []
    assert same(quick, slow)
    assert rows_digest(quick.table) == rows_digest(slow.table)
    again = accept(quick.dataset, quick.table)
    if "json" not in {column.type for column in quick.dataset.columns}:  # a text there is a JSON string
        assert same(again, quick._replace(refused_rows=[]))


class Count(IntEnum):
    ONE = 1


class Level(StrEnum):
    HIGH = "high"


class Zoneless(tzinfo):
    """A zone that does not say how far from UTC it is."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    dst = utcoffset
    tzname = utcoffset


GOOD = {
    "int": 1,
    "bigint": 1,
    "float": 0.5,
    "double": 0.5,
    "string": "x",
    "boolean": True,
    "binary": b"x",
    "date": date(2026, 1, 2),
    "timestamp": NOON,
    "decimal(5,2)": Decimal("1.25"),
    "json": {},
}
ODD: list[Any] = [
    *GOOD.values(),
    *[0, False, 2**31, 2**53 + 1, 2**60, 2**63, 2**64, 1.0, 0.1, 1e300, -0.0, math.nan, math.inf],
    *["", "1", "NaN", "Infinity", "\ud800", "2026-01-02", "aGk=", Level.HIGH, Count.ONE, bytearray(b"x"), ()],
    *[NOON.replace(tzinfo=None), NOON.replace(tzinfo=Zoneless()), datetime.max.replace(tzinfo=ZONES[1])],
    *[NOON.replace(tzinfo=ZONES[2]), NOON.isoformat(), "2026-11-15T12:00:00", "0000-11-15T12:00:00Z"],
    *["9999-12-31T23:59:59-01:00", "2026-11-15T12:00:00.1234567Z", "2026-11-15T12:00:00,5Z"],
    *[Decimal("1.256"), Decimal("1234.5"), Decimal("NaN"), Decimal("1E+3"), [1], [NOON], {"b": math.nan}],
    *[{"b": 1, "a": 2**64}, {1: 2}, object, time(1)],
]


@pytest.mark.parametrize("declared", [None, *GOOD])
def test_a_value_beside_a_good_one_gets_the_verdict_that_it_gets_alone(
    declared: str | None,
) -> None:  # L-SPOOL-8
    dataset = Dataset("d", (Column("c", declared),) if declared else ())
    for good in [GOOD[declared]] if declared else GOOD.values():
        for odd in ODD:
            for rows in ([{"c": odd}], [{"c": good}, {"c": odd}], [{"c": odd}, {}, {"c": good}]):
                slow = _accept_each(dataset, RowBatch(rows), None, MAX_ROW_BYTES)
                assert same(accept(dataset, rows), slow), rows


def test_whole_columns_do_pass() -> None:  # or the test above would prove nothing
    rows: list[dict[str, Any]] = [
        {"ts": "2026-11-15T12:00:00Z", "level": "info", "message": "x", "n": 1, "j": {"a": 1}, "f": 1},
        {"ts": "2026-11-15T12:00:00.5+01:00", "level": None, "message": "é", "n": 2, "f": 0.5},
    ]
    dataset = Dataset("logs", (*LOGS.columns, Column("f", "double"), Column("d", "decimal(5,2)")))

    for source in (None, "a"):
        found = _accept_whole(dataset, RowBatch(rows), source, MAX_ROW_BYTES)
        assert same(found, _accept_each(dataset, RowBatch(rows), source, MAX_ROW_BYTES))


ARROW_TYPES = [
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.timestamp("ns", "UTC"),
    pa.timestamp("ms", "Europe/Berlin"),
    pa.timestamp("us"),
    pa.date32(),
    pa.decimal128(5, 2),
    pa.decimal128(9, 1),
    pa.list_(pa.int8()),
]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    type_ = draw(st.sampled_from(ARROW_TYPES))
    if pa.types.is_list(type_):
        values = draw(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=2), max_size=4))
        return pa.array(values, type_)
    if pa.types.is_floating(type_):
        return pa.array(
            draw(st.lists(st.none() | st.floats(width=type_.bit_width), max_size=4)), pa.float64()
        ).cast(type_)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pa.array(
            draw(st.lists(st.none() | st.text(max_size=3) | VALUES["timestamp"].map(str), max_size=4)), type_
        )
    if pa.types.is_decimal(type_):
        numbers = st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(-type_.scale))
        return pa.array(draw(st.lists(st.none() | numbers, max_size=4)), type_)
    bits = type_.bit_width - (pa.types.is_unsigned_integer(type_) is False)
    low = 0 if pa.types.is_unsigned_integer(type_) else -(2**bits)
    some = st.none() | st.integers(-128 if low else 0, 127) | st.integers(low, 2**bits - 1)
    integers = pa.array(
        draw(st.lists(some, max_size=4)), {32: pa.int32(), 64: pa.int64()}.get(bits + 1, type_)
    )
    return integers if pa.types.is_integer(type_) else integers.view(type_)


@settings(max_examples=300, deadline=None)
@given(arrays(), st.sampled_from([None, *VALUES]))
def test_whole_arrow_columns_and_their_rows_get_one_verdict(
    given_: Any, declared: str | None
) -> None:  # L-SPOOL-8
    dataset = Dataset("d", (Column("c", declared),) if declared else ())
    table = pa.Table.from_arrays([given_], ["c"])
    slow = _accept_each(dataset, ArrowBatch(table), None, MAX_ROW_BYTES)

    assert same(accept(dataset, table), slow)
    assert rows_digest(accept(dataset, table).table) == rows_digest(slow.table)


# Digests


def test_equal_rows_have_one_digest_however_they_came() -> None:  # L-SPOOL-5
    rows = [{"n": 1, "x": 0.5, "t": "a", "b": True}, {"n": None, "t": "", "x": 1.0}, {"n": 3}]
    narrow = Dataset("d", (Column("n", "int"), Column("x", "float"), Column("b", "boolean")))
    wide = Dataset("d", (Column("t", "string"), Column("x", "double"), Column("n", "bigint")))
    one = accept(narrow, rows).table

    assert rows_digest(one) == rows_digest(accept(wide, rows).table)
    assert rows_digest(one) == rows_digest(
        pa.concat_tables([one.slice(0, 1), one.slice(1, 2), one.slice(0, 0)])
    )
    assert rows_digest(one.slice(1)) == rows_digest(accept(narrow, rows[1:]).table)


@pytest.mark.parametrize(
    "other",
    [
        [{"t": "a", "n": 1}, {"t": "b"}],
        [{"t": "ab"}, {"t": "", "n": 1}],
        [{"t": "a"}, {"t": "b", "n": 2}],
        [{"t": "b", "n": 1}, {"t": "a"}],
        [{"t": "a"}, {"t": "b", "n": 1}, {}],
        [{"t": "a"}, {"t": "b", "m": 1}],
        [{"t": "a"}, {"t": "b", "n": 1, "source": "here"}],
        [{"t": "a"}, {"n": 1, "u": "b"}],
    ],
)
def test_other_rows_have_another_digest(other: list[dict[str, Any]]) -> None:  # L-SPOOL-5
    rows = [{"t": "a"}, {"t": "b", "n": 1}]

    assert rows_digest(accept(Dataset("d"), rows).table) != rows_digest(accept(Dataset("d"), other).table)
