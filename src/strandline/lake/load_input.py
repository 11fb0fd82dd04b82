"""The fixed input of a load: an outside DataFrame, judged row by row and written once into a scratch table.

A DataFrame gives other rows, or another order, each time it is computed; a written file does not. Rows of a
source stand together in each file, so file name and place in the file number them, and staging again gives
the same numbers. What the table looks like:

    _sl_refusal STRING, source STRING, <the producer's columns>
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.dataset import SOURCE, Column, Dataset, Refusal, widened
from strandline.errors import UsageError
from strandline.lake.landing import FixedInput, LoadLanding
from strandline.lake.pieces import ArrowMap, Batches, producer_schema
from strandline.lake.schema import AT, SEQ, columns_sql, literal, own_columns, quoted, sql_type
from strandline.lake.settings import CATALOG, SCRATCH
from strandline.rows import accept, raise_refusals

REFUSAL: Final = "_sl_refusal"
FIRST_REFUSALS: Final = 100
MANY_SOURCES: Final = 10_000

_TYPES: Final = {
    "tinyint": "int",
    "smallint": "int",
    **{name: name for name in ("int", "bigint", "float", "double", "string", "boolean", "binary", "date")},
    "timestamp": "timestamp",
}
_FILE, _POS, _LO = "_sl_file", "_sl_pos", "_sl_lo"
_FIRST, _WHOLE, _BEFORE = "_sl_first", "_sl_whole", "_sl_before"


# Fixing


def fix_input(
    spark: SparkSession, df: DataFrame, dataset: Dataset, load_id: str, *, source: str | None
) -> tuple[FixedInput, Dataset]:
    """Write the rows of `df`, judged, as the scratch table of the load. A refused row refuses them all."""
    grown = grown_for(dataset, df.schema)
    table = f"{CATALOG}.{SCRATCH}.{quoted(load_id)}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{SCRATCH}")
    drop_input(spark, table)  # of a try that a crash cut short; nothing was reserved for it
    judged = df.mapInArrow(judge(grown, source), f"{REFUSAL} string, {columns_sql(grown, (SOURCE,))}")
    try:
        writer = judged.sortWithinPartitions(SOURCE).writeTo(table).using("iceberg")
        writer.tableProperty("write.distribution-mode", "none").create()
        _raise_refused(spark, table, grown)
        rows = spark.sql(f"SELECT {SOURCE}, count(1) FROM {table} GROUP BY {SOURCE}").collect()
        return FixedInput(table, current_snapshot(spark, table), {row[0]: row[1] for row in rows}), grown
    except BaseException:
        drop_input(spark, table)
        raise


def grown_for(dataset: Dataset, schema: Any) -> Dataset:
    """The dataset with the columns of a DataFrame: new ones added, known ones widened where that is safe.

    A type that does not fit a known column changes nothing here: its values are judged one by one.
    """
    columns = {column.name: column for column in dataset.columns}
    for field in schema.fields:
        found = _type_of(field)
        if field.name == SOURCE or found is None:
            continue
        known = columns.get(field.name)
        wider = widened(known.type, found) if known else found
        if known is None:
            columns[field.name] = Column(field.name, found)
        elif wider is not None:
            columns[field.name] = replace(known, type=wider)
    if tuple(columns.values()) == dataset.columns:
        return dataset
    return replace(dataset, columns=tuple(columns.values()), version=dataset.version + 1)


def _type_of(field: Any) -> str | None:
    """The dataset's type for a Spark type, None for a column of nothing but nulls."""
    found = str(field.dataType.simpleString())
    if found == "void":
        return None
    if found in _TYPES:
        return _TYPES[found]
    if found.startswith("decimal("):
        return found
    if found.startswith(("struct<", "array<", "map<")):
        return "json"
    if found.startswith(("char(", "varchar(", "string collate")):
        return "string"
    raise UsageError(
        f"column {field.name!r} is a {found}, which no dataset holds",
        hint="cast it first: a time needs a zone (timestamp, not timestamp_ntz), anything else a plain type",
    )


def judge(dataset: Dataset, source: str | None) -> ArrowMap:
    """What a task runs: the rows that the door would take, and the refusals of others, as rows."""
    own = producer_schema(dataset)
    made = pa.schema([pa.field(REFUSAL, pa.string()), *own, pa.field(SOURCE, pa.string())])

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        before = refused = 0
        for batch in batches:
            verdict = accept(dataset, batch, source=source)
            yield from _shaped(verdict.table, made)
            yield _refused(verdict.refusals[:FIRST_REFUSALS], before, made)
            before += batch.num_rows
            refused += len(verdict.refusals)
            if refused >= FIRST_REFUSALS:
                return  # the load is refused: the rest need not be looked at

    return run


