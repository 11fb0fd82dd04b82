"""Rows as JSON lines, the same text for the same rows each time.

    {"n":9007199254740993,"at":"2026-03-01T10:00:00.000000Z","price":"1.50","raw":"AAE=","rate":"NaN"}

Keys stand in the order of the dataset's columns, then `source`, then `_sl_row_id`; a null has none. By type:

    string                 a JSON string
    int, bigint            an exact JSON integer
    float, double          the shortest JSON number that a double reads back; "NaN", "Infinity", "-Infinity"
    boolean                true, false
    timestamp              "2026-03-01T10:00:00.000000Z", always with microseconds
    date                   "2026-03-01"
    decimal(p,s)           "1.50", always with s digits behind the point
    binary                 base64
    json                   the value itself

`strandline.rows.validate.accept` reads each back as what it was, by the declared type. Columns are formatted
whole.
"""

import base64
from functools import reduce
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from strandline.rows.columns import arrow_type
from strandline.rows.dataset import SOURCE, Dataset

ROW_ID: Final = "_sl_row_id"

_ESCAPED: Final = r'["\\\x00-\x1f]'
_ESCAPES: Final = b'"\\' + bytes(range(0x20))  # the same, as bytes
_QUOTE: Final = '"'


def ndjson_lines(dataset: Dataset, batch: pa.RecordBatch, *, with_source: bool, with_row_id: bool) -> bytes:
    """The rows of a batch, one line each, every line with its end."""
    return text_of(lines_of(dataset, batch, with_source=with_source, with_row_id=with_row_id))


def lines_of(dataset: Dataset, batch: pa.RecordBatch, *, with_source: bool, with_row_id: bool) -> Any:
    """As ndjson_lines, an Arrow array of lines."""
    types = {column.name: column.type for column in dataset.columns if column.name != SOURCE}
    if with_source:
        types[SOURCE] = "string"
    if with_row_id:
        types[ROW_ID] = "string"
    if not types:
        return pa.array(["{}\n"] * batch.num_rows, pa.string())
    members = [_member(name, type_, batch.column(name)) for name, type_ in types.items()]
    if not any(texts.null_count for _, texts, _ in members):
        return _joined(members)
    apart = [pc.binary_join_element_wise(*member, "") for member in members]
    inside = pc.binary_join_element_wise(*_with_empty(apart), ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inside, "}\n", "")


def _joined(members: list[tuple[str, Any, str]]) -> Any:
    """Lines of rows that have every member, in one pass: all between two values is one text."""
    pieces: list[Any] = []
    between = "{"
    for before, texts, after in members:
        pieces += [between + before, texts]
        between = after + ","
    return pc.binary_join_element_wise(*pieces, between.removesuffix(",") + "}\n", "")


def _with_empty(members: list[Any]) -> list[Any]:
    """The members, one of them an empty text in rows that have none: Arrow's join leaves such rows out."""
    if any(each.null_count == 0 for each in members):
        return members
    is_empty = reduce(pc.and_, (each.is_null() for each in members))
    return [pc.if_else(is_empty, "", members[0]), *members[1:]]


def text_of(lines: Any) -> bytes:
    """Lines joined: their bytes stand in one piece of memory already."""
    _, offsets, data = lines.buffers()
    if not len(lines) or data is None:
        return b""
    places = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[places[lines.offset] : places[lines.offset + len(lines)]])


def _member(name: str, type_: str, column: Any) -> tuple[str, Any, str]:
    """`"name":value` for each row: what stands before the values, they, what stands behind. A null has
    none."""
    key = orjson.dumps(name).decode() + ":"
    wanted = arrow_type(type_)
    array = column if column.type == wanted else column.cast(wanted)
    before, texts, after = _texts(array, type_)
    return key + before, texts, after


def _texts(array: Any, type_: str) -> tuple[str, Any, str]:
    """What stands before each value, the values, what stands behind them."""
    if type_ in ("int", "bigint", "boolean"):
        return "", array.cast(pa.string()), ""
    if type_ == "json":
        return "", array, ""
    if type_ in ("float", "double"):
        return "", _float_texts(array), ""
    if type_ == "string":
        return _string_texts(array)
    if type_ == "timestamp":
        return _QUOTE, pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1), _QUOTE
    if type_ == "date":
        return _QUOTE, array.cast(pa.string()), _QUOTE
    if type_ == "binary":
        encoded = [None if value is None else base64.b64encode(value) for value in array.to_pylist()]
        return _QUOTE, pa.array(encoded, pa.string()), _QUOTE
    return _QUOTE, _decimal_texts(array), _QUOTE


def _string_texts(array: Any) -> tuple[str, Any, str]:
    text = text_of(array)
    if len(text.translate(None, _ESCAPES)) == len(text):  # most have none, and this is the fastest look
        return _QUOTE, array, _QUOTE
    is_escaped = pc.fill_null(pc.match_substring_regex(array, _ESCAPED), fill_value=False)
    escaped = [orjson.dumps(text)[1:-1] for text in array.filter(is_escaped).to_pylist()]
    return _QUOTE, pc.replace_with_mask(array, is_escaped, pa.array(escaped, pa.string())), _QUOTE


def _float_texts(array: Any) -> Any:
    """A float is written as the double that equals it: its own shortest text would be another number."""
    texts = orjson.dumps(array.cast(pa.float64()).to_pylist())[1:-1].split(b",") if len(array) else []
    numbers = pc.if_else(array.is_valid(), pa.array(texts, pa.string()), None)
    is_finite = pc.is_finite(array)
    if pc.all(is_finite).as_py() is not False:
        return numbers
    infinities = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    others = pc.if_else(pc.is_nan(array), '"NaN"', infinities)
    return pc.if_else(is_finite, numbers, others)


def _decimal_texts(array: Any) -> Any:
    texts = array.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    plain = [None if value is None else format(value, "f") for value in array.to_pylist()]
    return pa.array(plain, pa.string())
