"""Legacy import: an Iceberg table or a Parquet folder of rows without numbers becomes part of a dataset,
once.

It is a load whose request id is made of what is imported: the table's name and snapshot, or the names and
sizes of the files. So an import that was interrupted is finished by a repeat, and one that was done adds
nothing.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from strandline.errors import NotFoundError, UsageError
from strandline.pipeline.load import LoadResult, LoadTables, load
from strandline.pipeline.site import Site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["iceberg", "parquet"]


def import_rows(
    site: Site,
    tables: LoadTables,
    spark: "SparkSession",
    dataset: str,
    place: str,
    *,
    kind: Kind,
    source: str | None = None,
) -> LoadResult:
    """Bring in every row of `place`: an Iceberg table by its name in Spark, or a folder of Parquet files."""
    if kind == "iceberg":
        df, identity = _iceberg(spark, place)
    elif kind == "parquet":
        df, identity = _parquet(spark, place)
    else:
        raise UsageError(f"an import from {kind!r:.40}", hint="'iceberg' or 'parquet'")
    digest = sha256("\0".join((kind, source or "", *identity)).encode()).hexdigest()
    return load(site, tables, dataset, df, source=source, request_id=f"import-{digest}")


def _iceberg(spark: "SparkSession", table: str) -> "tuple[DataFrame, list[str]]":
    """Pinned to its current snapshot, so that a repeat after a crash reads the same rows."""
    from pyspark.errors import AnalysisException

    try:
        shown = spark.sql(f"SHOW TBLPROPERTIES {table} ('current-snapshot-id')").collect()[0][1]
    except AnalysisException as error:
        raise NotFoundError(
            f"there is no Iceberg table {table!r} in this Spark session",
            hint="name it as Spark does: catalog.namespace.table; [spark] conf adds catalogs",
        ) from error
    if shown == "none":
        raise NotFoundError(f"the table {table!r} has no rows", hint="nothing is to be imported")
    df = spark.sql(f"SELECT * FROM {table} VERSION AS OF {int(shown)}")
    return df, [table, shown]


def _parquet(spark: "SparkSession", folder: str) -> "tuple[DataFrame, list[str]]":
    from pyspark.errors import AnalysisException

    try:
        df = spark.read.parquet(folder)
        files = df.select("_metadata.file_name", "_metadata.file_size").distinct().collect()
    except AnalysisException as error:
        raise NotFoundError(
            f"{folder!r} holds no Parquet that Spark can read: {str(error).partition(chr(10))[0][:200]}",
            hint="name a folder or a file; all files must have one schema",
        ) from error
    return df, sorted(f"{name}:{size}" for name, size in files)
