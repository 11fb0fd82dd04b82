"""`flush/<dataset>` as values, and folded: which numbers are given out, what is open, what is visible.

    planned    {number, id, fence, reason, schema, strands: {source: Share}}   segments that will land
    amended    {number, version, strands}                  the same plan without what turned out unreadable
    committed  {number, id, version, rows, bytes, files, duplicates, ms}
    loading    {number, id, fence, load, schema, input, ranges: {source: [lo, hi]}}
    landed     {number, id, load, rows, bytes, files, duplicates, ms}
    released   {number, id, load, reason}

A number is given out once, to a flush or to a load, in the order of this stream; its id adds 128 random
bits, so that no other life of the store has used it. A Share is what a flush takes of one strand:

    {ranges: [[lo, hi], …], next, rows, bytes, pieces: [{segment, first_row, rows, lo, at}, …]}
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from strandline.base.ranges import Range, pairs_of, ranges_of
from strandline.persist import Append, AtomicBackend, BlobRef, Event
from strandline.rows.dataset import Dataset
from strandline.state.landing import FixedInput, FlushLanding, LoadLanding, SegmentPiece
from strandline.state.strand_entries import ControlUnreadable

OPENING: Final = ("planned", "loading")
CLOSING: Final = ("committed", "landed", "released")
Reason = Literal["command", "refresh", "size", "age", "resume", "shutdown"]  # why a flush was begun
_PAGE: Final = 8  # a plan may name thousands of segments


def flush_stream(dataset: str) -> str:
    return f"flush/{dataset}"


@dataclass(frozen=True, slots=True)
class Share:
    """What a flush takes of one strand. `ranges` leave out what lies between: loads, and rows that are
    lost."""

    ranges: tuple[Range, ...]
    next: int
    rows: int
    bytes: int
    pieces: tuple[SegmentPiece, ...]


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """A flush that was planned and has not been recorded as committed."""

    number: int
    id: str
    fence: int
    reason: str
    schema: int
    at: int
    strands: Mapping[str, Share]
    version: int = 0
    versions: Mapping[int, Mapping[str, Share]] = field(
        default_factory=dict
    )  # as it was before each amendment

    def of_version(self, version: int) -> Mapping[str, Share]:
        return self.strands if version == self.version else self.versions[version]

    @property
    def rows(self) -> int:
        """How many rows it takes, repeats included."""
        return sum(share.rows for share in self.strands.values())

    @property
    def highest(self) -> int:
        """The highest seq of a row that it takes."""
        return max((range_.hi for share in self.strands.values() for range_ in share.ranges), default=0)

    def landing(self, dataset: Dataset) -> FlushLanding:
        pieces = [piece for source in sorted(self.strands) for piece in self.strands[source].pieces]
        return FlushLanding(dataset, self.number, self.id, tuple(pieces), self.version)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load whose numbers are reserved and that is neither landed nor released."""

    number: int
    id: str
    fence: int
    load: str
    schema: int
    at: int
    input: FixedInput
    ranges: Mapping[str, Range]
    looked: int = 0

    @property
    def rows(self) -> int:
        """How many rows it takes, repeats included."""
        return sum(map(len, self.ranges.values()))

    @property
    def highest(self) -> int:
        """The highest seq of a row that it takes."""
        return max((range_.hi for range_ in self.ranges.values()), default=0)

    def landing(self, dataset: Dataset) -> LoadLanding:
        los = {source: range_.lo for source, range_ in self.ranges.items()}
        return LoadLanding(dataset, self.number, self.id, self.input, los, self.at, looked=self.looked)


Plan = FlushPlan | LoadPlan


# As events


def planned(dataset: str, plan: FlushPlan) -> Append:
    data = {
        "number": plan.number,
        "id": plan.id,
        "fence": plan.fence,
        "reason": plan.reason,
        "schema": plan.schema,
        "strands": _shares_data(plan.strands),
    }
    return Append(flush_stream(dataset), "planned", plan.at, data, globally=True)


def amended(dataset: str, plan: FlushPlan, at: int) -> Append:
    data = {"number": plan.number, "version": plan.version, "strands": _shares_data(plan.strands)}
    return Append(flush_stream(dataset), "amended", at, data, globally=True)


def loading(dataset: str, plan: LoadPlan) -> Append:
    data = {
        "number": plan.number,
        "id": plan.id,
        "fence": plan.fence,
        "load": plan.load,
        "schema": plan.schema,
        "input": {
            "table": plan.input.table,
            "snapshot": plan.input.snapshot,
            "rows": dict(plan.input.rows),
        },
        "ranges": {source: [each.lo, each.hi] for source, each in plan.ranges.items()},
        **({"looked": plan.looked} if plan.looked else {}),
    }
    return Append(flush_stream(dataset), "loading", plan.at, data, globally=True)


def closing(dataset: str, type_: str, at: int, data: Mapping[str, Any]) -> Append:
    return Append(flush_stream(dataset), type_, at, dict(data), globally=True)


def _shares_data(strands: Mapping[str, Share]) -> dict[str, Any]:
    return {
        source: {
            "ranges": pairs_of(share.ranges),
            "next": share.next,
            "rows": share.rows,
            "bytes": share.bytes,
            "pieces": [
                {
                    "segment": piece.segment,
                    "first_row": piece.first_row,
                    "rows": piece.rows,
                    "lo": piece.lo,
                    "at": piece.at,
                }
                for piece in share.pieces
            ],
        }
        for source, share in strands.items()
    }


