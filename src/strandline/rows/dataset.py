"""Datasets: their names, their columns, what a column keeps, what may be added or widened.

A dataset is a named set of rows with one schema that only grows. Its columns have one of these types:

    string, int, bigint, float, double, boolean, timestamp (UTC microseconds), date, decimal(p,s), binary,
    json

`json` holds values of open shape (mappings, lists), at most 100 levels deep, as canonical text; a text in
such a column is a JSON string, never JSON to be parsed. Nothing is coerced: a value is stored as it is, or
exactly in a wider type, or not at all. `strandline.rows.validate` judges whole rows by what is said here.
"""

import base64
import binascii
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import orjson

from strandline.errors import UsageError
from strandline.rows.values import MAX_DEPTH, is_too_deep

RESERVED_PREFIX: Final = "_sl_"
ICEBERG_RESERVED: Final = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
SOURCE: Final = "source"
UNKNOWN_SOURCE: Final = "unknown"
MAX_SOURCE_BYTES: Final = 240
MAX_DECIMAL_DIGITS: Final = 38
MOST_LISTED: Final = 100

_SIMPLE: Final = frozenset(
    {"string", "int", "bigint", "float", "double", "boolean", "timestamp", "date", "binary", "json"}
)
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_WIDER: Final = frozenset({("int", "bigint"), ("float", "double")})
_FINER: Final = re.compile(r"[.,]\d{6}0*[1-9]")  # a time finer than a microsecond, which Python would cut off
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EXACT: Final = Context(prec=2 * MAX_DECIMAL_DIGITS)  # the usual context rounds at 28 digits


class Refusal(NamedTuple):
    """Why a row is not acceptable. `kind` is the kind of the error that refuses its batch."""

    row: int
    column: str
    found: str
    wanted: str
    kind: str = "bad_rows"

    def __str__(self) -> str:
        where = f"row {self.row}, column {self.column!r}" if self.column else f"row {self.row}"
        return f"{where}: {self.found} does not fit {self.wanted}"


class SchemaBreaking(UsageError):
    """A change that is not an addition: another type, a new required column, a removal.

    Where rows ask for it, `refusals` has all of them, and the other facts are those of the first.
    """

    def __init__(
        self,
        dataset: str,
        column: str,
        found: str,
        wanted: str,
        *,
        row: int | None = None,
        refusals: Sequence[Refusal] = (),
    ) -> None:
        where = f"row {row}, " if row is not None else ""
        super().__init__(
            f"dataset {dataset!r}: {where}column {column!r} is {found}, which does not fit {wanted}"
            + listed(refusals[1:]),
            hint="columns may be added and widened (int to bigint, float to double, more decimal digits); "
            "for anything else start another dataset",
        )
        self.dataset, self.column, self.found, self.wanted, self.row = dataset, column, found, wanted, row
        self.refusals = tuple(refusals)


class SourceInvalid(UsageError):
    """A source that could never land. Where rows bring it, `refusals` has all of them."""

    def __init__(self, message: str, *, hint: str | None = None, refusals: Sequence["Refusal"] = ()) -> None:
        super().__init__(message, hint=hint)
        self.refusals = tuple(refusals)


def listed(refusals: Sequence[Refusal]) -> str:
    """Refusals as lines of a message, the first 100 of them."""
    lines = [str(refusal) for refusal in refusals[:MOST_LISTED]]
    if len(refusals) > len(lines):
        lines.append(f"and {len(refusals) - len(lines):,} more")
    return "".join(f"\n  {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class Column:
    """A name, a type, and whether each row must have it."""

    name: str
    type: str
    required: bool = False

    def __post_init__(self) -> None:
        check_column_name(self.name)
        check_type(self.name, self.type)


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes two rows of a strand the same: the `key` column, or, where it is null, the `legacy` columns
    as text with `join` between them, which rebuild the same key."""

    key: str
    legacy: tuple[str, ...] = ()
    join: str = "#"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A name and its columns, in the order in which they came. `version` grows by one with each change.

    `collapse` makes rows of one strand with equal row ids one row; `dedupe_on_flush` stops repeats at the
    door. `seq_bucket` and `source_buckets` are the table's partitioning and never change.
    """

    name: str
    columns: tuple[Column, ...] = ()
    version: int = 0
    source_columns: tuple[str, ...] = ()
    identity: Identity | None = None
    collapse: bool = False
    dedupe_on_flush: bool = False
    seq_bucket: int = 1_000_000
    source_buckets: int = 0

    def __post_init__(self) -> None:
        check_dataset_name(self.name)
        names = [column.name.lower() for column in self.columns]
        if len(set(names)) != len(names):
            raise UsageError(
                f"dataset {self.name!r} names a column twice", hint="give each its own name, case aside"
            )

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True, order=True)
class Strand:
    """One dataset with one source: an ordered sequence of rows, numbered densely."""

    dataset: str
    source: str

    @property
    def ledger(self) -> str:
        return f"strand/{self.dataset}/{encode_source(self.source)}"


