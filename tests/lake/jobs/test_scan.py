"""Reads within bounds: which rows come, in which order, in which schema, and what fails by which name."""

import pickle
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.errors import UsageError
from strandline.lake.jobs.scan import LakeReader, ScanRange, pieces_sql
from strandline.lake.jobs.table_schema import TableUnavailable, ensure_table, table_name
from strandline.lake.metadata.iceberg import SnapshotGone, TableMissing, UnstampedRows, WarehouseMoved
from strandline.rows.dataset import Column, Dataset
from tests.lake.numbered import (
    MESSAGE,
    ODD_SOURCES,
    expire,
    folder_lake,
    lake_of,
    made,
    put,
    rows,
    session_on,
)


@pytest.fixture
def reader(each_spark: SparkSession, request: pytest.FixtureRequest) -> LakeReader:
    return LakeReader(each_spark, lake_of(request))


@pytest.fixture
def classic(spark: SparkSession, request: pytest.FixtureRequest) -> LakeReader:
    return LakeReader(spark, request.getfixturevalue("spark_lake"))


def seqs_of(reader: LakeReader, dataset: Dataset, *pieces: ScanRange, max_rows: int = 1000) -> list[int]:
    return list(reader.page(dataset, pieces, max_rows=max_rows)["_sl_seq"].to_pylist())


