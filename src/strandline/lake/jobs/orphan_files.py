"""Files in the folder of a table that no snapshot of it names: what a killed job has left.

A snapshot that is staged names its files too, so those of an open plan are none. What a job is writing now is
younger than a day.
"""

import re
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from strandline.config.lake_settings import CATALOG, NAMESPACE
from strandline.lake.jobs.table_schema import quoted, spark_errors, table_name
from strandline.lake.ports.purge import FilesUnlisted

_START_SQL: Final = "^([A-Za-z0-9+.-]+:)?/*"  # where a path says which storage it is in
_START: Final = re.compile(_START_SQL)
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


def unnamed_files(spark: SparkSession, dataset: str, files: Sequence[str]) -> list[str]:
    """Return those files that no snapshot names, however young they are. Raises FilesUnlisted if a named file
    is not among them, because then the two write their paths differently, or the listing is not whole."""
    table = table_name(dataset)
    if not files:
        return []
    listed = spark.createDataFrame(pa.table({"path": [bare_path(each) for each in files]}))
    with spark_errors("look at the files of", table):
        named = spark.sql(
            f"SELECT regexp_replace(path, '{_START_SQL}', '') AS path FROM ("
            f"SELECT file_path AS path FROM {table}.all_files UNION SELECT path FROM {table}.all_manifests "
            f"UNION SELECT manifest_list AS path FROM {table}.snapshots)"
        ).distinct()
        lacking = named.join(listed, on="path", how="left_anti").limit(1).collect()
        unnamed = {row[0] for row in listed.join(named, on="path", how="left_anti").collect()}
    if lacking:
        raise FilesUnlisted(dataset, f"the listing lacks {lacking[0][0]}, which a snapshot names")
    return [each for each in files if bare_path(each) in unnamed]


def bare_path(path: str) -> str:
    """Return the path without the name of its storage, which each side writes in its own way."""
    return _START.sub("", path)
