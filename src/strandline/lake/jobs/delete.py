"""Deletes rows of a table by a predicate, in one commit."""

from typing import Final

from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings
from strandline.errors import UnavailableError
from strandline.lake.jobs.keep_highest import keep_highest_of_rows
from strandline.lake.jobs.table_schema import spark_errors, table_name
from strandline.lake.metadata.iceberg import check_warehouse

_TRIES: Final = 5


def delete_rows(spark: SparkSession, lake: LakeSettings, dataset: str, where: str) -> None:
    """Delete the rows; the numbers of the highest are kept first, because the table shows them no longer.

    A commit of a flush or a compaction in between may refuse it: then it is said again, of the table as it is
    by then.
    """
    keep_highest_of_rows(spark, lake, dataset)
    statement = f"DELETE FROM {table_name(dataset)} WHERE {where}"
    for tries_left in reversed(range(_TRIES)):
        try:
            with spark_errors("delete rows of", table_name(dataset)):
                spark.sql(statement).collect()
        except UnavailableError:
            check_warehouse(lake, dataset)
            if not tries_left:
                raise
        else:
            return
