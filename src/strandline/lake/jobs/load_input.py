"""The fixed input of a load: an outside DataFrame, judged row by row and written once into a scratch table.

A DataFrame gives other rows, or another order, each time it is computed; a written file does not. Rows of a
source stand together in each file, so file name and place in the file number them, and staging again gives
the same numbers. What the table looks like:

    _sl_refusal STRING, source STRING, <the producer's columns>

Where the columns of the frame have the types of the dataset, Spark itself can tell which rows the door takes
(`plain_rows`). If there is one that it is not sure of, or in other types, every row goes through the door.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.config.lake_settings import CATALOG, SCRATCH, LakeSettings
from strandline.errors import UsageError
from strandline.lake.jobs.segment_batches import producer_schema
from strandline.lake.jobs.table_schema import (
    AT,
    FLUSH,
    SEQ,
    columns_sql,
    literal,
    own_columns,
    quoted,
    sql_type,
)
from strandline.lake.metadata.iceberg import open_iceberg
from strandline.lake.spark.python_task import ArrowMap, Batches, lean
from strandline.rows.dataset import (
    SOURCE,
    UNKNOWN_SOURCE,
    Column,
    Dataset,
    Refusal,
    SourceInvalid,
    check_source,
    widened,
    wider,
)
from strandline.rows.validate import MAX_ROW_BYTES, accept, raise_refusals
from strandline.state.landing import FixedInput, LoadLanding

if TYPE_CHECKING:
    from pyiceberg.table import Table

REFUSAL: Final = "_sl_refusal"
FIRST_REFUSALS: Final = 100
MANY_SOURCES: Final = 10_000
FILE_ROWS: Final = 50_000  # a file of so many rows is worth a task of its own

_TYPES: Final = {
    "tinyint": "int",
    "smallint": "int",
    **{name: name for name in ("int", "bigint", "float", "double", "string", "boolean", "binary", "date")},
    "timestamp": "timestamp",
}
_TABLE_PROPERTIES: Final = {
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "snappy",  # it is read once
    "write.parquet.dict-size-bytes": "131072",
    "write.metadata.metrics.default": "none",
    f"write.metadata.metrics.column.{REFUSAL}": "counts",  # so that Iceberg counts them without a look
}
# Where a value of a type may be one that the door refuses: texts that are none, years beyond 1 to 9999.
_FITS: Final = {
    "string": "is_valid_utf8({0})",
    "timestamp": "unix_micros({0}) between -62135596800000000 and 253402300799999999",
    "date": "unix_date({0}) between -719162 and 2932896",
}
_FILE, _POS, _LO = "_sl_file", "_sl_pos", "_sl_lo"
_FIRST, _WHOLE, _BEFORE = "_sl_first", "_sl_whole", "_sl_before"
_APART: Final = (
    "'split-size' = '134217728', 'file-open-cost' = '134217728'"  # one file, or part of it, a task
)


# Fixing


def fix_input(
    spark: SparkSession,
    df: DataFrame,
    dataset: Dataset,
    load_id: str,
    *,
    source: str | None,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> tuple[FixedInput, Dataset]:
    """Write the rows of `df`, judged, as the scratch table of the load. A refused row refuses them all."""
    grown = grown_for(dataset, df.schema)
    table = scratch_table(load_id)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{SCRATCH}")
    try:
        plain = plain_rows(df, grown, source, max_row_bytes)
        if plain is not None:
            _write(spark, plain, table, is_one_source=source is not None)
            found = _found(spark, table, source)
            if found.is_clean:
                return FixedInput(table, current_snapshot(spark, table), found.rows), grown
        loose = _loosened(grown, df.schema)
        columns = f"{REFUSAL} string, {columns_sql(loose, (SOURCE,))}"
        judged = df.mapInArrow(lean(judge(loose, source, max_row_bytes)), columns)
        _write(spark, judged, table, is_one_source=False)
        _raise_refused(spark, table, grown)
        found = _found(spark, table, None)
        grown = _with_types(grown, _needed(spark, table, grown, loose))
        return FixedInput(table, current_snapshot(spark, table), found.rows), grown
    except BaseException:
        drop_input(spark, table)
        raise


def _write(spark: SparkSession, rows: DataFrame, table: str, *, is_one_source: bool) -> None:
    drop_input(spark, table)  # of a try that a crash cut short; nothing was reserved for it
    inorder = rows if is_one_source else rows.sortWithinPartitions(SOURCE)
    writer = inorder.writeTo(table).using("iceberg")
    for key, value in _TABLE_PROPERTIES.items():
        writer = writer.tableProperty(key, value)
    writer.create()


class _Found(NamedTuple):
    """How many rows each source has, and whether all of them may stay."""

    rows: dict[str, int]
    is_clean: bool


def _found(spark: SparkSession, table: str, source: str | None) -> _Found:
    """Where all rows have one source no file is opened for it."""
    counts = f"count(1), count({REFUSAL}) FROM {table}"
    if source is not None:
        (found,) = spark.sql(f"SELECT {counts}").collect()
        return _Found({source: found[0]} if found[0] else {}, is_clean=not found[1])
    each = spark.sql(f"SELECT {SOURCE}, {counts} GROUP BY {SOURCE}").collect()
    is_clean = all(refused == 0 and _is_source(source) for source, _, refused in each)
    return _Found({source: rows for source, rows, _ in each}, is_clean)


def _is_source(source: object) -> bool:
    try:
        check_source(source)
    except SourceInvalid:
        return False
    return True


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
    return _with_types(dataset, {name: column.type for name, column in columns.items()})


def _with_types(dataset: Dataset, types: Mapping[str, str]) -> Dataset:
    """The dataset with these types, and with a column more for each name that is new."""
    known = {column.name for column in dataset.columns}
    columns = (
        *(replace(each, type=types.get(each.name, each.type)) for each in dataset.columns),
        *(Column(name, type_) for name, type_ in types.items() if name not in known),
    )
    if columns == dataset.columns:
        return dataset
    return replace(dataset, columns=columns, version=dataset.version + 1)


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


# Judging by Spark


def plain_rows(
    df: DataFrame, dataset: Dataset, source: str | None, max_row_bytes: int = MAX_ROW_BYTES
) -> DataFrame | None:
    """The rows as `accept` would take them, with an empty refusal where it has to be asked; None where it has
    to be asked about all."""
    given = {field.name: str(field.dataType.simpleString()) for field in df.schema.fields}
    columns = [column for column in own_columns(dataset) if column.name in given]
    is_alike = all(_is_alike(given[column.name], column.type) for column in columns)
    named = named_source(given, columns, dataset, source)
    known = {SOURCE, *(column.name for column in columns)}
    if not is_alike or named is None or len(df.schema.fields) > len(given) or given.keys() - known:
        return None
    fits = " and ".join([*map(_fits, columns), _is_small(columns, max_row_bytes), named[1], "true"])
    lacking = [column for column in own_columns(dataset) if column.name not in given]
    if any(column.required for column in lacking):
        return None
    return df.selectExpr(
        f"if({fits}, cast(null as string), '') as {REFUSAL}",
        *(_own_sql(column, set(given)) for column in own_columns(dataset)),
        f"{named[0]} as {SOURCE}",
    )


def _is_alike(found: str, type_: str) -> bool:
    """Whether each value of a Spark type is one of the column's type, or of a narrower one."""
    plain = found if found.startswith("decimal(") else _TYPES.get(found)
    return plain is not None and type_ != "json" and widened(type_, plain) == type_


