"""Optimistic concurrency: an append that states the mark it knows, and conflicts that are values."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, truthy
from strandline.conformance.suites.given import counted
from strandline.persist import (
    Backend,
    Conflict,
    Event,
    UsageError,
    append,
    append_expect,
    conflict_actual,
    conflict_expected,
    count,
    is_conflict,
    kv_get,
    kv_put,
    last_seq,
    read,
    streams_all,
    truncate_through,
)

CONCURRENCY = Suite("concurrency", expected=11, floor=8)


@CONCURRENCY.case("P-CON-1")
def an_append_that_expects_the_mark_succeeds(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(append_expect(b, "cart-1", 2, "closed", 9, {"n": 1}), Event("cart-1", 3, "closed", 9, {"n": 1}))


@CONCURRENCY.case("P-CON-1")
def expecting_0_means_never_written(b: Backend) -> None:
    equal(append_expect(b, "cart-1", 0, "opened", 1, {}).seq, 1)  # type: ignore[union-attr]  # an Event here


@CONCURRENCY.case("P-CON-2")
def a_stale_writer_gets_a_conflict_and_writes_nothing(b: Backend) -> None:
    append_expect(b, "cart-1", 0, "opened", 1, {})

    outcome = append_expect(b, "cart-1", 0, "reopened", 2, {})

    equal(outcome, Conflict(0, 1, "STALE"))
    equal([event.type for event in read(b, "cart-1")], ["opened"])


@CONCURRENCY.case("P-CON-2")
def an_expectation_ahead_of_the_stream_is_a_conflict_too(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(append_expect(b, "cart-1", 5, "added", 1, {}), Conflict(5, 2, "STALE"))
    equal(append_expect(b, "nowhere", 1, "added", 1, {}), Conflict(1, 0, "STALE"))
    equal((count(b, "cart-1"), streams_all(b)), (2, ["cart-1"]))


@CONCURRENCY.case("P-CON-3")
def the_mark_counts_and_not_the_rows(b: Backend) -> None:
    counted(b, "cart-1", 4)
    truncate_through(b, "cart-1", 4)

    equal(append_expect(b, "cart-1", 0, "added", 1, {}), Conflict(0, 4, "STALE"))
    equal(append_expect(b, "cart-1", 4, "added", 1, {}), Event("cart-1", 5, "added", 1, {}))


@CONCURRENCY.case("P-CON-4")
def is_conflict_knows_conflicts_and_nothing_else(b: Backend) -> None:
    conflict = append_expect(b, "cart-1", 7, "opened", 1, {})
    others = [append(b, "cart-1", "opened", 1, {}), 1, None, "STALE", [], ("STALE",), object()]

    equal(is_conflict(conflict), True)
    equal([is_conflict(other) for other in others], [False] * len(others))


@CONCURRENCY.case("P-CON-4")
def a_stored_mapping_that_looks_like_a_conflict_is_none(b: Backend) -> None:
    looks = {"expected": 1, "actual": 2, "reason": "STALE", "name": "x", "conflict": True}
    kv_put(b, "k", looks)

    equal(is_conflict(kv_get(b, "k")), False)


@CONCURRENCY.case("P-CON-4")
def both_sides_of_a_conflict_can_be_read(b: Backend) -> None:
    counted(b, "cart-1", 3)

    outcome = append_expect(b, "cart-1", 1, "added", 1, {})

    truthy(is_conflict(outcome), "a conflict")
    if is_conflict(outcome):
        equal((conflict_expected(outcome), conflict_actual(outcome), outcome.name), (1, 3, "cart-1"))


@CONCURRENCY.case("P-CON-5")
def the_loser_of_a_race_retries_with_the_actual_mark(b: Backend) -> None:
    counted(b, "cart-1", 1)
    append_expect(b, "cart-1", 1, "winner", 2, {})

    lost = append_expect(b, "cart-1", 1, "loser", 2, {})
    won = append_expect(b, "cart-1", lost.actual, "loser", 2, {})  # type: ignore[union-attr]  # a Conflict here

    equal(won, Event("cart-1", 3, "loser", 2, {}))


@CONCURRENCY.case("P-CON-2")
def a_conflict_compares_without_its_name() -> None:
    truthy(Conflict(0, 1, "STALE", "a") == Conflict(0, 1, "STALE", "b"), "equal conflicts")
    truthy(Conflict(0, 1, "STALE") != Conflict(0, 1, "EXISTS"), "a difference of reasons")


@CONCURRENCY.case("P-CON-1")
def an_expected_seq_that_is_none_is_refused(b: Backend) -> None:
    odd: list[Any] = [-1, None, "0", 1.0, True, 2**63]

    each_raises(UsageError, {repr(seq): call(append_expect, b, "cart-1", seq, "a", 1, {}) for seq in odd})
    equal(last_seq(b, "cart-1"), 0)
