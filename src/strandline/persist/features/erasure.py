"""Erasure and redaction: data that must leave the store, each with a record in `$erased` of what left and
why."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from strandline.persist.backend import (
    Append,
    AtomicBackend,
    Backend,
    Delete,
    ExpectKey,
    ExpectSeq,
    Put,
    Redact,
    Truncate,
    Write,
)
from strandline.persist.core.lift import atomic
from strandline.persist.event import Conflict, Event, Scalar
from strandline.persist.features.kv import kv_items
from strandline.persist.features.log import PAGE
from strandline.persist.features.snapshot import drop_writes, snapshots
from strandline.persist.reserved import ERASED, ONCE, QUARANTINE, guard, reserved_prefix
from strandline.persist.value import check_name, check_seq


class Redacted(NamedTuple):
    """The record of a redaction, and the snapshots that have folded the event: rebuild them."""

    event: Event
    snapshots: list[str]


def erase_stream(b: Backend, stream: str, at: Scalar, *, reason: str) -> Event:
    """Remove every event of a stream, its snapshots, and what markers and quarantine keep of it; its mark
    stays.

    A crash in between leaves what the first commit hides already: repeat the call to finish.
    """
    guard("stream", check_name("stream", stream))
    check_name("reason", reason)
    store = atomic(b)
    while True:
        mark = store.last_seq(stream)
        data = {"stream": stream, "through": mark, "reason": reason}
        writes: list[Write] = [Append(ERASED, "erased", at, data), Truncate(stream, mark)]
        outcome = store.commit([ExpectSeq(stream, mark)], writes)
        if not isinstance(outcome, Conflict):
            break
    for name, _ in snapshots(b, stream):
        store.commit([], drop_writes(name, stream))
    _forget_digests(store, lambda runs: any(run[0] == stream for run in runs))
    for key, _ in kv_items(b, prefix=reserved_prefix(QUARANTINE, stream), reserved=True):
        store.commit([], [Delete(key)])
    store.scrub()
    return outcome[0]


def redact(
    b: Backend, stream: str, seq: int, path: Sequence[str | int], at: Scalar, *, reason: str
) -> Redacted:
    """Put None in place of the value at `path` in a stored event, with a record of it in the same commit."""
    guard("stream", check_name("stream", stream))
    check_name("reason", reason)
    check_seq("seq", seq, least=1)
    store = atomic(b)
    data = {"stream": stream, "seq": seq, "path": list(path), "reason": reason}
    outcome = store.commit([], [Redact(stream, seq, path), Append(ERASED, "redacted", at, data)])
    assert not isinstance(outcome, Conflict), "nothing was expected"
    _forget_digests(
        store, lambda runs: any(name == stream and first <= seq < first + n for name, first, _, n in runs)
    )
    store.scrub()
    return Redacted(outcome[0], [name for name, folded in snapshots(b, stream) if folded >= seq])


def _forget_digests(b: AtomicBackend, covers: Callable[[list[Any]], bool]) -> None:
    """A digest of data that is gone could still be guessed at: it goes too, wherever the marker stands.

    It reads every marker of the store, since a commit may append to several streams.
    """
    for key, marker in _markers(b):
        if marker["digest"] is not None and covers(marker["runs"]):
            b.commit([ExpectKey(key, marker)], [Put(key, {**marker, "digest": None})])


def _markers(b: AtomicBackend) -> Iterator[tuple[str, dict[str, Any]]]:
    after = ""
    while page := b.kv_scan(ONCE + "/", after=after, limit=PAGE):
        yield from page
        after = page[-1][0]
