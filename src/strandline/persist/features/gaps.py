"""What stands between two events that do not follow on: a truncation, a quarantine, or damage.

Seqs are dense between the truncation point and the mark, but for events that quarantine has set aside. So a
reader of all events of a range sees from the seqs alone that none is missing, doubled or in another's place.
"""

from collections.abc import Sequence
from typing import Final, NoReturn

from strandline.errors import EventCorrupt, HistoryGap
from strandline.persist.backend import AtomicBackend, StreamHead
from strandline.persist.event import Compacted, Event
from strandline.persist.reserved import GLOBAL, QUARANTINE, reserved_prefix

_PAGE: Final = 500


def head(b: AtomicBackend, stream: str) -> StreamHead:
    """The marks of one stream, in one request: nothing that starts with its name sorts before it."""
    found = b.stream_scan(stream, after="", limit=1)
    return found[0] if found and found[0].name == stream else StreamHead(stream, 0, 0)


def set_aside(b: AtomicBackend, stream: str, truncated: int) -> list[int]:
    """The quarantined seqs above the truncation point."""
    prefix, found, after = reserved_prefix(QUARANTINE, stream), [], ""
    while page := b.kv_scan(prefix, after=after, limit=_PAGE):
        found += [value["seq"] for _, value in page if value["seq"] > truncated]
        after = page[-1][0]
    return found


def follows_on(page: Sequence[Event], first: int) -> bool:
    """Whether a page has every seq from `first` on, in order."""
    return [event.seq for event in page] == list(range(first, first + len(page)))


def past_gap(
    b: AtomicBackend, stream: str, page: list[Event], first: int, last: int, *, has_begun: bool
) -> list[Event]:
    """Return a page of the events first to last that has gaps, or is empty, if that is as it should be.

    What it leaves out must have been set aside, or truncated before the reader had begun. Raise HistoryGap
    if a truncation overtook the reader, EventCorrupt for what is missing or in another's place.
    """
    if not page and has_begun and b.last_seq(stream) == first - 1:
        return []  # the usual end, in one request
    _, mark, truncated = head(b, stream)  # after the page: what was appended in between is not missing
    if has_begun and truncated >= first and not (page and page[0].seq == first):
        raise HistoryGap(stream, prior_seq=first - 1, truncated_through=truncated)
    if not page and has_begun and mark < first - 1:
        raise EventCorrupt(stream, first - 1, f"it is above the mark of the stream, which is {mark}")
    if not has_begun and truncated >= first:
        first = max(first, min(truncated + 1, page[0].seq)) if page else truncated + 1
    if not page:
        last = min(last, mark)
        if last < first:
            return []
        page = list(b.read_range(stream, first, last, limit=_PAGE))
    _refuse_missing(b, stream, page, first, last, truncated)
    return page


def _refuse_missing(
    b: AtomicBackend, stream: str, page: list[Event], first: int, last: int, truncated: int
) -> None:
    aside = set(set_aside(b, stream, 0))
    for until in [event.seq for event in page] or [last + 1]:
        lost = next((seq for seq in range(first, until) if seq not in aside), None)
        if lost is not None and lost <= truncated:
            raise HistoryGap(stream, prior_seq=lost - 1, truncated_through=truncated)
        if lost is not None or until < first:
            raise _damaged(stream, first if lost is None else lost, until)
        first = until + 1


def refuse_gap(b: AtomicBackend, stream: str, page: Sequence[Event], after: int, last: int) -> NoReturn:
    """Raise for a page of (after, last] that leaves some out: HistoryGap if they were truncated or set aside,
    EventCorrupt if they are missing, doubled or in another's place."""
    truncated = b.truncated_through(stream)
    if truncated > after:
        raise HistoryGap(stream, prior_seq=after, truncated_through=truncated)
    first = after + 1
    until = last + 1
    for event in page:
        if event.seq != first:
            until = event.seq
            break
        first += 1
    if first not in set_aside(b, stream, truncated):
        raise _damaged(stream, first, until)
    raise HistoryGap(stream, prior_seq=after, truncated_through=until - 1)


def global_page(b: AtomicBackend, first: int, limit: int) -> list[tuple[int, Event | Compacted]]:
    """The positions of the global order from `first` on, every one of them in order; empty at its end.

    Raise HistoryGap if they were trimmed, EventCorrupt if one is missing or in another's place.
    """
    page = list(b.global_range(first, limit=limit))
    if not page and b.last_seq(GLOBAL) >= first:
        page = list(b.global_range(first, limit=limit))  # what was appended in between
    elif not page:
        return []
    positions = [position for position, _ in page]
    if positions and positions == list(range(first, first + len(page))):
        return page
    trimmed = b.truncated_through(GLOBAL)
    if trimmed >= first:
        raise HistoryGap(GLOBAL, prior_seq=first - 1, truncated_through=trimmed)
    for position in positions:
        if position != first:
            raise _damaged(GLOBAL, first, position)
        first += 1
    raise _damaged(GLOBAL, first, first + 1)


def _damaged(stream: str, seq: int, found: int) -> EventCorrupt:
    return EventCorrupt(stream, seq, "it is missing" if found > seq else f"event {found} stands in its place")
