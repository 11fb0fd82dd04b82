"""Events: five fields, frozen, ordered by seq alone."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.persist import Backend, Event, UsageError, append, last_seq, read

EVENT = Suite("event", expected=9, floor=6)


@EVENT.case("P-EVT-1")
def an_event_keeps_each_argument_unchanged() -> None:
    data = {"n": [1, None, {"deep": "x"}]}

    event = Event("cart-1", 7, "added", 1.5, data)

    equal((event.stream, event.seq, event.type, event.at), ("cart-1", 7, "added", 1.5))
    truthy(event.data is data, "the very data that was given")


@EVENT.case("P-EVT-2")
def an_event_has_exactly_five_fields(b: Backend) -> None:
    stored = append(b, "cart-1", "opened", 1, {})

    equal([field.name for field in fields(stored)], ["stream", "seq", "type", "at", "data"])


@EVENT.case("P-EVT-2")
def to_dict_has_exactly_the_five_fields(b: Backend) -> None:
    stored = append(b, "cart-1", "opened", 1, {"n": 2})

    equal(stored.to_dict(), {"stream": "cart-1", "seq": 1, "type": "opened", "at": 1, "data": {"n": 2}})


@EVENT.case("P-EVT-1")
def equal_events_are_equal_and_a_stored_one_equals_the_one_read(b: Backend) -> None:
    stored = append(b, "cart-1", "opened", 1, {"n": 2})

    equal(stored, Event("cart-1", 1, "opened", 1, {"n": 2}))
    equal(read(b, "cart-1"), [stored])


@EVENT.case("P-EVT-3")
def the_same_appends_give_the_same_events_whenever_they_are_made(b: Backend, f: BackendFixture) -> None:
    first = [append(b, "cart-1", "opened", 5, {}), append(b, "cart-1", "added", 6, {"n": 1})]

    again = f.fresh()
    second = [append(again, "cart-1", "opened", 5, {}), append(again, "cart-1", "added", 6, {"n": 1})]

    equal(second, first)


@EVENT.case("P-EVT-4")
def at_need_not_rise_and_never_orders(b: Backend) -> None:
    for at in (30, 10, 20):
        append(b, "cart-1", "added", at, {})

    equal([(event.seq, event.at) for event in read(b, "cart-1")], [(1, 30), (2, 10), (3, 20)])


@EVENT.case("P-EVT-1")
def an_event_cannot_be_changed(b: Backend) -> None:
    stored = append(b, "cart-1", "opened", 1, {})

    with raises(FrozenInstanceError):
        stored.seq = 2  # type: ignore[misc]  # that it is frozen is the point
    truthy(not hasattr(stored, "__dict__"), "an event with slots and no dictionary")


@EVENT.case("P-EVT-1", "P-EVT-4")
def at_comes_back_as_the_int_float_or_text_that_it_was(b: Backend) -> None:
    ats: list[Any] = [0, -1, 1.0, 0.1, -0.0, 1e300, 2**63 - 1, -(2**63), "2024-01-01T00:00:00Z", "1"]
    for at in ats:
        append(b, "cart-1", "added", at, {})

    equal([event.at for event in read(b, "cart-1")], ats)


@EVENT.case("P-EVT-1")
def an_at_of_another_kind_is_refused_before_any_write(b: Backend) -> None:
    odd: list[Any] = [True, None, float("nan"), float("inf"), 2**63, -(2**63) - 1, "", "\0", [1], b"x"]

    each_raises(UsageError, {repr(at): call(append, b, "cart-1", "added", at, {}) for at in odd})
    equal(last_seq(b, "cart-1"), 0)
