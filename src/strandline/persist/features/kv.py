"""The kv facet: current values without history, with compare-and-swap."""

from collections.abc import Callable, Iterator

from strandline.persist.backend import Backend, Delete, ExpectKey, Put
from strandline.persist.core.lift import atomic
from strandline.persist.event import ABSENT, Absent, Conflict, Storable
from strandline.persist.features.log import PAGE
from strandline.persist.reserved import guard, is_reserved
from strandline.persist.value import check_key, check_name


def kv_get(b: Backend, key: str) -> Storable:
    """The value, or None if the key is absent."""
    return b.kv_get(check_key(key))


def kv_has(b: Backend, key: str) -> bool:
    return b.kv_has(check_key(key))


def kv_get_or(b: Backend, key: str, default: Storable) -> Storable:
    """The value, or `default` if the key is absent: a stored None is a value."""
    current = _current(b, check_key(key))
    return default if current is ABSENT else current


def kv_put(b: Backend, key: str, value: Storable) -> Storable:
    """Insert or overwrite; returns the value."""
    guard("key", check_name("key", key))
    atomic(b).commit([], [Put(key, value)])
    return value


def kv_delete(b: Backend, key: str) -> None:
    """Remove the key; it need not be there."""
    guard("key", check_name("key", key))
    atomic(b).commit([], [Delete(key)])


def kv_keys(b: Backend) -> list[str]:
    """Every key of the application."""
    return [key for key, _ in kv_items(b)]


def kv_keys_all(b: Backend) -> list[str]:
    """Every key, those that the store keeps for itself included."""
    return [key for key, _ in kv_items(b, reserved=True)]


def kv_items(b: Backend, *, prefix: str = "", reserved: bool = False) -> Iterator[tuple[str, Storable]]:
    """Keys with their values, lazily and by pages, in order of code points."""
    store, after = atomic(b), ""
    while page := store.kv_scan(prefix, after=after, limit=PAGE):
        yield from (item for item in page if reserved or not is_reserved(item[0]))
        after = page[-1][0]
        if not reserved and is_reserved(after):
            after = max(after, "$\U0010ffff")  # past the store's own keys, of which there may be very many


def kv_update(b: Backend, key: str, default: Storable, fn: Callable[[Storable], Storable]) -> Storable:
    """Store `fn(current)`, or `fn(default)` if the key is absent, and return it.

    No concurrent update is lost: `fn` runs again when another writer was first, so it must be pure.
    """
    guard("key", check_name("key", key))
    store = atomic(b)
    while True:
        current = _current(b, key)
        value = fn(default if current is ABSENT else current)
        if not isinstance(store.commit([ExpectKey(key, current)], [Put(key, value)]), Conflict):
            return value


def kv_cas(b: Backend, key: str, expected: Storable | Absent, new: Storable) -> Storable | Conflict:
    """Write `new` and return it if the current value is `expected`; else a Conflict, and nothing is written.

    An absent key reads as None; `expected=ABSENT` matches only an absent one.
    """
    guard("key", check_name("key", key))
    store = atomic(b)
    while True:
        actual: Storable = None
        for accepted in (None, ABSENT) if expected is None else (expected,):
            outcome = store.commit([ExpectKey(key, accepted)], [Put(key, new)])
            if not isinstance(outcome, Conflict):
                return new
            actual = outcome.actual
        if expected is None and actual is None:
            continue  # absent at the first try and None at the second: both are what was expected
        return Conflict(expected, None if actual is ABSENT else actual, "STALE", key)


def kv_put_new(b: Backend, key: str, value: Storable) -> Storable | Conflict:
    """Create the key, or a Conflict with the value that is there."""
    guard("key", check_name("key", key))
    outcome = atomic(b).commit([ExpectKey(key, ABSENT)], [Put(key, value)])
    return Conflict(ABSENT, outcome.actual, "EXISTS", key) if isinstance(outcome, Conflict) else value


def _current(b: Backend, key: str) -> Storable | Absent:
    """The value or ABSENT, one request in the usual case."""
    while True:
        value = b.kv_get(key)
        if value is not None or not b.kv_has(key):
            return ABSENT if value is None else value
        # There is a key: either it holds None, or it was put between the two requests.
        if b.kv_get(key) is None:
            return None
