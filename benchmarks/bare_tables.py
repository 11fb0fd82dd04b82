"""Iceberg by hand, as a contender: tables of the kind that ours are, without what we keep beside the rows.

They have the columns of the producer, the same partitions (with the column `n` in the place of the seq), the
same properties but for staging, and are written by one Spark append.
"""

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from strandline.config.lake_settings import CATALOG
from strandline.lake.jobs.table_schema import properties
from strandline.rows.dataset import Dataset

COLUMNS: Final = "ts string, level string, message string, n bigint"
SOURCE: Final = "web-1"
_NAMESPACE: Final = f"{CATALOG}.bare"


def made_table(spark: SparkSession, name: str) -> str:
    """The full name of an empty table."""
    kind = Dataset(name)
    ours = {key: value for key, value in properties(kind).items() if "wap" not in key and "_sl_" not in key}
    ours["write.metadata.metrics.column.n"] = "full"
    pairs = ", ".join(f"'{key}'='{value}'" for key, value in ours.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {_NAMESPACE}")
    spark.sql(
        f"CREATE TABLE {_NAMESPACE}.{name} ({COLUMNS}, source string) USING iceberg "
        f"PARTITIONED BY (source, truncate({kind.seq_bucket}, n)) TBLPROPERTIES ({pairs})"
    )
    return f"{_NAMESPACE}.{name}"


def append_bare(rows: DataFrame, table: str) -> None:
    """Rows of the producer's columns, with or without a source, into a table of `made_table`."""
    if "source" not in rows.columns:
        rows = rows.selectExpr("*", f"'{SOURCE}' as source")
    rows.select("ts", "level", "message", "n", "source").writeTo(table).append()
