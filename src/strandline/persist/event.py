"""The values that the store speaks of. All are frozen; none of them holds a connection or reads a clock."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

Scalar: TypeAlias = int | float | str
Storable: TypeAlias = (
    Any  # None, bool, int, float, str, list, dict, Event, ProjectionState, BlobRef: see value.py
)
Reason: TypeAlias = Literal["STALE", "EXISTS", "KEY_REUSED"]


@dataclass(frozen=True, slots=True)
class Event:
    """A stored fact. `seq` alone orders it and never changes; `at` is the caller's, no clock is read."""

    stream: str
    seq: int
    type: str
    at: Scalar
    data: Storable

    def to_dict(self) -> dict[str, Any]:
        return {"stream": self.stream, "seq": self.seq, "type": self.type, "at": self.at, "data": self.data}


@dataclass(slots=True)
class _Blank:
    """The fields of an Event, still to be frozen."""

    stream: str
    seq: int
    type: str
    at: Scalar
    data: Storable


def make_event(stream: str, seq: int, type: str, at: Scalar, data: Storable) -> Event:
    """`Event(...)` at a third of the price: a frozen dataclass sets its fields one by one through a guard.
    A slotted twin sets them directly and then becomes an Event. For the reads, which make them by the
    page."""
    made: Any = _Blank(stream, seq, type, at, data)
    made.__class__ = Event
    event: Event = made
    return event


@dataclass(frozen=True, slots=True)
class ProjectionState:
    """A fold's value and the seq of the last event folded into it, 0 if none."""

    value: Storable
    seq: int


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Names bytes in a content store by their digest. It never holds them."""

    cid: str
    size: int
    mime: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """A lost race or an unmet expectation: an ordinary outcome, returned and never raised."""

    expected: Any
    actual: Any
    reason: Reason
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Compacted:
    """Stands for an event that was truncated or erased."""

    stream: str
    seq: int


class Absent(Enum):
    """The type of ABSENT; an enum, so that it stays one object through copies and pickles."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT
