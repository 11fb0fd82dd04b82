"""The highest numbers of a table, kept as properties of the table, apart from its rows.

A store that was restored goes on above the numbers that its tables hold (`flush/reconcile.py`). Rows that
retention, purge or compaction remove, and repeats that a flush leaves out, do not show their numbers any
more. So the numbers are kept before the rows go: a crash between the two leaves a harmless property.
"""

from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.table_schema import property_pairs, spark_errors, table_name
from strandline.lake.metadata.iceberg import (
    HIGHEST_FLUSH,
    HIGHEST_SEQ,
    KeptNumbers,
    kept_numbers,
    table_marks,
)


def keep_highest_of_rows(spark: SparkSession, lake: LakeSettings, dataset: str) -> None:
    """Keep the highest numbers that the rows of the table have now."""
    marks = table_marks(lake, dataset)
    _keep(spark, dataset, marks.history.kept, max(marks.max_seqs.values(), default=0), marks.max_flush)


def keep_highest(spark: SparkSession, lake: LakeSettings, dataset: str, seq: int, flush: int) -> None:
    """Keep these numbers, if they are above those that are kept. It costs no commit if they are not."""
    _keep(spark, dataset, kept_numbers(lake, dataset), seq, flush)


def _keep(spark: SparkSession, dataset: str, kept: KeptNumbers, seq: int, flush: int) -> None:
    if kept.seq >= seq and kept.flush >= flush:
        return
    highest = {HIGHEST_SEQ: str(max(kept.seq, seq)), HIGHEST_FLUSH: str(max(kept.flush, flush))}
    with spark_errors("keep the highest numbers of", table_name(dataset)):
        spark.sql(f"ALTER TABLE {table_name(dataset)} SET TBLPROPERTIES ({property_pairs(highest)})")
