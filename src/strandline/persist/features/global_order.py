"""One order over the events of many streams: each that asked for it has a position, dense, in commit
order."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from strandline.errors import HistoryGap
from strandline.persist.backend import Backend
from strandline.persist.core.lift import atomic
from strandline.persist.event import Compacted, Event, Scalar, Storable
from strandline.persist.features.gaps import global_page
from strandline.persist.features.hold import truncate_unheld
from strandline.persist.features.log import PAGE, append, events
from strandline.persist.features.upcast import Upcasters, lift_event
from strandline.persist.reserved import GLOBAL
from strandline.persist.value import MAX_SEQ

Value = TypeVar("Value")


def gappend(b: Backend, stream: str, type: str, at: Scalar, data: Storable) -> Event:
    """Append, and put the event into the global order."""
    return append(b, stream, type, at, data, globally=True)


def global_pos(b: Backend) -> int:
    """The last position given out, 0 if none. It never goes back."""
    return b.last_seq(GLOBAL)


def global_log(b: Backend) -> list[Event]:
    """The pointers: events of `$global` whose seq is the position and whose data names stream and seq."""
    return global_from(b, 1)


def global_from(b: Backend, pos: int) -> list[Event]:
    """The pointers from position `pos` on; HistoryGap if they were trimmed."""
    _refuse_trimmed(b, pos)
    return list(events(b, GLOBAL, first=pos))


def resolve_ref(b: Backend, pointer: Event) -> Event | Compacted:
    """The very event that a pointer names, or that it is gone."""
    stream, seq = pointer.data["stream"], pointer.data["seq"]
    return atomic(b).event_at(stream, seq) or Compacted(stream, seq)


def global_events(
    b: Backend, *, first: int = 1, upcasters: Upcasters | None = None
) -> Iterator[tuple[int, Event | Compacted]]:
    """Positions with their events, lazily and by pages.

    HistoryGap if they are trimmed, before it starts or under it, EventCorrupt if a position is missing.
    """
    store, position = atomic(b), max(first, 1)
    while position <= MAX_SEQ and (page := global_page(store, position, PAGE)):
        for place, event in page:
            yield place, lift_event(upcasters, event) if upcasters and isinstance(event, Event) else event
        position = page[-1][0] + 1


def read_global(b: Backend, *, upcasters: Upcasters | None = None) -> list[Event | Compacted]:
    """Every event in the global order, in commit order across streams."""
    return [event for _, event in global_events(b, upcasters=upcasters)]


def project_global(
    b: Backend,
    step: Callable[[Value, Event], Value],
    seed: Value,
    *,
    upcasters: Upcasters | None = None,
    skip_compacted: bool = False,
) -> Value:
    """Fold the global order; an event that is gone raises HistoryGap unless it may be skipped."""
    value = seed
    for _, event in global_events(b, upcasters=upcasters):
        if isinstance(event, Event):
            value = step(value, event)
        elif not skip_compacted:
            raise HistoryGap(event.stream, prior_seq=event.seq - 1, truncated_through=event.seq)
    return value


def global_trim(b: Backend, through: int) -> int:
    """Remove the pointers up to a position, never past a hold on `$global`; the position that it trimmed
    through."""
    store = atomic(b)
    truncate_unheld(store, GLOBAL, lambda: through)
    return store.truncated_through(GLOBAL)


def _refuse_trimmed(b: Backend, first: int) -> None:
    trimmed = atomic(b).truncated_through(GLOBAL)
    if max(first, 1) <= trimmed:
        raise HistoryGap(GLOBAL, prior_seq=max(first, 1) - 1, truncated_through=trimmed)
