"""Tables with rows whose numbers a test chooses: what is read does not depend on who wrote it.

A row has its seq in every column that is its own, so that a test sees from any column which row it has.
"""

from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.config.lake_settings import CATALOG, NAMESPACE, LakeSettings
from strandline.lake.jobs.table_schema import (
    AT,
    FLUSH,
    ROW_ID,
    SEQ,
    ensure_table,
    literal,
    quoted,
    sql_type,
    table_name,
)
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.session import own_session
from strandline.rows.dataset import SOURCE, Column, Dataset

MESSAGE: Final = (Column("message", "string"),)
ODD_SOURCES: Final = ("a'b", "a\nb", "a\\b", 'a"b', "a`b", "a%_b", "日本 ünï 😀", "a\\'b -- ;", "s0")


def made(spark: SparkSession, columns: tuple[Column, ...] = MESSAGE, **settings: Any) -> Dataset:
    """A dataset with an empty table; the name has what must be quoted."""
    dataset = Dataset(f"logs.{uuid4().hex[:8]}-x", columns, **settings)
    ensure_table(spark, dataset, format=2)
    return dataset


def put(spark: SparkSession, dataset: Dataset, source: str, seqs: Range, *, flush: int = 1) -> None:
    """One commit, one file a bucket."""
    rows(spark, dataset, source, seqs, flush).writeTo(table_name(dataset.name)).append()


def rows(spark: SparkSession, dataset: Dataset, source: str, seqs: Range, flush: int = 1) -> DataFrame:
    own = [f"CAST({_value(c)} AS {sql_type(c.type)}) AS {quoted(c.name)}" for c in dataset.columns]
    stamps = [
        f"{literal(source)} AS {SOURCE}",
        f"id AS {SEQ}",
        f"sha2(cast(id AS string), 256) AS {ROW_ID}",
        f"CAST({flush} AS bigint) AS {FLUSH}",
        f"timestamp_seconds(id) AS {AT}",
    ]
    return spark.range(seqs.lo + 1, seqs.hi + 1, 1, 1).selectExpr(*own, *stamps)


def _value(column: Column) -> str:
    return "concat('m', id)" if sql_type(column.type) == "string" else "id"


def put_under(spark: SparkSession, dataset: Dataset, id: str, source: str, seqs: Range, *, flush: int) -> int:
    """Staged under a flush id; the snapshot."""
    session = own_session(spark)
    session.conf.set("spark.wap.id", id)
    put(session, dataset, source, seqs, flush=flush)
    found = spark.sql(
        f"SELECT snapshot_id FROM {table_name(dataset.name)}.snapshots WHERE summary['wap.id'] = '{id}'"
    )
    snapshot: int = found.collect()[-1][0]
    return snapshot


def publish(spark: SparkSession, dataset: Dataset, snapshot: int) -> None:
    call(spark, "cherrypick_snapshot", dataset, f"{snapshot}")


def expire(spark: SparkSession, dataset: Dataset) -> None:
    """All snapshots but the current one, with the files that only they name."""
    session = own_session(spark)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    call(session, "expire_snapshots", dataset, "timestamp '2100-01-01 00:00:00'", "1")


def call(spark: SparkSession, procedure: str, dataset: Dataset, *arguments: str) -> None:
    table = f"'{NAMESPACE}.{quoted(dataset.name)}'"
    spark.sql(f"CALL {CATALOG}.system.{procedure}({', '.join([table, *arguments])})").collect()


def session_on(spark: SparkSession, lake: LakeSettings) -> SparkSession:
    """A session of the same classic Spark whose catalog is another."""
    session = spark.newSession()
    for key, value in catalog_conf(lake).items():
        session.conf.set(key, value)
    return session


def folder_lake(folder: Path) -> LakeSettings:
    return LakeSettings(warehouse=str(folder / "warehouse"), uri=str(folder / "catalog.db"))


def lake_of(request: pytest.FixtureRequest) -> LakeSettings:
    """Where the tables of `each_spark` are."""
    if request.node.callspec.params["each_spark"] == "classic":
        lake: LakeSettings = request.getfixturevalue("spark_lake")
    else:
        lake = request.getfixturevalue("connect_server").lake
    return lake
