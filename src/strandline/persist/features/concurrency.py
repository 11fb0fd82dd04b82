"""Optimistic concurrency: an append that states where it thinks the stream is."""

from typing import TYPE_CHECKING, Any

from strandline.persist.backend import Append, Backend, ExpectSeq
from strandline.persist.core.lift import atomic
from strandline.persist.event import Conflict, Event, Scalar, Storable
from strandline.persist.features.log import only_event
from strandline.persist.reserved import guard
from strandline.persist.value import check_name

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def append_expect(
    b: Backend,
    stream: str,
    expected: int,
    type: str,
    at: Scalar,
    data: Storable,
    *,
    globally: bool = False,
) -> Event | Conflict:
    """Append if the last seq is `expected` (0: never written), else a Conflict that carries the actual
    one."""
    guard("stream", check_name("stream", stream))
    writes = [Append(stream, type, at, data, globally=globally)]
    outcome = atomic(b).commit([ExpectSeq(stream, expected)], writes)
    return outcome if isinstance(outcome, Conflict) else only_event(outcome)


def is_conflict(x: object) -> "TypeIs[Conflict]":
    return isinstance(x, Conflict)


def conflict_expected(c: Conflict) -> Any:
    return c.expected


def conflict_actual(c: Conflict) -> Any:
    return c.actual