# Names


def check_dataset_name(name: object) -> str:
    if type(name) is str and _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"dataset {name!r:.80} is no name",
        hint="a letter, then letters, digits, '_', '-' or '.', at most 128 characters",
    )


def check_column_name(name: object) -> str:
    if type(name) is not str or not name or "\0" in name or len(name.encode(errors="replace")) > 255:
        raise UsageError(f"column {name!r:.80} is no name", hint="a text of 1 to 255 bytes")
    if name.lower().startswith(RESERVED_PREFIX) or name.lower() in ICEBERG_RESERVED:
        raise UsageError(f"column {name!r} is reserved", hint="choose another name")
    return name


def check_source(source: object) -> str:
    if type(source) is not str or not source:
        raise SourceInvalid(
            f"source {source!r:.80} is empty or no text", hint="name where the rows come from"
        )
    if "\0" in source or not _is_utf8(source):
        raise SourceInvalid(
            f"source {source!r:.80} has a character that cannot be stored", hint="leave it out"
        )
    if len(encode_source(source)) > MAX_SOURCE_BYTES:
        raise SourceInvalid(
            f"source {source[:40]!r}… has over {MAX_SOURCE_BYTES} bytes when encoded",
            hint="use a shorter name",
        )
    return source


@lru_cache(maxsize=8_192)
def encode_source(source: str) -> str:
    """A source as it stands in paths, keys and stream names. Different sources never give one text."""
    return (
        quote(source, safe="-_.~").replace(".", "%2E")
        if source.strip(".") == ""
        else quote(source, safe="-_.~")
    )


@lru_cache(maxsize=8_192)
def decode_source(text: str) -> str:
    return unquote(text)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Types


def check_type(column: str, type_: object) -> str:
    if type(type_) is str:
        if type_ in _SIMPLE:
            return type_
        if (
            (match := _DECIMAL.fullmatch(type_))
            and 1 <= int(match[1]) <= MAX_DECIMAL_DIGITS
            and int(match[2]) <= int(match[1])
        ):
            return type_
    raise UsageError(
        f"column {column!r} has the unknown type {type_!r:.80}",
        hint=f"one of {', '.join(sorted(_SIMPLE))}, decimal(p,s)",
    )


