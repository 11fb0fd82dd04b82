"""Compaction: truncation behind a snapshot, never past what anybody still needs."""

from strandline.errors import UsageError
from strandline.failpoint import reach
from strandline.persist.backend import AtomicBackend, Backend, Truncate
from strandline.persist.event import ProjectionState, Storable
from strandline.persist.hold import hold_floor
from strandline.persist.lift import atomic
from strandline.persist.log import count, head
from strandline.persist.project import Step
from strandline.persist.reserved import guard
from strandline.persist.snapshot import checkpoint, snapshot_load, snapshots
from strandline.persist.upcast import Upcasters
from strandline.persist.value import check_name


def uncompacted(b: Backend, stream: str, name: str, seed: Storable) -> int:
    """How many events the snapshot has not seen."""
    return b.last_seq(check_name("stream", stream)) - snapshot_load(b, name, seed).seq


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
    _truncate_covered(atomic(b), stream, state.seq)
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
    covered = snapshot_load(b, name, None).seq
    floor = _floor(store, stream, covered)
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
    _truncate_covered(atomic(b), stream, snapshot_load(b, name, None).seq)
    return found


def _truncate_covered(b: AtomicBackend, stream: str, covered: int) -> None:
    floor = _floor(b, stream, covered)
    if floor > 0:
        b.commit([], [Truncate(stream, floor)])


def _floor(b: AtomicBackend, stream: str, covered: int) -> int:
    lowest = min([covered, *(seq for _, seq in snapshots(b, stream))])
    return hold_floor(b, stream, at_most=lowest)


def _check_every(every: int) -> None:
    if type(every) is not int or every < 1:
        raise UsageError(f"every is {every!r:.80}", hint="every is an int of 1 or more")
