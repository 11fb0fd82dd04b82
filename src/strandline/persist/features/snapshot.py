"""Snapshots: a fold kept in the store with its seq, so that a replay starts there. They never go back.

$snapshot/<name>              {"name", "state": ProjectionState, "stream", "version"}
$snapshot-of/<stream>/<name>  {"name", "seq", "stream"}   for those that know their stream: what compaction
must not pass
"""

from dataclasses import dataclass, field
from typing import Any

from strandline.errors import HistoryGap, SnapshotMismatch, UsageError
from strandline.persist.backend import AtomicBackend, Backend, Delete, Expectation, ExpectKey, Put, Write
from strandline.persist.core.lift import atomic
from strandline.persist.event import ABSENT, Conflict, ProjectionState, Storable
from strandline.persist.features.hold import lowering
from strandline.persist.features.kv import kv_items
from strandline.persist.features.project import Step, project_resume
from strandline.persist.features.upcast import Upcasters
from strandline.persist.reserved import SNAPSHOT, SNAPSHOT_OF, reserved_key, reserved_prefix
from strandline.persist.value import check_name, check_seq


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """A write of `commit`: keep `state` under `name`; a Conflict where the kept one is further."""

    name: str
    state: ProjectionState
    stream: str | None = field(default=None, kw_only=True)
    version: str | None = field(default=None, kw_only=True)


def snapshot_load(b: Backend, name: str, seed: Storable) -> ProjectionState:
    """The kept state, or `(seed, 0)` if there is none."""
    kept = kept_snapshot(b, name)
    return kept["state"] if kept else ProjectionState(seed, 0)


def snapshot_exists(b: Backend, name: str) -> bool:
    return b.kv_has(reserved_key(SNAPSHOT, check_name("snapshot", name)))


def snapshot_save(
    b: Backend, name: str, state: ProjectionState, *, stream: str | None = None, version: str | None = None
) -> ProjectionState:
    """Keep `state`, unless the kept one is further, and return what is kept."""
    store = atomic(b)
    while True:
        made = save_snapshot(store, SaveSnapshot(name, state, stream=stream, version=version))
        if not isinstance(made, Conflict):
            if not isinstance(store.commit(*made), Conflict):
                return state
        elif kept := kept_snapshot(b, name):
            kept_state: ProjectionState = kept["state"]
            return kept_state


def snapshot_drop(b: Backend, name: str, *, force: bool = False) -> None:
    """Forget a snapshot; HistoryGap if its stream was truncated, since nothing could rebuild it, unless
    forced."""
    store = atomic(b)
    while (kept := kept_snapshot(b, name)) is not None:
        stream = kept["stream"]
        expected: list[Expectation] = [ExpectKey(reserved_key(SNAPSHOT, name), kept)]
        writes = drop_writes(name, stream)
        if stream is not None:
            lowers = lowering(store, stream)  # looked at first: a truncation after this look is a conflict
            expected, writes = [*expected, *lowers[0]], [*writes, *lowers[1]]
            if not force and (truncated := store.truncated_through(stream)) > 0:
                raise HistoryGap(stream, prior_seq=0, truncated_through=truncated)
        if not isinstance(store.commit(expected, writes), Conflict):
            return


def snapshots(b: Backend, stream: str) -> list[tuple[str, int]]:
    """The snapshots that are recorded for a stream: names with their seqs."""
    prefix = reserved_prefix(SNAPSHOT_OF, check_name("stream", stream))
    return [(value["name"], value["seq"]) for _, value in kv_items(b, prefix=prefix, reserved=True)]


def replay(
    b: Backend,
    stream: str,
    name: str,
    step: Step,
    seed: Storable,
    *,
    version: str | None = None,
    upcasters: Upcasters | None = None,
) -> ProjectionState:
    """Fold the events after the snapshot onto it; writes nothing."""
    return _replayed(b, stream, name, step, seed, fold_version(version, upcasters), upcasters)[2]


def checkpoint(
    b: Backend,
    stream: str,
    name: str,
    step: Step,
    seed: Storable,
    *,
    version: str | None = None,
    upcasters: Upcasters | None = None,
) -> ProjectionState:
    """Replay, then keep the result with its stream and the version of the fold."""
    return refreshed(b, stream, name, step, seed, version=version, upcasters=upcasters, keep_empty=True)


def refreshed(
    b: Backend,
    stream: str,
    name: str,
    step: Step,
    seed: Storable,
    *,
    version: str | None = None,
    upcasters: Upcasters | None = None,
    keep_empty: bool = False,
) -> ProjectionState:
    """Replay, then keep the result if there was something to fold; with `keep_empty` also a first one of
    nothing.

    What it keeps rests on the very snapshot that it replayed from. If that is gone by then (erased,
    dropped), or another one is there, it folds anew: nothing that was removed comes back.
    """
    store, fold = atomic(b), fold_version(version, upcasters)
    while True:
        kept, prior, state = _replayed(b, stream, name, step, seed, fold, upcasters)
        is_new = kept is None or kept["stream"] is None
        if state.seq == prior.seq and not (is_new and keep_empty):
            return state
        save = SaveSnapshot(name, state, stream=stream, version=fold)
        if not isinstance(store.commit(*_save_writes(store, save, kept)), Conflict):
            return state


