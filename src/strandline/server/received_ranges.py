"""What has been received: per strand of another node, the set of ranges (lo, hi] that are stored here.

    received/<origin>/<epoch>/<dataset>/<source>    {"ranges": [[lo, hi], …], "at", "newest"}

The source is encoded. `newest` holds, by sink of the sender, the highest seq that came and its intent.

A set grows in the transaction that appends the rows, and only if it is still as it was read: a crash leaves
both or neither, and of two that bring the same rows at once one stores them. Nothing is ever evicted, and
neighbours are one range, so a set is as large as its holes are many.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from strandline.base.failpoint import reach
from strandline.base.ranges import Range, RangeSet, pairs_of, ranges_of
from strandline.errors import CorruptionError, UsageError
from strandline.ingest.append import (
    Busy,
    ExpectationUnmet,
    Receipt,
    Received,
    RequestIdReused,
    append,
    digest_of,
)
from strandline.persist import ABSENT, AtomicBackend, ExpectKey, Put
from strandline.rows.dataset import decode_source, encode_source
from strandline.rows.unit import UnitHead
from strandline.sinks.sink import OtherLife
from strandline.state.context import Site
from strandline.state.strand_entries import OriginRange

PAGE: Final = 1_000
_PREFIX: Final = "received/"


class Newest(NamedTuple):
    """The highest seq that a sink has brought, and the intent that brought it."""

    seq: int
    intent: str


class RangeConflict(UsageError):
    """Some rows of a unit are stored already, others are not."""

    def __init__(self, unit: Range, held: list[Range]) -> None:
        super().__init__(
            f"of ({unit.lo}, {unit.hi}] {sum(map(len, held)):,} seqs are stored; nothing was now",
            hint="send what is not in `ranges`, which are stored",
        )
        self.ranges = pairs_of(held)


@dataclass(frozen=True, slots=True)
class ReceivedRanges:
    """The set of one strand, and the value that it was read from."""

    key: str
    value: Any
    ranges: RangeSet
    newest: Mapping[str, Newest]

    def has(self, unit: UnitHead) -> bool:
        """Return whether all of the unit is stored. Raise RangeConflict if a part is, OtherLife if the sender
        does not know of rows that came from it."""
        newest = self.newest.get(unit.instance)
        if unit.intent and newest is not None and newest.seq > unit.through and newest.intent != unit.intent:
            place = (unit.instance, unit.dataset, unit.source)
            raise OtherLife(*place, newest=newest.seq, through=unit.through)
        if self.ranges.covers(unit.range):
            return True
        if held := self.ranges.within(unit.range):
            raise RangeConflict(unit.range, held)
        return False

    def with_unit(self, unit: UnitHead, at: int) -> Put:
        """The write that adds the unit."""
        newest = dict(self.newest)
        if unit.intent and unit.range.hi >= (newest[unit.instance].seq if unit.instance in newest else 0):
            newest[unit.instance] = Newest(unit.range.hi, unit.intent)
        ranges = pairs_of(self.ranges.with_(unit.range).ranges)
        told = {"newest": {name: list(each) for name, each in newest.items()}} if newest else {}
        return Put(self.key, {"ranges": ranges, "at": at, **told})


@dataclass(frozen=True, slots=True)
class OriginStrand:
    """A strand of another node, and what is here of it."""

    epoch: int
    dataset: str
    source: str
    ranges: RangeSet
    newest: Mapping[str, Newest]


def held_of(b: AtomicBackend, unit: UnitHead) -> ReceivedRanges:
    key = _key(unit.origin, unit.epoch, unit.dataset, unit.source)
    value = b.kv_get(key)
    return ReceivedRanges(key, value, *_stored(key, value))


def receive(site: Site, unit: UnitHead, dataset: str, source: str, rows: list[Any]) -> Receipt | None:
    """Store the rows of a unit as rows of a strand of this node; None where they are stored already.

    Raises RangeConflict, and what append raises: then nothing was stored, OutcomeUnknown aside, after which a
    repeat is safe.
    """
    origin = OriginRange(unit.origin, unit.epoch, unit.dataset, unit.source, unit.range.lo, unit.range.hi)
    began = site.clock.now_us()
    while True:
        held = held_of(site.b, unit)
        if held.has(unit):
            return None
        reach("receive.commit")
        try:
            receipt = append(
                site,
                dataset,
                rows,
                source=source,
                request_id=unit.id,
                also=[held.with_unit(unit, site.clock.now_us())],
                expected=[ExpectKey(held.key, ABSENT if held.value is None else held.value)],
                received=Received(origin, unit.schema, unit.sha256),
            )
        except ExpectationUnmet as error:  # another unit of this strand was first: look again
            waited_s = (site.clock.now_us() - began) / 1e6
            if waited_s > site.spool.append_timeout_s:
                raise Busy(held.key, waited_s) from error
        except RequestIdReused:
            # This very range came at the same time with another body, and was first.
            if not held_of(site.b, unit).has(unit):
                raise
            return None
        else:
            reach("receive.committed")
            return None if receipt.is_repeat else receipt


def is_other_body(site: Site, unit: UnitHead, dataset: str) -> bool:
    """Whether the unit was stored with a body of another digest, as far as that is still known."""
    stored = digest_of(site, dataset, unit.id)
    return stored is not None and stored != unit.sha256


def strands_of(
    b: AtomicBackend,
    origin: str,
    *,
    epoch: int | None = None,
    dataset: str | None = None,
    source: str | None = None,
    after: str = "",
) -> tuple[list[OriginStrand], str | None]:
    """A page of what is here of an origin, and where the next one begins, None at the end."""
    if epoch is not None and dataset is not None and source is not None:
        key = _key(origin, epoch, dataset, source)
        value = b.kv_get(key)
        return ([] if value is None else [_strand(key, value)]), None
    prefix = f"{_PREFIX}{origin}/" + (f"{epoch}/" if epoch is not None else "")
    prefix += f"{dataset}/" if epoch is not None and dataset is not None else ""
    page = b.kv_scan(prefix, after=after and f"{_PREFIX}{origin}/{after}", limit=PAGE)
    found = [_strand(key, value) for key, value in page]
    following = page[-1][0].removeprefix(f"{_PREFIX}{origin}/") if len(page) == PAGE else None
    return [*_wanted(found, dataset, source)], following


def _wanted(strands: list[OriginStrand], dataset: str | None, source: str | None) -> Iterator[OriginStrand]:
    for each in strands:
        if dataset in (None, each.dataset) and source in (None, each.source):
            yield each


def _key(origin: str, epoch: int, dataset: str, source: str) -> str:
    return f"{_PREFIX}{origin}/{epoch}/{dataset}/{encode_source(source)}"


def _strand(key: str, value: Any) -> OriginStrand:
    _, _, epoch, dataset, source = key.split("/")
    return OriginStrand(int(epoch), dataset, decode_source(source), *_stored(key, value))


def _stored(key: str, value: Any) -> tuple[RangeSet, Mapping[str, Newest]]:
    if value is None:
        return RangeSet(), {}
    try:
        newest = {
            str(name): Newest(int(seq), str(intent))
            for name, (seq, intent) in value.get("newest", {}).items()
        }
        return RangeSet(ranges_of(value["ranges"])), newest
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise CorruptionError(
            f"{key!r} is no set of ranges: {error}",
            hint="`strandline persist verify` tells more; rows of that strand wait until it is put right",
        ) from error
