"""What a ledger `strand/<dataset>/<source>` holds, as values. Every range is `(lo, hi]`.

    spooled   {segment, of, first_row, bytes, lo, hi}  rows of a segment, numbered and durable; received rows
              have {origin: {origin, epoch, dataset, source, lo, hi}} too: what they are at the node they come
              from
    reserved  {load, number, id, fence, lo, hi}     numbers that a load will land or let go
    landed    {load, number, lo, hi}                that load is in the table
    released  {load, number, lo, hi}                that load never will be: its numbers are a gap
    flushed   {number, ranges, rows, bytes, next}   rows are in the table; the next pending entry is at `next`
    held      {segment, lo, hi, reason}             a damaged segment: the strand waits in front of it
    lost      {segment, lo, hi, reason}             an operator gave these rows up
    raised    {lo, hi, reason}                      numbers that the table has and this history does not
    removed   {run, by, lo, hi, rows, bare}         so many rows of the range are gone from the table; up to
              `bare` none is left (0 where that is not known)

`spooled`, `reserved` and `raised` give out numbers; the `hi` of the newest of them is the strand's last seq.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from strandline.base.ranges import Range, pairs_of, ranges_of
from strandline.errors import CorruptionError
from strandline.persist import Append, BlobRef, Event


class ControlUnreadable(CorruptionError):
    """An event, or with no seq a key, that governs work cannot be understood; the work stops."""

    def __init__(self, stream: str, seq: int | None, found: str) -> None:
        where = f"the key {stream!r}" if seq is None else f"event {seq} of {stream!r}"
        super().__init__(
            f"{where} cannot be read: {found}",
            hint="a newer Strandline may have written it: upgrade; `strandline persist verify` tells more",
        )
        self.stream, self.seq = stream, seq


@dataclass(frozen=True, slots=True)
class OriginRange:
    """Rows of another node: a range of one of its strands. A seq in it may have no row any more."""

    origin: str
    epoch: int
    dataset: str
    source: str
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Spooled:
    segment: BlobRef
    of: int  # how many rows the segment has in all, those of other sources included
    first_row: int
    bytes: int  # the share that these rows have in the segment
    lo: int
    hi: int
    origin: OriginRange | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    load: str
    number: int
    id: str
    fence: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Landed:
    load: str
    number: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Released:
    load: str
    number: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Flushed:
    number: int
    ranges: tuple[Range, ...]
    rows: int  # spooled rows that are pending no more
    bytes: int  # their share of their segments
    next: int  # the ledger event at which the rows that are still pending begin


@dataclass(frozen=True, slots=True)
class Held:
    segment: str
    lo: int
    hi: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    segment: str
    lo: int
    hi: int
    reason: str
    bytes: int
    next: int


@dataclass(frozen=True, slots=True)
class Raised:
    lo: int
    hi: int
    reason: str


@dataclass(frozen=True, slots=True)
class Removed:
    run: str
    by: Literal["retention", "purge", "compaction"]
    lo: int
    hi: int
    rows: int
    bare: int


Entry: TypeAlias = Spooled | Reserved | Landed | Released | Flushed | Held | Lost | Raised | Removed
NUMBERING: Final = (Spooled, Reserved, Raised)

_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__.lower(): kind
    for kind in (Spooled, Reserved, Landed, Released, Flushed, Held, Lost, Raised, Removed)
}


def entry_of(event: Event) -> Entry:
    """The entry that a ledger event holds; ControlUnreadable where it is none."""
    kind = _KINDS.get(event.type)
    if kind is None:
        raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")
    try:
        data = dict(event.data)
        if kind is Flushed:
            data["ranges"] = ranges_of(data["ranges"])
        elif "origin" in data:
            data["origin"] = OriginRange(**data["origin"])
        entry: Entry = kind(**data)
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, str(error)) from error
    return entry


def append_of(ledger: str, entry: Entry, at: int) -> Append:
    """The write that puts `entry` into its ledger and into the global order."""
    data = {name: getattr(entry, name) for name in entry.__slots__}
    if isinstance(entry, Spooled):
        if entry.origin is None:
            del data["origin"]
        else:
            data["origin"] = asdict(entry.origin)
    elif isinstance(entry, Flushed):
        data["ranges"] = pairs_of(entry.ranges)
    return Append(ledger, type(entry).__name__.lower(), at, data, globally=True)
