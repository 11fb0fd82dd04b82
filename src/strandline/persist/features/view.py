"""Views: a fold with a name, kept as the snapshot of that name and caught up when it is asked for."""

from dataclasses import dataclass, field

from strandline.persist.backend import Backend
from strandline.persist.event import Event, ProjectionState, Storable
from strandline.persist.features.project import Step
from strandline.persist.features.snapshot import checkpoint, refreshed, snapshot_load
from strandline.persist.features.subscribe import Hub, subscribe
from strandline.persist.features.upcast import Upcasters
from strandline.persist.value import check_name


@dataclass(frozen=True, slots=True)
class View:
    """What is folded, out of which stream, and under which name it is kept."""

    name: str
    stream: str
    step: Step
    seed: Storable
    upcasters: Upcasters | None = field(default=None, kw_only=True)
    version: str | None = field(default=None, kw_only=True)


def view(
    name: str,
    stream: str,
    step: Step,
    seed: Storable,
    *,
    upcasters: Upcasters | None = None,
    version: str | None = None,
) -> View:
    check_name("view", name)
    return View(name, check_name("stream", stream), step, seed, upcasters=upcasters, version=version)


def view_name(v: View) -> str:
    return v.name


def view_stream(v: View) -> str:
    return v.stream


def view_refresh(b: Backend, v: View) -> ProjectionState:
    """Fold the tail and keep the result."""
    return checkpoint(b, v.stream, v.name, v.step, v.seed, version=v.version, upcasters=v.upcasters)


def view_value(b: Backend, v: View) -> Storable:
    """The value over the whole stream, never stale; it writes only if there was something to fold."""
    return refreshed(b, v.stream, v.name, v.step, v.seed, version=v.version, upcasters=v.upcasters).value


def view_peek(b: Backend, v: View) -> Storable:
    """The kept value without folding: it lags by what was appended since the last refresh."""
    return snapshot_load(b, v.name, v.seed).value


def view_lag(b: Backend, v: View) -> int:
    """How many events a peek has not seen."""
    return b.last_seq(v.stream) - snapshot_load(b, v.name, v.seed).seq


def view_attach(hub: Hub, v: View) -> Hub:
    """Catch up now, and after each publish to the view's stream; returns the hub."""

    def refresh(b: Backend, _stream: str, _event: Event) -> None:
        view_refresh(b, v)

    subscribe(hub, v.stream, refresh)
    view_refresh(hub.backend, v)  # after it: what is published in between is folded by one of the two
    return hub
