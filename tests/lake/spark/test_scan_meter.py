"""Counters of scans, from classic Spark and from Connect; what Spark does not tell is unknown."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.scan import LakeReader, ScanRange
from strandline.lake.metadata.explain import explain
from strandline.lake.ports.scan_counters import NOTHING_READ, ScanCounters
from strandline.lake.spark.scan_meter import ScanMeter
from strandline.lake.spark.session import is_connect
from strandline.rows.dataset import Dataset
from tests.lake.numbered import lake_of, made, put

UNKNOWN = ScanCounters()


@pytest.fixture
def lake(each_spark: SparkSession, request: pytest.FixtureRequest) -> LakeSettings:
    return lake_of(request)


def newest(
    spark: SparkSession, lake: LakeSettings, dataset: Dataset, seqs: Range
) -> tuple[int, ScanCounters]:
    """How many rows a page of `seqs` has, and what it cost."""
    page = LakeReader(spark, lake).page_query(dataset, [ScanRange("a", seqs)], max_rows=10_000)
    table, counters = ScanMeter(spark).counted(page, DataFrame.toArrow)
    return table.num_rows, counters


def test_counters_are_icebergs_own_of_the_files_that_hold_the_range(
    each_spark: SparkSession, lake: LakeSettings
) -> None:  # L-COST-4, L-READ-9
    dataset = made(each_spark)
    for lo in (0, 100, 200):
        put(each_spark, dataset, "a", Range(lo, lo + 100))
    put(each_spark, dataset, "b", Range(0, 300))

    rows, counters = newest(each_spark, lake, dataset, Range(150, 230))

    planned = explain(lake, dataset.name, source="a", seqs=Range(150, 230))
    assert (rows, counters.files_opened, counters.rows_decoded) == (80, 2, 200)
    assert (planned.files_opened, planned.bytes) == (2, counters.bytes)
    assert counters.jobs == 1


def test_order_is_made_without_reading_a_file_twice(
    each_spark: SparkSession, lake: LakeSettings
) -> None:  # L-READ-9
    dataset = made(each_spark)
    put(each_spark, dataset, "a", Range(0, 100))
    put(each_spark, dataset, "a", Range(100, 200))
    rows = LakeReader(each_spark, lake).rows(dataset, source="a", internal=True)
    meter = ScanMeter(each_spark)

    _, ordered = newest(each_spark, lake, dataset, Range(0, 200))
    _, globally = meter.counted(rows.orderBy("_sl_seq"), DataFrame.toArrow)

    assert ordered.rows_decoded == 200
    assert globally.rows_decoded == 400  # what a page must not cost


def test_a_read_costs_what_it_finds_and_not_what_is_old(
    each_spark: SparkSession, lake: LakeSettings
) -> None:  # L-COST-2, L-COST-3, F-11
    found = {}
    for old in (10_000, 1_000_000):
        dataset = made(each_spark)
        put(each_spark, dataset, "a", Range(0, old), flush=1)
        put(each_spark, dataset, "a", Range(old, old + 1_000), flush=2)
        found[old] = newest(each_spark, lake, dataset, Range(old, old + 1_000))

    small, large = found[10_000][1], found[1_000_000][1]
    assert found[10_000][0] == found[1_000_000][0] == small.rows_decoded == large.rows_decoded == 1_000
    assert small.bytes is not None
    assert large.bytes is not None
    assert large.bytes <= 1.5 * small.bytes
    assert large.files_opened == small.files_opened == 1


def test_a_pruned_scan_reads_nothing_and_that_is_known(
    each_spark: SparkSession, lake: LakeSettings
) -> None:  # L-COST-4
    dataset = made(each_spark)
    put(each_spark, dataset, "a", Range(0, 100))

    rows, counters = newest(each_spark, lake, dataset, Range(500, 600))

    assert rows == 0
    assert (counters.files_opened, counters.bytes, counters.rows_decoded) == (0, 0, 0)


def test_what_spark_does_not_tell_is_unknown_and_not_zero(
    each_spark: SparkSession, tmp_path: Path
) -> None:  # L-COST-4
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "n.parquet")

    table, counters = ScanMeter(each_spark).counted(each_spark.read.parquet(str(tmp_path)), DataFrame.toArrow)

    assert table.num_rows == 3
    assert counters == ScanCounters(jobs=1)
    assert astuple(UNKNOWN) == (None, None, None, None)


def test_rows_that_come_from_no_file_are_known_to_read_none(spark: SparkSession) -> None:  # L-COST-4
    rows = spark.sql("SELECT * FROM VALUES (1), (2) AS t(n)")

    assert ScanMeter(spark).counted(rows, DataFrame.toArrow)[1] == ScanCounters(1, 0, 0, 0)


def test_a_job_under_an_execution_that_spark_has_dropped_hides_nothing(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-COST-4; the UI answers 404 from then on
    dataset = made(spark)
    put(spark, dataset, "a", Range(0, 100))
    spark.sparkContext.setLocalProperty("spark.sql.execution.id", "999999999")
    try:
        spark.sparkContext.parallelize([1]).count()
    finally:
        spark.sparkContext.setLocalProperty("spark.sql.execution.id", None)  # type: ignore[arg-type]  # takes it away

    assert newest(spark, spark_lake, dataset, Range(0, 100))[1].files_opened == 1


def test_a_dataframe_that_runs_again_does_not_read_zero_files(
    each_spark: SparkSession, lake: LakeSettings
) -> None:  # L-COST-4
    dataset = made(each_spark)
    put(each_spark, dataset, "a", Range(0, 100))
    page = LakeReader(each_spark, lake).page_query(dataset, [ScanRange("a", Range(0, 100))], max_rows=100)
    meter = ScanMeter(each_spark)

    first, second = (meter.counted(page, DataFrame.toArrow)[1] for _ in range(2))

    assert (first.files_opened, first.rows_decoded) == (1, 100)
    assert second.rows_decoded == 100
    assert second.files_opened == (1 if is_connect(each_spark) else None)  # classic keeps the plan, told once
    assert (second.bytes is None) == (second.files_opened is None)


def test_counters_add_up_and_unknown_stays_unknown() -> None:  # L-COST-4
    one = ScanCounters(jobs=1, files_opened=2, bytes=300, rows_decoded=40)

    assert NOTHING_READ + one == one
    assert one + one == ScanCounters(2, 4, 600, 80)
    assert one + ScanCounters(jobs=1) == ScanCounters(jobs=2)


def test_threads_that_share_a_session_are_told_apart(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-COST-4
    dataset = made(spark)
    for lo in (0, 100, 200):
        put(spark, dataset, "a", Range(lo, lo + 100))
    reader, meter = LakeReader(spark, spark_lake), ScanMeter(spark)
    pages = [
        reader.page_query(dataset, [ScanRange("a", Range(0, hi))], max_rows=1000)
        for hi in (100, 200, 300)
        for _ in "ab"
    ]

    with ThreadPoolExecutor(4) as threads:
        counted = list(threads.map(lambda page: meter.counted(page, DataFrame.toArrow)[1], pages))

    assert [each.files_opened for each in counted] == [1, 1, 2, 2, 3, 3]
