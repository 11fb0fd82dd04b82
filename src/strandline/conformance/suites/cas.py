"""Compare-and-swap: written if the value is the expected one, else a conflict that carries the actual one."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, raises, truthy
from strandline.persist import (
    ABSENT,
    Backend,
    Conflict,
    NotStorable,
    is_conflict,
    kv_cas,
    kv_delete,
    kv_get,
    kv_has,
    kv_put,
    kv_put_new,
)

CAS = Suite("cas", expected=17, floor=11)


@CAS.case("P-CAS-1")
def a_swap_with_the_right_expectation_writes_and_returns(b: Backend) -> None:
    kv_put(b, "k", 1)

    equal(kv_cas(b, "k", 1, 2), 2)
    equal(kv_get(b, "k"), 2)


@CAS.case("P-CAS-1")
def a_swap_with_a_wrong_expectation_is_a_conflict_and_writes_nothing(b: Backend) -> None:
    kv_put(b, "k", 1)

    equal(kv_cas(b, "k", 5, 2), Conflict(5, 1, "STALE"))
    equal(kv_get(b, "k"), 1)


@CAS.case("P-CAS-1")
def structures_are_compared_by_content(b: Backend) -> None:
    kv_put(b, "k", {"a": [1, {"b": None}], "c": "x"})

    equal(kv_cas(b, "k", {"c": "x", "a": [1, {"b": None}]}, "new"), "new")


@CAS.case("P-CAS-2")
def expecting_none_creates_an_absent_key(b: Backend) -> None:
    equal(kv_cas(b, "k", None, 1), 1)
    equal(kv_get(b, "k"), 1)


@CAS.case("P-CAS-2")
def expecting_a_value_of_an_absent_key_conflicts_with_none(b: Backend) -> None:
    equal(kv_cas(b, "k", 1, 2), Conflict(1, None, "STALE"))
    equal(kv_has(b, "k"), False)


@CAS.case("P-CAS-2")
def expecting_none_of_a_key_with_a_value_conflicts(b: Backend) -> None:
    kv_put(b, "k", 0)

    equal(kv_cas(b, "k", None, 1), Conflict(None, 0, "STALE"))


@CAS.case("P-CAS-3")
def put_new_creates_an_absent_key(b: Backend) -> None:
    equal(kv_put_new(b, "k", [1]), [1])
    equal(kv_get(b, "k"), [1])


@CAS.case("P-CAS-3")
def put_new_leaves_what_is_there(b: Backend) -> None:
    kv_put(b, "k", "old")

    equal(kv_put_new(b, "k", "new"), Conflict(ABSENT, "old", "EXISTS"))
    equal(kv_get(b, "k"), "old")


@CAS.case("P-CAS-3")
def put_new_after_a_delete_creates_again(b: Backend) -> None:
    kv_put(b, "k", "old")
    kv_delete(b, "k")

    equal(kv_put_new(b, "k", "new"), "new")


@CAS.case("P-CAS-4")
def of_two_racers_one_wins_and_the_other_learns_the_winners_value(b: Backend) -> None:
    kv_put(b, "k", "start")

    equal(kv_cas(b, "k", "start", "first"), "first")
    equal(kv_cas(b, "k", "start", "second"), Conflict("start", "first", "STALE"))


@CAS.case("P-CAS-4")
def a_retry_with_the_actual_value_succeeds(b: Backend) -> None:
    kv_put(b, "k", 10)

    lost = kv_cas(b, "k", 9, 11)
    equal(kv_cas(b, "k", lost.actual, 11), 11)


@CAS.case("P-CAS-1")
def a_conflict_names_its_key(b: Backend) -> None:
    equal(kv_cas(b, "k", 1, 2).name, "k")
    kv_put(b, "k", 1)
    equal(kv_put_new(b, "k", 2).name, "k")


@CAS.case("P-CAS-2")
def expecting_absent_matches_only_an_absent_key(b: Backend) -> None:
    equal(kv_cas(b, "k", ABSENT, None), None)
    equal(kv_has(b, "k"), True)

    equal(kv_cas(b, "k", ABSENT, 1), Conflict(ABSENT, None, "STALE"))
    equal(kv_cas(b, "k", None, 1), 1)


@CAS.case("P-CAS-3")
def put_new_over_a_stored_none_is_a_conflict(b: Backend) -> None:
    kv_put(b, "k", None)

    equal(kv_put_new(b, "k", 1), Conflict(ABSENT, None, "EXISTS"))


@CAS.case("P-VAL-5", "P-CAS-1")
def values_of_different_types_are_different(b: Backend) -> None:
    pairs: list[tuple[Any, Any]] = [
        (True, 1),
        (1, True),
        (0, False),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        ([], {}),
        (None, False),
        ("", None),
    ]
    for stored, expected in pairs:
        kv_put(b, "k", stored)
        outcome = kv_cas(b, "k", expected, "swapped")
        truthy(is_conflict(outcome), f"a conflict where {stored!r} is stored and {expected!r} expected")
        equal(kv_get(b, "k"), stored)


@CAS.case("P-CAS-1", "P-VAL-3")
def a_swap_to_what_cannot_be_stored_is_refused(b: Backend) -> None:
    kv_put(b, "k", 1)

    with raises(NotStorable):
        kv_cas(b, "k", 1, {1, 2})
    with raises(NotStorable):
        kv_put_new(b, "other", b"x")
    equal((kv_get(b, "k"), kv_has(b, "other")), (1, False))


@CAS.case("P-CAS-1")
def a_swap_to_the_same_value_succeeds(b: Backend) -> None:
    kv_put(b, "k", [1])

    equal(kv_cas(b, "k", [1], [1]), [1])
