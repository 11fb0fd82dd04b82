"""What a dataset takes, how it grows, and what it refuses."""

import math
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import UsageError
from strandline.rows.dataset import (
    Column,
    Dataset,
    SchemaBreaking,
    SourceInvalid,
    Strand,
    Unfit,
    check_source,
    decode_source,
    encode_source,
    merged,
    stored,
    type_of,
    widened,
    wider,
)

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


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
        (2**63, None),
        (NOON.replace(tzinfo=None), None),
        (Decimal("NaN"), None),
        ((1, 2), None),
        (object(), None),
    ],
)
def test_a_value_has_one_type_or_none(value: Any, type_: str | None) -> None:  # L-SCH-4, L-SCH-5
    assert type_of(value) == type_


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        ("double", 3, 3.0),
        ("double", 2**60, 2.0**60),
        ("double", "NaN", math.nan),
        ("double", "-Infinity", -math.inf),
        ("float", 0.5, 0.5),
        ("timestamp", "2026-11-15T12:00:00.000000Z", NOON),
        ("timestamp", "2026-11-15T14:00:00.000000000+02:00", NOON),
        ("timestamp", NOON.astimezone(ZoneInfo("Asia/Tokyo")), NOON),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", 7, Decimal("7.00")),
        ("decimal(2,2)", 0, Decimal("0.00")),
        ("decimal(38,2)", "1" * 36 + ".25", Decimal("1" * 36 + ".25")),
        ("binary", "aGk=", b"hi"),
        ("json", {"b": 1, "a": [None]}, '{"a":[null],"b":1}'),
        ("json", "text", '"text"'),
    ],
)
def test_a_value_is_kept_as_it_is_or_read_from_its_text_form(
    type_: str, value: Any, kept: Any
) -> None:  # L-SPOOL-8, L-STAMP-3, L-FWD-5
    assert repr(stored(value, type_)) == repr(kept)


class Level(StrEnum):
    HIGH = "high"


def test_a_member_of_a_text_enumeration_is_its_text() -> None:  # L-SPOOL-8
    assert type(stored(Level.HIGH, "string")) is str
    assert stored(Level.HIGH, "string") == "high"


class Nanoseconds(datetime):
    """As pandas has it: a datetime with more digits than datetime has."""

    nanosecond = 1


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
        ("double", True),
        ("float", 0.1),
        ("string", 5),
        ("string", b"x"),
        ("string", "\ud800"),
        ("boolean", 1),
        ("timestamp", NOON.replace(tzinfo=None)),
        ("timestamp", "2026-11-15T12:00:00"),
        ("timestamp", "2026-11-15T12:00:00.1234567Z"),
        ("timestamp", "9999-12-31T23:59:59-01:00"),
        ("timestamp", "yesterday"),
        ("timestamp", 1700000000),
        ("timestamp", Nanoseconds(2026, 1, 1, tzinfo=UTC)),
        ("date", NOON),
        ("decimal(5,2)", "1.234"),
        ("decimal(5,2)", "1234.5"),
        ("decimal(5,2)", 1.5),
        ("decimal(5,2)", "NaN"),
        ("decimal(5,2)", "1_0"),
        ("binary", "not base64!"),
        ("json", {1, 2}),
        ("json", {"a": object()}),
        ("json", {"a": math.nan}),
        ("json", {"a": 2**64}),
        ("json", [(1, 2)]),
        ("json", {"t": NOON}),
        ("json", {1: "a"}),
    ],
)
def test_a_value_that_would_change_does_not_fit(type_: str, value: Any) -> None:  # L-SPOOL-8
    with pytest.raises(Unfit):
        stored(value, type_)


@pytest.mark.parametrize(
    ("type_", "becomes"),
    [
        ("int", "bigint"),
        ("float", "double"),
        ("decimal(3,2)", "decimal(38,2)"),
        ("bigint", None),
        ("double", None),
        ("decimal(38,2)", None),
        ("string", None),
    ],
)
def test_a_column_may_become_wider_and_nothing_else(type_: str, becomes: str | None) -> None:  # L-SCH-5
    assert wider(type_) == becomes
    assert becomes is None or widened(type_, becomes) == becomes


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


def test_datasets_need_no_arrow() -> None:  # names and types are used where nothing is read or written
    code = "import strandline.rows.dataset, sys; sys.exit('pyarrow' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
