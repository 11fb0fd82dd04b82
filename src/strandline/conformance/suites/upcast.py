"""Upcasting: old shapes to new ones on read; what is stored stays as it is."""

from dataclasses import replace
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises
from strandline.conformance.suites.given import seqs, total
from strandline.persist import (
    Backend,
    Event,
    ProjectionState,
    SnapshotMismatch,
    append,
    checkpoint,
    compact,
    project_fold,
    project_global,
    project_resume,
    project_upcast,
    read,
    read_upcast,
    register_upcaster,
    replay,
    upcast,
    upcast_data,
    upcasters,
    view,
    view_value,
)

UPCAST = Suite("upcast", expected=16, floor=9)


def renamed(event: Event) -> Event:
    """`qty` became `n`; tolerates both."""
    return upcast_data(event, {"n": event.data["n"] if "n" in event.data else event.data["qty"]})


def cart_upcasters() -> Any:
    return register_upcaster(upcasters(), "added", renamed)


@UPCAST.case("P-UPC-1")
def a_registry_starts_empty_and_is_never_changed() -> None:
    empty = upcasters()

    made = register_upcaster(empty, "added", renamed)

    equal(("added" in empty, "added" in made), (False, True))


@UPCAST.case("P-UPC-1")
def registering_a_type_again_replaces_it_in_the_new_registry(b: Backend) -> None:
    event = append(b, "cart-1", "added", 1, {"qty": 1})
    first = register_upcaster(upcasters(), "added", lambda e: upcast_data(e, {"by": "first"}))

    second = register_upcaster(first, "added", lambda e: upcast_data(e, {"by": "second"}))

    equal((upcast(first, event).data["by"], upcast(second, event).data["by"]), ("first", "second"))


@UPCAST.case("P-UPC-2")
def an_event_of_a_registered_type_is_lifted(b: Backend) -> None:
    event = append(b, "cart-1", "added", 1, {"qty": 4})

    equal(upcast(cart_upcasters(), event), Event("cart-1", 1, "added", 1, {"qty": 4, "n": 4}))


@UPCAST.case("P-UPC-2")
def an_event_of_another_type_stays_as_it_is(b: Backend) -> None:
    event = append(b, "cart-1", "opened", 1, {"qty": 4})

    equal(upcast(cart_upcasters(), event), event)


@UPCAST.case("P-UPC-3")
def upcast_data_merges_over_the_old_data() -> None:
    event = Event("cart-1", 3, "added", 9, {"kept": 1, "changed": 2})

    equal(
        upcast_data(event, {"changed": 3, "new": 4}),
        Event("cart-1", 3, "added", 9, {"kept": 1, "changed": 3, "new": 4}),
    )
    equal(event.data, {"kept": 1, "changed": 2})


@UPCAST.case("P-UPC-4")
def read_upcast_lifts_each_event_in_order(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 1})
    append(b, "cart-1", "opened", 2, {})
    append(b, "cart-1", "added", 3, {"n": 3})

    found = read_upcast(b, "cart-1", cart_upcasters())

    equal(seqs(found), [1, 2, 3])
    equal([event.data.get("n") for event in found], [1, None, 3])


@UPCAST.case("P-UPC-5", "P-UPC-7")
def a_projection_over_a_mixed_stream_is_uniform(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 1})
    append(b, "cart-1", "added", 2, {"n": 10})

    equal(project_upcast(b, "cart-1", cart_upcasters(), total, 0), 11)


@UPCAST.case("P-UPC-6")
def what_is_stored_stays_in_its_old_shape(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 1})

    project_upcast(b, "cart-1", cart_upcasters(), total, 0)
    read_upcast(b, "cart-1", cart_upcasters())

    equal(read(b, "cart-1")[0].data, {"qty": 1})


@UPCAST.case("P-UPC-7")
def an_upcaster_runs_on_events_of_the_current_shape_too(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"n": 1})
    saw: list[Any] = []

    def watch(event: Event) -> Event:
        saw.append(event.data)
        return event

    read_upcast(b, "cart-1", register_upcaster(upcasters(), "added", watch))

    equal(saw, [{"n": 1}])


