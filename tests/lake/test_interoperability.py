"""The tables that Spark wrote, opened without it: by PyIceberg, by DuckDB, by a store on opening."""

import pickle
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from strandline.base.ranges import Range
from strandline.config.lake_settings import NAMESPACE, LakeSettings
from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.lake.jobs.scan import LakeReader
from strandline.lake.jobs.table_schema import table_name
from strandline.lake.metadata.iceberg import (
    BoundsMissing,
    CatalogUnreadable,
    TableMissing,
    WarehouseMoved,
    load_table,
    metadata_pointer,
    open_iceberg,
    table_history,
    table_marks,
)
from strandline.rows.dataset import Column, Dataset
from tests.lake.numbered import (
    ODD_SOURCES,
    expire,
    folder_lake,
    made,
    publish,
    put,
    put_under,
    session_on,
)

EVERY_TYPE = tuple(
    Column(type_.partition("(")[0], type_)
    for type_ in (
        "string",
        "int",
        "bigint",
        "float",
        "double",
        "boolean",
        "timestamp",
        "date",
        "decimal(20,3)",
        "binary",
        "json",
    )
)
VALUES: dict[str, Any] = {
    "string": "a'b\n日本",
    "int": -5,
    "bigint": 2**63 - 1,
    "float": 0.5,
    "double": 0.1,
    "boolean": True,
    "timestamp": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    "date": date(1969, 12, 31),
    "decimal": Decimal("12345678901234567.891"),
    "binary": b"\x00\xff",
    "json": '{"a":[1]}',
    "source": "web-1",
}


@pytest.fixture
def filled(spark: SparkSession) -> Dataset:
    """A row of every type, and one of nulls."""
    dataset = made(spark, EVERY_TYPE)
    table = table_name(dataset.name)
    stamps = {
        "_sl_seq": 1,
        "_sl_row_id": "0" * 64,
        "_sl_flush": 1,
        "_sl_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    full = spark.createDataFrame(
        [{**VALUES, **stamps}, {"source": "nulls", **stamps}], spark.table(table).schema
    )
    full.coalesce(1).writeTo(table).append()
    return dataset


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["source"], row["_sl_seq"]))


def test_pyiceberg_opens_the_table_and_finds_the_rows_that_spark_finds(
    spark: SparkSession, spark_lake: LakeSettings, filled: Dataset
) -> None:  # L-SCH-4
    by_spark = LakeReader(spark, spark_lake).rows(filled, internal=True).toArrow()

    with open_iceberg(spark_lake) as catalog:
        assert (NAMESPACE, filled.name) in catalog.list_tables(NAMESPACE)
        by_pyiceberg = catalog.load_table((NAMESPACE, filled.name)).scan().to_arrow()

    assert in_order(by_pyiceberg) == in_order(by_spark)
    found = in_order(by_pyiceberg)[1]
    assert {name: found[name] for name in VALUES} == VALUES


def test_duckdb_finds_the_rows_that_spark_finds(
    spark: SparkSession,
    spark_lake: LakeSettings,
    filled: Dataset,
    record_property: Callable[[str, object], None],
) -> None:  # L-SCH-4
    by_spark = LakeReader(spark, spark_lake).rows(filled, columns=["string", "decimal", "source"]).toArrow()
    asked = "SELECT string, decimal, source FROM {} ORDER BY source"

    with duckdb.connect(config={"autoinstall_known_extensions": False}) as db:
        try:
            db.load_extension("iceberg")
            path, place = (
                "DuckDB's iceberg extension",
                f"iceberg_scan('{metadata_pointer(spark_lake, filled.name)}')",
            )
        except duckdb.Error:  # it is fetched from the network, which not every machine has
            path, place = "PyIceberg's scan, as Arrow", "scanned"
            db.register("scanned", load_table(spark_lake, filled.name).scan().to_arrow())
        found = db.sql(asked.format(place)).to_arrow_table()

    record_property("DuckDB read the table by", path)
    print(f"DuckDB read the table by {path}")
    assert found.to_pylist() == by_spark.sort_by("source").to_pylist()


