"""Batches: one contiguous block, all or none, also over several streams."""

from collections.abc import Iterator
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.suites.given import counted, seqs, total
from strandline.persist import (
    Backend,
    Conflict,
    Event,
    NotStorable,
    UsageError,
    append,
    append_batch,
    append_batch_expect,
    append_multi,
    count,
    is_conflict,
    last_seq,
    project,
    read,
    read_global,
    streams,
    streams_all,
    truncate_through,
)

BATCH = Suite("batch", expected=18, floor=10)

SPECS = [("opened", 1, {"n": 1}), ("added", 2, {"n": [2]}), ("closed", 3, None)]


@BATCH.case("P-BAT-1")
def a_batch_returns_the_stored_events_in_order(b: Backend) -> None:
    stored = append_batch(b, "cart-1", SPECS)

    wanted = [Event("cart-1", seq, *spec) for seq, spec in enumerate(SPECS, 1)]
    equal(stored, wanted)
    equal(read(b, "cart-1"), wanted)


@BATCH.case("P-BAT-1")
def a_batch_goes_after_the_mark(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(seqs(append_batch(b, "cart-1", SPECS)), [3, 4, 5])


@BATCH.case("P-BAT-1")
def a_batch_goes_after_the_mark_of_a_truncated_stream(b: Backend) -> None:
    counted(b, "cart-1", 2)
    truncate_through(b, "cart-1", 2)

    equal(seqs(append_batch(b, "cart-1", SPECS)), [3, 4, 5])


@BATCH.case("P-BAT-2")
def the_stream_grows_by_the_size_of_the_batch(b: Backend) -> None:
    counted(b, "cart-1", 4)

    append_batch(b, "cart-1", SPECS)

    equal((count(b, "cart-1"), last_seq(b, "cart-1")), (7, 7))


@BATCH.case("P-BAT-3")
def an_empty_batch_writes_nothing_and_makes_no_stream(b: Backend) -> None:
    equal(append_batch(b, "cart-1", []), [])
    equal((streams_all(b), last_seq(b, "cart-1")), ([], 0))


@BATCH.case("P-BAT-4")
def an_expected_batch_is_stored_if_the_mark_is_right(b: Backend) -> None:
    equal(len(append_batch_expect(b, "cart-1", 0, SPECS)), 3)  # type: ignore[arg-type]  # a list here
    equal(last_seq(b, "cart-1"), 3)


@BATCH.case("P-BAT-4")
def an_expected_batch_conflicts_if_the_mark_is_wrong(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(append_batch_expect(b, "cart-1", 1, SPECS), Conflict(1, 2, "STALE"))
    equal(append_batch_expect(b, "cart-1", 3, SPECS), Conflict(3, 2, "STALE"))
    equal(count(b, "cart-1"), 2)


@BATCH.case("P-BAT-4")
def an_empty_expected_batch_checks_too(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(append_batch_expect(b, "cart-1", 0, []), Conflict(0, 2, "STALE"))
    equal(append_batch_expect(b, "cart-1", 2, []), [])


@BATCH.case("P-BAT-4")
def the_loser_of_a_batch_race_retries(b: Backend) -> None:
    append_batch_expect(b, "cart-1", 0, SPECS)

    lost = append_batch_expect(b, "cart-1", 0, SPECS)
    won = append_batch_expect(b, "cart-1", lost.actual, SPECS)  # type: ignore[union-attr]  # a Conflict here

    equal(seqs(won), [4, 5, 6])  # type: ignore[arg-type]  # a list here


@BATCH.case("P-BAT-1")
def a_batch_folds_like_single_appends(b: Backend) -> None:
    counted(b, "batched", 5)
    for i in range(1, 6):
        append(b, "single", "added", i, {"n": i})

    equal(project(b, "batched", total, 0), project(b, "single", total, 0))


@BATCH.case("P-BAT-5")
def a_bad_spec_in_the_middle_leaves_nothing(b: Backend) -> None:
    bad: dict[str, Any] = {
        "data": [("a", 1, {}), ("b", 2, {"x": {1}}), ("c", 3, {})],
        "at": [("a", 1, {}), ("b", None, {}), ("c", 3, {})],
        "type": [("a", 1, {}), ("", 2, {}), ("c", 3, {})],
        "short": [("a", 1, {}), ("b", 2), ("c", 3, {})],
        "text": [("a", 1, {}), "abc"],
    }

    each_raises(UsageError, {name: call(append_batch, b, "cart-1", specs) for name, specs in bad.items()})
    equal((streams_all(b), last_seq(b, "cart-1")), ([], 0))


@BATCH.case("P-BAT-5")
def specs_may_come_from_an_iterator(b: Backend) -> None:
    equal(len(append_batch(b, "cart-1", (("added", i, {"n": i}) for i in range(700)))), 700)
    equal(count(b, "cart-1"), 700)


@BATCH.case("P-BAT-5")
def an_iterator_that_raises_leaves_nothing(b: Backend) -> None:
    def specs() -> Iterator[tuple[str, int, Any]]:
        yield "added", 1, {}
        raise ZeroDivisionError

    with raises(ZeroDivisionError):
        append_batch(b, "cart-1", specs())
    equal(last_seq(b, "cart-1"), 0)


@BATCH.case("P-BAT-6")
def several_streams_are_one_unit(b: Backend) -> None:
    counted(b, "cart-2", 1)

    outcome = append_multi(b, {"cart-1": SPECS[:2], "cart-2": SPECS[:1]}, expected={"cart-2": 1})

    equal(outcome, {"cart-1": read(b, "cart-1"), "cart-2": read(b, "cart-2")[1:]})
    equal((last_seq(b, "cart-1"), last_seq(b, "cart-2")), (2, 2))


@BATCH.case("P-BAT-6")
def one_unmet_expectation_stops_every_stream(b: Backend) -> None:
    counted(b, "cart-2", 1)

    outcome = append_multi(b, {"cart-1": SPECS, "cart-2": SPECS}, expected={"cart-1": 0, "cart-2": 0})

    equal(outcome, Conflict(0, 1, "STALE"))
    equal((last_seq(b, "cart-1"), last_seq(b, "cart-2"), streams(b)), (0, 1, ["cart-2"]))


@BATCH.case("P-BAT-6")
def an_expectation_may_be_about_a_stream_that_is_not_written(b: Backend) -> None:
    counted(b, "lease", 3)

    equal(append_multi(b, {"cart-1": SPECS}, expected={"lease": 2}), Conflict(2, 3, "STALE"))
    truthy(not is_conflict(append_multi(b, {"cart-1": SPECS}, expected={"lease": 3})), "a write")


@BATCH.case("P-BAT-6", "P-BAT-5")
def a_bad_spec_in_one_stream_leaves_nothing_in_any(b: Backend) -> None:
    with raises(NotStorable):
        append_multi(b, {"cart-1": SPECS, "cart-2": [("bad", 1, b"x")]})

    equal(streams_all(b), [])


@BATCH.case("P-GLB-10", "P-BAT-1")
def batches_take_positions_in_the_global_order(b: Backend) -> None:
    append_batch(b, "cart-1", SPECS[:2], globally=True)
    append_batch_expect(b, "cart-1", 2, SPECS[:1], globally=True)
    append_multi(b, {"cart-2": SPECS[:1], "cart-3": SPECS[:1]}, globally=True)

    places = [(event.stream, event.seq) for event in read_global(b)]
    equal(places, [("cart-1", 1), ("cart-1", 2), ("cart-1", 3), ("cart-2", 1), ("cart-3", 1)])
