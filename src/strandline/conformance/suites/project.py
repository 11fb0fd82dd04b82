"""Projections: folds in order of seq, resumed where they were, read-only, and never over a gap."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, raises
from strandline.conformance.suites.given import counted, kinds, total
from strandline.persist import (
    Backend,
    Event,
    HistoryGap,
    ProjectionState,
    SnapshotMismatch,
    append,
    checkpoint,
    kv_get,
    kv_keys,
    kv_put,
    last_seq,
    project,
    project_fold,
    project_resume,
    snapshot_exists,
    streams_all,
    truncate_through,
)

PROJECT = Suite("project", expected=18, floor=9)


@PROJECT.case("P-PRJ-1")
def a_projection_folds_every_event_in_order(b: Backend) -> None:
    for kind in ("opened", "added", "closed"):
        append(b, "cart-1", kind, 0, {})

    equal(project(b, "cart-1", kinds, []), ProjectionState(["opened", "added", "closed"], 3))


@PROJECT.case("P-PRJ-3")
def a_projection_of_an_empty_stream_is_the_seed_at_0(b: Backend) -> None:
    equal(project(b, "nowhere", total, 42), ProjectionState(42, 0))


@PROJECT.case("P-PRJ-2")
def resuming_folds_only_what_came_after(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(project_resume(b, "cart-1", total, ProjectionState(100, 2)), ProjectionState(107, 4))


@PROJECT.case("P-PRJ-3")
def resuming_with_nothing_new_gives_the_prior_state(b: Backend) -> None:
    counted(b, "cart-1", 3)
    prior = project(b, "cart-1", total, 0)

    equal(project_resume(b, "cart-1", total, prior), prior)


@PROJECT.case("P-PRJ-4")
def a_projection_is_a_resume_from_the_seed(b: Backend) -> None:
    counted(b, "cart-1", 5)

    equal(project(b, "cart-1", total, 7), project_resume(b, "cart-1", total, ProjectionState(7, 0)))


@PROJECT.case("P-PRJ-5")
def project_fold_is_the_value_alone(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(project_fold(b, "cart-1", total, 0), 10)


@PROJECT.case("P-PRJ-6")
def equal_events_give_equal_states(b: Backend) -> None:
    counted(b, "cart-1", 3)
    counted(b, "cart-2", 3)

    equal(project(b, "cart-1", total, 0), project(b, "cart-2", total, 0))
    equal(project(b, "cart-1", total, 0), project(b, "cart-1", total, 0))


@PROJECT.case("P-PRJ-7")
def the_step_sees_the_whole_event(b: Backend) -> None:
    append(b, "cart-1", "added", 5, {"n": 1})
    append(b, "cart-1", "removed", 6, {"n": 2})

    def step(value: Any, event: Event) -> Any:
        sign = 1 if event.type == "added" else -1
        return [*value, (event.stream, event.seq, event.at, sign * event.data["n"])]

    equal(project_fold(b, "cart-1", step, []), [("cart-1", 1, 5, 1), ("cart-1", 2, 6, -2)])


@PROJECT.case("P-PRJ-8")
def projections_write_nothing(b: Backend) -> None:
    counted(b, "cart-1", 3)

    project(b, "cart-1", total, 0)
    project(b, "nowhere", total, 0)

    equal((streams_all(b), last_seq(b, "cart-1"), kv_keys(b)), (["cart-1"], 3, []))


@PROJECT.case("P-PRJ-7")
def a_step_that_raises_is_passed_on_and_nothing_is_stored(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"n": 1})
    append(b, "cart-1", "added", 2, {})

    with raises(KeyError):
        project(b, "cart-1", total, 0)
    with raises(KeyError):
        checkpoint(b, "cart-1", "total", total, 0)

    equal(snapshot_exists(b, "total"), False)


@PROJECT.case("P-PRJ-2")
def a_state_kept_in_kv_can_be_resumed(b: Backend) -> None:
    counted(b, "cart-1", 2)
    kv_put(b, "kept", project(b, "cart-1", total, 0))
    counted(b, "cart-1", 2, start=3)

    equal(project_resume(b, "cart-1", total, kv_get(b, "kept")), ProjectionState(10, 4))


@PROJECT.case("P-PRJ-9")
def a_fold_over_truncated_events_raises_history_gap(b: Backend) -> None:
    counted(b, "cart-1", 5)
    truncate_through(b, "cart-1", 2)

    with raises(HistoryGap) as caught:
        project(b, "cart-1", total, 0)
    equal((caught.error.stream, caught.error.prior_seq, caught.error.truncated_through), ("cart-1", 0, 2))
    with raises(HistoryGap):
        project_resume(b, "cart-1", total, ProjectionState(1, 1))


@PROJECT.case("P-PRJ-9")
def a_fold_from_the_truncation_point_on_is_whole(b: Backend) -> None:
    counted(b, "cart-1", 5)
    truncate_through(b, "cart-1", 2)

    equal(project_resume(b, "cart-1", total, ProjectionState(3, 2)), ProjectionState(15, 5))


@PROJECT.case("P-PRJ-9")
def a_fold_of_an_emptied_stream_raises_history_gap(b: Backend) -> None:
    counted(b, "cart-1", 3)
    truncate_through(b, "cart-1", 3)

    with raises(HistoryGap):
        project(b, "cart-1", total, 0)
    equal(project_resume(b, "cart-1", total, ProjectionState(6, 3)), ProjectionState(6, 3))


@PROJECT.case("P-PRJ-9")
def allow_gap_folds_what_is_left(b: Backend) -> None:
    counted(b, "cart-1", 5)
    truncate_through(b, "cart-1", 3)

    equal(project(b, "cart-1", total, 0, allow_gap=True), ProjectionState(9, 5))


@PROJECT.case("P-PRJ-9")
def a_state_from_beyond_the_stream_is_a_mismatch(b: Backend) -> None:
    counted(b, "cart-1", 2)

    with raises(SnapshotMismatch):
        project_resume(b, "cart-1", total, ProjectionState(0, 3))
    with raises(SnapshotMismatch):
        project_resume(b, "nowhere", total, ProjectionState(0, 1))


@PROJECT.case("P-PRJ-9")
def a_truncation_that_overtakes_a_fold_raises_history_gap(b: Backend) -> None:
    counted(b, "cart-1", 1_500)

    def step(value: int, event: Event) -> int:
        if event.seq == 10:
            truncate_through(b, "cart-1", 1_400)  # another process, while we fold the first page
        return value + 1

    with raises(HistoryGap):
        project(b, "cart-1", step, 0)


@PROJECT.case("P-PRJ-1")
def a_fold_goes_over_many_pages(b: Backend) -> None:
    counted(b, "cart-1", 1_101)

    equal(project(b, "cart-1", total, 0), ProjectionState(1_101 * 1_102 // 2, 1_101))
