"""The event log: append-only streams whose seq never goes back, also after truncation."""

from collections.abc import Callable, Iterator
from typing import Final

from strandline.errors import HistoryGap, StrandlineError, UsageError
from strandline.persist.backend import Append, AtomicBackend, Backend, Truncate
from strandline.persist.core.lift import atomic
from strandline.persist.event import Conflict, Event, Scalar, Storable
from strandline.persist.features.gaps import follows_on, head, past_gap, refuse_gap, set_aside
from strandline.persist.features.upcast import Upcasters, lift_event
from strandline.persist.reserved import guard
from strandline.persist.value import MAX_SEQ, check_at, check_limit, check_name

PAGE: Final = 500


def append(
    b: Backend, stream: str, type: str, at: Scalar, data: Storable, *, globally: bool = False
) -> Event:
    """Store one event under the next seq and return it."""
    guard("stream", check_name("stream", stream))
    return only_event(atomic(b).commit([], [Append(stream, type, at, data, globally=globally)]))


def last_seq(b: Backend, stream: str) -> int:
    """The highest seq ever given out in `stream`, 0 if it was never written."""
    return b.last_seq(check_name("stream", stream))


def read(b: Backend, stream: str) -> list[Event]:
    """The stored events, oldest first."""
    return list(events(b, stream))


def read_from(b: Backend, stream: str, n: int) -> list[Event]:
    """The stored events from seq `n` on."""
    return list(events(b, stream, first=n))


def count(b: Backend, stream: str) -> int:
    """How many events are stored: truncated ones, and those set aside by quarantine, are not."""
    store = atomic(b)
    _, mark, truncated = head(store, check_name("stream", stream))
    return mark - truncated - len(set_aside(store, stream, truncated))


def truncate_through(b: Backend, stream: str, n: int) -> None:
    """Remove the events up to `n`, whatever holds there are; the last seq stays. `compact` is the careful
    way."""
    guard("stream", check_name("stream", stream))
    atomic(b).commit([], [Truncate(stream, n)])


def events(
    b: Backend,
    stream: str,
    *,
    first: int = 1,
    last: int | None = None,
    type: str | None = None,
    start: Scalar | None = None,
    end: Scalar | None = None,
    where: Callable[[Event], object] | None = None,
    upcasters: Upcasters | None = None,
    limit: int | None = None,
) -> Iterator[Event]:
    """The stored events, lazily and by pages. What is truncated before it starts is left out.

    A truncation that overtakes it raises HistoryGap: it never skips. Without `type`, `start` and `end` an
    event that is missing, or in another's place, raises EventCorrupt; what quarantine has set aside is left
    out. Those three are about events as stored, `where` about events as upcast.
    """
    check_name("stream", stream)
    for what, seq in (("first", first), ("last", last)):
        if seq is not None and (not isinstance(seq, int) or isinstance(seq, bool)):
            raise UsageError(f"{what} is {seq!r:.80}", hint="a seq is an int")
    for bound in (start, end):
        if bound is not None:
            check_at(bound)
    if type is not None:
        check_name("type", type)
    most = MAX_SEQ if limit is None else check_limit(limit)
    size = PAGE if where is not None else min(PAGE, most)
    first, last = max(first, 1), MAX_SEQ if last is None else min(last, MAX_SEQ)
    if type is start is end is None:
        pages = _pages(atomic(b), stream, first, last, size)
    else:
        pages = _chosen_pages(atomic(b), stream, first, last, size, type, start, end)
    return _chosen(pages, where, upcasters, most)


def _chosen(
    pages: Iterator[list[Event]],
    where: Callable[[Event], object] | None,
    upcasters: Upcasters | None,
    most: int,
) -> Iterator[Event]:
    if most == 0:
        return
    for page in pages:
        for event in page:
            lifted = lift_event(upcasters, event) if upcasters is not None else event
            if where is None or where(lifted):
                yield lifted
                most -= 1
                if most == 0:
                    return


def _pages(b: AtomicBackend, stream: str, first: int, last: int, size: int) -> Iterator[list[Event]]:
    has_begun = False
    while first <= last:
        page = list(b.read_range(stream, first, last, limit=size))
        if not page or not follows_on(page, first):
            page = past_gap(b, stream, page, first, last, has_begun=has_begun)
        if not page:
            return
        yield page
        first, has_begun = page[-1].seq + 1, True


def _chosen_pages(
    b: AtomicBackend,
    stream: str,
    first: int,
    last: int,
    size: int,
    type_: str | None,
    start: Scalar | None,
    end: Scalar | None,
) -> Iterator[list[Event]]:
    prior = None  # the last seq handed out
    while first <= MAX_SEQ and (prior is None or prior < last):
        from_ = first if prior is None else prior + 1
        page = list(b.read_range(stream, from_, last, limit=size, type=type_, start=start, end=end))
        # Where the next seq follows on nothing was removed in between; else only the truncation point can
        # tell.
        if prior is not None and not (page and page[0].seq == prior + 1):
            truncated = b.truncated_through(stream)
            if truncated > prior:
                raise HistoryGap(stream, prior_seq=prior, truncated_through=truncated)
        if not page:
            return
        yield page
        prior = page[-1].seq


def contiguous_pages(b: AtomicBackend, stream: str, after: int, last: int) -> Iterator[list[Event]]:
    """The events in (after, last] by pages, every one of them in order.

    Raise HistoryGap if some were truncated or set aside, EventCorrupt if some are missing or in another's
    place.
    """
    while after < last:
        page = list(b.read_range(stream, after + 1, last, limit=PAGE))
        if not page or not follows_on(page, after + 1):
            refuse_gap(b, stream, page, after, last)
        yield page
        after = page[-1].seq


def only_event(outcome: list[Event] | Conflict) -> Event:
    """The event of a commit that had one Append and nothing that could conflict."""
    if isinstance(outcome, Conflict) or len(outcome) != 1:
        raise StrandlineError(
            f"a commit of one event gave {outcome!r:.200}", hint="this is a bug in the backend"
        )
    return outcome[0]