def digits(type_: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type, None for any other."""
    match = _DECIMAL.fullmatch(type_)
    return (int(match[1]), int(match[2])) if match else None


def type_of(value: object) -> str | None:
    """The type that a column takes from its first value; None where it says nothing or cannot be stored."""
    kind = type(value)
    if kind is bool:
        return "boolean"
    if kind is int:
        return "bigint" if value in _INT64 else None
    if isinstance(value, Decimal):
        return _decimal_type(value)
    if isinstance(value, datetime):
        return "timestamp" if value.tzinfo is not None else None
    if isinstance(value, str):
        return "string"
    simple = {float: "double", bytes: "binary", dict: "json", list: "json", date: "date"}
    return simple.get(kind)


def _decimal_type(value: Decimal) -> str | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        return None  # NaN and infinities
    scale = max(-exponent, 0)
    whole = len(value.as_tuple().digits) + max(exponent, 0)
    return f"decimal({MAX_DECIMAL_DIGITS},{scale})" if max(whole, scale) <= MAX_DECIMAL_DIGITS else None


def widened(have: str, wanted: str) -> str | None:
    """The type that safely holds both, None if there is none. It is never another scale, never text."""
    if have == wanted or (wanted, have) in _WIDER:
        return have
    if (have, wanted) in _WIDER:
        return wanted
    mine, theirs = digits(have), digits(wanted)
    if mine and theirs and mine[1] == theirs[1]:
        return have if mine[0] >= theirs[0] else wanted
    return None


def wider(type_: str) -> str | None:
    """What a column of `type_` may safely become to hold one more value, None if nothing."""
    if mine := digits(type_):
        return f"decimal({MAX_DECIMAL_DIGITS},{mine[1]})" if mine[0] < MAX_DECIMAL_DIGITS else None
    return dict(_WIDER).get(type_)


class Unfit(Exception):
    """A value that a type does not hold as it is."""


def stored(value: Any, type_: str) -> Any:
    """`value` as a column of `type_` keeps it: itself, or what its text form stands for. Raises Unfit."""
    kind = type(value)
    if type_ == "json":
        return _json_text(value)
    if type_ in ("int", "bigint"):
        if kind is int and value in (_INT32 if type_ == "int" else _INT64):
            return value
    elif type_ in ("float", "double"):
        return _stored_float(value, type_)
    elif type_ == "string":
        if isinstance(value, str) and _is_utf8(value):
            return str.__str__(value)  # of an enumeration's member, say: its text
    elif type_ == "boolean":
        if kind is bool:
            return value
    elif type_ == "binary":
        return value if kind is bytes else _stored_binary(value)
    elif type_ == "timestamp":
        return _stored_timestamp(value)
    elif type_ == "date":
        return _stored_date(value)
    else:
        return _stored_decimal(value, type_)
    raise Unfit


def _json_text(value: Any) -> str:
    """Canonical, so that equal values hash alike: sorted keys, no spaces."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise Unfit from error
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and is_too_deep(value):
        raise Unfit
    if orjson.loads(text) != value:  # orjson writes NaN as null, a tuple as a list, a time as text
        raise Unfit
    return text.decode()


def _stored_float(value: Any, type_: str) -> float:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        value = float(value)
    if type(value) is int and abs(value) <= 2**1023 and int(float(value)) == value:
        value = float(value)
    if type(value) is not float:
        raise Unfit
    if type_ == "float" and math.isfinite(value) and _float32(value) != value:
        raise Unfit
    return value


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf


def _stored_binary(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Unfit
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unfit from error


def is_finer(value: Any) -> bool:
    """Whether it is a time finer than a microsecond: a text, or one of pandas', which pass for datetimes."""
    if not isinstance(value, str):
        return bool(getattr(value, "nanosecond", None))
    try:
        return bool(_FINER.search(value) and datetime.fromisoformat(value))
    except ValueError:
        return False


def _stored_timestamp(value: Any) -> datetime:
    try:
        if is_finer(value):
            raise Unfit
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, datetime) or value.utcoffset() is None:
            raise Unfit
        return value.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Unfit from error


def _stored_date(value: Any) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise Unfit from error
    if type(value) is not date:
        raise Unfit
    return value


def _stored_decimal(value: Any, type_: str) -> Decimal:
    precision, scale = digits(type_) or (0, 0)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        try:
            value = Decimal(value)
        except ArithmeticError as error:
            raise Unfit from error
    if type(value) is int:
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise Unfit
    if value and value.adjusted() + scale >= precision:
        raise Unfit
    exact = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT) if value else Decimal((0, (0,), -scale))
    if exact != value:
        raise Unfit
    return exact


# Growth


def merged(have: Dataset, declared: Dataset) -> Dataset:
    """`have` grown by what `declared` adds; anything but an addition is SchemaBreaking."""
    columns = list(have.columns)
    for column in declared.columns:
        known = have.column(column.name)
        if known is None:
            if column.required and have.columns:
                raise SchemaBreaking(have.name, column.name, "new and required", "rows that lack it")
            columns.append(column)
            continue
        wider = widened(known.type, column.type)
        if wider is None:
            raise SchemaBreaking(have.name, column.name, column.type, known.type)
        if column.required and not known.required:
            raise SchemaBreaking(have.name, column.name, "required", "rows that may lack it")
        columns[columns.index(known)] = Column(known.name, wider, known.required and column.required)
    if tuple(columns) == have.columns:
        return have
    return replace(have, columns=tuple(columns), version=have.version + 1)
