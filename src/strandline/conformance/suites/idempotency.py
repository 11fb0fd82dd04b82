"""Idempotent appends: one effect however often they are repeated, without a time window."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.suites.given import total
from strandline.persist import (
    Backend,
    Compacted,
    Event,
    NotStorable,
    ProjectionState,
    UsageError,
    append,
    append_batch_once,
    append_once,
    compact,
    count,
    global_pos,
    is_conflict,
    last_seq,
    once_forget,
    project_fold,
    replay,
    seen,
    total_events,
    truncate_through,
)

IDEMPOTENCY = Suite("idempotency", expected=21, floor=9)


@IDEMPOTENCY.case("P-IDM-1")
def the_first_call_appends(b: Backend) -> None:
    equal(append_once(b, "cart-1", "k", "added", 5, {"n": 1}), Event("cart-1", 1, "added", 5, {"n": 1}))
    equal(count(b, "cart-1"), 1)


@IDEMPOTENCY.case("P-IDM-1")
def a_repeat_appends_nothing_and_gives_the_same_event(b: Backend) -> None:
    first = append_once(b, "cart-1", "k", "added", 5, {"n": 1})
    append(b, "cart-1", "other", 6, {})

    equal(append_once(b, "cart-1", "k", "added", 5, {"n": 1}), first)
    equal(count(b, "cart-1"), 2)


@IDEMPOTENCY.case("P-IDM-1", "P-IDM-7")
def a_repeat_with_another_time_gives_the_first_time(b: Backend) -> None:
    first = append_once(b, "cart-1", "k", "added", 5, {"n": 1})

    equal(append_once(b, "cart-1", "k", "added", 99.5, {"n": 1}), first)


@IDEMPOTENCY.case("P-IDM-2")
def a_key_is_seen_after_its_first_call(b: Backend) -> None:
    equal(seen(b, "cart-1", "k"), False)

    append_once(b, "cart-1", "k", "added", 5, {})

    equal((seen(b, "cart-1", "k"), seen(b, "cart-1", "K"), seen(b, "cart-2", "k")), (True, False, False))


@IDEMPOTENCY.case("P-IDM-3")
def one_key_in_two_streams_appends_in_each(b: Backend) -> None:
    append_once(b, "cart-1", "k", "added", 1, {})
    append_once(b, "cart-2", "k", "added", 1, {})

    equal((count(b, "cart-1"), count(b, "cart-2")), (1, 1))


@IDEMPOTENCY.case("P-IDM-3")
def different_keys_append_separately(b: Backend) -> None:
    equal([append_once(b, "cart-1", key, "added", 1, {}).seq for key in "abc"], [1, 2, 3])  # type: ignore[union-attr]  # events


@IDEMPOTENCY.case("P-IDM-4")
def a_repeat_after_truncation_gives_the_remembered_event(b: Backend) -> None:
    first = append_once(b, "cart-1", "k", "added", 5, {"n": 1})
    truncate_through(b, "cart-1", 1)

    equal(append_once(b, "cart-1", "k", "added", 6, {"n": 1}), first)
    equal((count(b, "cart-1"), last_seq(b, "cart-1")), (0, 1))


@IDEMPOTENCY.case("P-IDM-4")
def a_repeat_after_compaction_appends_nothing(b: Backend) -> None:
    append_once(b, "cart-1", "k", "added", 5, {"n": 1})
    compact(b, "cart-1", "total", total, 0)

    append_once(b, "cart-1", "k", "added", 5, {"n": 1})

    equal(replay(b, "cart-1", "total", total, 0), ProjectionState(1, 1))


@IDEMPOTENCY.case("P-IDM-1")
def repeats_fold_once(b: Backend) -> None:
    for _ in range(5):
        append_once(b, "cart-1", "k", "added", 5, {"n": 7})

    equal(project_fold(b, "cart-1", total, 0), 7)


@IDEMPOTENCY.case("P-IDM-5")
def an_append_that_fails_leaves_no_marker(b: Backend) -> None:
    with raises(NotStorable):
        append_once(b, "cart-1", "k", "added", 5, b"x")
    equal(seen(b, "cart-1", "k"), False)

    equal(append_once(b, "cart-1", "k", "added", 5, {}), Event("cart-1", 1, "added", 5, {}))


@IDEMPOTENCY.case("P-IDM-6")
def no_two_pairs_of_stream_and_key_collide(b: Backend) -> None:
    pairs = [
        ("a", "b/c"),
        ("a/b", "c"),
        ("a%2Fb", "c"),
        ("a/b/c", "d"),
        ("a", "b%2Fc"),
        ("a%", "2Fb"),
        ("a%2", "Fb"),
        ("a//b", "c"),
        ("a/", "/b"),
        ("a", "/b"),
        ("a/", "b"),
        ("%", "%25"),
        ("%25", "%"),
    ]
    for stream, key in pairs:
        equal(seen(b, stream, key), False, f"{stream!r} {key!r}")
        outcome = append_once(b, stream, key, "added", 1, {"pair": [stream, key]})
        truthy(not is_conflict(outcome), f"an event for {stream!r} {key!r}")

    equal(total_events(b), len(pairs))


@IDEMPOTENCY.case("P-IDM-6")
def the_longest_names_make_pairs_of_their_own(b: Backend) -> None:
    long, other = "é" * 512, "é" * 511 + "ab"
    for stream, key in ((long, long), (long, other), (other, long), ("%" * 1024, "/" * 1024)):
        equal(append_once(b, stream, key, "added", 1, {"key": key}).data, {"key": key})  # type: ignore[union-attr]  # an Event
        equal(seen(b, stream, key), True)

    equal(total_events(b), 4)


@IDEMPOTENCY.case("P-IDM-7")
def a_repeat_with_other_data_or_type_is_key_reused(b: Backend) -> None:
    first = append_once(b, "cart-1", "k", "added", 5, {"n": 1})

    for kind, data in (
        ("added", {"n": 2}),
        ("removed", {"n": 1}),
        ("added", {"n": 1.0}),
        ("added", {"n": True}),
    ):
        outcome = append_once(b, "cart-1", "k", kind, 5, data)
        equal((outcome.reason, outcome.actual), ("KEY_REUSED", first))  # type: ignore[union-attr]  # a Conflict
    equal(count(b, "cart-1"), 1)


@IDEMPOTENCY.case("P-IDM-7")
def key_reuse_of_an_event_that_is_gone_says_so(b: Backend) -> None:
    append_once(b, "cart-1", "k", "added", 5, {"n": 1})
    truncate_through(b, "cart-1", 1)

    outcome = append_once(b, "cart-1", "k", "added", 5, {"n": 2})

    equal((outcome.reason, outcome.actual), ("KEY_REUSED", Compacted("cart-1", 1)))  # type: ignore[union-attr]  # a Conflict


@IDEMPOTENCY.case("P-IDM-7")
def a_block_is_appended_once(b: Backend) -> None:
    specs = [("added", i, {"n": i}) for i in (1, 2, 3)]
    first = append_batch_once(b, "cart-1", "k", specs)
    append(b, "cart-1", "other", 9, {})
    restamped = [("added", 77, {"n": i}) for i in (1, 2, 3)]

    equal(append_batch_once(b, "cart-1", "k", restamped), first)
    equal(count(b, "cart-1"), 4)
    outcome = append_batch_once(b, "cart-1", "k", specs[:2])
    equal(outcome.reason, "KEY_REUSED")  # type: ignore[union-attr]  # a Conflict
    equal(append_batch_once(b, "cart-1", "other", []), [])


@IDEMPOTENCY.case("P-IDM-7", "P-IDM-4")
def a_block_is_remembered_after_truncation(b: Backend) -> None:
    specs: list[tuple[str, Any, Any]] = [
        ("added", 1, {"n": 1}),
        ("added", 1.0, {"n": 2}),
        ("closed", "z", None),
    ]
    first = append_batch_once(b, "cart-1", "k", specs)
    truncate_through(b, "cart-1", 3)

    equal(append_batch_once(b, "cart-1", "k", specs), first)


@IDEMPOTENCY.case("P-IDM-8")
def keys_are_forgotten_by_the_seq_of_their_events(b: Backend) -> None:
    for key in "abcd":
        append_once(b, "cart-1", key, "added", 1, {})
    append_once(b, "cart-2", "a", "added", 1, {})

    equal(once_forget(b, "cart-1", 2), 2)

    equal([seen(b, "cart-1", key) for key in "abcd"], [False, False, True, True])
    equal(seen(b, "cart-2", "a"), True)
    equal(append_once(b, "cart-1", "a", "added", 1, {}).seq, 5)  # type: ignore[union-attr]  # an Event


@IDEMPOTENCY.case("P-IDM-8")
def a_block_is_forgotten_only_as_a_whole(b: Backend) -> None:
    append_batch_once(b, "cart-1", "k", [("added", 1, {}), ("added", 2, {})])

    equal(once_forget(b, "cart-1", 1), 0)
    equal(seen(b, "cart-1", "k"), True)
    equal(once_forget(b, "cart-1", 2), 1)


@IDEMPOTENCY.case("P-IDM-8")
def a_block_of_one_instant_is_forgotten_by_its_last_event(b: Backend) -> None:
    specs: list[tuple[str, Any, Any]] = [("added", 1, {}) for _ in range(3)]
    first = append_batch_once(b, "cart-1", "k", specs)

    equal(once_forget(b, "cart-1", 2), 0)
    equal(append_batch_once(b, "cart-1", "k", specs), first)
    equal(count(b, "cart-1"), 3)
    equal(once_forget(b, "cart-1", 3), 1)


@IDEMPOTENCY.case("P-GLB-10", "P-IDM-1")
def a_repeat_takes_no_second_position(b: Backend) -> None:
    append_once(b, "cart-1", "k", "added", 1, {}, globally=True)
    append_once(b, "cart-1", "k", "added", 1, {}, globally=True)

    equal((global_pos(b), count(b, "cart-1")), (1, 1))


@IDEMPOTENCY.case("P-IDM-1")
def a_key_is_a_name(b: Backend) -> None:
    odd: list[Any] = ["", "\0", None, 5, "x" * 1025, "\ud800"]

    each_raises(UsageError, {repr(key)[:20]: call(append_once, b, "s", key, "t", 1, {}) for key in odd})
    equal(last_seq(b, "s"), 0)