@UPCAST.case("P-UPC-5")
def an_empty_stream_folds_to_the_seed(b: Backend) -> None:
    equal(project_upcast(b, "nowhere", cart_upcasters(), total, 5), 5)
    equal(read_upcast(b, "nowhere", cart_upcasters()), [])


@UPCAST.case("P-UPC-8")
def an_upcaster_may_change_neither_stream_nor_seq(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {})
    odd: dict[str, Any] = {
        "stream": lambda e: replace(e, stream="other"),
        "seq": lambda e: replace(e, seq=e.seq + 1),
        "nothing": lambda _: None,
    }

    for name, function in odd.items():
        reg = register_upcaster(upcasters(), "added", function)
        each_raises(ValueError, {name: call(read_upcast, b, "cart-1", reg)})


@UPCAST.case("P-UPC-8")
def a_chain_lifts_each_version_to_the_newest(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"a": 1})
    append(b, "cart-1", "added", 2, {"b": 2, "schema_version": 2})
    append(b, "cart-1", "added", 3, {"n": 3, "schema_version": 3})
    reg = register_upcaster(
        upcasters(),
        "added",
        lambda e: upcast_data(e, {"n": e.data["b"], "schema_version": 3}),
        from_version=2,
    )
    reg = register_upcaster(
        reg, "added", lambda e: upcast_data(e, {"b": e.data["a"], "schema_version": 2}), from_version=1
    )

    equal([event.data["n"] for event in read_upcast(b, "cart-1", reg)], [1, 2, 3])


@UPCAST.case("P-UPC-8")
def every_fold_takes_upcasters(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 1}, globally=True)
    append(b, "cart-1", "added", 2, {"qty": 2}, globally=True)
    reg = cart_upcasters()

    equal(project_fold(b, "cart-1", total, 0, upcasters=reg), 3)
    equal(project_resume(b, "cart-1", total, ProjectionState(1, 1), upcasters=reg), ProjectionState(3, 2))
    equal(checkpoint(b, "cart-1", "total", total, 0, upcasters=reg).value, 3)
    equal(view_value(b, view("viewed", "cart-1", total, 0, upcasters=reg)), 3)
    equal(project_global(b, total, 0, upcasters=reg), 3)
    equal(compact(b, "cart-1", "total", total, 0, upcasters=reg), ProjectionState(3, 2))


@UPCAST.case("P-UPC-8", "P-SNP-8")
def a_snapshot_folded_under_other_upcasters_is_a_mismatch(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 1})
    checkpoint(b, "cart-1", "total", total, 0, upcasters=cart_upcasters())
    relabelled = register_upcaster(upcasters("2"), "added", renamed)
    longer = register_upcaster(cart_upcasters(), "removed", renamed)

    for other in (relabelled, longer, None):
        with raises(SnapshotMismatch):
            replay(b, "cart-1", "total", total, 0, upcasters=other)
    equal(replay(b, "cart-1", "total", total, 0, upcasters=cart_upcasters()).value, 1)


@UPCAST.case("P-UPC-8", "P-SNP-8")
def a_step_that_a_known_type_gets_makes_an_old_snapshot_a_mismatch(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 1})
    short = register_upcaster(upcasters(), "added", renamed, from_version=1)
    checkpoint(b, "cart-1", "total", total, 0, upcasters=short)
    longer = register_upcaster(short, "added", renamed, from_version=2)
    other = register_upcaster(upcasters(), "added", renamed, from_version=2)

    for each in (longer, other):
        with raises(SnapshotMismatch):
            replay(b, "cart-1", "total", total, 0, upcasters=each)
    equal(replay(b, "cart-1", "total", total, 0, upcasters=short).value, 1)


@UPCAST.case("P-UPC-8", "P-SNP-8")
def a_snapshot_folded_without_upcasters_is_not_taken_over_by_a_fold_with_them(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"n": 1})
    checkpoint(b, "cart-1", "total", total, 0)

    with raises(SnapshotMismatch):
        replay(b, "cart-1", "total", total, 0, upcasters=cart_upcasters())
