"""Commit: every precondition and every write in one unit, repeated without a second effect."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, truthy
from strandline.conformance.suites.given import counted, seqs
from strandline.persist import (
    ABSENT,
    Append,
    Backend,
    Conflict,
    Consumer,
    Delete,
    Event,
    ExpectKey,
    ExpectSeq,
    MoveCursor,
    ProjectionState,
    Put,
    Redact,
    SaveSnapshot,
    Truncate,
    UsageError,
    ack,
    append,
    append_once,
    commit,
    consumer,
    is_conflict,
    kv_get,
    kv_has,
    kv_keys,
    kv_put,
    last_seq,
    read,
    read_global,
    seen,
    snapshot_load,
    snapshot_save,
    streams_all,
    truncate_through,
)
from strandline.persist.core.lift import atomic

COMMIT = Suite("commit", expected=26)


@COMMIT.case("P-BKD-9", "P-BKD-12")
def a_commit_writes_events_and_keys_together(b: Backend) -> None:
    outcome = commit(
        b,
        [ExpectSeq("cart-1", 0), ExpectKey("total", ABSENT)],
        [Append("cart-1", "added", 1, {"n": 5}), Put("total", 5), Append("audit", "noted", 1, None)],
    )

    equal(outcome, [Event("cart-1", 1, "added", 1, {"n": 5}), Event("audit", 1, "noted", 1, None)])
    equal((read(b, "cart-1"), kv_get(b, "total")), (outcome[:1], 5))  # type: ignore[index]  # a list here


@COMMIT.case("P-BKD-9")
def writes_act_in_order(b: Backend) -> None:
    commit(b, [], [Put("k", 1), Delete("k"), Put("k", 2), Put("gone", 1), Delete("gone")])
    equal((kv_get(b, "k"), kv_has(b, "gone")), (2, False))

    stored = commit(b, [], [Append("s", "a", 1, {}), Truncate("s", 1), Append("s", "b", 2, {})])

    equal(([event.seq for event in stored], seqs(read(b, "s"))), ([1, 2], [2]))  # type: ignore[union-attr]  # a list


@COMMIT.case("P-BKD-9")
def interleaved_appends_keep_each_streams_order(b: Backend) -> None:
    stored = commit(b, [], [Append(stream, "t", i, {"i": i}) for i, stream in enumerate("abaab")])

    equal([(event.stream, event.seq) for event in stored], [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)])  # type: ignore[union-attr]  # a list
    equal([event.data["i"] for event in read(b, "a")], [0, 2, 3])


@COMMIT.case("P-BKD-9")
def the_first_unmet_precondition_is_the_conflict(b: Backend) -> None:
    counted(b, "s", 2)
    kv_put(b, "k", "v")
    writes: list[Any] = [Append("s", "t", 1, {}), Put("other", 1)]

    met, stale, other = ExpectSeq("s", 2), ExpectSeq("s", 1), ExpectKey("k", "w")
    equal(commit(b, [met, stale, other], writes), Conflict(1, 2, "STALE"))
    equal(commit(b, [met, other, stale], writes), Conflict("w", "v", "STALE"))

    equal((last_seq(b, "s"), kv_has(b, "other")), (2, False))


@COMMIT.case("P-BKD-9")
def a_conflict_names_what_it_is_about(b: Backend) -> None:
    kv_put(b, "k", "v")

    about_key = commit(b, [ExpectKey("k", ABSENT)], [])
    about_stream = commit(b, [ExpectSeq("s", 3)], [])

    equal((about_key.name, about_key.expected, about_key.actual), ("k", ABSENT, "v"))  # type: ignore[union-attr]  # a Conflict
    equal((about_stream.name, about_stream.actual), ("s", 0))  # type: ignore[union-attr]  # a Conflict


@COMMIT.case("P-BKD-9")
def an_absent_key_is_not_a_stored_none(b: Backend) -> None:
    equal(commit(b, [ExpectKey("k", None)], []), Conflict(None, ABSENT, "STALE"))
    kv_put(b, "k", None)

    equal(commit(b, [ExpectKey("k", None)], []), [])
    equal(commit(b, [ExpectKey("k", ABSENT)], []), Conflict(ABSENT, None, "STALE"))


@COMMIT.case("P-BKD-9")
def preconditions_see_the_state_before_the_commit(b: Backend) -> None:
    counted(b, "s", 1)

    outcome = commit(
        b,
        [ExpectSeq("s", 1), ExpectKey("k", ABSENT), ExpectSeq("s", 1)],
        [Append("s", "t", 1, {}), Put("k", 1), Append("s", "t", 1, {})],
    )

    equal([event.seq for event in outcome], [2, 3])  # type: ignore[union-attr]  # a list


@COMMIT.case("P-BKD-9")
def preconditions_may_be_about_what_is_not_written(b: Backend) -> None:
    kv_put(b, "lease", {"holder": "ann", "fence": 7})

    held = ExpectKey("lease", {"fence": 7, "holder": "ann"})
    lost = ExpectKey("lease", {"fence": 6, "holder": "bob"})
    truthy(not is_conflict(commit(b, [held], [Append("s", "t", 1, {})])), "a write under the lease")
    truthy(is_conflict(commit(b, [lost], [Append("s", "t", 1, {})])), "a conflict without it")

    equal(last_seq(b, "s"), 1)


@COMMIT.case("P-BKD-9")
def a_commit_of_nothing_is_nothing(b: Backend) -> None:
    equal(commit(b, [], []), [])
    equal((streams_all(b), kv_keys(b)), ([], []))


@COMMIT.case("P-BKD-9")
def one_bad_write_stops_all(b: Backend) -> None:
    odd: dict[str, Any] = {
        "value": Put("k2", {1}),
        "name": Append("", "t", 1, {}),
        "type": Append("s", "", 1, {}),
        "at": Append("s", "t", None, {}),  # type: ignore[arg-type]  # on purpose
        "truncate": Truncate("s", "x"),  # type: ignore[arg-type]  # on purpose
        "no write": "frobnicate",
    }

    for name, write in odd.items():
        each_raises(UsageError, {name: call(commit, b, [], [Append("s", "t", 1, {}), Put("k", 1), write])})
    each_raises(UsageError, {"no precondition": call(commit, b, ["x"], [Put("k", 1)])})
    equal((streams_all(b), kv_keys(b)), ([], []))


@COMMIT.case("P-BKD-9", "P-GLB-8")
def positions_follow_the_order_of_the_appends(b: Backend) -> None:
    commit(b, [], [Append(stream, "t", 1, {}, globally=stream != "x") for stream in "bxab"])

    equal([(event.stream, event.seq) for event in read_global(b)], [("b", 1), ("a", 1), ("b", 2)])


@COMMIT.case("P-BKD-10")
def a_repeat_under_once_writes_nothing_and_gives_the_first_result(b: Backend) -> None:
    writes: list[Any] = [Append("s", "t", 1, {"n": 1}), Put("k", 1), Append("u", "t", 1.5, None)]
    first = commit(b, [], writes, once=("s", "key"))
    kv_put(b, "k", 2)
    append(b, "s", "other", 3, {})

    equal(commit(b, [], writes, once=("s", "key")), first)
    equal((kv_get(b, "k"), last_seq(b, "s"), last_seq(b, "u")), (2, 2, 1))


@COMMIT.case("P-BKD-10")
def a_repeat_is_answered_before_any_precondition(b: Backend) -> None:
    expected: list[Any] = [ExpectSeq("s", 0), ExpectKey("k", ABSENT)]
    writes: list[Any] = [Append("s", "t", 1, {}), Put("k", 1)]
    first = commit(b, expected, writes, once=("s", "key"))

    equal(commit(b, expected, writes, once=("s", "key")), first)
    equal(commit(b, [ExpectSeq("s", 77)], writes, once=("s", "key")), first)


@COMMIT.case("P-BKD-10")
def ats_are_not_compared_and_the_first_ones_come_back(b: Backend) -> None:
    first = commit(b, [], [Append("s", "t", 1, {}), Append("s", "t", 2, {})], once=("s", "key"))

    equal(commit(b, [], [Append("s", "t", 8, {}), Append("s", "t", "x", {})], once=("s", "key")), first)


@COMMIT.case("P-BKD-10")
def other_writes_under_a_known_key_are_key_reused(b: Backend) -> None:
    commit(b, [], [Append("s", "t", 1, {"n": 1}), Put("k", 1)], once=("s", "key"))
    others: dict[str, list[Any]] = {
        "data": [Append("s", "t", 1, {"n": 2}), Put("k", 1)],
        "value": [Append("s", "t", 1, {"n": 1}), Put("k", 2)],
        "more": [Append("s", "t", 1, {"n": 1}), Put("k", 1), Delete("x")],
        "fewer": [Append("s", "t", 1, {"n": 1})],
        "globally": [Append("s", "t", 1, {"n": 1}, globally=True), Put("k", 1)],
        "order": [Put("k", 1), Append("s", "t", 1, {"n": 1})],
    }

    for name, writes in others.items():
        outcome = commit(b, [], writes, once=("s", "key"))
        truthy(is_conflict(outcome), f"a conflict for other {name}")
        equal((outcome.reason, outcome.actual), ("KEY_REUSED", Event("s", 1, "t", 1, {"n": 1})), name)  # type: ignore[union-attr]  # a Conflict
    equal((last_seq(b, "s"), kv_get(b, "k")), (1, 1))


@COMMIT.case("P-BKD-10")
def a_conflict_leaves_no_marker(b: Backend) -> None:
    equal(
        commit(b, [ExpectSeq("s", 9)], [Append("s", "t", 1, {})], once=("s", "key")), Conflict(9, 0, "STALE")
    )

    equal(seen(b, "s", "key"), False)
    equal(commit(b, [], [Append("s", "t", 1, {})], once=("s", "key")), [Event("s", 1, "t", 1, {})])


@COMMIT.case("P-BKD-10")
def the_commit_scope_takes_commits_without_appends(b: Backend) -> None:
    equal(commit(b, [], [Put("k", 1)], once=("$commit", "key")), [])
    kv_put(b, "k", 2)

    equal(commit(b, [], [Put("k", 1)], once=("$commit", "key")), [])
    equal(kv_get(b, "k"), 2)
    outcome = commit(b, [], [Put("k", 3)], once=("$commit", "key"))
    equal(outcome.reason, "KEY_REUSED")  # type: ignore[union-attr]  # a Conflict


@COMMIT.case("P-BKD-10")
def a_scope_that_is_not_appended_to_is_refused(b: Backend) -> None:
    each_raises(
        UsageError,
        {
            "other stream": call(commit, b, [], [Append("s", "t", 1, {})], once=("other", "key")),
            "no append": call(commit, b, [], [Put("k", 1)], once=("s", "key")),
            "reserved": call(commit, b, [], [Append("s", "t", 1, {})], once=("$mine", "key")),
            "empty key": call(commit, b, [], [Append("s", "t", 1, {})], once=("s", "")),
            "no pair": call(commit, b, [], [Append("s", "t", 1, {})], once=("s",)),
        },
    )
    equal((last_seq(b, "s"), kv_keys(b)), (0, []))


@COMMIT.case("P-BKD-10", "P-IDM-1")
def append_once_and_commit_share_their_keys(b: Backend) -> None:
    first = append_once(b, "s", "key", "t", 1, {"n": 1})

    equal(commit(b, [], [Append("s", "t", 1, {"n": 1})], once=("s", "key")), [first])
    equal(last_seq(b, "s"), 1)


@COMMIT.case("P-BKD-10", "P-IDM-4")
def a_repeat_after_truncation_is_built_from_the_marker(b: Backend) -> None:
    writes = [Append(stream, "t", i, {"i": i}) for i, stream in enumerate("aabba")]
    first = commit(b, [], writes, once=("a", "key"))
    truncate_through(b, "a", 9)
    truncate_through(b, "b", 9)

    equal(commit(b, [], writes, once=("a", "key")), first)


@COMMIT.case("P-BKD-10", "P-BKD-12", "P-SUB-12")
def a_repeat_with_a_cursor_and_a_snapshot_gives_the_first_result(b: Backend) -> None:
    counted(b, "in", 1)
    c = consumer(b, "worker", "in")

    def attempt(cursor: Consumer) -> Any:
        writes: list[Any] = [
            Append("out", "made", 1, {}),
            SaveSnapshot("made", ProjectionState(1, 1), stream="out"),
            MoveCursor(cursor, 1),
        ]
        return commit(b, [], writes, once=("out", "in-1"))

    first = attempt(c)

    equal(attempt(c), first)
    equal(attempt(consumer(b, "worker", "in")), first)
    equal((last_seq(b, "out"), consumer(b, "worker", "in").seq), (1, 1))


@COMMIT.case("P-BKD-12")
def an_application_may_not_commit_to_reserved_names_or_redact(b: Backend) -> None:
    counted(b, "s", 1)

    each_raises(
        UsageError,
        {
            "append": call(commit, b, [], [Append("$x", "t", 1, {})]),
            "truncate": call(commit, b, [], [Truncate("$global", 1)]),
            "put": call(commit, b, [], [Put("$once/s/k", {})]),
            "delete": call(commit, b, [], [Delete("$snapshot/n")]),
            "redact": call(commit, b, [], [Redact("s", 1, ["n"])]),
        },
    )
    equal(read(b, "s")[0].data, {"n": 1})


@COMMIT.case("P-BKD-12")
def a_snapshot_that_is_behind_is_a_conflict_of_the_whole(b: Backend) -> None:
    snapshot_save(b, "n", ProjectionState("kept", 5))

    outcome = commit(b, [], [Put("k", 1), SaveSnapshot("n", ProjectionState("old", 4))])

    equal(outcome, Conflict(4, 5, "STALE"))
    equal((kv_has(b, "k"), snapshot_load(b, "n", None).value), (False, "kept"))


@COMMIT.case("P-BKD-12")
def a_cursor_that_was_moved_is_a_conflict_of_the_whole(b: Backend) -> None:
    counted(b, "s", 3)
    slow, quick = consumer(b, "c", "s"), consumer(b, "c", "s")
    ack(quick, 2)

    outcome = commit(b, [], [Put("k", 1), MoveCursor(slow, 1)])

    truthy(is_conflict(outcome), "a conflict")
    equal((kv_has(b, "k"), consumer(b, "c", "s").seq), (False, 2))


@COMMIT.case("P-BKD-9", level="atomic")
def the_backends_own_commit_gives_the_same_outcomes(b: Backend) -> None:
    store = atomic(b)

    equal(store.commit([ExpectSeq("s", 0)], [Append("s", "t", 1, {})]), [Event("s", 1, "t", 1, {})])
    equal(store.commit([ExpectSeq("s", 0)], [Append("s", "t", 1, {})]), Conflict(0, 1, "STALE"))
    each_raises(UsageError, {"pointers": call(store.commit, [], [Append("$global", "pointer", 1, {})])})


@COMMIT.case("P-BKD-9", "P-ERA-2", level="atomic", needs=["redact"])
def a_redaction_is_part_of_its_commit(b: Backend) -> None:
    store = atomic(b)
    append(b, "s", "t", 1, {"name": "ann", "tags": ["x", "y"]})

    conflict = store.commit([ExpectSeq("s", 9)], [Redact("s", 1, ["name"])])
    truthy(is_conflict(conflict), "a conflict")
    store.commit([], [Redact("s", 1, ["name"]), Redact("s", 1, ["tags", 1]), Put("k", 1)])

    equal(read(b, "s")[0], Event("s", 1, "t", 1, {"name": None, "tags": ["x", None]}))
    each_raises(
        UsageError, {"nowhere": call(store.commit, [], [Put("k", 2), Redact("s", 1, ["no", "such"])])}
    )
    equal(kv_get(b, "k"), 1)
