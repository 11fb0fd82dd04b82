"""The hub: callbacks after the commit, in order, whose errors never hide the event."""

from functools import partial
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, raises, truthy
from strandline.conformance.suites.given import total
from strandline.persist import (
    Backend,
    Conflict,
    Event,
    Hub,
    ProjectionState,
    SubscriberErrors,
    append,
    count,
    global_pos,
    kv_get,
    kv_get_or,
    kv_put,
    project_resume,
    publish,
    publish_batch,
    publish_expect,
    publish_global,
    publish_once,
    read,
    subscribe,
    subscriber_count,
)

SUBSCRIBE = Suite("subscribe", expected=19, floor=9)


@SUBSCRIBE.case("P-SUB-1")
def a_hub_starts_without_subscribers_and_counts_them(b: Backend) -> None:
    hub = Hub(b)

    def ignore(_: Backend, __: str, ___: Event) -> None:
        """A callback."""

    truthy(hub.backend is b, "the very backend")
    equal(subscriber_count(hub, "cart-1"), 0)
    subscribe(hub, "cart-1", ignore)
    subscribe(hub, "cart-1", ignore)
    equal((subscriber_count(hub, "cart-1"), subscriber_count(hub, "cart-2")), (2, 0))


@SUBSCRIBE.case("P-SUB-2", "P-SUB-5")
def publish_appends_and_returns_the_event(b: Backend) -> None:
    hub = Hub(b)

    event = publish(hub, "cart-1", "opened", 1, {"n": 1})

    equal(event, Event("cart-1", 1, "opened", 1, {"n": 1}))
    equal(read(b, "cart-1"), [event])


@SUBSCRIBE.case("P-SUB-2")
def subscribers_are_called_in_the_order_of_registration(b: Backend) -> None:
    hub, told = Hub(b), []

    def tell(name: str, _: Backend, stream: str, event: Event) -> None:
        told.append((name, stream, event.seq))

    for name in ("first", "second", "third"):
        subscribe(hub, "cart-1", partial(tell, name))

    publish(hub, "cart-1", "opened", 1, {})

    equal(told, [("first", "cart-1", 1), ("second", "cart-1", 1), ("third", "cart-1", 1)])


@SUBSCRIBE.case("P-SUB-1")
def a_callback_registered_twice_is_called_twice(b: Backend) -> None:
    hub, told = Hub(b), []

    def tell(_: Backend, __: str, event: Event) -> None:
        told.append(event.seq)

    subscribe(hub, "cart-1", tell)
    subscribe(hub, "cart-1", tell)
    publish(hub, "cart-1", "opened", 1, {})

    equal(told, [1, 1])


@SUBSCRIBE.case("P-SUB-3")
def the_event_is_stored_before_the_first_callback(b: Backend) -> None:
    hub, found = Hub(b), []
    subscribe(hub, "cart-1", lambda backend, stream, event: found.append(read(backend, stream) == [event]))

    publish(hub, "cart-1", "opened", 1, {})

    equal(found, [True])


@SUBSCRIBE.case("P-SUB-3")
def a_callback_may_write_and_what_it_returns_is_ignored(b: Backend) -> None:
    hub = Hub(b)
    subscribe(hub, "cart-1", lambda backend, _, event: kv_put(backend, "latest", event.data))

    event = publish(hub, "cart-1", "opened", 1, {"n": 5})

    equal((kv_get(b, "latest"), event.seq), ({"n": 5}, 1))


@SUBSCRIBE.case("P-SUB-4")
def other_streams_do_not_fire_a_subscription(b: Backend) -> None:
    hub, told = Hub(b), []
    subscribe(hub, "cart-1", lambda _, stream, __: told.append(stream))

    for stream in ("cart-2", "cart-10", "cart", "Cart-1"):
        publish(hub, stream, "opened", 1, {})

    equal(told, [])


@SUBSCRIBE.case("P-SUB-6")
def a_plain_append_tells_nobody(b: Backend) -> None:
    hub, told = Hub(b), []
    subscribe(hub, "cart-1", lambda _, __, event: told.append(event.seq))

    append(b, "cart-1", "opened", 1, {})

    equal(told, [])


@SUBSCRIBE.case("P-SUB-7")
def a_callback_that_resumes_keeps_a_read_model_over_every_event(b: Backend) -> None:
    hub = Hub(b)

    def keep(backend: Backend, stream: str, _: Event) -> None:
        prior = kv_get_or(backend, "model", ProjectionState(0, 0))
        kv_put(backend, "model", project_resume(backend, stream, total, prior))

    subscribe(hub, "cart-1", keep)
    publish(hub, "cart-1", "added", 1, {"n": 1})
    append(b, "cart-1", "added", 2, {"n": 10})  # past the hub
    publish(hub, "cart-1", "added", 3, {"n": 100})

    equal(kv_get(b, "model"), ProjectionState(111, 3))


@SUBSCRIBE.case("P-SUB-8")
def subscriptions_live_in_the_hub_and_what_callbacks_stored_lives_in_the_store(b: Backend) -> None:
    hub = Hub(b)
    subscribe(hub, "cart-1", lambda backend, _, event: kv_put(backend, "latest", event.seq))
    publish(hub, "cart-1", "opened", 1, {})

    again = Hub(b)
    publish(again, "cart-1", "added", 2, {})

    equal((subscriber_count(again, "cart-1"), kv_get(b, "latest")), (0, 1))