# Read again. What governs work and cannot be read stops it (L-CTL-4).


@contextmanager
def readable(stream: str, seq: int | None) -> Iterator[None]:
    """Around the reading of an event, or of a key where there is no seq: ControlUnreadable if it fails."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ControlUnreadable(stream, seq, f"{type(error).__name__}: {error}"[:200]) from error


def whole(data: Mapping[str, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def text(data: Mapping[str, Any], name: str) -> str:
    value = data[name]
    if type(value) is not str:
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def number_of(event: Event) -> int:
    """The flush number that an event of `flush/<dataset>` is about."""
    with readable(event.stream, event.seq):
        return whole(event.data, "number")


def source_ranges(data: Mapping[str, Any]) -> dict[str, Range]:
    return {source: Range(lo, hi) for source, (lo, hi) in data.items()}


def _shares(data: Mapping[str, Any]) -> dict[str, Share]:
    return {
        source: Share(
            ranges_of(share["ranges"]),
            whole(share, "next"),
            whole(share, "rows"),
            whole(share, "bytes"),
            tuple(_piece(source, piece) for piece in share["pieces"]),
        )
        for source, share in data.items()
    }


def _piece(source: str, data: Mapping[str, Any]) -> SegmentPiece:
    segment = data["segment"]
    if not isinstance(segment, BlobRef):
        raise TypeError(f"segment is {segment!r:.40}")
    return SegmentPiece(source, segment, *(whole(data, name) for name in ("first_row", "rows", "lo", "at")))


def plan_of(event: Event) -> Plan:
    """The plan that an opening event holds."""
    with readable(event.stream, event.seq):
        data, at = event.data, int(event.at)
        number, id_, fence = whole(data, "number"), text(data, "id"), whole(data, "fence")
        schema = whole(data, "schema")
        if event.type == "planned":
            return FlushPlan(
                number, id_, fence, text(data, "reason"), schema, at, strands=_shares(data["strands"])
            )
        if event.type == "loading":
            input_ = data["input"]
            rows = {source: whole(input_["rows"], source) for source in input_["rows"]}
            fixed = FixedInput(text(input_, "table"), whole(input_, "snapshot"), rows)
            ranges, looked = source_ranges(data["ranges"]), whole(data, "looked") if "looked" in data else 0
            return LoadPlan(number, id_, fence, text(data, "load"), schema, at, fixed, ranges, looked)
    raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")


def open_plan(b: AtomicBackend, dataset: str, number: int, event: int) -> Plan:
    """The plan of an open number, opened by that event, with what was amended since."""
    stream = flush_stream(dataset)
    found = b.event_at(stream, event)
    if found is None:
        raise ControlUnreadable(stream, event, "it is gone, and its number is open")
    plan = plan_of(found)
    if isinstance(plan, LoadPlan):
        return plan
    for later in _events(b, stream, event + 1):
        if later.type == "amended" and number_of(later) == number:
            with readable(stream, later.seq):
                strands, version = _shares(later.data["strands"]), whole(later.data, "version")
            versions = {**plan.versions, plan.version: plan.strands}
            plan = replace(plan, strands=strands, version=version, versions=versions)
    return plan


def plans_after(b: AtomicBackend, dataset: str, number: int, until: int) -> Iterator[tuple[int, Event]]:
    """The opening events of the numbers in (number, until], in order. It seeks: older ones are not read."""
    stream = flush_stream(dataset)
    first = _first_opening_above(b, stream, number)
    for event in _events(b, stream, first):
        if event.type in OPENING:
            if (opened := number_of(event)) > until:
                return
            if opened > number:
                yield opened, event


def _first_opening_above(b: AtomicBackend, stream: str, number: int) -> int:
    """Where to begin reading: no opening event before it has a number above `number`. By bisection."""
    low, high = b.truncated_through(stream) + 1, b.last_seq(stream) + 1
    while low < high:
        middle = (low + high) // 2
        opening = next((each for each in _events(b, stream, middle) if each.type in OPENING), None)
        if opening is None or number_of(opening) > number:
            high = middle
        else:
            low = opening.seq + 1
    return low


def _events(b: AtomicBackend, stream: str, first: int) -> Iterator[Event]:
    last = b.last_seq(stream)
    while first <= last and (page := list(b.read_range(stream, first, last, limit=_PAGE))):
        yield from page
        first = page[-1].seq + 1


# Folded


@dataclass(frozen=True, slots=True)
class Numbers:
    """The flush numbers of a dataset: the last one given out, those still open with the event that opened
    them, and when the last flush was recorded."""

    last: int = 0
    open: Mapping[int, int] = field(default_factory=dict)
    flushed_at: int = 0
    has_landed: bool = False  # whether the table must be there

    @property
    def visible(self) -> int:
        """The highest number at or below which everything is committed, landed or released."""
        return min(self.open) - 1 if self.open else self.last


def with_event(numbers: Numbers, event: Event) -> Numbers:
    if event.type not in (*OPENING, *CLOSING, "raised", "amended"):
        raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")
    number = number_of(event)
    if event.type in OPENING:
        return replace(numbers, last=number, open={**numbers.open, number: event.seq})
    if event.type in CLOSING:
        still = {each: at for each, at in numbers.open.items() if each != number}
        with readable(event.stream, event.seq):
            at = int(event.at) if event.type == "committed" else numbers.flushed_at
        return replace(numbers, open=still, flushed_at=at, has_landed=True)
    if event.type == "raised":
        return replace(numbers, last=number, has_landed=True)
    return numbers
