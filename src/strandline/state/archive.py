"""Events that were folded: out of the store, into the content store, where nothing but deep history looks.

    archived/<stream>    [[first, last, BlobRef], …]

A part is a few thousand events in their canonical encoding, a line each, deflated. It is durable and named
before the store lets go of the events, so whoever reads a stream from its beginning finds each exactly once.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strandline.base.failpoint import reach
from strandline.errors import HistoryGap, NotFoundError
from strandline.persist import ABSENT, AtomicBackend, BlobRef, Conflict, Event, ExpectKey, Put, blob_fetch
from strandline.persist.value import decode, encode
from strandline.state.context import Site
from strandline.state.flush_plan import readable
from strandline.state.lease import Lease, LeaseLost
from strandline.state.strand_entries import ControlUnreadable

MIME: Final = "application/x-strandline-events"
MOST_EVENTS: Final = 5_000  # of a part
_MOST_BYTES: Final = 8 * 1024 * 1024
_PAGE: Final = 64  # a plan may name thousands of segments


@dataclass(frozen=True, slots=True)
class ArchivedEvents:
    """Events `first` to `last` of a stream."""

    first: int
    last: int
    ref: BlobRef


def parts_of(b: AtomicBackend, stream: str) -> tuple[ArchivedEvents, ...]:
    """What is archived of a stream, oldest first; they meet without a gap."""
    return _parts(stream, b.kv_get(_key(stream)))


def archived_through(b: AtomicBackend, stream: str) -> int:
    parts = parts_of(b, stream)
    return parts[-1].last if parts else 0


def past_events(site: Site, stream: str, first: int = 1) -> Iterator[Event]:
    """The events of a stream from `first` on, wherever they are; HistoryGap where some are nowhere."""
    for part in parts_of(site.b, stream):
        if part.first > first:
            raise HistoryGap(stream, prior_seq=first - 1, truncated_through=part.first - 1)
        if part.last >= first:
            yield from (event for event in _read(site, stream, part) if event.seq >= first)
            first = part.last + 1
    if (gone := site.b.truncated_through(stream)) >= first:
        raise HistoryGap(stream, prior_seq=first - 1, truncated_through=gone)
    last = site.b.last_seq(stream)
    while first <= last and (page := list(site.b.read_range(stream, first, last, limit=_PAGE))):
        yield from page
        first = page[-1].seq + 1


def archive(site: Site, lease: Lease, stream: str, through: int) -> int:
    """Archive what is not yet, up to `through`; how many events. The store has them still."""
    kept = site.b.kv_get(_key(stream))
    parts = [*_parts(stream, kept)]
    begun = first = max(parts[-1].last if parts else 0, site.b.truncated_through(stream)) + 1
    while first <= through:
        events = _some(site.b, stream, first, through)
        ref = site.content.put_stream([_packed(events)], MIME)
        parts.append(ArchivedEvents(first, events[-1].seq, ref))
        first = events[-1].seq + 1
        reach("fold.part")
    value = [[each.first, each.last, each.ref] for each in parts]
    seen = ExpectKey(_key(stream), ABSENT if kept is None else kept)
    if isinstance(site.b.commit([lease.guard, seen], [Put(_key(stream), value)]), Conflict):
        raise LeaseLost(lease.scope)
    return through - begun + 1


def _some(b: AtomicBackend, stream: str, first: int, last: int) -> list[Event]:
    found: list[Event] = []
    size = 0
    while first <= last and len(found) < MOST_EVENTS and size < _MOST_BYTES:
        page = list(b.read_range(stream, first, last, limit=_PAGE))
        if not page or page[0].seq != first:
            raise HistoryGap(stream, prior_seq=first - 1, truncated_through=b.truncated_through(stream))
        found += page
        size += sum(len(encode(event)) for event in page)
        first = page[-1].seq + 1
    return found


def _packed(events: Sequence[Event]) -> bytes:
    return zlib.compress(b"\n".join(map(encode, events)), 6)


def _read(site: Site, stream: str, part: ArchivedEvents) -> Iterator[Event]:
    data = blob_fetch(site.content, part.ref)
    if data is None:
        raise NotFoundError(
            f"events {part.first} to {part.last} of {stream!r} are archived, and not in the content store",
            hint=f"put {part.ref.cid} back from a copy",
        )
    for line in zlib.decompress(data).split(b"\n"):
        event = decode(line)
        if not isinstance(event, Event):
            raise ControlUnreadable(stream, part.first, "its archive holds something else")
        yield event


def _parts(stream: str, value: Any) -> tuple[ArchivedEvents, ...]:
    with readable(_key(stream), None):
        return tuple(ArchivedEvents(*each) for each in value or ())


def _key(stream: str) -> str:
    return f"archived/{stream}"
