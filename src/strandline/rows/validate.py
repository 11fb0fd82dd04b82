"""Rows at the door: which are stored, as what, how the dataset must grow for them, which are refused and why.

There is one judgement. `RowJudge` gives it row by row and is its definition; a batch whose columns all pass
as a whole (`strandline.rows.columns`) gets the same verdict without a look at single rows. Rows come as
mappings or as an Arrow table or batch, and those that are good leave as an Arrow table:

    source first, then the dataset's columns in their order, without those that no row has;
    the rows of each source together, sources in the order in which they first appear, their rows in theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import UsageError
from strandline.rows.batches import ArrowBatch, Batch, RowBatch
from strandline.rows.columns import Unsure, arrow_type
from strandline.rows.dataset import (
    SOURCE,
    UNKNOWN_SOURCE,
    Column,
    Dataset,
    Refusal,
    SchemaBreaking,
    SourceInvalid,
    Unfit,
    check_column_name,
    check_source,
    is_finer,
    listed,
    stored,
    type_of,
    wider,
)
from strandline.rows.values import FINER, TOO_DEEP, Unstorable, is_too_deep

Rows: TypeAlias = (
    Iterable[Mapping[str, Any]] | Any
)  # Any: a pyarrow Table or RecordBatch, which have no types

MAX_ROW_BYTES: Final = 16 * 1024 * 1024

_WIDEST: Final = {pa.int32(): pa.int64(), pa.float32(): pa.float64(), pa.bool_(): pa.int8()}


class Accepted(NamedTuple):
    """The verdict on a batch: the dataset as the good rows need it, those rows, and what is refused.

    `refused_rows` are the rows as they were given, one for each refusal.
    """

    dataset: Dataset
    table: Any
    refusals: list[Refusal]
    refused_rows: list[Mapping[str, Any]]


class BadRows(UsageError):
    """Rows that the dataset cannot hold; nothing was written."""

    def __init__(self, dataset: str, refusals: Sequence[Refusal]) -> None:
        count = "a row" if len(refusals) == 1 else f"{len(refusals):,} rows"
        super().__init__(
            f"dataset {dataset!r} refuses {count}:{listed(refusals)}",
            hint="correct them, or have bad rows quarantined (on_bad='quarantine')",
        )
        self.dataset, self.refusals = dataset, tuple(refusals)


class RowTooLarge(BadRows):
    """Rows over the limit of `spool.max_row_bytes`."""


def raise_refusals(dataset: Dataset | str, refusals: Sequence[Refusal]) -> NoReturn:
    """Refuse a batch: by the kind of its refusals if they have one in common, else as BadRows."""
    kinds = {refusal.kind for refusal in refusals}
    name, first = dataset if isinstance(dataset, str) else dataset.name, refusals[0]
    if kinds == {SchemaBreaking.kind}:
        raise SchemaBreaking(name, first.column, first.found, first.wanted, row=first.row, refusals=refusals)
    if kinds == {SourceInvalid.kind}:
        raise SourceInvalid(
            f"dataset {name!r}: a source that could never land:{listed(refusals)}",
            hint="name where the rows come from in a short text",
            refusals=refusals,
        )
    raise (RowTooLarge if kinds == {RowTooLarge.kind} else BadRows)(name, refusals)


def accept(
    dataset: Dataset, rows: Rows, *, source: str | None = None, max_row_bytes: int = MAX_ROW_BYTES
) -> Accepted:
    """Judge every row. Nothing is coerced; a refused row grows nothing and spoils no other."""
    batch = _batch(dataset, rows)
    try:
        return _accept_whole(dataset, batch, source, max_row_bytes)
    except Unsure:
        return _accept_each(dataset, batch, source, max_row_bytes)


def _batch(dataset: Dataset, rows: Rows) -> Batch:
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        return RowBatch(rows if type(rows) is list else list(rows))
    names = rows.schema.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadRows(dataset.name, [Refusal(0, twice[0], "a column given twice", "a row")])
    return ArrowBatch(rows)


def arrow_schema(dataset: Dataset) -> Any:
    """All columns of the dataset in Arrow's types, `source` first."""
    own = [
        pa.field(column.name, arrow_type(column.type), nullable=not column.required)
        for column in dataset.columns
        if column.name != SOURCE
    ]
    return pa.schema([pa.field(SOURCE, pa.string(), nullable=False), *own])


