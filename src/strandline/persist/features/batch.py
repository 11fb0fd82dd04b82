"""Atomic batches: a block of one stream, blocks of several, and the application's own `commit` over
everything."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from strandline.errors import UsageError
from strandline.persist.backend import (
    Append,
    AtomicBackend,
    Backend,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Once,
    Outcome,
    Put,
    Redact,
    Truncate,
    Write,
)
from strandline.persist.core.lift import atomic
from strandline.persist.event import Conflict, Event, Scalar, Storable
from strandline.persist.features.consumer import MoveCursor, advance, move_cursor
from strandline.persist.features.snapshot import SaveSnapshot, save_snapshot
from strandline.persist.reserved import COMMIT_SCOPE, ONCE, guard, reserved_key
from strandline.persist.value import check_name

Spec: TypeAlias = tuple[str, Scalar, Storable]  # type, at, data


def append_batch(b: Backend, stream: str, specs: Iterable[Spec], *, globally: bool = False) -> list[Event]:
    """Append `(type, at, data)` triples as one contiguous block, all or none."""
    outcome = atomic(b).commit([], block_appends(stream, specs, globally))
    assert not isinstance(outcome, Conflict), "nothing was expected"
    return outcome


def append_batch_expect(
    b: Backend, stream: str, expected: int, specs: Iterable[Spec], *, globally: bool = False
) -> list[Event] | Conflict:
    """The same, if the last seq is `expected`; an empty batch checks too."""
    return atomic(b).commit([ExpectSeq(stream, expected)], block_appends(stream, specs, globally))


def append_multi(
    b: Backend,
    batches: Mapping[str, Iterable[Spec]],
    *,
    expected: Mapping[str, int] | None = None,
    globally: bool = False,
) -> dict[str, list[Event]] | Conflict:
    """Append to several streams in one unit; `expected` may name streams that it does not write."""
    preconditions = [ExpectSeq(stream, seq) for stream, seq in (expected or {}).items()]
    writes = [write for stream, specs in batches.items() for write in block_appends(stream, specs, globally)]
    outcome = atomic(b).commit(preconditions, writes)
    if isinstance(outcome, Conflict):
        return outcome
    return {stream: [event for event in outcome if event.stream == stream] for stream in batches}


def commit(
    b: Backend,
    preconditions: Iterable[Expectation],
    writes: Iterable["Write | SaveSnapshot | MoveCursor"],
    *,
    once: Once | None = None,
) -> Outcome:
    """One unit over streams, keys, snapshots and cursors, with conditions on any of them, written or not.

    See AtomicBackend.commit. SaveSnapshot and MoveCursor come back as a Conflict rather than go back.
    """
    store = atomic(b)
    preconditions, writes = list(preconditions), list(writes)
    moves = _guard_writes(writes)
    if once is not None and once[0] != COMMIT_SCOPE:
        guard("stream", once[0])
    if not moves:
        return store.commit(preconditions, cast("list[Write]", writes), once=once)
    _refuse_twice(moves)
    own = {expectation.key for expectation in preconditions if isinstance(expectation, ExpectKey)}
    while True:
        expanded = _expand(store, writes)
        if isinstance(expanded, Conflict) and once is not None and store.kv_has(reserved_key(ONCE, *once)):
            # A repeat: its own first effect is in its way. The backend answers it from the marker.
            expanded = _expand(store, writes, is_repeat=True)
        if isinstance(expanded, Conflict):
            return expanded
        extra, plain = expanded
        outcome = store.commit([*preconditions, *extra], plain, once=once)
        if not isinstance(outcome, Conflict):
            for write in moves:
                if isinstance(write, MoveCursor):
                    advance(write)
            return outcome
        inner = {expectation.key for expectation in extra if isinstance(expectation, ExpectKey)}
        if outcome.name in own or outcome.name not in inner:
            return outcome
        # A snapshot or a cursor moved between our look at it and the commit: look again, which ends in a
        # Conflict of its own where it has gone past us.


def block_appends(stream: str, specs: Iterable[Spec], globally: bool) -> list[Append]:
    guard("stream", check_name("stream", stream))
    writes = []
    for index, spec in enumerate(specs):
        if not (isinstance(spec, (tuple, list)) and len(spec) == 3):
            raise UsageError(
                f"spec {index} for stream {stream!r} is {spec!r:.80}", hint="a spec is (type, at, data)"
            )
        writes.append(Append(stream, *spec, globally=globally))
    return writes


def _guard_writes(writes: Sequence["Write | SaveSnapshot | MoveCursor"]) -> list[SaveSnapshot | MoveCursor]:
    """Refuse what is the store's own, or give back those that are more than a write."""
    moves: list[SaveSnapshot | MoveCursor] = []
    stream: Any = _guard_writes  # what none has
    for write in writes:
        if type(write) is Append:
            if write[0] is not stream:  # most have the one before's
                stream = check_name("stream", write[0])
                guard("stream", stream)
        elif isinstance(write, (SaveSnapshot, MoveCursor)):
            moves.append(write)
        elif isinstance(write, Truncate):
            guard("stream", check_name("stream", write.stream))
        elif isinstance(write, (Put, Delete)):
            guard("key", check_name("key", write.key))
        elif isinstance(write, Redact):
            raise UsageError(
                "a redaction needs its record", hint="call redact(b, stream, seq, path, at, reason=…)"
            )
    return moves


def _refuse_twice(moves: Sequence[SaveSnapshot | MoveCursor]) -> None:
    """Two moves of one thing in one commit: the second would rest on what the first has not done yet."""
    names = [("snapshot", move.name) for move in moves if isinstance(move, SaveSnapshot)]
    names += [("consumer", move.consumer.name) for move in moves if isinstance(move, MoveCursor)]
    if len(set(names)) != len(names):
        raise UsageError("a commit moves one snapshot or cursor twice", hint="only to where it ends up")


def _expand(
    b: AtomicBackend, writes: Sequence["Write | SaveSnapshot | MoveCursor"], *, is_repeat: bool = False
) -> tuple[list[Expectation], list[Write]] | Conflict:
    """The same writes in terms of the backend, with what they rest on."""
    extra: list[Expectation] = []
    plain: list[Write] = []
    for write in writes:
        if isinstance(write, SaveSnapshot):
            made = save_snapshot(b, write, is_repeat=is_repeat)
        elif isinstance(write, MoveCursor):
            made = move_cursor(b, write, is_repeat=is_repeat)
        else:
            plain.append(write)
            continue
        if isinstance(made, Conflict):
            return made
        extra += made[0]
        plain += made[1]
    return extra, plain