def _fits(column: Column) -> str:
    """Whether the value is one that the column takes, as SQL that is never null."""
    name = quoted(column.name)
    fits = f"coalesce({_FITS[column.type].format(name)}, true)" if column.type in _FITS else "true"
    return f"{name} is not null and {fits}" if column.required else fits


def _is_small(columns: Sequence[Column], max_row_bytes: int) -> str:
    texts = [quoted(column.name) for column in columns if column.type in ("string", "binary")]
    sizes = [*(f"coalesce(octet_length({name}), 0)" for name in texts), str(8 * (len(columns) - len(texts)))]
    return f"{' + '.join(sizes)} <= {max_row_bytes:d}"


def named_source(
    given: Mapping[str, str], columns: Sequence[Column], dataset: Dataset, source: str | None
) -> tuple[str, str] | None:
    """The source of a row as SQL, and whether it is sure; None if rows have to be asked."""
    if given.get(SOURCE, "string") != "string":
        return None
    if source is not None:
        agrees = f"coalesce({SOURCE} in ('', {literal(source)}), true)" if SOURCE in given else "true"
        return (literal(source), agrees) if _is_source(source) else None
    by_name = {column.name: column for column in columns}
    asked = [by_name[name] for name in dataset.source_columns if name in by_name]
    if any(column.type not in ("string", "int", "bigint") for column in asked):
        return None
    names = [*([SOURCE] if SOURCE in given else []), *(quoted(column.name) for column in asked)]
    texts = [f"nullif(cast({name} as string), '')" for name in names]
    found = f"coalesce({', '.join([*texts, literal(UNKNOWN_SOURCE)])})"
    return found, f"is_valid_utf8({found})"


