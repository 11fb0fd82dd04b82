"""Columns of a batch, judged whole: the quick way to what `dataset.stored` says value by value.

A column is a list of Python values or an Arrow array. It comes back as an Arrow array in the type of its
dataset's column, or Unsure is raised: some value may not fit, and the rows have to be judged one by one.
Whatever is accepted here is what `stored` keeps of each value; nothing else may be.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from operator import attrgetter, countOf
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as at

from strandline.rows.dataset import Unfit, digits, stored, type_of, wider
from strandline.rows.values import FINER, Unstorable

TIMESTAMP: Final = pa.timestamp("us", "UTC")

_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP,
    "date": pa.date32(),
    "binary": pa.binary(),
    "json": pa.string(),
}
# What Arrow itself takes for a type exactly as `stored` does; integers in a double up to 2**53.
_PLAIN: Final = {
    "int": frozenset({int}),
    "bigint": frozenset({int}),
    "double": frozenset({float, int}),
    "boolean": frozenset({bool}),
    "date": frozenset({date}),
    "binary": frozenset({bytes}),
}
_ZONES: Final = frozenset({timezone, ZoneInfo})  # Arrow reads their offsets as Python does
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_FIRST_DAY: Final = (date.min - _EPOCH.date()).days
_LAST_DAY: Final = (date.max - _EPOCH.date()).days
_MS_A_DAY: Final = 86_400_000
_NO_VALUE: Final = (ValueError, KeyError, OverflowError, pa.ArrowException)  # no UTF-8, a map key twice, …
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class Unsure(Exception):
    """Perhaps not every value fits."""


def arrow_type(type_: str) -> Any:
    """The Arrow type of a column's values."""
    precision = digits(type_)
    return pa.decimal128(*precision) if precision else _ARROW[type_]


# Python values


def column_of_values(values: Sequence[Any], declared: str | None) -> tuple[str, Any] | None:
    """The column's type, grown if need be, and its array; None if it has nothing but nulls."""
    first = next((value for value in values if value is not None), None)
    if first is None:
        return None
    type_ = declared or type_of(first)
    if isinstance(first, str) and type_ in ("string", "timestamp"):
        texts = _quick_texts(values, arrow_type(type_))
        if texts is not None:
            return type_, texts
    kinds = _kinds(values)
    while type_ is not None:
        array = _array(values, kinds, type_)
        if array is not None:
            return type_, array
        type_ = wider(type_)
    raise Unsure


def _quick_texts(values: Sequence[Any], target: Any) -> Any:
    """Texts for a column of texts or times; None if something is no text, or no such time."""
    try:
        texts = pa.array(values)
        if texts.type == pa.string():
            return texts if target == texts.type else _texts_to_times(texts, target)
    except (Unsure, pa.ArrowException, OverflowError, ValueError):
        pass  # perhaps a value among them that Arrow has no type for: it is looked at by itself
    return None


def _kinds(values: Sequence[Any]) -> frozenset[type]:
    first = type(values[0])
    if countOf(map(type, values), first) == len(values):  # by identity: sooner than a set, which hashes
        return frozenset({first} - {type(None)})
    return frozenset(map(type, values)) - {type(None)}


def _array(values: Sequence[Any], kinds: frozenset[type], type_: str) -> Any:
    """The array, or None if a value does not fit."""
    try:
        if type_ == "timestamp":
            return _quick_timestamps(values, kinds)
        if kinds <= _PLAIN.get(type_, frozenset()):
            return pa.array(values, arrow_type(type_))
    except (Unsure, pa.ArrowInvalid, OverflowError, ValueError):
        pass  # a value that Arrow does not take this way may fit all the same
    try:
        kept = [None if value is None else stored(value, type_) for value in values]
    except Unfit:
        return None
    return pa.array(kept, arrow_type(type_))


def _quick_timestamps(values: Sequence[Any], kinds: frozenset[type]) -> Any:
    if kinds != {datetime} or not set(map(type, map(attrgetter("tzinfo"), filter(None, values)))) <= _ZONES:
        raise Unsure
    return _bounded(pa.array(values, TIMESTAMP), pa.int64(), _FIRST_US, _LAST_US)


def _bounded(array: Any, integers: Any, first: int, last: int) -> Any:
    """The array, if its times are such as Python and JSON can write: of the years 1 to 9999."""
    ends = pc.min_max(array.cast(integers)).as_py()
    if ends["min"] is not None and not first <= ends["min"] <= ends["max"] <= last:
        raise Unsure
    return array


# Arrow arrays


def column_of_arrow(array: Any, declared: str | None) -> tuple[str, Any] | None:
    """As column_of_values, of a decoded array. A new column takes the type that the array announces."""
    if array.null_count == len(array):
        return None
    announced, plain = _plain(array)
    if declared is None or declared == announced:
        return announced, plain
    try:
        return _cast(plain, announced, declared)
    except Unsure:
        return column_of_values(python_values(array), declared)


def _cast(array: Any, announced: str, declared: str) -> tuple[str, Any]:
    type_: str | None = declared
    while type_ is not None:
        cast = _CASTS.get((announced, type_))
        if cast is None and digits(announced) and digits(type_):
            cast = _exactly
        if cast is None:
            break
        converted = cast(array, arrow_type(type_))
        if converted is not None:
            return type_, converted
        type_ = wider(type_)
    raise Unsure