def _shaped(table: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """`table` in all columns of `schema`, those it lacks null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=schema).to_batches()
    return batches


def _refused(refusals: list[Refusal], before: int, schema: pa.Schema) -> pa.RecordBatch:
    texts = [orjson.dumps([*each._replace(row=each.row + before)]).decode() for each in refusals]
    columns = [
        pa.array(texts, pa.string()) if field.name == REFUSAL else pa.nulls(len(texts), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _raise_refused(spark: SparkSession, table: str, dataset: Dataset) -> None:
    found = spark.sql(
        f"SELECT {REFUSAL} FROM {table} WHERE {REFUSAL} IS NOT NULL LIMIT {FIRST_REFUSALS}"
    ).collect()
    if found:
        raise_refusals(dataset.name, sorted(Refusal(*orjson.loads(row[0])) for row in found))


# Using


def current_snapshot(spark: SparkSession, table: str) -> int:
    shown = spark.sql(f"SHOW TBLPROPERTIES {table} ('current-snapshot-id')").collect()
    return int(shown[0][1])


def has_input(spark: SparkSession, input: FixedInput) -> bool:
    if not spark.catalog.tableExists(input.table):
        return False
    found = spark.sql(f"SELECT 1 FROM {input.table}.snapshots WHERE snapshot_id = {input.snapshot:d}")
    return bool(found.collect())


def drop_input(spark: SparkSession, table: str) -> None:
    spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")


def placed(session: SparkSession, landing: LoadLanding) -> DataFrame:
    """The rows with `source`, `_sl_seq` and `_sl_at`, sorted by source and seq inside each partition."""
    fixed = f"{landing.input.table} VERSION AS OF {landing.input.snapshot:d}"
    there = set(session.sql(f"SELECT * FROM {fixed}").columns)
    own = [_own_sql(column, there) for column in own_columns(landing.dataset)]
    rows = session.sql(f"SELECT {', '.join([*own, SOURCE])}, _file AS {_FILE}, _pos AS {_POS} FROM {fixed}")
    starts = _starts(session, landing, fixed)
    if len(landing.los) <= MANY_SOURCES:
        starts = starts.hint("broadcast")
    lost = literal("a row of a load has no number: its source has none, or its rows do not stand together")
    seq = f"if({_WHOLE}, {_LO} + {_BEFORE} + {_POS} - {_FIRST} + 1, cast(null as bigint))"
    names = [quoted(column.name) for column in own_columns(landing.dataset)]
    return (
        rows.join(starts, on=[_FILE, SOURCE], how="left")
        .selectExpr(
            *names,
            SOURCE,
            f"coalesce({seq}, cast(raise_error({lost}) as bigint)) as {SEQ}",
            f"timestamp_micros({landing.at:d}) as {AT}",
        )
        .sortWithinPartitions(SOURCE, SEQ)
    )


def _own_sql(column: Column, there: set[str]) -> str:
    value = quoted(column.name) if column.name in there else "null"
    return f"cast({value} as {sql_type(column.type)}) as {quoted(column.name)}"


def _starts(session: SparkSession, landing: LoadLanding, fixed: str) -> DataFrame:
    """For each file and source: where its run starts, whether it is one run, how many rows of the source
    stand in files before, and from where the source is numbered."""
    runs = session.sql(
        f"SELECT _file AS {_FILE}, {SOURCE}, min(_pos) AS {_FIRST}, count(1) AS n, "
        f"max(_pos) - min(_pos) + 1 = count(1) AS {_WHOLE} FROM {fixed} GROUP BY _file, {SOURCE}"
    )
    before = (
        f"coalesce(sum(n) over (partition by {SOURCE} order by {_FILE} "
        f"rows between unbounded preceding and 1 preceding), 0) as {_BEFORE}"
    )
    los = pa.table(
        {
            SOURCE: pa.array(list(landing.los), pa.string()),
            _LO: pa.array(list(landing.los.values()), pa.int64()),
        }
    )
    numbered = session.createDataFrame(los)
    return runs.selectExpr(_FILE, SOURCE, _FIRST, _WHOLE, before).join(numbered, on=SOURCE, how="inner")