def _replayed(
    b: Backend,
    stream: str,
    name: str,
    step: Step,
    seed: Storable,
    version: str | None,
    upcasters: Upcasters | None,
) -> tuple[dict[str, Any] | None, ProjectionState, ProjectionState]:
    """What is kept, the state to start from, and the state with the events after it.

    If another process compacts between the look at the snapshot and the fold, the events are gone and the
    snapshot has moved. Then it starts again from there; if the snapshot has not moved, HistoryGap is true.
    """
    kept = kept_snapshot(b, name)
    while True:
        prior = _prior(kept, stream, name, seed, version)
        try:
            return kept, prior, project_resume(b, stream, step, prior, upcasters=upcasters)
        except HistoryGap as gap:
            if gap.stream != stream:
                raise  # the step's own
            moved = kept_snapshot(b, name)
            if moved is None or moved["state"].seq <= prior.seq:
                raise
            kept = moved


def fold_version(version: str | None, upcasters: Upcasters | None) -> str | None:
    """What a snapshot's fold is known by: its own version and that of the upcasters under it."""
    return version if upcasters is None else f"{version or ''}+{upcasters.version}"


def save_snapshot(
    b: AtomicBackend, save: SaveSnapshot, *, is_repeat: bool = False
) -> tuple[list[Expectation], list[Write]] | Conflict:
    """A SaveSnapshot in terms of the backend: it rests on the snapshot that was seen.

    As a repeat of what was done already it is never a Conflict, and cannot be done anew where the kept one
    is further.
    """
    check_name("snapshot", save.name)
    if type(save.state) is not ProjectionState:
        raise UsageError(f"snapshot {save.name!r} is {save.state!r:.80}", hint="it is a ProjectionState")
    check_seq("a snapshot's seq", save.state.seq)
    kept = kept_snapshot(b, save.name)
    if is_repeat:
        absent: Expectation = ExpectKey(reserved_key(SNAPSHOT, save.name), ABSENT)
        return [absent], _save_writes(b, save, None)[1]
    if kept is not None and kept["state"].seq > save.state.seq:
        return Conflict(save.state.seq, kept["state"].seq, "STALE", save.name)
    return _save_writes(b, save, kept)


def _save_writes(
    b: AtomicBackend, save: SaveSnapshot, kept: dict[str, Any] | None
) -> tuple[list[Expectation], list[Write]]:
    """Keep a snapshot in the place of `kept`; what it does not say of its stream and version stays as it
    was."""
    key = reserved_key(SNAPSHOT, save.name)
    known = kept or {"stream": None, "version": None}
    for what, asked in (("stream", save.stream), ("version", save.version)):
        if asked is not None and known["stream"] is not None and known[what] != asked:
            raise _mismatch(save.name, what, known[what], asked)
    stream, version = save.stream or known["stream"], save.version or known["version"]
    value = {"name": save.name, "state": save.state, "stream": stream, "version": version}
    expected: list[Expectation] = [ExpectKey(key, ABSENT if kept is None else kept)]
    writes: list[Write] = [Put(key, value)]
    if stream is not None:
        index = reserved_key(SNAPSHOT_OF, check_name("stream", stream), save.name)
        writes.append(Put(index, {"name": save.name, "seq": save.state.seq, "stream": stream}))
        if known["stream"] is None:
            lowers = lowering(b, stream)
            expected, writes = [*expected, *lowers[0]], [*writes, *lowers[1]]
    return expected, writes


def drop_writes(name: str, stream: str | None) -> list[Write]:
    index = [Delete(reserved_key(SNAPSHOT_OF, stream, name))] if stream is not None else []
    return [Delete(reserved_key(SNAPSHOT, name)), *index]


def kept_snapshot(b: Backend, name: str) -> dict[str, Any] | None:
    """What is kept under a name: `state`, `stream` and `version`."""
    kept: dict[str, Any] | None = b.kv_get(reserved_key(SNAPSHOT, check_name("snapshot", name)))
    return kept


def _prior(
    kept: dict[str, Any] | None, stream: str, name: str, seed: Storable, version: str | None
) -> ProjectionState:
    if kept is None:
        return ProjectionState(seed, 0)
    for what, stored, asked in (("stream", kept["stream"], stream), ("version", kept["version"], version)):
        # One that was saved without its stream says nothing of its fold; any other has the version that it
        # says.
        if stored != asked and (stored is not None or kept["stream"] is not None):
            raise _mismatch(name, what, stored, asked)
    state: ProjectionState = kept["state"]
    return state


def _mismatch(name: str, what: str, stored: str | None, asked: str | None) -> SnapshotMismatch:
    return SnapshotMismatch(
        f"snapshot {name!r} is of {what} {stored!r}, not {asked!r}",
        hint="give the other fold a name of its own, or drop the snapshot and rebuild it",
    )
