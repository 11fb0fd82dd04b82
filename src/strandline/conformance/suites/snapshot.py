"""Snapshots: a fold kept with its seq, equal to a full replay, that never goes back."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.suites.given import counted, kinds, total
from strandline.persist import (
    Append,
    Backend,
    Event,
    ExpectSeq,
    HistoryGap,
    ProjectionState,
    SaveSnapshot,
    SnapshotMismatch,
    UsageError,
    append,
    checkpoint,
    commit,
    compact,
    is_conflict,
    kv_keys,
    last_seq,
    project,
    replay,
    snapshot_drop,
    snapshot_exists,
    snapshot_load,
    snapshot_save,
    snapshots,
)

SNAPSHOT = Suite("snapshot", expected=25, floor=11)


@SNAPSHOT.case("P-SNP-2")
def without_a_snapshot_load_gives_the_seed_at_0(b: Backend) -> None:
    equal(snapshot_load(b, "total", 7), ProjectionState(7, 0))


@SNAPSHOT.case("P-SNP-2")
def a_snapshot_exists_from_its_first_save_on(b: Backend) -> None:
    equal(snapshot_exists(b, "total"), False)

    snapshot_save(b, "total", ProjectionState(1, 0))

    equal(snapshot_exists(b, "total"), True)


@SNAPSHOT.case("P-SNP-3")
def save_stores_and_returns_the_state(b: Backend) -> None:
    state = ProjectionState({"n": [1, 2]}, 3)

    equal(snapshot_save(b, "total", state), state)
    equal(snapshot_load(b, "total", None), state)


@SNAPSHOT.case("P-SNP-2")
def with_a_snapshot_the_seed_is_ignored(b: Backend) -> None:
    snapshot_save(b, "total", ProjectionState(5, 2))

    equal(snapshot_load(b, "total", 999), ProjectionState(5, 2))


@SNAPSHOT.case("P-SNP-1")
def names_are_independent(b: Backend) -> None:
    snapshot_save(b, "total", ProjectionState(1, 1))
    snapshot_save(b, "total/2", ProjectionState(2, 2))
    snapshot_save(b, "tot", ProjectionState(3, 3))

    equal([snapshot_load(b, name, 0).value for name in ("total", "total/2", "tot")], [1, 2, 3])


@SNAPSHOT.case("P-SNP-4")
def replay_without_a_snapshot_is_a_full_fold(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(replay(b, "cart-1", "total", total, 0), ProjectionState(10, 4))


@SNAPSHOT.case("P-SNP-4")
def replay_writes_nothing(b: Backend) -> None:
    counted(b, "cart-1", 4)

    replay(b, "cart-1", "total", total, 0)

    equal(snapshot_exists(b, "total"), False)


@SNAPSHOT.case("P-SNP-5")
def checkpoint_keeps_what_replay_gives(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(checkpoint(b, "cart-1", "total", total, 0), ProjectionState(10, 4))
    equal(snapshot_load(b, "total", 0), ProjectionState(10, 4))


@SNAPSHOT.case("P-SNP-5")
def checkpoint_of_an_empty_stream_keeps_the_seed(b: Backend) -> None:
    equal(checkpoint(b, "cart-1", "total", total, 3), ProjectionState(3, 0))
    equal(snapshot_exists(b, "total"), True)


@SNAPSHOT.case("P-SNP-5")
def a_later_checkpoint_advances(b: Backend) -> None:
    counted(b, "cart-1", 2)
    checkpoint(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 2, start=3)

    equal(checkpoint(b, "cart-1", "total", total, 0), ProjectionState(10, 4))


@SNAPSHOT.case("P-SNP-6")
def a_snapshot_and_its_tail_equal_a_full_replay_wherever_it_is_taken(b: Backend) -> None:
    kinds_of = ["a", "b", "c", "d", "e"]
    for place in range(len(kinds_of) + 1):
        stream, name = f"cart-{place}", f"kinds-{place}"
        for index, kind in enumerate(kinds_of):
            if index == place:
                checkpoint(b, stream, name, kinds, [])
            append(b, stream, kind, index, {})
        if place == len(kinds_of):
            checkpoint(b, stream, name, kinds, [])
        equal(replay(b, stream, name, kinds, []), project(b, stream, kinds, []), f"taken at {place}")


@SNAPSHOT.case("P-SNP-6")
def two_replays_from_one_snapshot_are_equal(b: Backend) -> None:
    counted(b, "cart-1", 3)
    checkpoint(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 2, start=4)

    equal(replay(b, "cart-1", "total", total, 0), replay(b, "cart-1", "total", total, 0))


@SNAPSHOT.case("P-SNP-4")
def replay_folds_only_the_tail(b: Backend) -> None:
    counted(b, "cart-1", 3)
    checkpoint(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 2, start=4)
    folded: list[int] = []

    def step(value: int, event: Event) -> int:
        folded.append(event.seq)
        return total(value, event)  # type: ignore[no-any-return]  # folds are untyped

    replay(b, "cart-1", "total", step, 0)

    equal(folded, [4, 5])


@SNAPSHOT.case("P-SNP-7")
def a_lower_save_is_not_written_and_gives_what_is_kept(b: Backend) -> None:
    kept = snapshot_save(b, "total", ProjectionState(10, 4))

    equal(snapshot_save(b, "total", ProjectionState(1, 3)), kept)
    equal(snapshot_load(b, "total", 0), kept)


@SNAPSHOT.case("P-SNP-7")
def a_save_at_the_same_seq_is_written(b: Backend) -> None:
    snapshot_save(b, "total", ProjectionState(10, 4))

    equal(snapshot_save(b, "total", ProjectionState(11, 4)), ProjectionState(11, 4))
    equal(snapshot_load(b, "total", 0), ProjectionState(11, 4))


@SNAPSHOT.case("P-SNP-7")
def a_dropped_snapshot_is_gone_and_can_be_built_anew(b: Backend) -> None:
    counted(b, "cart-1", 3)
    checkpoint(b, "cart-1", "total", total, 0)

    snapshot_drop(b, "total")

    equal((snapshot_exists(b, "total"), snapshots(b, "cart-1")), (False, []))
    equal(checkpoint(b, "cart-1", "total", total, 100), ProjectionState(106, 3))


@SNAPSHOT.case("P-SNP-7")
def a_snapshot_of_a_truncated_stream_is_dropped_only_by_force(b: Backend) -> None:
    counted(b, "cart-1", 3)
    compact(b, "cart-1", "total", total, 0)

    with raises(HistoryGap):
        snapshot_drop(b, "total")
    equal(snapshot_exists(b, "total"), True)
    snapshot_drop(b, "total", force=True)

    equal(snapshot_exists(b, "total"), False)


@SNAPSHOT.case("P-SNP-7")
def dropping_what_is_not_there_does_nothing(b: Backend) -> None:
    snapshot_drop(b, "nothing")

    equal(kv_keys(b), [])


@SNAPSHOT.case("P-SNP-8")
def a_snapshot_of_another_stream_is_a_mismatch(b: Backend) -> None:
    counted(b, "cart-1", 2)
    counted(b, "cart-2", 5)
    kept = checkpoint(b, "cart-1", "total", total, 0)

    with raises(SnapshotMismatch):
        replay(b, "cart-2", "total", total, 0)
    with raises(SnapshotMismatch):
        checkpoint(b, "cart-2", "total", total, 0)
    equal(snapshot_load(b, "total", 0), kept)


@SNAPSHOT.case("P-SNP-8")
def a_snapshot_of_another_version_is_a_mismatch(b: Backend) -> None:
    counted(b, "cart-1", 2)
    checkpoint(b, "cart-1", "total", total, 0, version="1")

    with raises(SnapshotMismatch):
        checkpoint(b, "cart-1", "total", total, 0, version="2")
    with raises(SnapshotMismatch):
        replay(b, "cart-1", "total", total, 0)
    equal(replay(b, "cart-1", "total", total, 0, version="1").value, 3)


@SNAPSHOT.case("P-SNP-8")
def a_fold_that_gets_its_first_version_does_not_take_over_an_unversioned_snapshot(b: Backend) -> None:
    counted(b, "cart-1", 2)
    checkpoint(b, "cart-1", "total", total, 0)

    with raises(SnapshotMismatch):
        replay(b, "cart-1", "total", total, 0, version="2")


@SNAPSHOT.case("P-SNP-8")
def stream_and_version_are_no_part_of_a_states_equality(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(checkpoint(b, "cart-1", "total", total, 0, version="1"), ProjectionState(3, 2))
    equal(snapshot_load(b, "total", 0), ProjectionState(3, 2))


@SNAPSHOT.case("P-SNP-8")
def the_snapshots_of_a_stream_are_listed_with_their_seqs(b: Backend) -> None:
    counted(b, "cart-1", 2)
    checkpoint(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 1, start=3)
    checkpoint(b, "cart-1", "kinds", kinds, [])
    checkpoint(b, "cart-2", "other", total, 0)

    equal(snapshots(b, "cart-1"), [("kinds", 3), ("total", 2)])


@SNAPSHOT.case("P-SNP-3")
def a_snapshot_holds_a_projection_state_and_nothing_else(b: Backend) -> None:
    odd: dict[str, Any] = {"int": 3, "pair": (1, 2), "negative": ProjectionState(0, -1)}

    each_raises(UsageError, {name: call(snapshot_save, b, "total", state) for name, state in odd.items()})
    equal(snapshot_exists(b, "total"), False)


@SNAPSHOT.case("P-BKD-12", "P-SNP-7")
def a_snapshot_is_saved_in_the_commit_of_its_events_or_not_at_all(b: Backend) -> None:
    save = SaveSnapshot("total", ProjectionState(5, 1), stream="cart-1")

    commit(b, [ExpectSeq("cart-1", 0)], [Append("cart-1", "added", 1, {"n": 5}), save])
    equal((snapshot_load(b, "total", 0), last_seq(b, "cart-1")), (ProjectionState(5, 1), 1))

    stale = SaveSnapshot("total", ProjectionState(0, 0), stream="cart-1")
    outcome = commit(b, [], [Append("cart-1", "added", 2, {"n": 6}), stale])
    truthy(is_conflict(outcome), "a conflict")
    equal((snapshot_load(b, "total", 0), last_seq(b, "cart-1")), (ProjectionState(5, 1), 1))
