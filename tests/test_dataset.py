"""What a dataset takes, how it grows, and what it refuses."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.dataset import (
    Column,
    Dataset,
    SchemaBreaking,
    SourceInvalid,
    Strand,
    accept,
    check_source,
    decode_source,
    encode_source,
    merged,
)
from strandline.errors import UsageError

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def one(type_: str) -> Dataset:
    return Dataset("d", (Column("c", type_),))


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (True, "boolean"),
        (1, "bigint"),
        (1.5, "double"),
        ("x", "string"),
        (b"x", "binary"),
        (NOON, "timestamp"),
        (date(2026, 1, 2), "date"),
        (Decimal("1.25"), "decimal(38,2)"),
        ({"a": 1}, "json"),
        ([1, "a"], "json"),
    ],
)
def test_a_column_takes_the_type_of_its_first_value(value: Any, type_: str) -> None:  # L-SCH-5, L-SPOOL-12
    found = accept(Dataset("d"), [{"c": None}, {"c": value}])

    assert found.refusals == []
    assert found.dataset.columns == (Column("c", type_),)
    assert found.dataset.version == 1


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        ("double", 3, 3.0),
        ("double", "NaN", math.nan),
        ("double", "-Infinity", -math.inf),
        ("float", 0.5, 0.5),
        ("timestamp", "2026-11-15T12:00:00.000000Z", NOON),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", 7, Decimal("7.00")),
        ("binary", "aGk=", b"hi"),
        ("json", {"b": 1, "a": [None]}, '{"a":[null],"b":1}'),
        ("json", "text", '"text"'),
    ],
)
def test_a_value_is_kept_as_it_is_or_read_from_its_text_form(
    type_: str, value: Any, kept: Any
) -> None:  # L-SPOOL-8, L-FWD-5
    found = accept(one(type_), [{"c": value}])

    assert found.refusals == []
    assert repr(found.rows[0]["c"]) == repr(kept)
    assert found.dataset == one(type_)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", "1"),
        ("int", True),
        ("int", math.nan),
        ("bigint", 2**63),
        ("bigint", 1.0),
        ("double", 2**53 + 1),
        ("double", "1.5"),
        ("string", 5),
        ("string", "\ud800"),
        ("boolean", 1),
        ("timestamp", datetime(2026, 1, 1)),  # noqa: DTZ001  # without a zone it is no instant
        ("timestamp", "yesterday"),
        ("timestamp", 1700000000),
        ("date", NOON),
        ("decimal(5,2)", "1.234"),
        ("decimal(5,2)", 1.5),
        ("decimal(5,2)", "NaN"),
        ("binary", "not base64!"),
        ("json", {1, 2}),
        ("json", {"a": object()}),
        ("json", {"a": math.nan}),
        ("json", [(1, 2)]),
        ("json", {"t": NOON}),
    ],
)
def test_a_value_that_would_change_is_refused_with_both_types(type_: str, value: Any) -> None:  # L-SPOOL-8
    found = accept(one(type_), [{"c": value}])

    assert found.rows == []
    assert found.dataset == one(type_)
    assert (found.refusals[0].row, found.refusals[0].column) == (0, "c")
    assert type_ in str(found.refusals[0])
    assert type(value).__name__ in str(found.refusals[0])


@pytest.mark.parametrize(
    ("type_", "value", "wider"),
    [
        ("int", 2**40, "bigint"),
        ("float", 0.1, "double"),
        ("decimal(3,2)", Decimal("123.45"), "decimal(38,2)"),
    ],
)
def test_a_safe_widening_is_made(type_: str, value: Any, wider: str) -> None:  # L-SCH-5
    found = accept(one(type_), [{"c": value}])

    assert found.refusals == []
    assert found.dataset.columns == (Column("c", wider),)


def test_a_refused_row_grows_nothing_and_spoils_no_other() -> None:  # L-SCH-8, L-SPOOL-9
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "new", "a": "wrong"}, {"a": 2}]

    found = accept(Dataset("d"), rows)

    assert [row["a"] for row in found.rows] == [1, 2]
    assert [refusal.row for refusal in found.refusals] == [1]
    assert [column.name for column in found.dataset.columns] == ["a"]


@pytest.mark.parametrize("name", ["_sl_seq", "_SL_x", "_file", "_row_id", "", "a\0b", 5])
def test_a_reserved_or_impossible_column_is_refused(name: Any) -> None:  # L-STAMP-8
    found = accept(Dataset("d"), [{name: 1}])

    assert len(found.refusals) == 1


def test_a_row_that_is_too_large_lacks_a_column_or_contradicts_its_source_is_refused() -> (
    None
):  # L-SPOOL-8, -12
    dataset = Dataset("d", (Column("id", "bigint", required=True), Column("t", "string")))
    rows: list[dict[str, Any]] = [
        {"id": 1, "t": "x" * 100},
        {"t": "x"},
        {"id": 2, "source": "other"},
        {"id": 3, "source": "here"},
    ]

    found = accept(dataset, rows, source="here", max_row_bytes=50)

    assert [refusal.row for refusal in found.refusals] == [0, 1, 2]
    assert found.rows == [{"id": 3, "source": "here"}]


def test_the_source_is_the_calls_else_the_rows_else_unknown() -> None:  # L-SCH-1
    dataset = Dataset("d", source_columns=("host", "app"))
    rows: list[dict[str, Any]] = [
        {"source": "s", "host": "h"},
        {"host": "", "app": "a"},
        {"host": "h"},
        {"x": 1},
    ]

    found = accept(dataset, rows)

    assert [row["source"] for row in found.rows] == ["s", "a", "h", "unknown"]


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_sources_never_share_an_encoding(one_source: str, other: str) -> None:  # L-SCH-2
    if "\0" in one_source + other or not (_storable(one_source) and _storable(other)):
        return

    assert decode_source(encode_source(one_source)) == one_source
    assert (encode_source(one_source) == encode_source(other)) == (one_source == other)
    assert "/" not in encode_source(one_source)
    assert encode_source(one_source) not in (".", "..")


def _storable(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


@pytest.mark.parametrize("source", ["", None, 5, "x" * 241, "é" * 41, "a\0b", "\ud800"])
def test_a_source_that_could_never_land_is_refused(source: Any) -> None:  # L-SCH-2
    with pytest.raises(SourceInvalid):
        check_source(source)


@pytest.mark.parametrize("source", ["../../x", "a/b", "a%2Fb", "it's", "line\nbreak", "..", "."])
def test_an_odd_source_has_a_ledger_of_its_own(source: str) -> None:  # L-SCH-2
    assert Strand("d", check_source(source)).ledger.count("/") == 2


def test_a_declaration_adds_and_widens_and_nothing_else() -> None:  # L-SCH-5, L-SCH-6
    have = Dataset("d", (Column("a", "int", required=True), Column("b", "string")), version=3)

    grown = merged(have, Dataset("d", (Column("a", "bigint"), Column("c", "date"))))

    assert grown.columns == (Column("a", "bigint"), Column("b", "string"), Column("c", "date"))
    assert grown.version == 4
    assert merged(grown, have.__class__("d", (Column("b", "string"),))) is grown
    for breaking in (
        Column("b", "int"),
        Column("b", "string", required=True),
        Column("n", "int", required=True),
    ):
        with pytest.raises(SchemaBreaking) as caught:
            merged(have, Dataset("d", (breaking,)))
        assert caught.value.column == breaking.name


@pytest.mark.parametrize("name", ["", "1a", "a b", "a/b", "x" * 200, 5])
def test_a_dataset_has_a_plain_name(name: Any) -> None:
    with pytest.raises(UsageError):
        Dataset(name)
