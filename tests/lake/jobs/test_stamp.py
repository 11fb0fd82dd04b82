"""The row id: one definition, in Spark, that survives growth of the schema."""

from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.lake.jobs.segment_batches import numbered_schema
from strandline.lake.jobs.stamp import stamped, without_known, without_repeats
from strandline.rows.dataset import Column, Dataset, Identity


def sha(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def ids(spark: SparkSession, dataset: Dataset, *rows: dict[str, Any], source: str = "web-1") -> list[str]:
    """The row ids of rows with seqs from 1 on."""
    placed = [
        {**row, "source": source, "_sl_seq": seq, "_sl_at": datetime(2026, 1, 1, tzinfo=UTC), "_sl_flush": 7}
        for seq, row in enumerate(rows, 1)
    ]
    table = pa.Table.from_pylist(placed, schema=numbered_schema(dataset))
    made = stamped(spark.createDataFrame(table), dataset)
    assert made.columns[-5:] == ["source", "_sl_seq", "_sl_row_id", "_sl_flush", "_sl_at"]
    return [row["_sl_row_id"] for row in made.orderBy("_sl_seq").select("_sl_row_id").collect()]


def plain(*columns: tuple[str, str], **settings: Any) -> Dataset:
    return Dataset("d", tuple(Column(name, type_) for name, type_ in columns), **settings)


def test_the_row_id_is_the_hash_of_the_text_that_the_module_documents(
    each_spark: SparkSession,
) -> None:  # L-STAMP-3
    dataset = plain(("n", "bigint"), ("level", "string"), ("host", "string"))

    made = ids(each_spark, dataset, {"level": "warn", "n": 7, "host": None})

    assert made == [sha("c5:level4:warn1:n1:7")]


VALUES = [
    ("string", "é`'\\\n", "é`'\\\n"),
    ("string", "", ""),
    ("json", '{"a":[1,2]}', '{"a":[1,2]}'),
    ("int", -5, "-5"),
    ("bigint", -(2**63), "-9223372036854775808"),
    ("float", 0.5, "0x1.0p-1"),
    ("double", 0.1, "0x1.999999999999ap-4"),
    ("double", 0.0, "0x0.0p0"),
    ("double", -0.0, "-0x0.0p0"),
    ("double", float("nan"), "NaN"),
    ("double", float("-inf"), "-Infinity"),
    ("double", 5e-324, "0x0.0000000000001p-1022"),
    ("boolean", True, "true"),
    ("timestamp", datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), "1000"),
    ("timestamp", datetime(1, 1, 1, tzinfo=UTC), "-62135596800000000"),
    ("date", date(1970, 1, 2), "1"),
    ("decimal(10,8)", Decimal("0.00000001"), "0.00000001"),
    ("decimal(38,0)", Decimal(10**37), str(10**37)),
    ("binary", b"\x00\xff", "00FF"),
]


@pytest.mark.parametrize("is_ansi", ["true", "false"])
def test_each_type_writes_its_value_in_one_exact_form_whatever_the_session_is_set_to(
    spark: SparkSession, is_ansi: str
) -> None:  # L-STAMP-3
    own = spark.newSession()
    own.conf.set("spark.sql.ansi.enabled", is_ansi)
    own.conf.set("spark.sql.session.timeZone", "America/New_York")
    dataset = plain(*((f"c{at:02}", type_) for at, (type_, _, _) in enumerate(VALUES)))
    rows = [{f"c{at:02}": value} for at, (_, value, _) in enumerate(VALUES)]

    made = ids(own, dataset, *rows)

    wanted = [f"c3:c{at:02}{len(text.encode())}:{text}" for at, (_, _, text) in enumerate(VALUES)]
    assert made == [sha(text) for text in wanted]


def test_the_row_id_stays_when_a_nullable_column_is_added_or_a_type_is_widened(
    spark: SparkSession,
) -> None:  # L-STAMP-3, L-SCH-5
    before = plain(("i", "int"), ("f", "float"), ("d", "decimal(5,2)"))
    after = plain(("added", "json"), ("d", "decimal(20,2)"), ("f", "double"), ("i", "bigint"))
    rows: list[dict[str, Any]] = [{"i": 7, "f": 0.10000000149011612, "d": Decimal("1.50")}, {"f": 0.25}]

    assert ids(spark, before, *rows) == ids(spark, after, *rows)