def test_every_source_is_found_by_pyiceberg_under_its_own_name(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-SCH-2
    dataset = made(spark)
    for source in ODD_SOURCES[:3]:
        put(spark, dataset, source, Range(0, 2))

    found = load_table(spark_lake, dataset.name).scan(selected_fields=("source",)).to_arrow()

    assert sorted(found["source"].to_pylist()) == sorted(ODD_SOURCES[:3] * 2)


# The pointer


def test_the_pointer_moves_with_each_commit_and_only_then(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-SEQ-9
    dataset = made(spark)

    empty = metadata_pointer(spark_lake, dataset.name)
    again = metadata_pointer(spark_lake, dataset.name)
    put(spark, dataset, "a", Range(0, 1))
    filled = metadata_pointer(spark_lake, dataset.name)

    assert empty == again != filled
    assert filled == load_table(spark_lake, dataset.name).metadata_location


def test_there_is_no_pointer_where_there_is_no_table(
    spark: SparkSession, spark_lake: LakeSettings, tmp_path: Path
) -> None:  # L-READ-12
    made(spark)
    lake = folder_lake(tmp_path)

    assert metadata_pointer(spark_lake, "nobody-made-this") is None
    assert metadata_pointer(lake, "logs") is None
    with pytest.raises(TableMissing):
        load_table(lake, "logs")
    with pytest.raises(NotFoundError, match="no catalog"):
        open_iceberg(lake)
    assert not Path(lake.uri).exists()  # looking makes nothing

    with closing(sqlite3.connect(lake.uri)) as db:
        db.execute("CREATE TABLE other (x)")
    assert metadata_pointer(lake, "logs") is None


def test_a_damaged_catalog_is_no_empty_one(tmp_path: Path) -> None:  # L-CTL-4
    lake = folder_lake(tmp_path)
    Path(lake.uri).write_bytes(b"this is no SQLite file" * 100)

    with pytest.raises(CatalogUnreadable, match=r"catalog\.db"):
        metadata_pointer(lake, "logs")


def test_a_catalog_that_only_spark_knows_is_refused_by_its_name(tmp_path: Path) -> None:  # L-SCH-4
    with pytest.raises(UsageError, match="nessie"):
        open_iceberg(LakeSettings(warehouse=str(tmp_path), catalog="nessie"))


def test_a_moved_warehouse_is_named_and_never_an_empty_table(
    spark: SparkSession, tmp_path: Path
) -> None:  # L-CTL-7
    lake = folder_lake(tmp_path)
    session = session_on(spark, lake)
    dataset = made(session)
    put(session, dataset, "a", Range(0, 3))
    shutil.move(lake.warehouse, tmp_path / "elsewhere")

    with pytest.raises(WarehouseMoved) as moved:
        table_marks(lake, dataset.name)

    assert moved.value.location == metadata_pointer(lake, dataset.name)
    assert "--relocate" in (moved.value.hint or "")
    assert pickle.loads(pickle.dumps(moved.value)).facts == moved.value.facts


def test_a_catalog_in_postgres_is_read_too(tmp_path: Path, postgres_url: str) -> None:  # L-SEQ-9
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE DATABASE interoperability")
    url = postgres_url.replace("/postgres?", "/interoperability?")
    lake = LakeSettings(warehouse=str(tmp_path / "warehouse"), uri=url)
    assert metadata_pointer(lake, "logs") is None
    rows = pa.table({"source": ["a", "a"], "_sl_seq": [1, 2], "_sl_flush": [7, 7]})

    with open_iceberg(lake) as catalog:
        assert isinstance(catalog, SqlCatalog)
        catalog.create_tables()  # Spark's catalog does it otherwise, in the same words
        catalog.create_namespace(NAMESPACE)
        table = catalog.create_table((NAMESPACE, "logs"), rows.schema)
        with table.update_spec() as spec:
            spec.add_identity("source")
        table.append(rows)

    assert metadata_pointer(lake, "logs") == table.metadata_location
    assert metadata_pointer(lake, "others") is None
    assert table_marks(lake, "logs").max_seqs == {"a": 2}


def test_a_postgres_that_does_not_answer_is_no_missing_table(tmp_path: Path) -> None:  # L-CTL-4
    with pytest.raises(UnavailableError, match="catalog cannot be read"):
        metadata_pointer(LakeSettings(warehouse=str(tmp_path), uri="postgresql://127.0.0.1:1/none"), "logs")


# The marks


def test_marks_tell_the_highest_seq_of_each_source_and_the_highest_flush(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-SEQ-9
    dataset = made(spark, seq_bucket=10)
    put(spark, dataset, "a'b", Range(0, 25), flush=7)
    put(spark, dataset, "b", Range(3, 9), flush=3)
    put(spark, dataset, "gone", Range(0, 99), flush=9)
    spark.sql(f"DELETE FROM {table_name(dataset.name)} WHERE source = 'gone'")

    marks = table_marks(spark_lake, dataset.name)

    assert marks.max_seqs == {"a'b": 25, "b": 9}
    assert marks.max_flush == 7
    assert (marks.max_seq("a'b"), marks.max_seq("nobody")) == (25, 0)


def test_marks_under_source_buckets_are_never_below_a_sources_own(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-SEQ-9
    dataset = made(spark, source_buckets=2)
    his = {f"s{n}": 10 * n for n in range(1, 6)}
    for source, hi in his.items():
        put(spark, dataset, source, Range(0, hi))

    marks = table_marks(spark_lake, dataset.name)

    assert set(marks.max_seqs) == {0, 1}
    assert all(marks.max_seq(source) >= hi for source, hi in his.items())
    assert max(marks.max_seqs.values()) == 50


def test_history_names_published_flush_ids_and_no_staged_one(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-SEQ-9, L-FLUSH-2
    dataset = made(spark)
    one, two, three = (
        put_under(spark, dataset, f"id-{n}", "a", Range(n * 10, n * 10 + 10), flush=n) for n in (1, 2, 3)
    )
    publish(spark, dataset, one)  # becomes current itself
    publish(spark, dataset, two)  # beside another: a copy of it does

    history = table_history(spark_lake, dataset.name)

    assert history.flush_ids == {"id-1", "id-2"}
    assert history.newest_flush_id == "id-2"
    assert history.snapshot not in (one, two, three, None)
    assert table_marks(spark_lake, dataset.name).max_flush == 2


def test_after_expiry_the_highest_flush_number_is_still_known(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-SEQ-9
    dataset = made(spark)
    publish(spark, dataset, put_under(spark, dataset, "id-4", "a", Range(0, 10), flush=4))
    spark.sql(f"DELETE FROM {table_name(dataset.name)} WHERE _sl_seq = 3")
    expire(spark, dataset)

    marks = table_marks(spark_lake, dataset.name)

    assert (marks.history.flush_ids, marks.history.newest_flush_id) == (frozenset(), None)
    assert (marks.max_flush, marks.max_seqs) == (4, {"a": 10})


def test_an_empty_table_has_no_marks(spark: SparkSession, spark_lake: LakeSettings) -> None:  # L-READ-12
    marks = table_marks(spark_lake, made(spark).name)

    assert (marks.history.snapshot, marks.max_flush, marks.max_seqs) == (None, 0, {})


def test_a_file_that_does_not_tell_its_seqs_stops_the_comparison(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-CTL-4, L-SEQ-9
    dataset = made(spark)
    table = table_name(dataset.name)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.metadata.metrics.column._sl_seq'='none')")
    put(spark, dataset, "a", Range(0, 3))

    with pytest.raises(BoundsMissing, match="_sl_seq"):
        table_marks(spark_lake, dataset.name)
