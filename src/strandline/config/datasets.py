"""The datasets of the configuration and those that ship with Strandline; how one grows into what is declared.

    [datasets.orders]
    columns = { id = { type = "bigint", required = true }, at = "timestamp", price = "decimal(12,2)" }
    timestamp = "at"
    source = ["shop"]
    identity = { key = "id" }

A dataset need not be declared: columns that rows bring are added. `logs`, `traces`, `metrics` and `messages`
are declared already; keys of the file go before theirs, and `columns` in the file puts all of theirs aside.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from strandline.config.toml_file import Faults, Keys, Section, about, read_struct, shown
from strandline.errors import UsageError
from strandline.rows.dataset import (
    SOURCE,
    Column,
    Dataset,
    Identity,
    SchemaBreaking,
    check_dataset_name,
    merged,
)

_MAX_INT32: Final = 2**31 - 1
_TIMES: Final = frozenset({"timestamp", "date"})
_NUMBERS: Final = frozenset({"int", "bigint", "float", "double"})

T = TypeVar("T")
ColumnName = Annotated[str, Meta(min_length=1)]


class ColumnTable(Section, frozen=True):
    """A column with more to say than its type."""

    type: Annotated[str, about("the column's type")]
    required: Annotated[bool, about("whether each row must have it: true or false")] = False


class IdentityTable(Section, frozen=True):
    """What makes two rows of a strand the same."""

    key: Annotated[ColumnName, about("the column that identifies a row")]
    legacy: Annotated[tuple[ColumnName, ...], about("columns that rebuild the key where it is null")] = ()
    join: Annotated[str, Meta(min_length=1), about("what stands between them, one character or more")] = "#"


class DatasetTable(Section, frozen=True):
    """`[datasets.<name>]` as it stands in the file."""

    columns: Annotated[
        dict[str, Any],
        about(
            "its columns in order: name = type, or name = {type, required}",
            default="as rows bring them",
            sample='{id = {type = "bigint", required = true}, at = "timestamp"}',
        ),
    ] = msgspec.field(default_factory=dict)
    timestamp: Annotated[
        ColumnName | None, about("the column that dates a row", default="ingest time", sample='"at"')
    ] = None
    timestamp_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None,
        about('the unit of a numeric timestamp: "s", "ms", "us" or "ns"', default="none", sample='"ms"'),
    ] = None
    timestamp_fallbacks: Annotated[
        tuple[ColumnName, ...], about("columns that date a row where `timestamp` is null")
    ] = ()
    source: Annotated[
        tuple[ColumnName, ...],
        about("columns, the first non-empty of which is the row's source where the call names none"),
    ] = ()
    identity: Annotated[
        dict[str, Any] | None,
        about(
            "what makes two rows of a strand the same: {key, legacy, join}",
            default="none",
            sample='{key = "id", legacy = [], join = "#"}',
        ),
    ] = None
    duplicates: Annotated[
        Literal["collapse", "keep"] | None,
        about(
            'rows with one identity: "collapse" makes them one, "keep" keeps them',
            default='`"collapse"` with an identity, else `"keep"`',
            sample='"collapse"',
        ),
    ] = None
    dedupe_on_flush: Annotated[
        bool | None,
        about(
            "whether a flush leaves out rows that are in the table already: true or false",
            default="`true` with an identity, else `false`",
            sample="true",
        ),
    ] = None
    signal: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$")] | None,
        about("its name on the wire: letters, digits, '_', '-', '.'", default="its name", sample='"orders"'),
    ] = None
    seq_bucket: Annotated[
        int,
        Meta(gt=0, le=_MAX_INT32),
        about("rows of a strand in one partition, above 0; fixed when the table is made"),
    ] = 1_000_000
    source_buckets: Annotated[
        int,
        Meta(ge=0, le=_MAX_INT32),
        about("partitions that share all sources; 0 gives each its own; fixed when the table is made"),
    ] = 0


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is configured about a dataset beside what it is."""

    signal: str
    timestamp: str | None = None
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None = None
    timestamp_fallbacks: tuple[str, ...] = ()


class Declared(NamedTuple):
    """A dataset as the configuration has it."""

    dataset: Dataset
    settings: DatasetSettings


BUILT_IN_TABLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "logs": {
        "columns": {
            "ts": "timestamp",
            "level": "string",
            "message": "string",
            "service": "string",
            "host": "string",
            "trace_id": "string",
            "span_id": "string",
            "attributes": "json",
        },
        "timestamp": "ts",
        "source": ["service", "host"],
    },
    "traces": {
        "columns": {
            "trace_id": "string",
            "span_id": "string",
            "parent_span_id": "string",
            "name": "string",
            "kind": "string",
            "service": "string",
            "start_time": "timestamp",
            "end_time": "timestamp",
            "duration_ns": "bigint",
            "status": "string",
            "status_message": "string",
            "attributes": "json",
            "events": "json",
            "links": "json",
        },
        "timestamp": "start_time",
        "source": ["service"],
    },
    "metrics": {
        "columns": {
            "ts": "timestamp",
            "name": "string",
            "kind": "string",
            "unit": "string",
            "value": "double",
            "count": "bigint",
            "buckets": "json",
            "service": "string",
            "host": "string",
            "attributes": "json",
        },
        "timestamp": "ts",
        "source": ["service", "host"],
    },
    "messages": {
        "columns": {
            "ts": "timestamp",
            "part_id": "string",
            "message_id": "string",
            "part_index": "bigint",
            "conversation_id": "string",
            "app": "string",
            "role": "string",
            "kind": "string",
            "text": "string",
            "content": "json",
            "attributes": "json",
        },
        "timestamp": "ts",
        "source": ["app"],
        "identity": {"key": "part_id", "legacy": ["message_id", "part_index"]},
    },
}


