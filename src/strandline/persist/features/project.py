"""Projections: the value that a pure step function folds out of a stream. They only read."""

from collections.abc import Callable
from typing import Any, TypeAlias

from strandline.errors import HistoryGap, SnapshotMismatch
from strandline.persist.backend import AtomicBackend, Backend
from strandline.persist.core.lift import atomic
from strandline.persist.event import Event, ProjectionState, Storable
from strandline.persist.features.gaps import head
from strandline.persist.features.log import contiguous_pages, events
from strandline.persist.features.upcast import Upcasters, lift_event
from strandline.persist.value import check_name

Step: TypeAlias = Callable[[Any, Event], Any]


def project(
    b: Backend,
    stream: str,
    step: Step,
    seed: Storable,
    *,
    upcasters: Upcasters | None = None,
    allow_gap: bool = False,
) -> ProjectionState:
    """Fold every stored event from `seed`; HistoryGap if some are gone, unless `allow_gap` folds what is
    left."""
    return project_resume(b, stream, step, ProjectionState(seed, 0), upcasters=upcasters, allow_gap=allow_gap)


def project_resume(
    b: Backend,
    stream: str,
    step: Step,
    prior: ProjectionState,
    *,
    upcasters: Upcasters | None = None,
    allow_gap: bool = False,
) -> ProjectionState:
    """Fold the events after `prior.seq` onto `prior.value`; with none, the result is `prior`."""
    store = atomic(b)
    _, last, truncated = head(store, check_name("stream", stream))
    if prior.seq > last:
        raise SnapshotMismatch(
            f"the fold is at seq {prior.seq} of stream {stream!r}, whose last seq is {last}",
            hint="the state is of another stream or another store; fold from the start",
        )
    if allow_gap:
        return _fold_what_is_left(store, stream, step, prior, upcasters)
    if prior.seq < truncated:
        raise HistoryGap(stream, prior_seq=prior.seq, truncated_through=truncated)
    value, seq = prior.value, prior.seq
    for page in contiguous_pages(store, stream, prior.seq, last):
        for event in page if upcasters is None else [lift_event(upcasters, event) for event in page]:
            value = step(value, event)
        seq = page[-1].seq
    return prior if seq == prior.seq else ProjectionState(value, seq)


def project_fold(
    b: Backend,
    stream: str,
    step: Step,
    seed: Storable,
    *,
    upcasters: Upcasters | None = None,
    allow_gap: bool = False,
) -> Storable:
    """The value alone."""
    return project(b, stream, step, seed, upcasters=upcasters, allow_gap=allow_gap).value


def project_upcast(b: Backend, stream: str, reg: Upcasters, step: Step, seed: Storable) -> Storable:
    """The value folded over lifted events."""
    return project_fold(b, stream, step, seed, upcasters=reg)


def _fold_what_is_left(
    b: AtomicBackend, stream: str, step: Step, prior: ProjectionState, upcasters: Upcasters | None
) -> ProjectionState:
    value, seq = prior.value, prior.seq
    first = seq + 1
    while True:
        try:
            for event in events(b, stream, first=first, upcasters=upcasters):
                value, seq = step(value, event), event.seq
        except HistoryGap as gap:
            if gap.stream != stream:
                raise  # the step's own
            first = max(seq, gap.truncated_through) + 1  # a truncation overtook us: go on behind it
            continue
        return prior if seq == prior.seq else ProjectionState(value, seq)
