"""Access grants on the event store: who may use a resource, and who could when.

A subsystem that kept its grants in a mutable map lost them at a restart, had no history and lost updates in
races. Here a grant or a revocation is an event in the stream of its resource, and the list of today is a
fold:

    grant(b, "wiki", "ann", 1)
    can(b, "wiki", "ann")           # True
    audit_window(b, "wiki", 0, 9)   # the events, as they happened

Reading goes through the view's snapshot, so it stays right after the stream was compacted behind it.
"""

from typing import Final

from strandline.persist.backend import Backend
from strandline.persist.event import Event, Scalar
from strandline.persist.features.log import append
from strandline.persist.features.query import read_window
from strandline.persist.features.snapshot import replay
from strandline.persist.features.view import View, view, view_lag, view_peek

GRANTED: Final = "granted"
REVOKED: Final = "revoked"


def stream_for(resource: str) -> str:
    """One stream a resource."""
    return f"acl/{resource}"


def grant(b: Backend, resource: str, principal: str, at: Scalar) -> Event:
    """Record a grant, also of what is granted already: the history is the truth."""
    return append(b, stream_for(resource), GRANTED, at, {"principal": principal})


def revoke(b: Backend, resource: str, principal: str, at: Scalar) -> Event:
    """Record a revocation, also of what was never granted."""
    return append(b, stream_for(resource), REVOKED, at, {"principal": principal})


def fold(principals: list[str], event: Event) -> list[str]:
    """Grant adds once, at the end; revoke removes. Events of other types change nobody's access."""
    if event.type not in (GRANTED, REVOKED):
        return principals
    principal = event.data["principal"]
    if event.type == GRANTED:
        return principals if principal in principals else [*principals, principal]
    return [each for each in principals if each != principal]


def grants(b: Backend, resource: str) -> list[str]:
    """Who may use the resource, in the order of their grants."""
    principals: list[str] = replay(b, stream_for(resource), _view_name(resource), fold, []).value
    return principals


def can(b: Backend, resource: str, principal: str) -> bool:
    """Whether `principal` may; without a grant the answer is no."""
    return principal in grants(b, resource)


def acl_view(resource: str) -> View:
    """The fold as a view: attached to the hub that grants are published through, it keeps can_fast a peek."""
    return view(_view_name(resource), stream_for(resource), fold, [])


def can_fast(b: Backend, resource: str, principal: str) -> bool:
    """As `can`, without folding where the view is current; where it lags, a revocation may be in the tail."""
    v = acl_view(resource)
    if view_lag(b, v) > 0:
        return can(b, resource, principal)
    # Asked for in this order, the peek is at least as new as what the lag was told of.
    return principal in view_peek(b, v)


def audit_window(b: Backend, resource: str, start: Scalar, end: Scalar) -> list[Event]:
    """What was granted and revoked from `start` to `end`, both included."""
    return read_window(b, stream_for(resource), start, end)


def _view_name(resource: str) -> str:
    return f"acl/{resource}"