# Judging by the door


def _loosened(dataset: Dataset, schema: Any) -> Dataset:
    """Columns whose values must be looked at one by one, as wide as they may become."""
    found = {field.name: _type_of(field) for field in schema.fields}
    types = {
        column.name: _widest(column.type)
        for column in own_columns(dataset)
        if (type_ := found.get(column.name)) is not None and widened(column.type, type_) is None
    }
    return _with_types(dataset, types)


def _widest(type_: str) -> str:
    while (next_ := wider(type_)) is not None:
        type_ = next_
    return type_


def _needed(spark: SparkSession, table: str, dataset: Dataset, loose: Dataset) -> dict[str, str]:
    """The columns that hold a value which their own type would not."""
    widths = [
        (narrow.name, narrow.type, wide.type)
        for narrow, wide in zip(dataset.columns, loose.columns, strict=True)
        if narrow.type != wide.type
    ]
    if not widths:
        return {}
    asked = [
        f"coalesce(bool_or({(x := quoted(name))} is distinct from "
        f"cast(try_cast({x} as {narrow}) as {wide})), false)"
        for name, narrow, wide in widths
    ]
    (found,) = spark.sql(f"SELECT {', '.join(asked)} FROM {table}").collect()
    return {name: wide for (name, _, wide), is_needed in zip(widths, found, strict=True) if is_needed}


def judge(dataset: Dataset, source: str | None, max_row_bytes: int = MAX_ROW_BYTES) -> ArrowMap:
    """What a task runs: the rows that the door would take, and the refusals of others, as rows."""
    own = producer_schema(dataset)
    made = pa.schema([pa.field(REFUSAL, pa.string()), *own, pa.field(SOURCE, pa.string())])

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        before = refused = 0
        for batch in batches:
            verdict = accept(dataset, batch, source=source, max_row_bytes=max_row_bytes)
            yield from _shaped(verdict.table, made)
            yield _refused(verdict.refusals[:FIRST_REFUSALS], before, made)
            before += batch.num_rows
            refused += len(verdict.refusals)
            if refused >= FIRST_REFUSALS:
                return  # the load is refused: the rest need not be looked at

    return run


