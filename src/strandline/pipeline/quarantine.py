"""Rows that could not be stored, kept as they were given, with the reason, until someone retries or drops
them.

`quarantine/<dataset>` holds, in the transaction that numbered the good rows of the same batch:

    quarantined  {rows: BlobRef, count, reasons: [text, …], source}    the entry; its seq is its name
    retried      {entry}                                               appended again
    dropped      {entry, count, reason}

The rows are NDJSON in the content store. What JSON lacks is a mapping of one key: {"$bytes": base64},
{"$datetime": ISO}, {"$date": ISO}, {"$decimal": text}, {"$float": "nan"}, {"$int": text}, {"$items": [[key,
value], …]}, and {"$repr": text} for what cannot be given back.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import orjson

from strandline.content import ContentStore
from strandline.errors import NotFoundError
from strandline.persist import Append, AtomicBackend, BlobRef, blob_fetch, blob_store

MIME: Final = "application/x-ndjson"
SHOWN_REASONS: Final = 100


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Rows of one batch that were refused together."""

    dataset: str
    entry: int
    at: int
    count: int
    reasons: tuple[str, ...]
    source: str | None
    rows: BlobRef


class NotGivenBack:
    """A value that could not be kept, only shown. No column takes it, so its row stays in quarantine."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NotGivenBack) and other.shown == self.shown

    def __hash__(self) -> int:
        return hash(self.shown)


def quarantine_stream(dataset: str) -> str:
    return f"quarantine/{dataset}"


def quarantined(
    content: ContentStore,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    reasons: Sequence[str],
    source: str | None,
    at: int,
) -> Append:
    """Store the rows and give the write that names them; until it is committed they are an orphan blob."""
    ref = blob_store(content, b"".join(map(_line, rows)), MIME)
    data = {"rows": ref, "count": len(rows), "reasons": list(reasons[:SHOWN_REASONS]), "source": source}
    return Append(quarantine_stream(dataset), "quarantined", at, data, globally=True)


def retried(dataset: str, entry: int, at: int) -> Append:
    return Append(quarantine_stream(dataset), "retried", at, {"entry": entry}, globally=True)


def dropped(dataset: str, entry: QuarantineEntry, reason: str, at: int) -> Append:
    data = {"entry": entry.entry, "count": entry.count, "reason": reason}
    return Append(quarantine_stream(dataset), "dropped", at, data, globally=True)


def entries(b: AtomicBackend, dataset: str) -> list[QuarantineEntry]:
    """What is in quarantine now, oldest first."""
    open_: dict[int, QuarantineEntry] = {}
    stream, first = quarantine_stream(dataset), 1
    while page := list(b.read_range(stream, first, b.last_seq(stream), limit=500)):
        for event in page:
            if event.type == "quarantined":
                data = event.data
                open_[event.seq] = QuarantineEntry(
                    dataset,
                    event.seq,
                    int(event.at),
                    data["count"],
                    tuple(data["reasons"]),
                    data["source"],
                    data["rows"],
                )
            else:
                open_.pop(event.data["entry"], None)
        first = page[-1].seq + 1
    return list(open_.values())


def entry_named(b: AtomicBackend, dataset: str, entry: int) -> QuarantineEntry:
    found = next((each for each in entries(b, dataset) if each.entry == entry), None)
    if found is None:
        raise NotFoundError(
            f"dataset {dataset!r} has no quarantine entry {entry}",
            hint=f"`strandline spool quarantine list {dataset}` shows them; it may be retried or dropped",
        )
    return found


def rows_of(content: ContentStore, entry: QuarantineEntry) -> list[Any]:
    """The rows as they were given, but for what is marked `$repr`."""
    data = blob_fetch(content, entry.rows)
    if data is None:
        raise NotFoundError(
            f"the rows of quarantine entry {entry.entry} are not in the content store",
            hint="put them back from a copy, or drop the entry",
        )
    return [_given(orjson.loads(line)) for line in data.splitlines()]


def _line(row: object) -> bytes:
    return orjson.dumps(_tagged(row)) + b"\n"


def _tagged(value: Any) -> Any:  # one return a kind
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_text(value) else {"$repr": ascii(value)}
    if kind is int:
        return value if -(2**63) <= value < 2**63 else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is datetime:
        return {"$datetime": value.isoformat()}
    if kind is date:
        return {"$date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if kind is list:
        return [_tagged(each) for each in value]
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith("$") and _is_text(key) for key in value):
            return {key: _tagged(each) for key, each in value.items()}
        return {"$items": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    return {"$repr": ascii(value)}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _given(value: Any) -> Any:
    if isinstance(value, list):
        return [_given(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag in _UNTAG:
            return _UNTAG[tag](inner)
    return {key: _given(each) for key, each in value.items()}


_UNTAG: Final[Mapping[str, Any]] = {
    "$bytes": base64.b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$decimal": Decimal,
    "$float": float,
    "$int": int,
    "$items": lambda items: {_given(key): _given(each) for key, each in items},
    "$repr": NotGivenBack,
}