@SUBSCRIBE.case("P-SUB-9")
def who_subscribes_during_a_delivery_is_told_of_the_next(b: Backend) -> None:
    hub, told = Hub(b), []

    def first(_: Backend, __: str, event: Event) -> None:
        if event.seq == 1:
            subscribe(hub, "cart-1", lambda _, __, later: told.append(later.seq))

    subscribe(hub, "cart-1", first)
    publish(hub, "cart-1", "opened", 1, {})
    equal(told, [])
    publish(hub, "cart-1", "added", 2, {})

    equal(told, [2])


@SUBSCRIBE.case("P-SUB-9")
def a_nested_publish_is_delivered_first(b: Backend) -> None:
    hub, told = Hub(b), []

    def nests(_: Backend, __: str, event: Event) -> None:
        if event.seq == 1:
            publish(hub, "cart-1", "added", 2, {})

    subscribe(hub, "cart-1", nests)
    subscribe(hub, "cart-1", lambda _, __, event: told.append(event.seq))
    publish(hub, "cart-1", "opened", 1, {})

    equal(told, [2, 1])


@SUBSCRIBE.case("P-SUB-10")
def a_raising_callback_hides_neither_the_event_nor_the_others(b: Backend) -> None:
    hub, told = Hub(b), []

    def breaks(_: Backend, __: str, ___: Event) -> None:
        raise ZeroDivisionError

    subscribe(hub, "cart-1", breaks)
    subscribe(hub, "cart-1", lambda _, __, event: told.append(event.seq))

    with raises(SubscriberErrors) as caught:
        publish(hub, "cart-1", "opened", 1, {})

    equal([type(error).__name__ for error in caught.error.exceptions], ["ZeroDivisionError"])
    equal((caught.error.event, told), (Event("cart-1", 1, "opened", 1, {}), [1]))
    equal(count(b, "cart-1"), 1)


@SUBSCRIBE.case("P-SUB-10")
def errors_go_to_on_error_where_there_is_one(b: Backend) -> None:
    heard: list[Any] = []
    hub = Hub(b, on_error=lambda event, error: heard.append((event.seq, type(error).__name__)))

    def breaks(_: Backend, __: str, ___: Event) -> None:
        raise ZeroDivisionError

    subscribe(hub, "cart-1", breaks)
    publish(hub, "cart-1", "opened", 1, {})

    equal(heard, [(1, "ZeroDivisionError")])


@SUBSCRIBE.case("P-SUB-11")
def a_cancelled_subscription_is_not_called_again(b: Backend) -> None:
    hub, told = Hub(b), []
    kept = subscribe(hub, "cart-1", lambda _, __, event: told.append(("kept", event.seq)))
    gone = subscribe(hub, "cart-1", lambda _, __, event: told.append(("gone", event.seq)))

    gone.cancel()
    gone.cancel()
    publish(hub, "cart-1", "opened", 1, {})

    equal((told, subscriber_count(hub, "cart-1")), ([("kept", 1)], 1))
    kept.cancel()
    equal(subscriber_count(hub, "cart-1"), 0)


@SUBSCRIBE.case("P-SUB-11")
def publish_expect_tells_of_an_event_and_not_of_a_conflict(b: Backend) -> None:
    hub, told = Hub(b), []
    subscribe(hub, "cart-1", lambda _, __, event: told.append(event.seq))

    equal(publish_expect(hub, "cart-1", 0, "opened", 1, {}), Event("cart-1", 1, "opened", 1, {}))
    equal(publish_expect(hub, "cart-1", 0, "opened", 1, {}), Conflict(0, 1, "STALE"))

    equal(told, [1])


@SUBSCRIBE.case("P-SUB-11")
def publish_batch_tells_in_order_after_the_whole_is_stored(b: Backend) -> None:
    hub, told = Hub(b), []
    subscribe(hub, "cart-1", lambda backend, stream, event: told.append((event.seq, count(backend, stream))))

    stored = publish_batch(hub, "cart-1", [("added", i, {"n": i}) for i in range(3)])

    equal(stored, read(b, "cart-1"))
    equal(told, [(1, 3), (2, 3), (3, 3)])
    equal(publish_batch(hub, "cart-1", [("added", 9, {})], expected=1), Conflict(1, 3, "STALE"))
    equal(len(told), 3)


@SUBSCRIBE.case("P-SUB-11")
def publish_once_tells_of_the_first_and_not_of_a_repeat(b: Backend) -> None:
    hub, told = Hub(b), []
    subscribe(hub, "cart-1", lambda _, __, event: told.append(event.seq))

    first = publish_once(hub, "cart-1", "k", "opened", 1, {})
    again = publish_once(hub, "cart-1", "k", "opened", 2, {})

    equal((again, told), (first, [1]))


@SUBSCRIBE.case("P-SUB-11", "P-GLB-1")
def publish_global_tells_and_takes_a_position(b: Backend) -> None:
    hub, told = Hub(b), []
    subscribe(hub, "cart-1", lambda _, __, event: told.append(event.seq))

    publish_global(hub, "cart-1", "opened", 1, {})

    equal((told, global_pos(b)), ([1], 1))