def _shaped(table: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """`table` in all columns of `schema`, those it lacks null. The others have its types: what is judged row
    by row is as wide as it gets, and nothing else grows."""
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
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


def scratch_table(load_id: str) -> str:
    return f"{CATALOG}.{SCRATCH}.{quoted(load_id)}"


def drop_input(spark: SparkSession, table: str) -> None:
    spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")


def remove_input(lake: LakeSettings, load_id: str) -> None:
    """The same without Spark, which needs several jobs for it. The files go first: a crash leaves a table
    that can be removed again."""
    from pyiceberg.exceptions import NoSuchTableError

    with open_iceberg(lake) as catalog:
        try:
            table = catalog.load_table((SCRATCH, load_id))
        except NoSuchTableError:
            return
        for path in _files_of(table):
            _delete(table, path)
        catalog.drop_table((SCRATCH, load_id))
        for path in [*(each.metadata_file for each in table.metadata.metadata_log), table.metadata_location]:
            _delete(table, path)


def _files_of(table: "Table") -> Iterator[str]:
    """What only the table names, each file before the one that names it."""
    for snapshot in table.metadata.snapshots:
        try:
            manifests = snapshot.manifests(table.io)
            for manifest in manifests:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    yield entry.data_file.file_path
        except FileNotFoundError:  # of a removal that was cut short: it had come to what names them
            manifests = []
        yield from (manifest.manifest_path for manifest in manifests)
        yield snapshot.manifest_list


def _delete(table: "Table", path: str) -> None:
    with suppress(FileNotFoundError):
        table.io.delete(path)


def placed(session: SparkSession, landing: LoadLanding) -> DataFrame:
    """The rows with `source`, `_sl_seq`, `_sl_at` and `_sl_flush`, sorted by source and seq inside each
    partition."""
    fixed = f"{landing.input.table} VERSION AS OF {landing.input.snapshot:d}"
    there = set(session.sql(f"SELECT * FROM {fixed}").columns)
    own = [_own_sql(column, there) for column in own_columns(landing.dataset)]
    files = _rows_of_files(session, landing.input)
    is_apart = sum(landing.input.rows.values()) >= FILE_ROWS * len(files)
    rows = session.sql(
        f"SELECT {', '.join([*own, SOURCE])}, _file AS {_FILE}, _pos AS {_POS} FROM {fixed}"
        f"{f' WITH ({_APART})' if is_apart else ''}"
    )
    if len(landing.los) == 1:
        starts = _starts_of_one(session, landing, files)
    else:
        starts = _starts(session, landing, fixed)
    if len(landing.los) <= MANY_SOURCES:
        starts = starts.hint("broadcast")
    lost = literal("a row of a load has no number: its source has none, or its rows do not stand together")
    seq = f"if({_WHOLE}, {_LO} + {_BEFORE} + {_POS} - {_FIRST} + 1, cast(null as bigint))"
    numbered = rows.join(starts, on=[_FILE, SOURCE], how="left").selectExpr(
        *(quoted(column.name) for column in own_columns(landing.dataset)),
        SOURCE,
        f"coalesce({seq}, cast(raise_error({lost}) as bigint)) as {SEQ}",
        AT,
        FLUSH,
    )
    return (
        numbered
        if is_apart and len(landing.los) <= MANY_SOURCES
        else numbered.sortWithinPartitions(SOURCE, SEQ)
    )


def _rows_of_files(session: SparkSession, input: FixedInput) -> dict[str, int]:
    """How many rows each file has, in the order in which they are numbered. One that has many gets a task of
    its own, which has its rows in order and need not sort."""
    found = session.sql(f"SELECT file_path, record_count FROM {input.table}.files").collect()
    return {path: int(rows) for path, rows in sorted(found)}


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
    sources = list(landing.los)
    los = pa.table({SOURCE: pa.array(sources, pa.string()), **_numbers(landing, sources)})
    numbered = session.createDataFrame(los)  # columns, not literals: with those Spark would compile anew
    return runs.selectExpr(_FILE, SOURCE, _FIRST, _WHOLE, before).join(numbered, on=SOURCE, how="inner")


def _starts_of_one(session: SparkSession, landing: LoadLanding, files: Mapping[str, int]) -> DataFrame:
    """The same where all rows are of one source: what Iceberg knows of the files is enough."""
    (source,) = landing.los
    before = [0, *accumulate(files.values())][:-1]
    count = len(files)
    columns = {
        _FILE: pa.array(list(files), pa.string()),
        SOURCE: pa.array([source] * count, pa.string()),
        _FIRST: pa.array([0] * count, pa.int64()),
        _WHOLE: pa.array([True] * count, pa.bool_()),
        _BEFORE: pa.array(before, pa.int64()),
    }
    return session.createDataFrame(pa.table({**columns, **_numbers(landing, [source] * count)}))


def _numbers(landing: LoadLanding, sources: list[str]) -> dict[str, pa.Array]:
    return {
        _LO: pa.array([landing.los[source] for source in sources], pa.int64()),
        AT: pa.array([landing.at] * len(sources), pa.timestamp("us", "UTC")),
        FLUSH: pa.array([landing.number] * len(sources), pa.int64()),
    }
