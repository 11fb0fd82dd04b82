"""What a read would open, told without Spark."""

import subprocess
import sys

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.scan import LakeReader
from strandline.lake.jobs.table_schema import table_name
from strandline.lake.metadata.explain import ScanPlan, explain
from strandline.lake.metadata.iceberg import SnapshotGone, TableMissing
from strandline.lake.spark.scan_meter import ScanMeter
from strandline.rows.dataset import Dataset
from tests.lake.numbered import MESSAGE, expire, made, put


@pytest.fixture
def dataset(spark: SparkSession) -> Dataset:
    """Three files of source a'b in two buckets, one of source b."""
    dataset = made(spark, seq_bucket=1000)
    put(spark, dataset, "a'b", Range(0, 100), flush=1)
    put(spark, dataset, "a'b", Range(100, 200), flush=2)
    put(spark, dataset, "a'b", Range(1500, 1600), flush=3)
    put(spark, dataset, "b", Range(0, 50), flush=3)
    return dataset


@pytest.mark.parametrize(
    ("bounds", "opened", "rows"),
    [
        ({}, 4, 350),
        ({"source": "b"}, 1, 50),
        ({"source": "a'b", "seqs": Range(100, 150)}, 1, 100),  # lo is excluded, so the first file stays shut
        ({"source": "a'b", "seqs": Range(99, 1501)}, 3, 300),
        ({"seqs": Range(0, 1)}, 2, 150),
        ({"flushes": Range(2, 3)}, 2, 150),
        ({"source": "a'b", "seqs": Range(200, 1500)}, 0, 0),
        ({"source": "nobody"}, 0, 0),
    ],
)
def test_a_plan_tells_considered_pruned_and_opened_as_spark_then_does_it(
    spark: SparkSession,
    spark_lake: LakeSettings,
    dataset: Dataset,
    bounds: dict[str, object],
    opened: int,
    rows: int,
) -> None:  # L-READ-14, L-READ-9
    plan = explain(spark_lake, dataset.name, **bounds)  # type: ignore[arg-type]  # the cases mix them

    read = LakeReader(spark, spark_lake).rows(dataset, **bounds)  # type: ignore[arg-type]
    _, counters = ScanMeter(spark).counted(read, DataFrame.toArrow)
    assert (plan.files_considered, plan.files_pruned, plan.files_opened) == (4, 4 - opened, opened)
    assert plan.rows_at_most == rows
    assert (counters.files_opened, counters.bytes) == (plan.files_opened, plan.bytes)


def test_a_plan_is_made_for_the_pinned_snapshot(
    spark: SparkSession, spark_lake: LakeSettings, dataset: Dataset
) -> None:  # L-READ-7, L-READ-14
    pinned = explain(spark_lake, dataset.name).snapshot
    put(spark, dataset, "b", Range(50, 60), flush=4)

    assert explain(spark_lake, dataset.name, snapshot=pinned).files_considered == 4
    assert explain(spark_lake, dataset.name).files_considered == 5

    expire(spark, dataset)
    with pytest.raises(SnapshotGone):
        explain(spark_lake, dataset.name, snapshot=pinned)


def test_delete_files_are_told(
    spark: SparkSession, spark_lake: LakeSettings, dataset: Dataset
) -> None:  # L-READ-12
    table = table_name(dataset.name)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {table} WHERE source = 'b' AND _sl_seq = 7")

    plan = explain(spark_lake, dataset.name, source="b")

    assert (plan.files_considered, plan.files_opened, plan.delete_files, plan.rows_at_most) == (4, 1, 1, 50)


def test_an_empty_table_has_nothing_to_open_and_a_missing_one_is_an_error(
    spark: SparkSession, spark_lake: LakeSettings
) -> None:  # L-READ-12
    assert explain(spark_lake, made(spark).name) == ScanPlan(None)
    with pytest.raises(TableMissing):
        explain(spark_lake, Dataset("nobody-made-this", MESSAGE).name)


def test_a_plan_needs_no_spark() -> None:  # L-READ-14
    loads = "import sys; from strandline.lake.metadata import explain, iceberg; print(sorted(sys.modules))"

    loaded = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True).stdout

    assert "'strandline.lake.metadata.iceberg'" in loaded
    assert "'pyspark'" not in loaded
    assert "'pyiceberg'" not in loaded  # slow to import, so only once it is needed
