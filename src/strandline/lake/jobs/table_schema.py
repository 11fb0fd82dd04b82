"""Table schemas: the internal columns, the statements that make a table, and those that grow it.

The table of dataset `logs` is `strandline.datasets.logs`: the producer's columns, `source`, and the internal
ones, which public reads leave out. A `json` column is a string whose comment is `json`.

    ts TIMESTAMP, level STRING, labels STRING COMMENT 'json',
    source STRING NOT NULL, _sl_seq BIGINT NOT NULL, _sl_row_id STRING NOT NULL,
    _sl_flush BIGINT NOT NULL, _sl_at TIMESTAMP NOT NULL
    PARTITIONED BY (source, truncate(1000000, _sl_seq))

Expressions are SQL text, not Column objects: the text is the same on classic Spark and on Connect, and it
crosses into the JVM in one call.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from strandline.config.lake_settings import CATALOG, NAMESPACE
from strandline.errors import NotFoundError, StrandlineError, UnavailableError, UsageError
from strandline.rows.dataset import SOURCE, Column, Dataset, SchemaBreaking, widened

SEQ: Final = "_sl_seq"
ROW_ID: Final = "_sl_row_id"
FLUSH: Final = "_sl_flush"
AT: Final = "_sl_at"
INTERNAL: Final = (SEQ, ROW_ID, FLUSH, AT)
STAMPED: Final = {SOURCE: "string", SEQ: "bigint", ROW_ID: "string", FLUSH: "bigint", AT: "timestamp"}

_TRIES: Final = 5
_PROPERTIES: Final = {
    "write.wap.enabled": "true",  # without it a stage would be visible at once
    "write.distribution-mode": "none",
    "write.parquet.row-group-size-bytes": "4194304",
    # Half the time of a write was zstd at level 3, and dictionaries of texts that never repeat: a column
    # gives its dictionary up at this size, and those that differ in every row make none.
    "write.parquet.compression-level": "1",
    # Java's own catalogs add this codec to a new table, and most REST catalogs do not. Gzip, the default of a
    # writer, then fails on the level.
    "write.parquet.compression-codec": "zstd",
    "write.parquet.dict-size-bytes": "131072",
    **{f"write.parquet.dict-encoding-enabled.column.{name}": "false" for name in (SEQ, ROW_ID)},
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    **{f"write.metadata.metrics.column.{name}": "full" for name in (SOURCE, SEQ, FLUSH, AT)},
}
_IDENTITY_PROPERTIES: Final = {
    f"write.parquet.bloom-filter-enabled.column.{ROW_ID}": "true",
    "write.parquet.bloom-filter-max-bytes": "262144",
}


class PartitionDrift(UsageError):
    """The table is not partitioned as its dataset says."""

    def __init__(self, dataset: str, found: Iterable[str], wanted: Iterable[str]) -> None:
        self.dataset, self.found, self.wanted = dataset, tuple(found), tuple(wanted)
        super().__init__(
            f"the table of dataset {dataset!r} is partitioned by ({', '.join(self.found)}), "
            f"not by ({', '.join(self.wanted)})",
            hint="put seq_bucket and source_buckets back as they were, or backfill a new dataset",
        )


class TableUnavailable(UnavailableError):
    """Spark or the catalog failed; the message is the first line of what it said."""

    def __init__(self, doing: str, table: str, error: BaseException) -> None:
        said = (str(error).splitlines() or [type(error).__name__])[0][:300]
        super().__init__(
            f"cannot {doing} {table}: {said}",
            hint="the same call may work later; the log of Spark tells more",
        )
        self.table = table


# Text of SQL


@contextmanager
def spark_errors(doing: str, table: str) -> Iterator[None]:
    """Spark's errors as ours, once."""
    try:
        yield
    except StrandlineError:
        raise
    except AnalysisException as error:
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            raise NotFoundError(f"there is no table {table}", hint="it is made by the first flush") from error
        raise TableUnavailable(doing, table, error) from error
    except Exception as error:
        raise TableUnavailable(doing, table, error) from error


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string as SQL takes it, by its bytes: no setting of the parser reads it in another way."""
    return f"cast(X'{text.encode().hex()}' as string)"


def table_name(dataset: str) -> str:
    return f"{CATALOG}.{NAMESPACE}.{quoted(dataset)}"


def sql_type(type_: str) -> str:
    return "string" if type_ == "json" else type_


def own_columns(dataset: Dataset) -> tuple[Column, ...]:
    """The producer's columns: `source` has a place of its own, also where a dataset declares it."""
    return tuple(column for column in dataset.columns if column.name != SOURCE)


def columns_sql(dataset: Dataset, stamps: Iterable[str]) -> str:
    """The columns of a DataFrame of this dataset's rows, as `mapInArrow` takes them."""
    own = [f"{quoted(column.name)} {sql_type(column.type)}" for column in own_columns(dataset)]
    return ", ".join([*own, *(f"{name} {STAMPED[name]}" for name in stamps)])


# What a table should be


def properties(dataset: Dataset) -> dict[str, str]:
    """A task has its rows in order of source and seq, so it needs one open file at a time, however many
    sources it has. Only in buckets the sources of one partition are apart."""
    fanout = {"write.spark.fanout.enabled": "true" if dataset.source_buckets else "false"}
    return {**_PROPERTIES, **fanout, **(_IDENTITY_PROPERTIES if dataset.identity else {})}