def test_names_and_values_cannot_be_shifted_into_each_other(spark: SparkSession) -> None:  # L-STAMP-3
    dataset = plain(("a", "string"), ("a1", "string"), ("b", "string"))

    made = ids(
        spark,
        dataset,
        {"a": "x", "b": "y"},
        {"a": "x1:b1:y"},
        {"a1": "x", "b": "y"},
        {"a": "", "b": "xy"},
        {"b": "xy"},
        {},
    )

    assert len(set(made)) == 6


def test_names_with_any_character_are_hashed_by_their_bytes(spark: SparkSession) -> None:  # L-STAMP-3
    dataset = plain(("a.b", "string"), ("o`ö 'x'\\", "string"))

    made = ids(spark, dataset, {"a.b": "1", "o`ö 'x'\\": "2"})

    name = "o`ö 'x'\\"
    assert made == [sha(f"c3:a.b1:1{len(name.encode())}:{name}1:2")]


def test_key_and_legacy_columns_give_the_same_row_id(each_spark: SparkSession) -> None:  # L-BF-2, L-STAMP-3
    dataset = plain(
        ("key", "string"),
        ("message", "string"),
        ("part", "int"),
        identity=Identity("key", ("message", "part")),
    )

    made = ids(
        each_spark,
        dataset,
        {"key": "m1#2"},
        {"message": "m1", "part": 2},
        {"key": "m1#2", "message": "else", "part": 9},
        {"message": "m1", "part": 3},
    )

    assert made[:3] == [sha("km1#2")] * 3
    assert made[3] == sha("km1#3")


def test_a_row_that_lacks_its_identity_equals_no_other(spark: SparkSession) -> None:  # L-STAMP-3
    dataset = plain(
        ("key", "string"),
        ("message", "string"),
        ("part", "int"),
        identity=Identity("key", ("message", "part")),
    )
    without_column = plain(("x", "string"), identity=Identity("key"))

    made = ids(spark, dataset, {"message": "m1"}, {"message": "m1"})
    elsewhere = ids(spark, dataset, {"message": "m1"}, source="web-2")
    unknown = ids(spark, without_column, {"x": "m1"})

    assert made == [sha("p5:web-11"), sha("p5:web-12")]
    assert elsewhere == [sha("p5:web-21")]
    assert unknown == made[:1]


def test_a_joining_text_may_be_empty(spark: SparkSession) -> None:  # L-BF-2
    dataset = plain(("a", "string"), ("b", "string"), identity=Identity("key", ("a", "b"), ""))

    assert ids(spark, dataset, {"a": "x", "b": "y"}) == [sha("kxy")]


@pytest.mark.parametrize("is_small", [True, False])
def test_of_equal_rows_of_a_strand_the_lowest_seq_stays(
    spark: SparkSession, is_small: bool
) -> None:  # L-STAMP-7
    rows = spark.createDataFrame(
        [("a", 3, "x"), ("a", 1, "x"), ("b", 2, "x"), ("a", 2, "y"), ("b", 9, "x")],
        "source string, _sl_seq bigint, _sl_row_id string",
    )

    kept = without_repeats(rows, is_small=is_small).collect()

    assert sorted((row[0], row[1]) for row in kept) == [("a", 1), ("a", 2), ("b", 2)]


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("ids", [None, ["x", "z"]])
def test_rows_that_are_committed_in_their_strand_are_left_out(
    spark: SparkSession, is_small: bool, ids: list[str] | None
) -> None:  # L-FLUSH-9
    columns = "source string, _sl_seq bigint, _sl_row_id string"
    committed = spark.createDataFrame([("a", 1, "x"), ("b", 1, "z")], columns)
    rows = spark.createDataFrame([("a", 7, "x"), ("b", 8, "x"), ("a", 9, "z")], columns)

    kept = without_known(rows, committed, ids=ids, is_small=is_small).collect()

    assert sorted((row[0], row[1]) for row in kept) == [("a", 9), ("b", 8)]
