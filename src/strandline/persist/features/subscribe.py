"""The hub: callbacks in this process, run after the commit. Durable consumers are in consumer.py."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from strandline.errors import SubscriberErrors
from strandline.persist.backend import Append, Backend
from strandline.persist.core.commit import Repeated
from strandline.persist.core.lift import atomic
from strandline.persist.event import Conflict, Event, Scalar, Storable
from strandline.persist.features.batch import Spec, append_batch, append_batch_expect
from strandline.persist.features.concurrency import append_expect
from strandline.persist.features.log import append
from strandline.persist.reserved import guard
from strandline.persist.value import check_name

Callback: TypeAlias = Callable[[Backend, str, Event], object]
OnError: TypeAlias = Callable[[Event, Exception], object]


class Hub:
    """Wraps a backend; what is published through it is told to the subscribers of the stream."""

    def __init__(self, b: Backend, *, on_error: OnError | None = None) -> None:
        self.backend = b
        self.on_error = on_error
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._lock = threading.Lock()

    def subscribers(self, stream: str) -> list["Subscription"]:
        """Those of now, in order: a list of its own, so that a delivery is not changed under way."""
        with self._lock:
            return list(self._subscriptions.get(stream, ()))

    def add(self, subscription: "Subscription") -> None:
        with self._lock:
            self._subscriptions.setdefault(subscription.stream, []).append(subscription)

    def remove(self, subscription: "Subscription") -> None:
        with self._lock:
            kept = self._subscriptions.get(subscription.stream, [])
            self._subscriptions[subscription.stream] = [each for each in kept if each is not subscription]


class Subscription:
    """A registered callback; `cancel` ends it."""

    def __init__(self, hub: Hub, stream: str, callback: Callback) -> None:
        self.hub, self.stream, self.callback = hub, stream, callback

    def cancel(self) -> None:
        self.hub.remove(self)


def subscribe(hub: Hub, stream: str, callback: Callback) -> Subscription:
    """Have `callback(backend, stream, event)` called after each publish to `stream`."""
    subscription = Subscription(hub, check_name("stream", stream), callback)
    hub.add(subscription)
    return subscription


def subscriber_count(hub: Hub, stream: str) -> int:
    return len(hub.subscribers(stream))


def publish(hub: Hub, stream: str, type: str, at: Scalar, data: Storable, *, globally: bool = False) -> Event:
    """Append, then tell the subscribers. The event is stored whatever they do."""
    event = append(hub.backend, stream, type, at, data, globally=globally)
    _tell(hub, [event])
    return event


def publish_global(hub: Hub, stream: str, type: str, at: Scalar, data: Storable) -> Event:
    return publish(hub, stream, type, at, data, globally=True)


def publish_expect(
    hub: Hub, stream: str, expected: int, type: str, at: Scalar, data: Storable, *, globally: bool = False
) -> Event | Conflict:
    """As append_expect; a conflict tells nobody."""
    outcome = append_expect(hub.backend, stream, expected, type, at, data, globally=globally)
    if isinstance(outcome, Event):
        _tell(hub, [outcome])
    return outcome


def publish_batch(
    hub: Hub, stream: str, specs: Iterable[Spec], *, expected: int | None = None, globally: bool = False
) -> list[Event] | Conflict:
    """As append_batch (or append_batch_expect); the subscribers are told after the commit, in order."""
    if expected is None:
        outcome: list[Event] | Conflict = append_batch(hub.backend, stream, specs, globally=globally)
    else:
        outcome = append_batch_expect(hub.backend, stream, expected, specs, globally=globally)
    if not isinstance(outcome, Conflict):
        _tell(hub, outcome)
    return outcome


def publish_once(
    hub: Hub, stream: str, key: str, type: str, at: Scalar, data: Storable, *, globally: bool = False
) -> Event | Conflict:
    """As append_once; a repeat tells nobody."""
    writes = [Append(stream, type, at, data, globally=globally)]
    guard("stream", check_name("stream", stream))
    outcome = atomic(hub.backend).commit([], writes, once=(stream, key))
    if isinstance(outcome, Conflict):
        return outcome
    if not isinstance(outcome, Repeated):
        _tell(hub, outcome)
    return outcome[0]


def _tell(hub: Hub, events: Sequence[Event]) -> None:
    """Every callback for every event, in order; then what they raised, an error group for each event."""
    groups = [group for event in events if (group := _tell_one(hub, event)) is not None]
    if len(groups) == 1:
        raise groups[0]
    if groups:
        raise SubscriberErrors(f"callbacks raised after {len(groups)} stored events", groups, groups[0].event)


def _tell_one(hub: Hub, event: Event) -> SubscriberErrors | None:
    errors: list[Exception] = []
    for subscription in hub.subscribers(event.stream):
        try:
            subscription.callback(hub.backend, event.stream, event)
        except Exception as error:  # noqa: BLE001  # told to the caller, after the others ran
            if hub.on_error is None:
                errors.append(error)
                continue
            try:
                hub.on_error(event, error)
            except Exception as own:  # noqa: BLE001  # a handler that fails stops no delivery either
                errors += [error, own]
    if not errors:
        return None
    where = f"event {event.seq} of {event.stream!r}"
    return SubscriberErrors(f"{len(errors)} errors of callbacks after {where} was stored", errors, event)
