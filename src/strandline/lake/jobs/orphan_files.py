"""Files in the folder of a table that no snapshot of it names: what a killed job has left.

A snapshot that is staged names its files too, so those of an open plan are none. What a job is writing now is
younger than a day.
"""

import time
from typing import Final

from pyspark.sql import SparkSession

from strandline.config.lake_settings import CATALOG, NAMESPACE
from strandline.lake.jobs.table_schema import quoted, spark_errors, table_name

AGE_S: Final = 24 * 3_600 + 60  # Iceberg refuses less than a day


def remove_orphans(spark: SparkSession, dataset: str) -> int:
    """Remove those that are older than a day, by the clock that dates files; how many there were."""
    older = int((time.time() - AGE_S) * 1e6)
    with spark_errors("remove orphan files of", table_name(dataset)):
        # By prefix: a bucket is listed by Iceberg itself, without a connector of Hadoop.
        found = spark.sql(
            f"CALL {CATALOG}.system.remove_orphan_files(table => '{NAMESPACE}.{quoted(dataset)}', "
            f"older_than => timestamp_micros({older}), prefix_listing => true)"
        ).collect()
    return len(found)
