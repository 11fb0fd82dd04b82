"""Rows that could not be stored, kept as they were given, with the reason, until someone retries or drops
them.

`quarantine/<dataset>` holds, in the transaction that numbered the good rows of the same batch:

    quarantined  {rows: BlobRef, form: 2, count, reasons: [text, …], source}   the entry; its seq is its name
    retried      {entry}                                                       appended again
    dropped      {entry, count, reason}

The rows are NDJSON in the content store, a line {"row", "reason"} each; the event has the first reasons, for
lists. (Of an event without a form each line is the row itself.) The first line has an "id" besides: a purge
removes the bytes of an entry, so that no other may have the same. What JSON lacks is a mapping of one key:
{"$bytes": base64}, {"$datetime": ISO}, {"$date": ISO}, {"$decimal": text}, {"$float": "nan"}, {"$int": text},
{"$items": [[key, value], …]}, {"$deep": JSON as text} for what is nested too deep, and {"$repr": text} for
what cannot be given back.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from strandline.errors import NotFoundError
from strandline.persist import Append, AtomicBackend, BlobRef, Event, blob_fetch, blob_store
from strandline.rows.dataset import is_finer
from strandline.rows.values import TooDeep, Unstorable, is_too_deep, too_deep
from strandline.state.strand_entries import ControlUnreadable
from strandline.storage import ContentStore

MIME: Final = "application/x-ndjson"
SHOWN_REASONS: Final = 100
_FORM: Final = 2


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
    form: int = 1


class Refused(NamedTuple):
    """A row as it was given, and why it was not stored; no reason where none was kept."""

    row: Any
    reason: str | None


def quarantine_stream(dataset: str) -> str:
    return f"quarantine/{dataset}"


def quarantined(
    content: ContentStore,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    reasons: Sequence[str],
    source: str | None,
    at: int,
    id_: str,
) -> Append:
    """Store the rows and give the write that names them; until it is committed they are an orphan blob. `id_`
    is of this entry alone."""
    lines = [
        _line(row, reason, None if place else id_)
        for place, (row, reason) in enumerate(zip(rows, reasons, strict=True))
    ]
    ref = blob_store(content, b"".join(lines), MIME)
    first = list(reasons[:SHOWN_REASONS])
    data = {"rows": ref, "form": _FORM, "count": len(rows), "reasons": first, "source": source}
    return Append(quarantine_stream(dataset), "quarantined", at, data, globally=True)


def digest_of(rows: Sequence[Any]) -> str:
    """Of rows as they were given, whatever the reasons."""
    return sha256(b"".join(_line(row, "") for row in rows)).hexdigest()


def retried(dataset: str, entry: int, at: int) -> Append:
    return Append(quarantine_stream(dataset), "retried", at, {"entry": entry}, globally=True)


def dropped(dataset: str, entry: QuarantineEntry, reason: str, at: int) -> Append:
    data = {"entry": entry.entry, "count": entry.count, "reason": reason}
    return Append(quarantine_stream(dataset), "dropped", at, data, globally=True)


def entries(b: AtomicBackend, dataset: str, *, until: int | None = None) -> list[QuarantineEntry]:
    """What is in quarantine now, or was at the time `until` (UTC microseconds), oldest first."""
    open_: dict[int, QuarantineEntry] = {}
    stream, first = quarantine_stream(dataset), 1
    while page := list(b.read_range(stream, first, b.last_seq(stream), limit=500)):
        for event in page:
            if until is not None and int(event.at) > until:
                continue
            if event.type == "quarantined":
                open_[event.seq] = _entry_of(dataset, event)
            else:
                open_.pop(_left(event), None)
        first = page[-1].seq + 1
    return list(open_.values())


def _entry_of(dataset: str, event: Event) -> QuarantineEntry:
    try:
        data = event.data
        counted, reasons = int(data["count"]), tuple(data["reasons"])
        form = data.get("form", 1)
        return QuarantineEntry(
            dataset, event.seq, int(event.at), counted, reasons, data["source"], data["rows"], form
        )
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, repr(error)) from error


def _left(event: Event) -> int:
    try:
        return int(event.data["entry"])
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, repr(error)) from error


def entry_named(b: AtomicBackend, dataset: str, entry: int) -> QuarantineEntry:
    found = next((each for each in entries(b, dataset) if each.entry == entry), None)
    if found is None:
        raise NotFoundError(
            f"dataset {dataset!r} has no quarantine entry {entry}",
            hint=f"`strandline spool quarantine list {dataset}` shows them; it may be retried or dropped",
        )
    return found


def rows_of(content: ContentStore, entry: QuarantineEntry) -> list[Any]:
    """The rows as they were given, but for what no column keeps."""
    return [each.row for each in refused_of(content, entry)]


def refused_of(content: ContentStore, entry: QuarantineEntry) -> list[Refused]:
    """The rows with their reasons."""
    data = blob_fetch(content, entry.rows)
    if data is None:
        raise NotFoundError(
            f"the rows of quarantine entry {entry.entry} are not in the content store",
            hint="put them back from a copy, or drop the entry",
        )
    lines = [orjson.loads(line) for line in data.splitlines()]
    if entry.form == _FORM:
        return [Refused(_given(line["row"]), line["reason"]) for line in lines]
    return [
        Refused(_given(line), entry.reasons[place] if place < len(entry.reasons) else None)
        for place, line in enumerate(lines)
    ]


def _line(row: Any, reason: str, id_: str | None = None) -> bytes:
    if isinstance(row, Mapping):
        row = {name: too_deep(value) if is_too_deep(value) else value for name, value in row.items()}
    elif is_too_deep(row):
        row = too_deep(row)
    line = {"row": _tagged(row), "reason": reason} | ({} if id_ is None else {"id": id_})
    return orjson.dumps(line) + b"\n"


def _tagged(value: Any) -> Any:  # one return a kind
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, TooDeep):
        return {"$deep": value.json}
    if isinstance(value, Unstorable):
        return {"$repr": value.text}
    if isinstance(value, str):
        return str.__str__(value) if _is_text(value) else {"$repr": ascii(value)}
    if kind is int:
        return value if -(2**63) <= value < 2**63 else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime) and not is_finer(value):
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
    "$deep": TooDeep,
    "$repr": Unstorable,
}
