"""Views: folds with a name, kept as the snapshot of that name, current when asked or when attached."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, raises, truthy
from strandline.conformance.suites.given import counted, total
from strandline.persist import (
    Backend,
    Event,
    Hub,
    ProjectionState,
    SnapshotMismatch,
    View,
    append,
    compact,
    io_backend,
    publish,
    serve,
    snapshot_load,
    subscriber_count,
    view,
    view_attach,
    view_lag,
    view_name,
    view_peek,
    view_refresh,
    view_stream,
    view_value,
)

VIEW = Suite("view", expected=18, floor=11)


def cart_total(stream: str = "cart-1") -> View:
    return view("total", stream, total, 0)


@VIEW.case("P-VIEW-1")
def a_view_has_a_name_and_a_stream() -> None:
    equal((view_name(cart_total()), view_stream(cart_total())), ("total", "cart-1"))


@VIEW.case("P-VIEW-2")
def refresh_folds_and_returns_the_state(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(view_refresh(b, cart_total()), ProjectionState(10, 4))


@VIEW.case("P-VIEW-2")
def a_view_is_kept_as_the_snapshot_of_its_name(b: Backend) -> None:
    counted(b, "cart-1", 4)
    view_refresh(b, cart_total())

    equal(snapshot_load(b, "total", 0), ProjectionState(10, 4))


@VIEW.case("P-VIEW-3")
def a_value_covers_the_whole_stream(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(view_value(b, cart_total()), 10)


@VIEW.case("P-VIEW-3")
def a_value_is_never_stale(b: Backend) -> None:
    counted(b, "cart-1", 2)
    view_refresh(b, cart_total())
    counted(b, "cart-1", 2, start=3)

    equal(view_value(b, cart_total()), 10)
    equal(snapshot_load(b, "total", 0).seq, 4)


@VIEW.case("P-VIEW-4")
def a_peek_before_any_refresh_is_the_seed(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(view_peek(b, cart_total()), 0)


@VIEW.case("P-VIEW-4")
def a_peek_lags_by_what_was_appended_since(b: Backend) -> None:
    counted(b, "cart-1", 2)
    view_refresh(b, cart_total())
    counted(b, "cart-1", 2, start=3)

    equal(view_peek(b, cart_total()), 3)


@VIEW.case("P-VIEW-5")
def attaching_returns_the_same_hub(b: Backend) -> None:
    hub = Hub(b)

    truthy(view_attach(hub, cart_total()) is hub, "the very hub")
    equal(subscriber_count(hub, "cart-1"), 1)


@VIEW.case("P-VIEW-5")
def an_attached_view_is_current_after_each_publish(b: Backend) -> None:
    hub = view_attach(Hub(b), cart_total())

    for i in (1, 2, 3):
        event = publish(hub, "cart-1", "added", i, {"n": i})
        equal(view_peek(b, cart_total()), i * (i + 1) // 2)
        equal(snapshot_load(b, "total", 0).seq, event.seq)


@VIEW.case("P-VIEW-5")
def publishes_elsewhere_do_not_touch_a_view(b: Backend) -> None:
    hub = view_attach(Hub(b), cart_total())

    publish(hub, "cart-2", "added", 1, {"n": 5})

    equal((view_peek(b, cart_total()), snapshot_load(b, "total", 0).seq), (0, 0))


@VIEW.case("P-VIEW-6")
def a_refresh_covers_what_bypassed_the_hub(b: Backend) -> None:
    hub = view_attach(Hub(b), cart_total())
    publish(hub, "cart-1", "added", 1, {"n": 1})
    append(b, "cart-1", "added", 2, {"n": 10})

    publish(hub, "cart-1", "added", 3, {"n": 100})

    equal(view_peek(b, cart_total()), 111)


@VIEW.case("P-VIEW-6")
def repeated_refreshes_are_harmless(b: Backend) -> None:
    counted(b, "cart-1", 3)

    states = [view_refresh(b, cart_total()) for _ in range(3)]

    equal(states, [ProjectionState(6, 3)] * 3)


@VIEW.case("P-VIEW-3")
def reading_a_current_value_writes_nothing(b: Backend) -> None:
    counted(b, "cart-1", 3)
    view_value(b, cart_total())
    wrote: list[Any] = []

    def watch(request: dict[str, Any]) -> Any:
        if request["op"] == "persist/commit":
            wrote.append(request)
        return serve(b, request)

    equal(view_value(io_backend(watch), cart_total()), 6)
    equal(wrote, [])
    counted(b, "cart-1", 1, start=4)
    equal(view_value(io_backend(watch), cart_total()), 10)
    equal(len(wrote), 1)


@VIEW.case("P-VIEW-7")
def attaching_catches_up(b: Backend) -> None:
    counted(b, "cart-1", 4)

    view_attach(Hub(b), cart_total())

    equal(view_peek(b, cart_total()), 10)


@VIEW.case("P-VIEW-7")
def the_lag_tells_that_a_peek_is_stale(b: Backend) -> None:
    counted(b, "cart-1", 3)
    equal(view_lag(b, cart_total()), 3)
    view_refresh(b, cart_total())
    equal(view_lag(b, cart_total()), 0)

    counted(b, "cart-1", 2, start=4)

    equal(view_lag(b, cart_total()), 2)


@VIEW.case("P-VIEW-7")
def a_refresh_folds_only_the_tail(b: Backend) -> None:
    counted(b, "cart-1", 50)
    view_refresh(b, cart_total())
    counted(b, "cart-1", 1, start=51)
    folded: list[int] = []

    def step(value: int, event: Event) -> int:
        folded.append(event.seq)
        return value + 1

    view_refresh(b, view("total", "cart-1", step, 0))

    equal(folded, [51])


@VIEW.case("P-VIEW-2", "P-CMP-5")
def a_view_stays_right_after_its_stream_was_compacted_behind_it(b: Backend) -> None:
    counted(b, "cart-1", 4)
    view_refresh(b, cart_total())
    compact(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 1, start=5)

    equal(view_value(b, cart_total()), 15)


@VIEW.case("P-VIEW-1", "P-SNP-8")
def a_view_of_a_new_version_does_not_take_over_the_old_state(b: Backend) -> None:
    counted(b, "cart-1", 2)
    view_refresh(b, view("total", "cart-1", total, 0, version="1"))

    with raises(SnapshotMismatch):
        view_value(b, view("total", "cart-1", total, 0, version="2"))