def partitioning(dataset: Dataset) -> tuple[str, str]:
    by_source = f"bucket({dataset.source_buckets}, {SOURCE})" if dataset.source_buckets else SOURCE
    return by_source, f"truncate({dataset.seq_bucket}, {SEQ})"


def create_statement(dataset: Dataset, table: str, format: int) -> str:
    columns = [
        *(_column_sql(column, is_required=column.required) for column in own_columns(dataset)),
        *(f"{name} {type_} NOT NULL" for name, type_ in STAMPED.items()),
    ]
    return (
        f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}) USING iceberg "
        f"PARTITIONED BY ({', '.join(partitioning(dataset))}) "
        f"TBLPROPERTIES ({property_pairs({'format-version': str(format), **properties(dataset)})})"
    )


def _column_sql(column: Column, *, is_required: bool) -> str:
    null = " NOT NULL" if is_required else ""
    comment = " COMMENT 'json'" if column.type == "json" else ""
    return f"{quoted(column.name)} {sql_type(column.type)}{null}{comment}"


def property_pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}'='{value}'" for key, value in values.items())


# What a table is, and what it lacks


class FoundColumn(NamedTuple):
    """A column of a table, in the words of a dataset; it may be one that no dataset could name."""

    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as it was found: its columns by lower-case name, its partitioning, its properties."""

    columns: Mapping[str, FoundColumn]
    partitioning: tuple[str, ...]
    properties: Mapping[str, str]


def read_shape(spark: SparkSession, table: str) -> TableShape:
    columns = {field.name.lower(): _found(field) for field in spark.table(table).schema.fields}
    described = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE TABLE {table}").collect()]
    # Columns stand above this line and may have any name, so it is the last of its kind that counts.
    heads = [at for at, row in enumerate(described) if row == ("# Partitioning", "")]
    parts = tuple(type_ for _, type_ in described[heads[-1] + 1 :]) if heads else ()
    found = {row[0]: row[1] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
    return TableShape(columns, parts, found)


def _found(field: Any) -> FoundColumn:
    type_ = str(field.dataType.simpleString())
    is_json = type_ == "string" and field.metadata.get("comment") == "json"
    return FoundColumn(field.name, "json" if is_json else type_, not field.nullable)


def growth(dataset: Dataset, table: str, shape: TableShape) -> list[str]:
    """The statements that make the table hold the dataset's rows; none if it does.

    PartitionDrift or SchemaBreaking if no statement could.
    """
    if shape.partitioning != partitioning(dataset):
        raise PartitionDrift(dataset.name, shape.partitioning, partitioning(dataset))
    _check_stamps(dataset, shape)
    known = {column.name.lower() for column in own_columns(dataset)} | set(STAMPED)
    for name, column in shape.columns.items():
        if column.required and name not in known:
            raise SchemaBreaking(dataset.name, column.name, "not there", "a required column of the table")
    return [
        *(step for column in own_columns(dataset) for step in _column_growth(dataset, table, shape, column)),
        *_property_growth(dataset, table, shape),
    ]


def _check_stamps(dataset: Dataset, shape: TableShape) -> None:
    for name, type_ in STAMPED.items():
        found = shape.columns.get(name)
        if found is None or found.type != type_ or not found.required:
            is_ = "missing" if found is None else f"{'' if found.required else 'nullable '}{found.type}"
            raise SchemaBreaking(dataset.name, name, is_, f"the {type_} NOT NULL that each row carries")


def _column_growth(dataset: Dataset, table: str, shape: TableShape, column: Column) -> list[str]:
    have = shape.columns.get(column.name.lower())
    if have is None:  # rows that are there already have none, so it is nullable; the door asks for it
        return [f"ALTER TABLE {table} ADD COLUMNS ({_column_sql(column, is_required=False)})"]
    change = f"ALTER TABLE {table} ALTER COLUMN {quoted(have.name)}"
    wider = widened(sql_type(have.type), sql_type(column.type))
    if wider is None or have.name != column.name:
        found = have.type if have.name == column.name else f"{have.name!r}, a {have.type}, in the table"
        raise SchemaBreaking(dataset.name, column.name, found, column.type)
    steps = [f"{change} TYPE {wider}"] if wider != sql_type(have.type) else []
    if have.required and not column.required:
        steps.append(f"{change} DROP NOT NULL")
    if (have.type == "json") != (column.type == "json"):
        steps.append(f"{change} COMMENT '{'json' if column.type == 'json' else ''}'")
    return steps


def _property_growth(dataset: Dataset, table: str, shape: TableShape) -> list[str]:
    lacking = {k: v for k, v in properties(dataset).items() if shape.properties.get(k) != v}
    return [f"ALTER TABLE {table} SET TBLPROPERTIES ({property_pairs(lacking)})"] if lacking else []


def ensure_table(spark: SparkSession, dataset: Dataset, *, format: int) -> None:
    """Make the table or grow it. Another process may do the same at the same time: what fails is read again
    and judged again, so the second finds the work done, or merges, or is refused."""
    table = table_name(dataset.name)
    for tries_left in reversed(range(_TRIES)):
        try:
            _ensure_once(spark, dataset, table, format)
        except StrandlineError:
            raise
        except Exception as error:
            if not tries_left:
                raise TableUnavailable("make or grow", table, error) from error
        else:
            return


def _ensure_once(spark: SparkSession, dataset: Dataset, table: str, format: int) -> None:
    if not spark.catalog.tableExists(table):
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        spark.sql(create_statement(dataset, table, format))
    for statement in growth(dataset, table, read_shape(spark, table)):
        spark.sql(statement)