def test_a_read_shows_the_public_columns_in_the_datasets_order(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-1, L-STAMP-9
    dataset = made(each_spark, (Column("z", "int"), Column("a b.c", "string"), Column("open", "json")))
    put(each_spark, dataset, "web-1", Range(0, 3))

    found = reader.rows(dataset)

    assert found.columns == ["z", "a b.c", "open", "source"]
    assert sorted(map(tuple, found.collect())) == [(n, f"m{n}", f"m{n}", "web-1") for n in (1, 2, 3)]


def test_internal_columns_come_only_where_they_are_asked_for(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-STAMP-9
    dataset = made(each_spark)
    put(each_spark, dataset, "web-1", Range(0, 1), flush=4)

    (row,) = reader.rows(dataset, internal=True).collect()

    assert list(row.asDict()) == ["message", "source", "_sl_seq", "_sl_row_id", "_sl_flush", "_sl_at"]
    assert (row["_sl_seq"], row["_sl_flush"]) == (1, 4)
    with pytest.raises(UsageError, match="has no column '_sl_seq'"):
        reader.rows(dataset, columns=["_sl_seq"])


def test_since_is_excluded_and_until_is_included(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-3
    dataset = made(each_spark)
    put(each_spark, dataset, "a", Range(0, 10), flush=1)
    put(each_spark, dataset, "a", Range(10, 20), flush=2)
    put(each_spark, dataset, "b", Range(0, 10), flush=3)

    by_seq = reader.rows(dataset, source="a", seqs=Range(8, 12), columns=["message"])
    by_flush = reader.rows(dataset, flushes=Range(1, 3), internal=True)

    assert sorted(row[0] for row in by_seq.collect()) == ["m10", "m11", "m12", "m9"]
    assert {(row["source"], row["_sl_flush"]) for row in by_flush.collect()} == {("a", 2), ("b", 3)}


def test_any_text_is_a_source_and_means_itself_alone(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-SCH-2, L-READ-10
    dataset = made(each_spark)
    each = [rows(each_spark, dataset, s, Range(n * 10, n * 10 + 5)) for n, s in enumerate(ODD_SOURCES)]
    reduce(DataFrame.union, each).coalesce(1).writeTo(table_name(dataset.name)).append()

    for place, source in enumerate(ODD_SOURCES):
        found = reader.rows(dataset, source=source, columns=["source", "message"]).collect()
        assert sorted(map(tuple, found)) == sorted((source, f"m{place * 10 + n}") for n in range(1, 6))
        assert reader.next_seq(dataset, source, after=0, until=10_000) == place * 10 + 1

    everyone = [ScanRange(source, Range(0, 1000)) for source in ODD_SOURCES]
    found = reader.page(dataset, everyone, columns=["source"], max_rows=1000)["source"].to_pylist()
    assert found == sorted(found)  # by code points, as Python sorts
    assert len(found) == 5 * len(ODD_SOURCES)


def test_a_projection_changes_no_row(each_spark: SparkSession, reader: LakeReader) -> None:  # L-READ-10
    dataset = made(each_spark, (Column("n", "bigint"), *MESSAGE))
    put(each_spark, dataset, "a", Range(0, 10))
    put(each_spark, dataset, "b", Range(0, 10))
    piece = ScanRange("a", Range(3, 6))

    whole = reader.page(dataset, [piece], max_rows=10)
    narrow = reader.page(dataset, [piece], columns=["message"], max_rows=10)

    assert narrow.column_names == ["message", "_sl_seq", "_sl_flush", "source"]
    assert whole.column_names == ["n", "message", "source", "_sl_seq", "_sl_flush"]
    assert narrow["_sl_seq"].to_pylist() == whole["_sl_seq"].to_pylist() == [4, 5, 6]


@pytest.mark.parametrize("columns", [["nope"], ["message", "message"], []])
def test_a_projection_that_names_nothing_or_something_else_is_refused(
    spark: SparkSession, classic: LakeReader, columns: list[str]
) -> None:  # L-READ-1
    dataset = made(spark)

    with pytest.raises(UsageError):
        classic.rows(dataset, columns=columns)


def test_a_page_is_in_order_of_seq_whatever_the_order_of_files(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-2, L-READ-9
    dataset = made(each_spark, seq_bucket=10)
    for lo in (30, 0, 20, 10):  # numbered early and landed late, as a load is
        put(each_spark, dataset, "a", Range(lo, lo + 10), flush=100 - lo)

    assert seqs_of(reader, dataset, ScanRange("a", Range(5, 33))) == list(range(6, 34))
    assert seqs_of(reader, dataset, ScanRange("a", Range(5, 33)), max_rows=7) == list(range(6, 13))


def test_a_page_over_all_sources_is_in_order_of_flush_source_and_seq(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-2
    dataset = made(each_spark)
    put(each_spark, dataset, "b", Range(0, 2), flush=2)
    put(each_spark, dataset, "a", Range(0, 2), flush=2)
    put(each_spark, dataset, "b", Range(2, 4), flush=1)
    pieces = [ScanRange("a", Range(0, 2), 2), ScanRange("b", Range(2, 4), 1), ScanRange("b", Range(0, 2), 2)]

    page = reader.page(dataset, pieces, max_rows=5)

    found = list(zip(*(page[name].to_pylist() for name in ("_sl_flush", "source", "_sl_seq")), strict=True))
    assert found == [(1, "b", 3), (1, "b", 4), (2, "a", 1), (2, "a", 2), (2, "b", 1)]


def test_a_piece_with_a_flush_leaves_out_what_another_flush_landed(
    spark: SparkSession, classic: LakeReader
) -> None:  # L-READ-2
    dataset = made(spark)
    put(spark, dataset, "a", Range(0, 2), flush=1)
    put(spark, dataset, "a", Range(2, 4), flush=2)

    assert seqs_of(classic, dataset, ScanRange("a", Range(0, 4), 2)) == [3, 4]
    assert seqs_of(classic, dataset) == []
    with pytest.raises(UsageError, match="some pieces"):
        seqs_of(classic, dataset, ScanRange("a", Range(0, 4), 2), ScanRange("a", Range(0, 4)))


def test_a_page_ends_where_its_bytes_do_and_has_one_row_at_least(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-11
    dataset = made(each_spark)
    put(each_spark, dataset, "aa", Range(10, 20))  # each row 3 + 2 + 8 + 8 bytes
    piece = ScanRange("aa", Range(0, 100))

    pages = {
        max_bytes: reader.page(dataset, [piece], max_rows=8, max_bytes=max_bytes)["_sl_seq"].to_pylist()
        for max_bytes in (0, 21 * 3, 21 * 4 - 1, 10_000)
    }

    assert pages == {0: [11], 63: [11, 12, 13], 83: [11, 12, 13], 10_000: list(range(11, 19))}


def test_two_hundred_strands_are_one_page(spark: SparkSession, classic: LakeReader) -> None:  # L-COST-2
    dataset = made(spark, source_buckets=4)
    put(spark, dataset, "s7", Range(0, 50))
    pieces = [ScanRange(f"s{n}", Range(n, n + 5)) for n in range(200)]

    assert seqs_of(classic, dataset, *pieces) == [8, 9, 10, 11, 12]


def test_a_column_younger_than_the_pinned_snapshot_reads_as_null(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-7, L-SCH-7
    old = made(each_spark, (Column("n", "int"),))
    put(each_spark, old, "a", Range(0, 2))
    pinned = reader.current_snapshot(old)
    grown = replace(
        old, columns=(Column("n", "bigint"), Column("price", "decimal(9,2)"), Column("open", "json"))
    )
    ensure_table(each_spark, grown, format=2)
    put(each_spark, grown, "a", Range(2, 4))

    then = reader.page(grown, [ScanRange("a", Range(0, 4))], snapshot=pinned, max_rows=10)
    now = reader.page(grown, [ScanRange("a", Range(0, 4))], max_rows=10)

    assert then.schema.types == now.schema.types
    assert then.select(["n", "price", "open"]).to_pylist() == [
        {"n": 1, "price": None, "open": None},
        {"n": 2, "price": None, "open": None},
    ]
    assert now["open"].to_pylist() == [None, None, "m3", "m4"]


def test_a_column_that_the_table_does_not_have_yet_reads_as_null(
    spark: SparkSession, classic: LakeReader
) -> None:  # L-SCH-5, L-SCH-7
    dataset = made(spark)
    put(spark, dataset, "a", Range(0, 1))
    grown = replace(dataset, columns=(*dataset.columns, Column("host", "string")))

    assert [tuple(row) for row in classic.rows(grown).collect()] == [("m1", None, "a")]


def test_a_pinned_snapshot_does_not_see_later_commits(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-7
    dataset = made(each_spark)
    put(each_spark, dataset, "a", Range(0, 2))
    pinned = reader.current_snapshot(dataset)
    put(each_spark, dataset, "a", Range(2, 4))

    page = reader.page(dataset, [ScanRange("a", Range(0, 9))], snapshot=pinned, max_rows=9)

    assert page["_sl_seq"].to_pylist() == [1, 2]
    assert reader.rows(dataset, snapshot=pinned).count() == 2
    assert reader.next_seq(dataset, "a", after=2, until=9, snapshot=pinned) is None
    assert reader.next_seq(dataset, "a", after=2, until=9) == 3


def test_a_pinned_snapshot_that_expired_is_named(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-7
    dataset = made(each_spark)
    put(each_spark, dataset, "a", Range(0, 2))
    pinned = reader.current_snapshot(dataset)
    assert pinned is not None
    put(each_spark, dataset, "a", Range(2, 4))
    expire(each_spark, dataset)

    with pytest.raises(SnapshotGone) as gone:
        reader.page(dataset, [ScanRange("a", Range(0, 9))], snapshot=pinned, max_rows=9)

    assert (gone.value.dataset, gone.value.snapshot) == (dataset.name, pinned)
    assert pickle.loads(pickle.dumps(gone.value)).facts == gone.value.facts
    with pytest.raises(SnapshotGone):
        reader.next_seq(dataset, "a", after=0, until=9, snapshot=pinned)


def test_a_snapshot_that_expires_in_mid_scan_is_named(
    spark: SparkSession, classic: LakeReader
) -> None:  # L-READ-7
    dataset = made(spark)
    put(spark, dataset, "a", Range(0, 2))
    pinned = classic.current_snapshot(dataset)
    begun = classic.page_query(dataset, [ScanRange("a", Range(0, 9))], snapshot=pinned, max_rows=9)

    spark.sql(f"DELETE FROM {table_name(dataset.name)} WHERE _sl_seq <= 2")
    expire(spark, dataset)  # and with it the file, which the query has planned already or will not find

    with pytest.raises(SnapshotGone), classic.reading(dataset, pinned):
        begun.toArrow()


def test_a_table_without_rows_is_empty_and_a_missing_one_is_an_error(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-12
    empty, missing = made(each_spark), Dataset("nobody-made-this", MESSAGE)

    assert reader.current_snapshot(empty) is None
    assert reader.rows(empty).collect() == []
    assert seqs_of(reader, empty, ScanRange("a", Range(0, 9))) == []
    assert reader.next_seq(empty, "a", after=0, until=9) is None
    for ask in (
        reader.current_snapshot,
        reader.rows,
        lambda d: seqs_of(reader, d, ScanRange("a", Range(0, 9))),
    ):
        with pytest.raises(TableMissing, match="nobody-made-this"):
            ask(missing)


def test_rows_under_delete_files_are_gone_and_the_others_are_not(
    spark: SparkSession, classic: LakeReader
) -> None:  # L-READ-12
    dataset = made(spark, seq_bucket=10)
    put(spark, dataset, "a", Range(0, 30))
    table = table_name(dataset.name)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {table} WHERE _sl_seq BETWEEN 4 AND 9 OR _sl_seq = 12")

    assert seqs_of(classic, dataset, ScanRange("a", Range(0, 14))) == [1, 2, 3, 10, 11, 13, 14]
    assert classic.next_seq(dataset, "a", after=3, until=99) == 10
    assert classic.next_seq(dataset, "a", after=3, until=9) is None


def test_the_next_seq_is_found_beyond_any_gap(
    each_spark: SparkSession, reader: LakeReader
) -> None:  # L-READ-4
    dataset = made(each_spark, source_buckets=1, seq_bucket=100)
    put(each_spark, dataset, "a", Range(0, 5))
    put(each_spark, dataset, "b", Range(40, 60))  # in files of the same bucket
    put(each_spark, dataset, "a", Range(7_000_000_041, 7_000_000_042))
    put(each_spark, dataset, "a", Range(98, 101))

    found = [
        reader.next_seq(dataset, "a", after=after, until=8 * 10**9)
        for after in (0, 5, 99, 101, 7_000_000_042)
    ]

    assert found == [1, 99, 100, 7_000_000_042, None]
    assert reader.next_seq(dataset, "a", after=101, until=7_000_000_041) is None
    assert reader.next_seq(dataset, "a", after=5, until=5) is None


def test_a_table_without_the_internal_columns_has_unstamped_rows(
    spark: SparkSession, classic: LakeReader
) -> None:  # L-SCH-12
    dataset = Dataset("legacy", MESSAGE)
    spark.sql(f"CREATE TABLE {table_name('legacy')} (message string, source string) USING iceberg")

    with pytest.raises(UnstampedRows, match="_sl_seq"):
        classic.rows(dataset)

    assert UnstampedRows.kind == "unstamped_rows"


def test_a_row_without_a_seq_is_neither_new_nor_old_but_an_error(
    spark: SparkSession, classic: LakeReader
) -> None:  # L-SCH-12
    dataset = made(spark)
    table = table_name(dataset.name)
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN _sl_seq DROP NOT NULL")
    put(spark, dataset, "a", Range(0, 3))
    assert seqs_of(classic, dataset, ScanRange("a", Range(0, 9))) == [1, 2, 3]

    spark.sql(f"INSERT INTO {table} VALUES ('m', 'a', NULL, 'x', 1, current_timestamp())")

    with pytest.raises(UnstampedRows, match="_sl_seq is null"):
        seqs_of(classic, dataset, ScanRange("a", Range(0, 9)))


def test_a_moved_warehouse_is_never_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:  # L-CTL-7
    lake = folder_lake(tmp_path)
    session = session_on(spark, lake)
    dataset = made(session)
    put(session, dataset, "a", Range(0, 3))
    shutil.move(lake.warehouse, tmp_path / "elsewhere")

    with pytest.raises(WarehouseMoved) as moved:
        LakeReader(session, lake).rows(dataset)

    assert moved.value.kind == "warehouse_moved"
    assert moved.value.location.startswith(lake.warehouse)


def test_a_damaged_file_is_an_error_that_names_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:  # L-CTL-4
    lake = folder_lake(tmp_path)
    session = session_on(spark, lake)
    dataset = made(session)
    put(session, dataset, "a", Range(0, 3))
    pinned = LakeReader(session, lake).current_snapshot(dataset)
    for file in Path(lake.warehouse).rglob("*.parquet"):
        file.unlink()

    with pytest.raises(TableUnavailable, match="cannot read"):
        LakeReader(session, lake).page(dataset, [ScanRange("a", Range(0, 9))], snapshot=pinned, max_rows=9)


def test_no_pieces_are_no_rows() -> None:  # L-READ-2
    assert pieces_sql([]) == "false"
