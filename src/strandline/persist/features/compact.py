"""Compaction: truncation behind a snapshot, never past what anybody still needs."""

from typing import Any

from strandline.base.failpoint import reach
from strandline.errors import SnapshotMismatch, UsageError
from strandline.persist.backend import AtomicBackend, Backend
from strandline.persist.core.lift import atomic
from strandline.persist.event import ProjectionState, Storable
from strandline.persist.features.gaps import head
from strandline.persist.features.hold import hold_floor, truncate_unheld
from strandline.persist.features.log import count
from strandline.persist.features.project import Step
from strandline.persist.features.snapshot import checkpoint, kept_snapshot, snapshot_load, snapshots
from strandline.persist.features.upcast import Upcasters
from strandline.persist.reserved import guard
from strandline.persist.value import check_name


def uncompacted(b: Backend, stream: str, name: str, seed: Storable) -> int:
    """How many events the snapshot has not seen."""
    kept = kept_snapshot(b, name)
    if kept is not None and kept["stream"] not in (None, stream):
        raise _of_another_stream(kept, stream, name)
    state = ProjectionState(seed, 0) if kept is None else kept["state"]
    return b.last_seq(check_name("stream", stream)) - int(state.seq)


def should_compact(b: Backend, stream: str, name: str, seed: Storable, *, every: int) -> bool:
    _check_every(every)
    return uncompacted(b, stream, name, seed) >= every


def compact(
    b: Backend,
    stream: str,
    name: str,
    step: Step,
    seed: Storable,
    *,
    version: str | None = None,
    upcasters: Upcasters | None = None,
) -> ProjectionState:
    """Keep a snapshot, then truncate through it, or as far as other snapshots and holds allow.

    A crash between the two leaves a longer log, which the next compaction truncates. Events appended
    meanwhile stay.
    """
    guard("stream", check_name("stream", stream))
    state = checkpoint(b, stream, name, step, seed, version=version, upcasters=upcasters)
    reach("compact.checkpointed")
    _truncate_covered(atomic(b), stream, name)
    return state


def maybe_compact(
    b: Backend,
    stream: str,
    name: str,
    step: Step,
    seed: Storable,
    *,
    every: int,
    version: str | None = None,
    upcasters: Upcasters | None = None,
) -> ProjectionState:
    """Compact if the snapshot is `every` or more events behind; else the kept state as it is."""
    if should_compact(b, stream, name, seed, every=every):
        return compact(b, stream, name, step, seed, version=version, upcasters=upcasters)
    return snapshot_load(b, name, seed)


def reclaimable(b: Backend, stream: str, name: str) -> int:
    """How many stored events the snapshot and every hold have behind them."""
    store = atomic(b)
    floor = hold_floor(store, stream, at_most=_covered(store, stream, name))
    return max(count(b, stream) - (head(store, stream).last_seq - floor), 0)


def maybe_reclaim(b: Backend, stream: str, name: str, *, every: int) -> int:
    """Truncate what is reclaimable if that is `every` or more events; how many went.

    It folds nothing, so it also fires where an attached view keeps the snapshot current.
    """
    _check_every(every)
    guard("stream", check_name("stream", stream))
    found = reclaimable(b, stream, name)
    if found < every:
        return 0
    _truncate_covered(atomic(b), stream, name)
    return found


def _truncate_covered(b: AtomicBackend, stream: str, name: str) -> None:
    truncate_unheld(b, stream, lambda: _covered(b, stream, name))


def _covered(b: AtomicBackend, stream: str, name: str) -> int:
    """The seq that every snapshot of the stream has behind it; 0 if the one named is not there (any more)."""
    kept = kept_snapshot(b, name)
    if kept is None:
        return 0
    if kept["stream"] != stream:
        raise _of_another_stream(kept, stream, name)
    lowest: int = min([kept["state"].seq, *(seq for _, seq in snapshots(b, stream))])
    return lowest


def _of_another_stream(kept: dict[str, Any], stream: str, name: str) -> SnapshotMismatch:
    return SnapshotMismatch(
        f"snapshot {name!r} is of stream {kept['stream']!r} and cannot stand for events of {stream!r}",
        hint="checkpoint the stream under a name of its own",
    )


def _check_every(every: int) -> None:
    if type(every) is not int or every < 1:
        raise UsageError(f"every is {every!r:.80}", hint="every is an int of 1 or more")
