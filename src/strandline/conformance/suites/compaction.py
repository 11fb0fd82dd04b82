"""Compaction: the snapshot first, then the truncation, and never past what somebody needs."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal
from strandline.conformance.suites.given import counted, kinds, seqs, total
from strandline.persist import (
    Backend,
    Event,
    Hub,
    ProjectionState,
    append,
    checkpoint,
    compact,
    consumer,
    count,
    hold,
    hold_drop,
    holds,
    last_seq,
    maybe_compact,
    maybe_reclaim,
    project,
    publish,
    read,
    read_global,
    reclaimable,
    replay,
    should_compact,
    snapshot_exists,
    snapshot_load,
    truncate_through,
    uncompacted,
    view,
    view_attach,
)

COMPACTION = Suite("compaction", expected=24, floor=11)


@COMPACTION.case("P-CMP-1")
def uncompacted_is_the_tail_past_the_snapshot(b: Backend) -> None:
    counted(b, "cart-1", 3)
    equal(uncompacted(b, "cart-1", "total", 0), 3)

    checkpoint(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 2, start=4)

    equal(uncompacted(b, "cart-1", "total", 0), 2)


@COMPACTION.case("P-CMP-2")
def should_compact_is_false_one_below_and_true_at_the_threshold(b: Backend) -> None:
    counted(b, "cart-1", 4)
    equal(should_compact(b, "cart-1", "total", 0, every=5), False)

    counted(b, "cart-1", 1, start=5)

    equal(should_compact(b, "cart-1", "total", 0, every=5), True)


@COMPACTION.case("P-CMP-3")
def compact_returns_the_snapshot_state(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(compact(b, "cart-1", "total", total, 0), ProjectionState(10, 4))
    equal(snapshot_load(b, "total", 0), ProjectionState(10, 4))


@COMPACTION.case("P-CMP-4")
def compact_empties_the_log_and_keeps_its_mark(b: Backend) -> None:
    counted(b, "cart-1", 4)

    compact(b, "cart-1", "total", total, 0)

    equal((count(b, "cart-1"), last_seq(b, "cart-1"), read(b, "cart-1")), (0, 4, []))


@COMPACTION.case("P-CMP-4")
def numbering_goes_on_after_compaction(b: Backend) -> None:
    counted(b, "cart-1", 4)
    compact(b, "cart-1", "total", total, 0)

    stored = counted(b, "cart-1", 2, start=5)

    equal(seqs(stored), [5, 6])
    equal(read(b, "cart-1"), stored)


@COMPACTION.case("P-CMP-5")
def replay_after_compaction_equals_the_full_fold(b: Backend) -> None:
    for stream in ("compacted", "whole"):
        counted(b, stream, 4)
    compact(b, "compacted", "total", total, 0)
    for stream in ("compacted", "whole"):
        counted(b, stream, 3, start=5)

    equal(replay(b, "compacted", "total", total, 0), project(b, "whole", total, 0))


@COMPACTION.case("P-CMP-5")
def repeated_compaction_keeps_the_value(b: Backend) -> None:
    for start in (1, 11, 21):
        counted(b, "cart-1", 10, start=start)
        compact(b, "cart-1", "total", total, 0)

    equal(replay(b, "cart-1", "total", total, 0), ProjectionState(465, 30))
    equal(count(b, "cart-1"), 0)


@COMPACTION.case("P-CMP-6")
def compacting_an_empty_tail_changes_nothing(b: Backend) -> None:
    counted(b, "cart-1", 3)
    first = compact(b, "cart-1", "total", total, 0)

    equal(compact(b, "cart-1", "total", total, 0), first)
    equal((count(b, "cart-1"), last_seq(b, "cart-1")), (0, 3))


@COMPACTION.case("P-CMP-7")
def maybe_compact_below_the_threshold_folds_and_truncates_nothing(b: Backend) -> None:
    counted(b, "cart-1", 3)

    equal(maybe_compact(b, "cart-1", "total", total, 50, every=4), ProjectionState(50, 0))
    equal((count(b, "cart-1"), snapshot_exists(b, "total")), (3, False))


@COMPACTION.case("P-CMP-7")
def maybe_compact_at_the_threshold_compacts(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(maybe_compact(b, "cart-1", "total", total, 0, every=4), ProjectionState(10, 4))
    equal(count(b, "cart-1"), 0)


@COMPACTION.case("P-CMP-7")
def maybe_compact_below_the_threshold_gives_the_kept_state(b: Backend) -> None:
    counted(b, "cart-1", 4)
    kept = compact(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 1, start=5)

    equal(maybe_compact(b, "cart-1", "total", total, 0, every=4), kept)
    equal(count(b, "cart-1"), 1)


@COMPACTION.case("P-CMP-3", "P-CMP-8")
def events_appended_between_checkpoint_and_truncation_survive(b: Backend) -> None:
    counted(b, "cart-1", 3)
    appended: list[int] = []

    def step(value: int, event: Event) -> int:
        if event.seq == 3 and not appended:
            appended.append(append(b, "cart-1", "added", 4, {"n": 4}).seq)  # another writer, after our look
        return value + event.data["n"]  # type: ignore[no-any-return]  # folds are untyped

    state = compact(b, "cart-1", "total", step, 0)

    equal((appended, state), ([4], ProjectionState(6, 3)))
    equal(seqs(read(b, "cart-1")), [4])


@COMPACTION.case("P-CMP-8")
def a_checkpoint_without_its_truncation_is_harmless(b: Backend) -> None:
    counted(b, "cart-1", 4)
    checkpoint(b, "cart-1", "total", total, 0)  # and here the process ends

    equal(replay(b, "cart-1", "total", total, 0), ProjectionState(10, 4))
    compact(b, "cart-1", "total", total, 0)

    equal(count(b, "cart-1"), 0)


@COMPACTION.case("P-CMP-9")
def a_threshold_below_1_is_refused(b: Backend) -> None:
    counted(b, "cart-1", 3)
    odd: list[Any] = [0, -1, None, 1.0, True]

    for every in odd:
        each_raises(
            ValueError,
            {
                f"should_compact {every}": call(should_compact, b, "cart-1", "t", 0, every=every),
                f"maybe_compact {every}": call(maybe_compact, b, "cart-1", "t", total, 0, every=every),
                f"maybe_reclaim {every}": call(maybe_reclaim, b, "cart-1", "t", every=every),
            },
        )
    equal(count(b, "cart-1"), 3)


@COMPACTION.case("P-CMP-10")
def another_snapshot_of_the_stream_holds_compaction_back(b: Backend) -> None:
    counted(b, "cart-1", 3)
    checkpoint(b, "cart-1", "slow", kinds, [])
    counted(b, "cart-1", 4, start=4)

    compact(b, "cart-1", "fast", total, 0)

    equal(seqs(read(b, "cart-1")), [4, 5, 6, 7])
    equal(replay(b, "cart-1", "slow", kinds, []), ProjectionState(["added"] * 7, 7))


@COMPACTION.case("P-CMP-10")
def a_hold_holds_compaction_back_until_it_moves_or_goes(b: Backend) -> None:
    counted(b, "cart-1", 6)
    hold(b, "cart-1", "exporter", 2)

    compact(b, "cart-1", "total", total, 0)
    equal(seqs(read(b, "cart-1")), [3, 4, 5, 6])
    hold(b, "cart-1", "exporter", 5)
    compact(b, "cart-1", "total", total, 0)
    equal(seqs(read(b, "cart-1")), [6])
    hold_drop(b, "cart-1", "exporter")
    compact(b, "cart-1", "total", total, 0)

    equal(count(b, "cart-1"), 0)


@COMPACTION.case("P-CMP-10")
def the_lowest_of_all_holds_is_the_truncation_point(b: Backend) -> None:
    counted(b, "cart-1", 9)
    checkpoint(b, "cart-1", "late", total, 0)
    hold(b, "cart-1", "a", 7)
    hold(b, "cart-1", "b", 4)
    consumer(b, "c", "cart-1", start=6)

    compact(b, "cart-1", "total", total, 0)

    equal(seqs(read(b, "cart-1")), [5, 6, 7, 8, 9])


@COMPACTION.case("P-CMP-10")
def holds_are_listed_with_their_lag(b: Backend) -> None:
    counted(b, "cart-1", 9)
    hold(b, "cart-1", "exporter", 4)
    hold(b, "cart-1", "auditor", 9)
    hold(b, "cart-2", "elsewhere", 0)

    equal(
        [(each.name, each.seq, each.lag) for each in holds(b, "cart-1")],
        [("auditor", 9, 0), ("exporter", 4, 5)],
    )


@COMPACTION.case("P-CMP-10")
def a_hold_may_move_back_and_dropping_none_does_nothing(b: Backend) -> None:
    counted(b, "cart-1", 5)
    hold(b, "cart-1", "exporter", 4)
    hold(b, "cart-1", "exporter", 1)
    hold_drop(b, "cart-1", "nobody")

    compact(b, "cart-1", "total", total, 0)

    equal(seqs(read(b, "cart-1")), [2, 3, 4, 5])


@COMPACTION.case("P-CMP-10")
def a_hold_of_another_stream_does_not_matter(b: Backend) -> None:
    counted(b, "cart-1", 3)
    counted(b, "cart-1/x", 3)
    hold(b, "cart-1/x", "exporter", 0)

    compact(b, "cart-1", "total", total, 0)

    equal((count(b, "cart-1"), count(b, "cart-1/x")), (0, 3))


@COMPACTION.case("P-CMP-10", "P-GLB-9")
def a_hold_on_the_global_order_holds_back_every_stream_in_it(b: Backend) -> None:
    counted(b, "cart-1", 2, globally=True)
    counted(b, "cart-2", 2, globally=True)
    counted(b, "cart-1", 2, start=3, globally=True)
    hold(b, "$global", "exporter", 3)

    compact(b, "cart-1", "total-1", total, 0)
    compact(b, "cart-2", "total-2", total, 0)

    equal((seqs(read(b, "cart-1")), seqs(read(b, "cart-2"))), ([3, 4], [2]))
    equal([event.seq for event in read_global(b)[3:]], [2, 3, 4])


@COMPACTION.case("P-CMP-11")
def a_raw_truncation_asks_nobody(b: Backend) -> None:
    counted(b, "cart-1", 5)
    hold(b, "cart-1", "exporter", 0)
    checkpoint(b, "cart-1", "total", total, 0)

    truncate_through(b, "cart-1", 5)

    equal(count(b, "cart-1"), 0)


@COMPACTION.case("P-CMP-12")
def reclaimable_counts_stored_events_behind_the_snapshot_and_all_holds(b: Backend) -> None:
    counted(b, "cart-1", 6)
    equal(reclaimable(b, "cart-1", "total"), 0)

    checkpoint(b, "cart-1", "total", total, 0)
    equal(reclaimable(b, "cart-1", "total"), 6)
    hold(b, "cart-1", "exporter", 4)
    equal(reclaimable(b, "cart-1", "total"), 4)
    truncate_through(b, "cart-1", 3)

    equal(reclaimable(b, "cart-1", "total"), 1)


@COMPACTION.case("P-CMP-12")
def a_log_whose_view_is_always_current_still_shrinks(b: Backend) -> None:
    hub = Hub(b)
    view_attach(hub, view("total", "cart-1", total, 0))
    for i in range(1, 9):
        publish(hub, "cart-1", "added", i, {"n": i})

    equal(maybe_compact(b, "cart-1", "total", total, 0, every=5).seq, 8)
    equal(count(b, "cart-1"), 8, "the tail measure never fires here")
    equal(maybe_reclaim(b, "cart-1", "total", every=9), 0)
    equal(maybe_reclaim(b, "cart-1", "total", every=8), 8)

    equal((count(b, "cart-1"), last_seq(b, "cart-1")), (0, 8))