def announced_type(type_: Any) -> str | None:
    """The type of the column that takes all values of this Arrow type; None where each must be looked at."""
    for is_kind, name in _ANNOUNCED:
        if is_kind(type_):
            return name
    if at.is_timestamp(type_):
        return "timestamp" if type_.tz else None
    if at.is_decimal(type_) and type_.scale >= 0 and type_.precision <= 38:
        return f"decimal({type_.precision},{type_.scale})"
    return None


_ANNOUNCED: Final[Sequence[tuple[Callable[[Any], bool], str]]] = (
    (at.is_string, "string"),
    (at.is_large_string, "string"),
    (at.is_string_view, "string"),
    (at.is_int64, "bigint"),
    (at.is_uint32, "bigint"),
    (at.is_uint64, "bigint"),
    (at.is_integer, "int"),
    (at.is_float64, "double"),
    (at.is_floating, "float"),
    (at.is_boolean, "boolean"),
    (at.is_date, "date"),
    (at.is_binary, "binary"),
    (at.is_large_binary, "binary"),
    (at.is_binary_view, "binary"),
    (at.is_fixed_size_binary, "binary"),
    (at.is_nested, "json"),
)


def decoded(array: Any) -> Any:
    """Without dictionaries, run ends and extensions: ways to write values, which also hide nulls."""
    while True:
        if at.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        elif at.is_run_end_encoded(array.type):
            array = pa.chunked_array(
                [pc.run_end_decode(chunk) for chunk in array.chunks], array.type.value_type
            )
        elif isinstance(array.type, pa.BaseExtensionType):
            array = pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
        else:
            return array


def _plain(array: Any) -> tuple[str, Any]:
    """The announced type, and the array in it."""
    type_ = announced_type(array.type)
    if type_ is None:
        raise Unsure
    if type_ == "json":
        found = column_of_values(python_values(array), "json")
        assert found is not None
        return found
    try:
        plain = array if array.type == arrow_type(type_) else array.cast(arrow_type(type_))
        if type_ == "string":
            plain.validate(full=True)  # a producer in another language may have put bytes that are no text
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Unsure from error
    if type_ == "timestamp":
        return type_, _bounded(plain, pa.int64(), _FIRST_US, _LAST_US)
    if type_ == "date":
        return type_, _bounded(plain, pa.int32(), _FIRST_DAY, _LAST_DAY)
    return type_, plain


# Each gives the array in the target type, None where a value certainly does not fit it, or is Unsure.


def _exactly(array: Any, target: Any) -> Any:
    try:
        return array.cast(target)
    except pa.ArrowInvalid:
        return None


def _perhaps(array: Any, target: Any) -> Any:
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise Unsure from error


def _narrowed(array: Any, target: Any) -> Any:
    narrow = array.cast(target)
    is_same = pc.or_(pc.equal(narrow.cast(array.type), array), pc.is_nan(array))
    return narrow if pc.all(is_same).as_py() is not False else None


def _texts_to_times(array: Any, target: Any) -> Any:
    return _bounded(_perhaps(array, target), pa.int64(), _FIRST_US, _LAST_US)


_CASTS: Final[dict[tuple[str, str], Callable[[Any, Any], Any]]] = {
    ("int", "bigint"): _exactly,
    ("bigint", "int"): _exactly,
    ("bigint", "bigint"): _exactly,
    ("float", "double"): _exactly,
    ("double", "double"): _exactly,
    ("double", "float"): _narrowed,
    ("int", "double"): _perhaps,
    ("bigint", "double"): _perhaps,
    ("int", "float"): _perhaps,
    ("bigint", "float"): _perhaps,
    ("string", "timestamp"): _texts_to_times,
}


# Arrow values, one by one


def python_values(array: Any) -> list[Any]:
    """The values of a decoded array as `stored` judges them; Unstorable where Python has no such value."""
    type_ = array.type
    if at.is_timestamp(type_):
        return [_instant(value, type_) for value in array.cast(pa.int64()).to_pylist()]
    if at.is_date32(type_):
        return [_day(value, 1) for value in array.cast(pa.int32()).to_pylist()]
    if at.is_date64(type_):
        return [_day(value, _MS_A_DAY) for value in array.cast(pa.int64()).to_pylist()]
    try:
        found: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    except _NO_VALUE:
        found = [_python_value(scalar) for chunk in array.chunks for scalar in chunk]
    return found


def _instant(value: int | None, type_: Any) -> Any:
    if value is None:
        return None
    microseconds, rest = divmod(value * 1_000_000, _PER_SECOND[type_.unit])
    try:
        at_utc = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return Unstorable(f"{type_} {value} beyond the year 9999")
    if rest:
        fraction = value % _PER_SECOND[type_.unit]
        return Unstorable(f"{at_utc:%Y-%m-%dT%H:%M:%S}.{fraction:09d}{'Z' if type_.tz else ''}, {FINER}")
    return at_utc if type_.tz else at_utc.replace(tzinfo=None)


def _day(value: int | None, per_day: int) -> Any:
    if value is None:
        return None
    days, rest = divmod(value, per_day)
    try:
        found = _EPOCH.date() + timedelta(days=days)
    except OverflowError:
        return Unstorable(f"day {days} beyond the year 9999")
    return Unstorable(f"date64 {value} inside a day") if rest else found


def _python_value(scalar: Any) -> Any:
    try:
        return scalar.as_py(maps_as_pydicts="strict")
    except _NO_VALUE:
        return Unstorable(f"a value of Arrow's {scalar.type} that Python cannot read")