def rows_digest(table: Any) -> str:
    """A text that two tables of accepted rows share if and only if their rows are equal.

    A column that was widened, that has nothing but nulls, or that came in another place makes no difference:
    so a request that is repeated after the dataset has grown is known for what it is.
    """
    digest = sha256()
    for name in sorted(table.column_names):
        array = table[name].cast(_widest(table[name].type)).combine_chunks()
        if array.null_count == len(array):
            continue
        digest.update(f"{len(name)} {name} {array.type} {len(array)} {array.null_count}\n".encode())
        if array.null_count:
            digest.update(_values_of(array.is_null().cast(pa.int8())))
            array = array.drop_null()
        if array.type in (pa.string(), pa.binary()):
            digest.update(_values_of(pc.binary_length(array)))
            digest.update(_texts_of(array))
        else:
            digest.update(_values_of(array))
    return digest.hexdigest()


def _widest(type_: Any) -> Any:
    return pa.decimal128(38, type_.scale) if pa.types.is_decimal(type_) else _WIDEST.get(type_, type_)


def _values_of(array: Any) -> Any:
    """The bytes of an array whose values have one width."""
    width = array.type.bit_width // 8
    return memoryview(array.buffers()[1] or b"")[array.offset * width : (array.offset + len(array)) * width]


