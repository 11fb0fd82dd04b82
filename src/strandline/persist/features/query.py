"""Queries over one stream: by range, time, type or predicate. All give stored events only, in order of seq.

A time cursor can miss a late event with an older `at`: to follow a stream, keep a seq.
"""

from collections.abc import Callable

from strandline.persist.backend import Backend
from strandline.persist.event import Event, Scalar
from strandline.persist.features.log import events
from strandline.persist.features.upcast import Upcasters
from strandline.persist.value import check_at, check_name


def read_between(
    b: Backend, stream: str, first: int, last: int, *, upcasters: Upcasters | None = None
) -> list[Event]:
    """first <= seq <= last."""
    return list(events(b, stream, first=first, last=last, upcasters=upcasters))


def read_since(b: Backend, stream: str, at: Scalar, *, upcasters: Upcasters | None = None) -> list[Event]:
    """Events whose `at` is at or after the argument."""
    return list(events(b, stream, start=check_at(at), upcasters=upcasters))


def read_window(
    b: Backend, stream: str, start: Scalar, end: Scalar, *, upcasters: Upcasters | None = None
) -> list[Event]:
    """start <= at <= end."""
    return list(events(b, stream, start=check_at(start), end=check_at(end), upcasters=upcasters))


def read_by_type(b: Backend, stream: str, type: str, *, upcasters: Upcasters | None = None) -> list[Event]:
    """Events stored with exactly this type."""
    return list(events(b, stream, type=check_name("type", type), upcasters=upcasters))


def read_where(
    b: Backend, stream: str, pred: Callable[[Event], object], *, upcasters: Upcasters | None = None
) -> list[Event]:
    """Events for which `pred(event)` is truthy."""
    return list(events(b, stream, where=pred, upcasters=upcasters))


def count_where(
    b: Backend, stream: str, pred: Callable[[Event], object], *, upcasters: Upcasters | None = None
) -> int:
    """How many those are."""
    return sum(1 for _ in events(b, stream, where=pred, upcasters=upcasters))


def read_upcast(b: Backend, stream: str, reg: Upcasters) -> list[Event]:
    """The stored events, each in its newest shape."""
    return list(events(b, stream, upcasters=reg))