def read_datasets(tables: object, faults: Faults) -> dict[str, Declared]:
    """Every dataset of the file, by name."""
    if not isinstance(tables, dict):
        faults.add(("datasets",), f"{shown(tables)} is no table")
        return {}
    read = ((name, read_dataset(name, table, faults)) for name, table in tables.items())
    return {name: declared for name, declared in read if declared is not None}


def read_dataset(name: str, table: object, faults: Faults) -> Declared | None:
    at = ("datasets", name)
    made = read_struct(DatasetTable, _with_built_in(name, table), at, faults)
    if made is None:
        return None
    columns = tuple(_columns(made.columns, (*at, "columns"), faults))
    identity = _identity(made.identity, (*at, "identity"), faults)
    if isinstance(table, dict) and table.get("columns"):
        _check_named(made, columns, identity, at, faults)
    collapse = made.duplicates == "collapse" if made.duplicates else identity is not None
    if made.dedupe_on_flush and not collapse:
        faults.add(
            (*at, "dedupe_on_flush"), 'true would remove rows; wanted: duplicates = "collapse" with it'
        )
    dedupe = identity is not None and collapse if made.dedupe_on_flush is None else made.dedupe_on_flush

    def make() -> Dataset:
        return Dataset(
            check_dataset_name(name),
            columns,
            source_columns=made.source,
            identity=identity,
            collapse=collapse,
            dedupe_on_flush=dedupe,
            seq_bucket=made.seq_bucket,
            source_buckets=made.source_buckets,
        )

    dataset = _attempt(make, at, faults)
    return Declared(dataset, _settings(name, made)) if dataset else None


def _with_built_in(name: str, table: object) -> object:
    if not isinstance(table, dict) or table.get("columns"):
        return table
    return {**BUILT_IN_TABLES.get(name, {}), **table}


def _settings(name: str, table: DatasetTable) -> DatasetSettings:
    return DatasetSettings(
        signal=table.signal or name,
        timestamp=table.timestamp,
        timestamp_unit=table.timestamp_unit,
        timestamp_fallbacks=table.timestamp_fallbacks,
    )


def _columns(table: Mapping[str, Any], at: Keys, faults: Faults) -> Iterator[Column]:
    for name, found in table.items():
        here = (*at, name)
        given = {"type": found} if isinstance(found, str) else found
        made = read_struct(ColumnTable, given, here, faults)
        if name.lower() == SOURCE:
            faults.add(here, "every dataset has this column by itself; wanted: another name")
        elif made is not None:
            column = _attempt(partial(Column, name, made.type, made.required), here, faults)
            if column is not None:
                yield column


def _identity(table: Mapping[str, Any] | None, at: Keys, faults: Faults) -> Identity | None:
    made = read_struct(IdentityTable, table, at, faults) if table is not None else None
    return Identity(made.key, made.legacy, made.join) if made else None


def _check_named(
    table: DatasetTable, columns: tuple[Column, ...], identity: Identity | None, at: Keys, faults: Faults
) -> None:
    """Columns that are named must be among those that are declared: else it is a slip of the pen."""
    types = {column.name: column.type for column in columns}
    dated = [("timestamp", name) for name in (table.timestamp,) if name]
    dated += [("timestamp_fallbacks", name) for name in table.timestamp_fallbacks]
    named = [*dated, *(("source", name) for name in table.source if name != SOURCE)]
    if identity:
        named += [("identity", name) for name in (identity.key, *identity.legacy) if name != SOURCE]
    for key, name in named:
        if name not in table.columns:
            faults.add((*at, key), f"{shown(name)} is no column of it; there are {', '.join(table.columns)}")
    for key, name in dated:
        type_ = types.get(name, "timestamp")
        if type_ in _NUMBERS and table.timestamp_unit is None:
            faults.add((*at, key), f'{shown(name)} is {type_}; wanted: timestamp_unit, such as "ms", with it')
        elif type_ not in _NUMBERS | _TIMES:
            faults.add((*at, key), f"{shown(name)} is {type_}; wanted: a timestamp, a date or a number")


def _attempt(make: Callable[[], T], at: Keys, faults: Faults) -> T | None:
    try:
        return make()
    except UsageError as error:
        faults.add(at, f"{error.message}; wanted: {error.hint}")
        return None


def built_in(name: str) -> Declared | None:
    """The dataset that ships under this name."""
    return _BUILT_IN.get(name)


def _read_built_in() -> dict[str, Declared]:
    faults = Faults("the datasets that ship with Strandline", "")
    read = read_datasets({name: dict(table) for name, table in BUILT_IN_TABLES.items()}, faults)
    faults.raise_any()
    return read


_BUILT_IN: Final = _read_built_in()


# Growth


def with_declared(recorded: Dataset, declared: Dataset) -> Dataset:
    """The dataset of record, grown into what is declared: columns added and widened, settings taken over.

    Anything else is SchemaBreaking, also another partitioning, which a table keeps for life.
    """
    for column, key in (("_sl_seq", "seq_bucket"), (SOURCE, "source_buckets")):
        have, wanted = getattr(recorded, key), getattr(declared, key)
        if have != wanted:
            found = f"partitioned by {key} = {wanted}"
            raise SchemaBreaking(recorded.name, column, found, f"a table that has {key} = {have}")
    grown = replace(
        merged(recorded, declared),
        source_columns=declared.source_columns,
        identity=declared.identity,
        collapse=declared.collapse,
        dedupe_on_flush=declared.dedupe_on_flush,
        version=recorded.version,
    )
    return recorded if grown == recorded else replace(grown, version=recorded.version + 1)