def _texts_of(array: Any) -> Any:
    """The bytes of all texts, joined."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return b""
    places = memoryview(offsets).cast("i")
    return memoryview(data)[places[array.offset] : places[array.offset + len(array)]]


# Whole columns


def _accept_whole(dataset: Dataset, batch: Batch, source: str | None, max_row_bytes: int) -> Accepted:
    names = batch.names()
    declared = {column.name: column.type for column in dataset.columns}
    new = [name for name in names if name not in declared and name != SOURCE]
    _check_new(new, declared)
    found = {name: batch.column(name, declared.get(name)) for name in names if name != SOURCE}
    columns = {name: column for name, column in found.items() if column is not None}
    arrays = {name: array for name, (_, array) in columns.items()}
    for name in _required(dataset) if len(batch) else ():
        if name not in arrays or arrays[name].null_count:
            raise Unsure
    _check_sizes([*arrays.values()], max_row_bytes)

    own = batch.column(SOURCE, "string") if SOURCE in names else None
    sources, is_one = _sources(dataset, own, columns, source, len(batch))
    types = {**declared, **{name: type_ for name, (type_, _) in columns.items() if name in declared}}
    for name in sorted((name for name in new if name in columns), key=batch.appeared):
        types[name] = columns[name][0]
    grown = _grown(dataset, types)
    table = _table(grown, sources, arrays)
    return Accepted(grown, table if is_one else _grouped(table), [], [])


def _check_new(new: Sequence[str], declared: Mapping[str, str]) -> None:
    if not new:
        return
    names = [SOURCE, *declared, *new]
    if len({name.lower() for name in names}) != len({*names}):
        raise Unsure
    try:
        for name in new:
            check_column_name(name)
    except UsageError as error:
        raise Unsure from error


def _check_sizes(arrays: Sequence[Any], max_row_bytes: int) -> None:
    texts = [array for array in arrays if array.type in (pa.string(), pa.binary())]
    others = 8 * (len(arrays) - len(texts))
    if sum(array.nbytes for array in texts) + others <= max_row_bytes:
        return  # the whole batch is no larger than a row may be
    if sum(pc.max(pc.binary_length(array)).as_py() for array in texts) + others > max_row_bytes:
        raise Unsure


def _sources(
    dataset: Dataset,
    own: tuple[str, Any] | None,
    columns: Mapping[str, tuple[str, Any]],
    source: str | None,
    count: int,
) -> tuple[Any, bool]:
    """The source of each row, and whether it is the same for all."""
    if source is not None:
        _check_sources([source])
        if own is not None and set(pc.unique(own[1]).to_pylist()) - {None, "", source}:
            raise Unsure
        return pa.repeat(pa.scalar(source, pa.string()), count), True
    given = [own, *(columns.get(name) for name in dataset.source_columns)]
    texts = [_named(*column) for column in given if column is not None]
    found = pc.coalesce(*texts, pa.scalar(UNKNOWN_SOURCE)) if texts else pa.repeat(UNKNOWN_SOURCE, count)
    distinct = pc.unique(found).to_pylist()
    _check_sources(distinct)
    return found, len(distinct) < 2


def _named(type_: str, array: Any) -> Any:
    """A column as sources, null where it names none."""
    if type_ not in ("string", "int", "bigint"):
        raise Unsure
    texts = array.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _check_sources(sources: Iterable[str]) -> None:
    try:
        for source in sources:
            check_source(source)
    except SourceInvalid as error:
        raise Unsure from error


def _grown(dataset: Dataset, types: Mapping[str, str]) -> Dataset:
    """The dataset with its columns widened to `types`, and the new ones in their order."""
    known = {column.name for column in dataset.columns}
    grown = tuple(
        column if column.type == types[column.name] else replace(column, type=types[column.name])
        for column in dataset.columns
    )
    added = tuple(Column(name, type_) for name, type_ in types.items() if name not in known)
    columns = (*grown, *added)
    return (
        dataset
        if columns == dataset.columns
        else replace(dataset, columns=columns, version=dataset.version + 1)
    )


def _table(dataset: Dataset, sources: Any, arrays: Mapping[str, Any]) -> Any:
    fields = [field for field in arrow_schema(dataset) if field.name == SOURCE or field.name in arrays]
    return pa.table([{**arrays, SOURCE: sources}[field.name] for field in fields], schema=pa.schema(fields))


def _grouped(table: Any) -> Any:
    """The rows of each source together. The sort is stable, a dictionary in order of first appearance."""
    order = pc.array_sort_indices(table[SOURCE].combine_chunks().dictionary_encode().indices)
    return table.take(order)


# One row after the other


def _accept_each(dataset: Dataset, batch: Batch, source: str | None, max_row_bytes: int) -> Accepted:
    judge = RowJudge(dataset, batch.announced)
    good: list[Mapping[str, Any]] = []
    refusals: list[Refusal] = []
    for index, row in enumerate(batch.rows()):
        made = judge.take(index, row, source, max_row_bytes)
        if isinstance(made, Refusal):
            refusals.append(made)
        else:
            good.append(made)
    grown = judge.result()
    present = set().union(*good) - {SOURCE}
    arrays = {
        column.name: pa.array([row.get(column.name) for row in good], arrow_type(column.type))
        for column in grown.columns
        if column.name in present
    }
    sources = pa.array([row[SOURCE] for row in good], pa.string())
    table = _grouped(_table(grown, sources, arrays))
    return Accepted(grown, table, refusals, batch.given([refusal.row for refusal in refusals]))


class RowJudge:
    """The columns as they were, and as the good rows so far need them.

    `announced` has the types of new columns whose values alone would not tell.
    """

    def __init__(self, dataset: Dataset, announced: Mapping[str, str] | None = None) -> None:
        self._dataset = dataset
        self._announced = announced or {}
        self._types = {column.name: column.type for column in dataset.columns}
        self._required = _required(dataset)
        self._spelled = {name.lower(): name for name in (*self._types, SOURCE)}

    def take(
        self, index: int, row: Mapping[str, Any], source: str | None, max_row_bytes: int
    ) -> dict[str, Any] | Refusal:
        """The row as it is stored, with its source, or why it is not."""
        if not isinstance(row, Mapping):
            return Refusal(index, "", type(row).__name__, "a mapping of column to value")
        made: dict[str, Any] = {}
        needed: dict[str, str] = {}
        size = 0
        for name, value in row.items():
            if name == SOURCE or value is None:
                continue
            found = self._place(index, name, value, needed)
            if isinstance(found, Refusal):
                return found
            type_, kept = found
            if type_ != self._types.get(name):
                needed[name] = type_
            made[name] = kept
            size += _bytes_of(kept)
        if size > max_row_bytes:
            limit = f"the limit of {max_row_bytes:,}"
            return Refusal(index, "", f"a row of {size:,} bytes", limit, RowTooLarge.kind)
        for name in self._required:
            if name not in made:
                return Refusal(index, name, "a missing value", "a required column")
        found_source = self._source(index, row, source)
        if isinstance(found_source, Refusal):
            return found_source
        made[SOURCE] = found_source
        self._types.update(needed)
        self._spelled.update((name.lower(), name) for name in needed)
        return made

    def _place(
        self, index: int, name: Any, value: Any, needed: Mapping[str, str]
    ) -> tuple[str, Any] | Refusal:
        """The type that the column must have for `value`, and `value` as it is kept."""
        have = self._types.get(name)
        if have is None and (refusal := self._misnamed(index, name, needed)):
            return refusal
        wanted = have or self._announced.get(name) or type_of(value)
        if wanted is None:
            return Refusal(index, name, _shown(value), "any column type")
        type_: str | None = wanted
        while type_ is not None:
            try:
                return type_, stored(value, type_)
            except Unfit:
                type_ = wider(type_)
        if (never := _unstorable(value, wanted)) is not None:
            return Refusal(index, name, never, wanted)
        return Refusal(index, name, _shown(value), wanted, SchemaBreaking.kind)

    def _misnamed(self, index: int, name: Any, needed: Mapping[str, str]) -> Refusal | None:
        try:
            lower = check_column_name(name).lower()
        except UsageError as error:
            return Refusal(index, str(name)[:80], error.message, "a dataset")
        for other in (self._spelled.get(lower), *needed):
            if other is not None and other != name and other.lower() == lower:
                return Refusal(index, name, "another spelling", f"the column {other!r}")
        return None

    def _source(self, index: int, row: Mapping[str, Any], source: str | None) -> str | Refusal:
        own = row.get(SOURCE)
        if own is not None and not isinstance(own, str):
            return Refusal(index, SOURCE, _shown(own), "string", SchemaBreaking.kind)
        if source is not None and own not in (None, "", source):
            return Refusal(index, SOURCE, repr(own)[:80], f"the source of the call, {source!r}")
        try:
            return check_source(source_of(self._dataset, row, source))
        except SourceInvalid as error:
            return Refusal(index, SOURCE, error.message, "a source", SourceInvalid.kind)

    def result(self) -> Dataset:
        return _grown(self._dataset, self._types)


def _required(dataset: Dataset) -> list[str]:
    return [column.name for column in dataset.columns if column.required and column.name != SOURCE]


def source_of(dataset: Dataset, row: Mapping[str, Any], source: str | None) -> str:
    """The argument of the call, else the first non-empty of the declared source columns, else `unknown`."""
    if source is not None:
        return source
    for name in (SOURCE, *dataset.source_columns):
        value = row.get(name)
        if value in (None, ""):
            continue
        if isinstance(value, str):
            return str.__str__(value)
        if type(value) is not int:
            raise SourceInvalid(f"source column {name!r} has {_shown(value)}", hint="texts or integers")
        return str(value)
    return UNKNOWN_SOURCE


def _bytes_of(kept: Any) -> int:
    if type(kept) is str:
        return len(kept) if kept.isascii() else len(kept.encode())
    return len(kept) if type(kept) is bytes else 8


def _unstorable(value: Any, type_: str) -> str | None:
    """What a value is that no change of the schema would keep; None where one might."""
    if isinstance(value, Unstorable):
        return value.text
    if is_too_deep(value):
        return TOO_DEEP
    return f"{value!s:.60}, {FINER}" if type_ == "timestamp" and is_finer(value) else None


def _shown(value: Any) -> str:
    if isinstance(value, Unstorable):
        return value.text
    if isinstance(value, datetime) and value.tzinfo is None:
        return f"datetime without a zone {value!s:.60}"
    return f"{type(value).__name__} {value!r:.60}"
