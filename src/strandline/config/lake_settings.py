"""What the lake must be told: where its tables are, how Spark is started. All places are absolute by now."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CATALOG: Final = "strandline"  # the catalog's name inside Spark
NAMESPACE: Final = "datasets"  # holds one table a dataset
SCRATCH: Final = "scratch"  # holds the fixed inputs of loads


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The Iceberg catalog and its warehouse. `conf` goes to Spark as `spark.sql.catalog.strandline.<key>`."""

    warehouse: str  # an absolute path, or s3://…
    catalog: str = "jdbc"  # or rest, glue, hive
    uri: str = ""  # of the JDBC catalog: an absolute path of a SQLite file, or postgresql://…
    format: int = 2
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Either `master` (classic, in this process) or `remote` (Connect, `sc://…`). `conf` goes through as
    is."""

    master: str = "local[*]"
    remote: str | None = None
    session_timezone: str = "UTC"
    conf: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None  # the file that takes Spark's own log; None is a file in the temporary folder
    is_own: bool = False  # of `remote`: it is our daemon's, and its executors have what we have
