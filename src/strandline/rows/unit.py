"""A unit on the wire: rows (lo, hi] of one strand of another node, as its sender and its receiver see them.

    POST {url}/v1/ingest/{signal}                  the signal names the dataset where the rows go
    Authorization: Bearer …
    Content-Type: application/x-ndjson             one row a line, each line ended
    Content-Encoding: gzip                         or zstd, or none
    X-Strandline-Unit-Id: 9f2c…                    32 hex digits, made of what names the rows: `UnitHead.id`
    X-Strandline-Origin: 0f3c…                     the id of the sender's store, 32 hex digits
    X-Strandline-Node: laptop                      the sender's name, percent-encoded
    X-Strandline-Instance: centre                  the sink that sends, percent-encoded
    X-Strandline-Epoch: 0
    X-Strandline-Dataset: logs                     as the sender calls it
    X-Strandline-Source: web%2F1                   percent-encoded
    X-Strandline-Range: 100-200                    lo-hi: seqs 101 to 200
    X-Strandline-Rows: 98                          lines of the body; seqs that were removed have none
    X-Strandline-Sha256: 5a1e…                     of the body before it was compressed, 64 hex digits
    X-Strandline-Schema: {"at":"timestamp",…}      column to type, of the columns in the body; ASCII JSON
    X-Strandline-Intent: 77ab…                     the delivery that the unit is a part of, percent-encoded
    X-Strandline-Through: 100                      earlier deliveries may have gone up to this seq

The last two may be missing. They show the receiver a sender that was put back from a copy: the receiver has
rows above `Through` that came with another intent.

A line is a JSON object, in which a value has the form of its column's type, whatever the value:

    int, bigint    an integer of any size, exact      timestamp    "2026-01-31T12:00:00.000001Z"
    float, double  a number, "NaN", "Infinity",       date         "2026-01-31"
                   "-Infinity"                        decimal      "12.50"
    boolean        true, false                        binary       base64
    string         a text                             json         the value itself

A null is left out or null. `source`, if a line has it, is that of the header; `_sl_row_id` may be there.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import orjson

from strandline.base.ranges import Range
from strandline.errors import UsageError
from strandline.rows.dataset import check_dataset_name, check_type

INGEST: Final = "/v1/ingest"
RANGES: Final = "/v1/ranges"
MIME: Final = "application/x-ndjson"
PREFIX: Final = "X-Strandline-"
UNIT_ID: Final = f"{PREFIX}Unit-Id"
ORIGIN: Final = f"{PREFIX}Origin"
NODE: Final = f"{PREFIX}Node"
INSTANCE: Final = f"{PREFIX}Instance"
EPOCH: Final = f"{PREFIX}Epoch"
DATASET: Final = f"{PREFIX}Dataset"
SOURCE: Final = f"{PREFIX}Source"
RANGE: Final = f"{PREFIX}Range"
ROWS: Final = f"{PREFIX}Rows"
SHA256: Final = f"{PREFIX}Sha256"
SCHEMA: Final = f"{PREFIX}Schema"
INTENT: Final = f"{PREFIX}Intent"
THROUGH: Final = f"{PREFIX}Through"
HEADERS: Final = (UNIT_ID, ORIGIN, NODE, INSTANCE, EPOCH, DATASET, SOURCE, RANGE, ROWS, SHA256, SCHEMA)
ROW_ID: Final = "_sl_row_id"

_MAX_SEQ: Final = 2**63 - 1
_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_SEQ: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_RANGE: Final = re.compile(r"(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})")
_ENCODED: Final = re.compile(r"(?:%[0-9A-Fa-f]{2}|[!-$&-~])+")


class UnitInvalid(UsageError):
    """A header of a unit that is missing, is there twice, or says nothing that could be."""

    def __init__(self, header: str, found: str, wanted: str) -> None:
        super().__init__(f"{header}: {found}", hint=f"wanted: {wanted}")
        self.header = header


@dataclass(frozen=True, slots=True)
class UnitHead:
    """What the headers say. `rows` may be fewer than the range is long, never more."""

    origin: str
    epoch: int
    dataset: str
    source: str
    range: Range
    rows: int
    sha256: str
    node: str
    instance: str
    schema: Mapping[str, str]
    intent: str = ""
    through: int = 0

    @property
    def id(self) -> str:
        """Of the range, not of the body: what is sent again is known, however it was cut or written."""
        parts = (self.origin, self.epoch, self.dataset, self.source, self.range.lo, self.range.hi)
        return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def unit_headers(unit: UnitHead) -> dict[str, str]:
    """What the sender writes."""
    life = {INTENT: encoded(unit.intent), THROUGH: str(unit.through)} if unit.intent else {}
    return {
        UNIT_ID: unit.id,
        ORIGIN: unit.origin,
        NODE: encoded(unit.node),
        INSTANCE: encoded(unit.instance),
        EPOCH: str(unit.epoch),
        DATASET: unit.dataset,
        SOURCE: encoded(unit.source),
        RANGE: f"{unit.range.lo}-{unit.range.hi}",
        ROWS: str(unit.rows),
        SHA256: unit.sha256,
        SCHEMA: _ascii_json(unit.schema),
        **life,
    }


def encoded(text: str) -> str:
    """A text as it stands in a header."""
    return quote(text, safe="-_.~")


def _ascii_json(schema: Mapping[str, str]) -> str:
    text = orjson.dumps(dict(schema)).decode()
    return "".join(each if " " <= each <= "~" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def read_unit(values_of: Callable[[str], Sequence[str]]) -> UnitHead:
    """What the receiver reads; `values_of` gives all values of a header. Raises UnitInvalid."""

    def one(name: str) -> str:
        values = values_of(name)
        if len(values) != 1:
            raise UnitInvalid(name, "it is missing" if not values else "it is there twice", "it once")
        return values[0]

    lo, hi = _bounds(one(RANGE))
    rows = int(_matched(_NUMBER, ROWS, one(ROWS), "a number, 0 or more"))
    if rows > hi - lo:
        raise UnitInvalid(ROWS, f"{rows:,} rows in a range of {hi - lo:,} seqs", "no more rows than seqs")
    unit = UnitHead(
        check_origin(one(ORIGIN)),
        read_epoch(one(EPOCH)),
        _dataset(one(DATASET)),
        decoded(SOURCE, one(SOURCE)),
        Range(lo, hi),
        rows,
        _matched(_HEX64, SHA256, one(SHA256), "64 hex digits, lower case"),
        decoded(NODE, one(NODE)),
        decoded(INSTANCE, one(INSTANCE)),
        _schema(one(SCHEMA)),
        *_life(values_of),
    )
    if (given := one(UNIT_ID)) != unit.id:
        wanted = f"the first 32 hex digits of SHA-256 over what names the rows, {unit.id}"
        raise UnitInvalid(UNIT_ID, f"{given!r:.50} is the id of another unit", wanted)
    return unit


def _life(values_of: Callable[[str], Sequence[str]]) -> tuple[str, int]:
    """The intent of a unit, and what its sender has sent before; empty if the sender tells neither."""
    intents, throughs = values_of(INTENT), values_of(THROUGH)
    if not intents and not throughs:
        return "", 0
    if len(intents) != 1 or len(throughs) != 1:
        raise UnitInvalid(
            INTENT, f"it comes {len(intents)} times, and {THROUGH} {len(throughs)} times", "both once"
        )
    return (
        decoded(INTENT, intents[0]),
        int(_matched(_SEQ, THROUGH, throughs[0], "a seq, 0 or more")),
    )


def decoded(name: str, text: str) -> str:
    """The text that `encoded` wrote. Raises UnitInvalid."""
    wanted = "a percent-encoded text in UTF-8"
    _matched(_ENCODED, name, text, wanted)
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise UnitInvalid(name, f"{text!r:.80} is no UTF-8", wanted) from error


def read_epoch(text: str) -> int:
    return int(_matched(_NUMBER, EPOCH, text, "a number, 0 or more"))


def check_origin(text: str) -> str:
    return _matched(_HEX32, ORIGIN, text, "32 hex digits, lower case")


def _matched(pattern: re.Pattern[str], name: str, text: str, wanted: str) -> str:
    if not pattern.fullmatch(text):
        raise UnitInvalid(name, f"{text!r:.80}", wanted)
    return text


def _bounds(text: str) -> tuple[int, int]:
    wanted = "lo-hi with 0 <= lo < hi, 64-bit numbers"
    if (match := _RANGE.fullmatch(text)) is None or not int(match[1]) < int(match[2]) <= _MAX_SEQ:
        raise UnitInvalid(RANGE, f"{text!r:.80}", wanted)
    return int(match[1]), int(match[2])


def _dataset(text: str) -> str:
    try:
        return check_dataset_name(text)
    except UsageError as error:
        raise UnitInvalid(DATASET, error.message, error.hint or "") from error


def _schema(text: str) -> dict[str, str]:
    wanted = 'a JSON object of column to type, such as {"at":"timestamp"}'
    try:
        found: Any = orjson.loads(text.encode("ascii"))
        if type(found) is not dict:
            raise UnitInvalid(SCHEMA, "it is no JSON object", wanted)
        return {name: check_type(name, type_) for name, type_ in found.items()}
    except UnitInvalid:
        raise
    except UsageError as error:
        raise UnitInvalid(SCHEMA, error.message, error.hint or wanted) from error
    except (UnicodeEncodeError, orjson.JSONDecodeError) as error:
        raise UnitInvalid(SCHEMA, "it is no JSON in ASCII", wanted) from error
