"""Appends that have one effect however often they are repeated, with no time window."""

from collections.abc import Iterable

from strandline.persist.backend import Append, Backend, Delete
from strandline.persist.core.lift import atomic
from strandline.persist.event import Compacted, Conflict, Event, Scalar, Storable
from strandline.persist.features.batch import Spec, block_appends
from strandline.persist.features.kv import kv_items
from strandline.persist.features.log import PAGE, only_event
from strandline.persist.reserved import ONCE, guard, reserved_key, reserved_prefix
from strandline.persist.value import check_name


def append_once(
    b: Backend, stream: str, key: str, type: str, at: Scalar, data: Storable, *, globally: bool = False
) -> Event | Conflict:
    """Append under `key`; a repeat writes nothing and gives the event as first stored, also after truncation.

    A repeat with another type or data is a Conflict KEY_REUSED; `at` is not compared, since retries restamp.
    """
    guard("stream", check_name("stream", stream))
    outcome = atomic(b).commit([], [Append(stream, type, at, data, globally=globally)], once=(stream, key))
    return outcome if isinstance(outcome, Conflict) else only_event(outcome)


def append_batch_once(
    b: Backend, stream: str, key: str, specs: Iterable[Spec], *, globally: bool = False
) -> list[Event] | Conflict:
    """The same for a block; an empty one writes nothing, its key included."""
    writes = block_appends(stream, specs, globally)
    if writes:
        return atomic(b).commit([], writes, once=(stream, key))
    marker = b.kv_get(reserved_key(ONCE, stream, check_name("idempotency key", key)))
    if marker is None:
        return []
    name, seq, *_ = marker["runs"][0]
    return Conflict(key, atomic(b).event_at(name, seq) or Compacted(name, seq), "KEY_REUSED", stream)


def seen(b: Backend, stream: str, key: str) -> bool:
    """Whether `key` was used in `stream`."""
    check_name("stream", stream)
    return b.kv_has(reserved_key(ONCE, stream, check_name("idempotency key", key)))


def once_forget(b: Backend, stream: str, through: int) -> int:
    """Forget the keys whose events all have a seq up to `through`; how many there were. It reads all of the
    stream's keys."""
    guard("stream", check_name("stream", stream))
    store, forgotten = atomic(b), 0
    doomed: list[Delete] = []
    for key, marker in kv_items(b, prefix=reserved_prefix(ONCE, stream), reserved=True):
        last = max((seq + n - 1 for name, seq, _, n in marker["runs"] if name == stream), default=0)
        if last <= through:
            doomed.append(Delete(key))
            forgotten += 1
        if len(doomed) == PAGE:
            store.commit([], doomed)
            doomed = []
    if doomed:
        store.commit([], doomed)
    return forgotten
