"""Tables as they are made, and how they grow with their dataset."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from strandline.lake.jobs.table_schema import (
    INTERNAL,
    PartitionDrift,
    ensure_table,
    growth,
    read_shape,
    table_name,
)
from strandline.rows.dataset import Column, Dataset, Identity, SchemaBreaking
from tests.lake.landings import fresh_name, logs

TYPES = (
    *("string", "int", "bigint", "float", "double", "boolean", "timestamp", "date", "binary"),
    *("decimal(12,3)", "json"),
)


def ensure(spark: SparkSession, dataset: Dataset) -> str:
    ensure_table(spark, dataset, format=2)
    return table_name(dataset.name)


def columns_of(spark: SparkSession, table: str) -> dict[str, tuple[str, bool]]:
    return {each.name: (each.type, each.required) for each in read_shape(spark, table).columns.values()}


def test_a_table_has_a_column_for_each_type_and_the_internal_ones_required(
    each_spark: SparkSession,
) -> None:  # L-SCH-1, L-SCH-4, L-STAMP-2
    own = tuple(Column(f"{type_} ö`", type_) for type_ in TYPES)
    dataset = Dataset(fresh_name("a-b"), (*own, Column("must", "string", required=True)))

    table = ensure(each_spark, dataset)

    found = columns_of(each_spark, table)
    assert [found[f"{type_} ö`"] for type_ in TYPES] == [(type_, False) for type_ in TYPES]
    assert found["must"] == ("string", True)
    assert [found[name] for name in ("source", *INTERNAL)] == [
        ("string", True),
        ("bigint", True),
        ("string", True),
        ("bigint", True),
        ("timestamp", True),
    ]
    shape = read_shape(each_spark, table)
    assert shape.partitioning == ("source", "truncate(1000000, _sl_seq)")


def test_a_dataset_may_declare_the_source_column(spark: SparkSession) -> None:  # L-STAMP-2
    dataset = Dataset(fresh_name(), (Column("source", "string"), Column("n", "int")))

    assert list(columns_of(spark, ensure(spark, dataset))) == ["n", "source", *INTERNAL]


def test_a_table_has_the_properties_that_make_it_exact_and_cheap(
    spark: SparkSession,
) -> None:  # L-SCH-3, L-FLUSH-1
    plain = read_shape(spark, ensure(spark, logs())).properties
    keyed = read_shape(spark, ensure(spark, logs(identity=Identity("n"), source_buckets=16)))

    assert plain["format-version"] == "2"
    assert plain["write.wap.enabled"] == "true"
    assert plain["write.parquet.row-group-size-bytes"] == "4194304"
    assert plain["write.parquet.compression-level"] == "1"
    assert plain["write.parquet.compression-codec"] == "zstd"
    assert plain["write.parquet.dict-encoding-enabled.column._sl_row_id"] == "false"
    full = {f"write.metadata.metrics.column.{name}" for name in ("source", "_sl_seq", "_sl_flush", "_sl_at")}
    assert {plain[key] for key in full} == {"full"}
    assert not any("bloom" in key for key in plain)
    assert keyed.properties["write.parquet.bloom-filter-enabled.column._sl_row_id"] == "true"
    assert keyed.partitioning == ("bucket(16, source)", "truncate(1000000, _sl_seq)")


def test_a_table_grows_with_its_dataset_and_a_second_time_changes_nothing(
    each_spark: SparkSession,
) -> None:  # L-SCH-5, L-SCH-9
    narrow = Dataset(
        fresh_name(),
        (
            Column("i", "int", required=True),
            Column("f", "float"),
            Column("d", "decimal(5,2)"),
        ),
        source_buckets=8,
    )
    wide = replace(
        narrow,
        columns=(
            Column("i", "bigint"),
            Column("f", "double"),
            Column("d", "decimal(9,2)"),
            Column("labels", "json"),
            Column("late", "string", required=True),
        ),
        identity=Identity("late"),
    )

    table = ensure(each_spark, narrow)
    ensure(each_spark, wide)
    newest = each_spark.sql(f"SELECT max(timestamp) FROM {table}.metadata_log_entries").collect()
    ensure(each_spark, wide)
    ensure(each_spark, narrow)  # a writer of the older version: what it does not know stays

    found = columns_of(each_spark, table)
    assert (found["i"], found["f"], found["d"]) == (
        ("bigint", False),
        ("double", False),
        ("decimal(9,2)", False),
    )
    assert found["labels"] == ("json", False)
    assert found["late"] == ("string", False)
    assert "write.parquet.bloom-filter-max-bytes" in read_shape(each_spark, table).properties
    assert each_spark.sql(f"SELECT max(timestamp) FROM {table}.metadata_log_entries").collect() == newest


def test_growth_repairs_what_was_changed_from_outside_if_it_can(spark: SparkSession) -> None:  # L-SCH-6
    dataset = replace(logs(), columns=(Column("labels", "json"),))
    table = ensure(spark, dataset)
    repaired = {"write.wap.enabled": "true", "write.parquet.compression-codec": "zstd"}
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ({', '.join(map(repr, repaired))})")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN labels COMMENT 'mine'")

    ensure(spark, dataset)

    assert read_shape(spark, table).properties.items() >= repaired.items()
    assert columns_of(spark, table)["labels"] == ("json", False)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (Column("level", "bigint"), "string"),
        (Column("n", "string"), "bigint"),
        (Column("Level", "string"), "'level', a string, in the table"),
    ],
)
def test_a_change_that_is_no_growth_is_refused_and_nothing_is_changed(
    spark: SparkSession, column: Column, found: str
) -> None:  # L-SCH-6
    dataset = logs()
    table = ensure(spark, dataset)
    before = read_shape(spark, table)

    with pytest.raises(SchemaBreaking) as caught:
        ensure(spark, replace(dataset, columns=(Column("new", "string"), column)))

    assert (caught.value.column, caught.value.found, caught.value.wanted) == (column.name, found, column.type)
    assert read_shape(spark, table) == before


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ("DROP COLUMN _sl_row_id", "_sl_row_id"),
        ("ALTER COLUMN _sl_flush DROP NOT NULL", "_sl_flush"),
    ],
)
def test_a_table_without_its_internal_columns_is_refused(
    spark: SparkSession, change: str, column: str
) -> None:  # L-SCH-6, L-STAMP-2
    dataset = logs()
    spark.sql(f"ALTER TABLE {ensure(spark, dataset)} {change}")

    with pytest.raises(SchemaBreaking) as caught:
        ensure(spark, dataset)

    assert caught.value.column == column


def test_a_required_column_that_the_dataset_lacks_is_refused(spark: SparkSession) -> None:  # L-SCH-6
    dataset = replace(logs(), columns=(Column("must", "string", required=True),))
    ensure(spark, dataset)

    with pytest.raises(SchemaBreaking, match="'must' is not there"):
        ensure(spark, replace(dataset, columns=(Column("n", "int"),)))


@pytest.mark.parametrize("drift", [{"seq_bucket": 500}, {"source_buckets": 4}])
def test_another_partitioning_is_refused(spark: SparkSession, drift: dict[str, Any]) -> None:  # L-SCH-10
    dataset = logs()
    ensure(spark, dataset)

    with pytest.raises(PartitionDrift) as caught:
        ensure(spark, replace(dataset, **drift, columns=(*dataset.columns, Column("x", "int"))))

    assert caught.value.found == ("source", "truncate(1000000, _sl_seq)")
    assert caught.value.kind == "partition_drift"
    assert "x" not in columns_of(spark, table_name(dataset.name))


def test_a_partition_spec_changed_from_outside_is_refused(spark: SparkSession) -> None:  # L-SCH-10
    dataset = replace(logs(), columns=(Column("# Partitioning", "string"), Column("Part 0", "string")))
    table = ensure(spark, dataset)
    ensure(spark, dataset)  # names like those of a description do not mislead it
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD source")

    with pytest.raises(PartitionDrift):
        ensure(spark, dataset)


def test_of_two_growths_at_once_both_end_up_in_the_table(spark: SparkSession) -> None:  # L-SCH-9
    dataset = logs()
    grown = [
        replace(dataset, columns=(*dataset.columns, *(Column(f"{who}{at}", "int") for at in range(3))))
        for who in "abc"
    ]
    errors: list[BaseException] = []

    def grow(wanted: Dataset) -> None:
        try:
            ensure(spark.newSession(), wanted)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=grow, args=(wanted,)) for wanted in grown]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert errors == []
    found = columns_of(spark, table_name(dataset.name))
    assert {f"{who}{at}" for who in "abc" for at in range(3)} <= set(found)
    shape = read_shape(spark, table_name(dataset.name))
    assert growth(grown[0], table_name(dataset.name), shape) == []


def test_a_raw_append_without_the_internal_columns_is_refused_by_the_table(
    spark: SparkSession,
) -> None:  # F-3, L-STAMP-2
    dataset = logs()
    table = ensure(spark, dataset)
    raw = spark.createDataFrame([("warn", 1, "web-1")], "level string, n bigint, source string")

    with pytest.raises(AnalysisException):
        raw.writeTo(table).append()

    assert spark.table(table).count() == 0
