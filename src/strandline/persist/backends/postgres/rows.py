"""What rows mean: `at` in the column of its kind, checked events and values, windows of time as bounds."""

from collections.abc import Iterable, Sequence
from math import ceil, floor, inf, isinf, isnan, nextafter
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from strandline.errors import EventCorrupt
from strandline.persist.core.block import key_crc, pointer_sum
from strandline.persist.event import Event, Scalar, Storable, make_event
from strandline.persist.reserved import GLOBAL
from strandline.persist.value import MAX_SEQ, decode

SEAM = "\x01"  # where a seq belongs in the text of a marker; raw, it stands in no JSON

AtColumns: TypeAlias = tuple[int | None, float | None, str | None]


def at_of(at_int: int | None, at_real: float | None, at_text: str | None) -> Scalar:
    """The `at` of a row; of a damaged row with none it is None, which no checksum agrees with."""
    if at_int is not None:
        return at_int
    return at_real if at_real is not None else at_text  # type: ignore[return-value]  # only where the row is damaged


def at_columns(at: Scalar) -> AtColumns:
    if type(at) is int:
        return at, None, None
    return (None, at, None) if type(at) is float else (None, None, at)  # type: ignore[return-value]  # a str


def split_ats(
    ats: Sequence[Scalar],
) -> tuple[Sequence[int | None], Sequence[float | None], Sequence[str | None]]:
    """The three columns of many `at`s; a column that nobody uses is empty."""
    kinds = set(map(type, ats))
    if kinds == {int}:
        return ats, (), ()  # type: ignore[return-value]  # all of them are int
    columns = [[at if type(at) is kind else None for at in ats] for kind in (int, float, str)]
    return tuple(  # type: ignore[return-value]  # each of its kind
        column if kind in kinds else () for kind, column in zip((int, float, str), columns, strict=True)
    )


def events_of(stream: str, rows: Iterable[Sequence[Any]]) -> list[Event]:
    """(seq, type, at_int, at_real, at_text, data, sum) as events, if they agree with their checksums."""
    events = []
    start = crc32(f"{stream}\0".encode())  # what event_crc works out, with the part that they share done once
    for seq, type_, at_int, at_real, at_text, text, sum_ in rows:
        at = at_int if at_int is not None else at_of(at_int, at_real, at_text)
        stamp = at if at_text is None else '"' + at_text
        if crc32(f"{type_}\0{stamp}\0{text}".encode(), start) + seq != sum_:
            raise EventCorrupt(stream, seq, "its checksum does not match")
        events.append(make_event(stream, seq, type_, at, decode(text)))
    return events


def pointer_of(position: int, stream: str | None, row: Sequence[Any]) -> Event:
    """(seq, at_int, at_real, at_text, sum) as the event of `$global` at `position`."""
    check_pointers(stream, [(position, stream, *row)])
    return Event(GLOBAL, position, "pointer", at_of(*row[1:4]), {"stream": stream, "seq": row[0]})


def check_pointers(stream: str | None, rows: Iterable[Sequence[Any]]) -> None:
    """(position, stream, seq, at_int, at_real, at_text, sum, …), all of one stream: EventCorrupt for the
    first that does not agree with its checksum."""
    prior = crc = None
    for position, _, seq, at_int, at_real, at_text, sum_, *_ in rows:
        if stream is not None and (at_int is None or at_int != prior):  # most have it in common
            prior, crc = at_int, pointer_sum(0, stream, 0, at_of(at_int, at_real, at_text))
        if crc is None or crc + 3 * seq + position != sum_:
            raise EventCorrupt(GLOBAL, position, "its checksum does not match")


def marker_sum(crc: int, seqs: Sequence[int]) -> int:
    """The checksum of a marker: of its text, plus each seq times its place."""
    return crc + sum(place * seq for place, seq in enumerate(seqs, 1))


def value_record(key: str, text: str, seqs: Sequence[int] | None, sum_: int) -> tuple[str, str, int]:
    """(key, text, sum) as other backends keep it; a sum that was wrong stays wrong by as much."""
    if seqs is None:
        return key, text, sum_
    pieces = text.split(SEAM)
    merged = "".join(f"{piece}{seq}" for piece, seq in zip(pieces, [*seqs, ""][: len(pieces)], strict=False))
    off = sum_ - marker_sum(key_crc(key, text.encode()), seqs) + (len(pieces) != len(seqs) + 1)
    return key, merged, key_crc(key, merged.encode()) + off


def value_of(key: str, text: str, seqs: Sequence[int] | None, sum_: int) -> Storable:
    _, merged, sum_ = value_record(key, text, seqs, sum_)
    if key_crc(key, merged.encode()) != sum_:
        raise EventCorrupt(key, None, "its checksum does not match")
    return decode(merged)


class ColumnBounds(NamedTuple):
    """Bounds of each column, both included; None for a column that cannot match."""

    ints: tuple[int, int] | None
    reals: tuple[float, float] | None
    texts: tuple[str, str | None] | None


def window(start: Scalar | None, end: Scalar | None) -> ColumnBounds | None:
    """start <= at <= end as bounds, exactly: int and float compare by value. None if nothing can match."""
    bounds = [bound for bound in (start, end) if bound is not None]
    if all(isinstance(bound, str) for bound in bounds):
        return ColumnBounds(None, None, (start or "", end))  # type: ignore[arg-type]  # all of them are str
    if any(isinstance(bound, str) or (isinstance(bound, float) and isnan(bound)) for bound in bounds):
        return None
    low, high = (-inf if start is None else start), (inf if end is None else end)
    first, last = _int_at_least(low), _int_at_most(high)  # type: ignore[arg-type]  # no str is left
    least, most = _real_at_least(low), -_real_at_least(-high)  # type: ignore[arg-type, operator]
    ints = (
        (max(first, -MAX_SEQ - 1), min(last, MAX_SEQ)) if first <= MAX_SEQ and last >= -MAX_SEQ - 1 else None
    )
    return ColumnBounds(ints, (least, most), None) if ints or least <= most else None


def _int_at_least(bound: float) -> int:
    if isinstance(bound, int) or not isinf(bound):
        return ceil(bound)
    return MAX_SEQ + 1 if bound > 0 else -MAX_SEQ - 1


def _int_at_most(bound: float) -> int:
    if isinstance(bound, int) or not isinf(bound):
        return floor(bound)
    return MAX_SEQ if bound > 0 else -MAX_SEQ - 2


def _real_at_least(bound: float) -> float:
    """The smallest float that is not below `bound`, which may be an int that no float equals."""
    try:
        nearest = float(bound)
    except OverflowError:
        return inf if bound > 0 else -inf
    return nearest if nearest >= bound else nextafter(nearest, inf)


def prefix_end(prefix: str) -> str | None:
    """The least text above all that start with `prefix`; None if there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index])
        if point < 0x10FFFF:
            return prefix[:index] + chr(0xE000 if point == 0xD7FF else point + 1)
    return None
