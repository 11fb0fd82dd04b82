"""One commit: decided in order, all or nothing, idempotent; and many callers folded into one transaction."""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import NotFoundError, NotStorable, OutcomeUnknown, ReservedName, UsageError
from strandline.persist import (
    ABSENT,
    Append,
    AtomicBackend,
    Compacted,
    Conflict,
    Delete,
    Event,
    ExpectKey,
    ExpectSeq,
    Put,
    Redact,
    Truncate,
    commit,
    count,
    global_pos,
    kv_get,
    kv_has,
    kv_keys,
    kv_keys_all,
    last_seq,
    read,
    read_global,
    seen,
    streams_all,
    verify,
)
from strandline.persist.backend import Expectation, Once, Outcome, Write
from strandline.persist.backends import memory
from strandline.persist.backends.sqlite import transaction
from strandline.persist.core import group_commit
from strandline.persist.core.block import Block, pointer_runs
from strandline.persist.core.group_commit import GroupCommit
from strandline.persist.core.prepare import Prepared, _prepare_each, prepare
from strandline.persist.value import MAX_COMMIT_BYTES
from tests.conftest import KINDS, as_any, open_backend

WAIT_S = 30


@pytest.fixture(params=KINDS)
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(open_backend(request.param, tmp_path)) as opened:
        yield opened


# The writes of one commit


def stored(b: AtomicBackend) -> dict[str, Any]:
    """Everything that a reader can see, to show that nothing was written."""
    return {
        "streams": {name: (last_seq(b, name), read(b, name)) for name in streams_all(b)},
        "keys": {key: kv_get(b, key) for key in kv_keys_all(b) if not key.startswith("$once/")},
    }


def test_writes_act_in_order_and_see_the_ones_before(b: AtomicBackend) -> None:  # P-BKD-9
    b.commit([], [Append("s", "old", 0, 0), Put("k", "old")])

    outcome = b.commit(
        [],
        [
            Append("s", "a", 1, {"n": 1}),
            Put("k", 1),
            Append("other", "a", 1, {"n": 2}),
            Truncate("s", 2),
            Append("s", "b", 1.5, {"n": 3}),
            Delete("k"),
            Put("k", 2),
            Put("gone", 1),
            Delete("gone"),
            Delete("never"),
        ],
    )

    assert outcome == [
        Event("s", 2, "a", 1, {"n": 1}),
        Event("other", 1, "a", 1, {"n": 2}),
        Event("s", 3, "b", 1.5, {"n": 3}),
    ]
    assert read(b, "s") == [Event("s", 3, "b", 1.5, {"n": 3})]
    assert (b.truncated_through("s"), last_seq(b, "s"), count(b, "s")) == (2, 3, 1)
    assert (kv_keys(b), kv_get(b, "k")) == (["k"], 2)


def test_a_truncation_before_an_append_of_the_same_commit_leaves_that_append(b: AtomicBackend) -> None:
    b.commit([], [Truncate("s", 99), Append("s", "a", 1, 1), Truncate("s", 99), Append("s", "b", 1, 2)])

    assert [event.seq for event in read(b, "s")] == [2]  # P-BKD-9, P-LOG-8
    assert b.truncated_through("s") == 1


def test_the_events_of_one_commit_take_positions_in_its_order(b: AtomicBackend) -> None:  # P-GLB-8, P-GLB-10
    b.commit([], [Append("a", "t", 1, 1, globally=True), Append("b", "t", 1, 2)])
    b.commit([], [Append("b", "t", 1, 3, globally=True), Append("a", "t", 1, 4, globally=True)])

    assert [(event.stream, event.seq) for event in read_global(b) if isinstance(event, Event)] == [
        ("a", 1),
        ("b", 2),
        ("a", 2),
    ]
    assert global_pos(b) == 3


def test_a_commit_of_nothing_writes_nothing_and_checks_all_the_same(b: AtomicBackend) -> None:  # P-BAT-3
    assert b.commit([], []) == []
    assert b.commit([ExpectSeq("s", 0), ExpectKey("k", ABSENT)], []) == []
    assert b.commit([ExpectSeq("s", 1)], []) == Conflict(1, 0, "STALE")

    assert stored(b) == {"streams": {}, "keys": {}}


# Preconditions


def test_preconditions_look_at_the_state_before_the_commit(b: AtomicBackend) -> None:  # P-BKD-9
    writes: list[Write] = [Append("s", "t", 1, 1), Put("k", 1), Append("s", "t", 1, 2)]

    outcome = b.commit([ExpectSeq("s", 0), ExpectKey("k", ABSENT)], writes)

    assert [event.seq for event in outcome] == [1, 2]  # type: ignore[union-attr]  # it is no Conflict
    assert b.commit([ExpectSeq("s", 3)], [Append("s", "t", 1, 3)]) == Conflict(3, 2, "STALE")


def test_the_first_unmet_precondition_is_the_conflict_and_names_what_it_is_about(b: AtomicBackend) -> None:
    b.commit([], [Append("s", "t", 1, 1), Put("k", {"n": 1})])  # P-BKD-9
    before = stored(b)
    met: list[Expectation] = [ExpectSeq("s", 1), ExpectSeq("never", 0), ExpectKey("k", {"n": 1})]
    unmet: list[tuple[Expectation, Conflict]] = [
        (ExpectSeq("s", 0), Conflict(0, 1, "STALE", "s")),
        (ExpectSeq("s", 2), Conflict(2, 1, "STALE", "s")),
        (ExpectKey("k", {"n": True}), Conflict({"n": True}, {"n": 1}, "STALE", "k")),
        (ExpectKey("k", ABSENT), Conflict(ABSENT, {"n": 1}, "STALE", "k")),
        (ExpectKey("absent", None), Conflict(None, ABSENT, "STALE", "absent")),
    ]
    writes: list[Write] = [Append("s", "t", 2, 2), Put("k", 2), Truncate("s", 1), Append("new", "t", 2, 2)]

    for index, (expectation, conflict) in enumerate(unmet):
        later = [other for other, _ in unmet[index + 1 :]]
        outcome = b.commit([*met, expectation, *later], writes)

        assert outcome == conflict
        assert isinstance(outcome, Conflict)
        assert outcome.name == conflict.name
        assert stored(b) == before


def test_a_key_is_compared_on_its_encoding(b: AtomicBackend) -> None:  # P-VAL-5
    values: list[Any] = [0, 0.0, -0.0, False, None, "", [], {}, 2**70, {"$int": "1"}]
    for value in values:
        b.commit([], [Put("k", value)])
        for other in values:
            outcome = b.commit([ExpectKey("k", other)], [])
            assert isinstance(outcome, Conflict) is (other is not value)


# Validation


BAD_COMMITS: dict[str, tuple[list[Any], list[Any], Any]] = {
    "a value": ([], [Append("s", "t", 1, 1), Put("k", b"")], None),
    "a name": ([], [Put("k", 1), Append("", "t", 1, 1)], None),
    "a type": ([], [Put("k", 1), Append("s", "", 1, 1)], None),
    "an at": ([], [Put("k", 1), Append("s", "t", as_any(True), 1)], None),
    "a key": ([], [Append("s", "t", 1, 1), Delete("a\0")], None),
    "a truncation point": ([], [Put("k", 1), Truncate("s", as_any("1"))], None),
    "a seq to redact": ([], [Put("k", 1), Redact("s", 0, ["a"])], None),
    "a path to redact": ([], [Put("k", 1), Redact("s", 1, [as_any(1.5)])], None),
    "no write": ([], [Put("k", 1), as_any("put")], None),
    "an expected seq": ([ExpectSeq("s", -1)], [Put("k", 1)], None),
    "an expected value": ([ExpectKey("k", {1})], [Put("k", 1)], None),
    "no expectation": ([as_any(("s", 1))], [Put("k", 1)], None),
    "a scope that is not written": ([], [Append("s", "t", 1, 1)], ("other", "k")),
    "a scope that is only put": ([], [Put("s", 1)], ("s", "k")),
    "an empty idempotency key": ([], [Append("s", "t", 1, 1)], ("s", "")),
    "a once that is no pair": ([], [Append("s", "t", 1, 1)], as_any("s")),
    "the global order": ([], [Put("k", 1), Append("$global", "t", 1, 1)], None),
}


@pytest.mark.parametrize("case", BAD_COMMITS)
def test_a_malformed_commit_is_a_usage_error_before_any_write(b: AtomicBackend, case: str) -> None:
    preconditions, writes, once = BAD_COMMITS[case]  # P-VAL-3, P-BAT-5

    with pytest.raises(UsageError):
        b.commit(preconditions, writes, once=once)

    assert stored(b) == {"streams": {}, "keys": {}}


def test_a_commit_may_have_64_mib_and_no_more() -> None:  # P-OPS-4
    text = "x" * (16 * 1024 * 1024 - 4)  # two quotes around it, two names beside it
    fitting: list[Write] = [Append("s", "t", 1, text)] * 4

    assert prepare([], fitting).size == MAX_COMMIT_BYTES == 64 * 1024 * 1024
    for one_more in (Put("k", 1), Append("s", "t", 1, 1), Append("s", "t" * 1000, 1, None)):
        with pytest.raises(NotStorable, match="is over the limit of 67,108,864"):
            prepare([], [*fitting, one_more])


def test_the_facet_guards_reserved_names(b: AtomicBackend) -> None:  # P-BKD-12, P-LOG-12, P-KV-4
    guarded: list[Write] = [Append("$s", "t", 1, 1), Truncate("$s", 1), Put("$k", 1), Delete("$snapshot/a")]
    for write in guarded:
        with pytest.raises(ReservedName):
            commit(b, [], [Put("k", 1), write])
    with pytest.raises(ReservedName):
        commit(b, [], [Append("s", "t", 1, 1)], once=("$erased", "k"))
    with pytest.raises(UsageError, match="record"):
        commit(b, [], [Redact("s", 1, [])])

    assert stored(b) == {"streams": {}, "keys": {}}


# Idempotency


def test_a_known_once_is_answered_before_any_precondition(b: AtomicBackend) -> None:  # P-BKD-10
    writes: list[Write] = [Append("s", "t", 1, {"n": 1}), Append("s", "u", 2, {"n": 2}), Put("k", 1)]
    first = b.commit([ExpectSeq("s", 0), ExpectKey("k", ABSENT)], writes, once=("s", "key"))
    b.commit([], [Put("k", "moved on")])

    again = b.commit([ExpectSeq("s", 0), ExpectKey("k", ABSENT)], writes, once=("s", "key"))

    assert again == first == [Event("s", 1, "t", 1, {"n": 1}), Event("s", 2, "u", 2, {"n": 2})]
    assert (last_seq(b, "s"), kv_get(b, "k")) == (2, "moved on")


def test_a_conflict_leaves_no_marker(b: AtomicBackend) -> None:  # P-BKD-10
    writes: list[Write] = [Append("s", "t", 1, 1)]
    assert isinstance(b.commit([ExpectSeq("s", 7)], writes, once=("s", "key")), Conflict)

    assert not seen(b, "s", "key")
    assert b.commit([ExpectSeq("s", 0)], writes, once=("s", "key")) == [Event("s", 1, "t", 1, 1)]


def test_a_repeat_has_the_first_ats_and_may_restamp(b: AtomicBackend) -> None:  # P-IDM-7
    once = ("s", "key")
    b.commit([], [Append("s", "t", 1, 1), Append("s", "t", 1.0, 2), Append("s", "t", "1", 3)], once=once)

    again = b.commit([], [Append("s", "t", 9, 1), Append("s", "t", 9, 2), Append("s", "t", 9, 3)], once=once)

    assert [repr(event.at) for event in again] == ["1", "1.0", "'1'"]  # type: ignore[union-attr]  # no Conflict


def test_a_repeat_of_blocks_gives_every_event_with_its_seq(b: AtomicBackend) -> None:  # P-IDM-7, P-BKD-10
    b.commit([], [Append("s", "t", 0, "before")])
    writes: list[Write] = [Append("s", "t", 1, n) for n in range(5)]
    writes += [Append("other", "t", 1, 5), Append("s", "t", 1, 6), Append("s", "t", 1.0, 7)]

    first = b.commit([], writes, once=("s", "key"))
    again = b.commit([], writes, once=("s", "key"))

    assert repr(again) == repr(first)
    assert [(event.stream, event.seq) for event in read(b, "s")] == [("s", seq) for seq in range(1, 9)]


OTHERS: dict[str, list[Write]] = {
    "other data": [Append("s", "t", 1, 2)],
    "another type": [Append("s", "u", 1, 1)],
    "data of another type": [Append("s", "t", 1, True)],
    "one more": [Append("s", "t", 1, 1), Append("s", "t", 1, 1)],
    "also globally": [Append("s", "t", 1, 1, globally=True)],
    "also a key": [Append("s", "t", 1, 1), Put("k", 1)],
    "also a truncation": [Append("s", "t", 1, 1), Truncate("s", 1)],
    "also a deletion": [Delete("k"), Append("s", "t", 1, 1)],
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_writes_under_a_known_key_are_key_reused(b: AtomicBackend, case: str) -> None:  # P-IDM-7
    b.commit([], [Append("s", "t", 1, 1)], once=("s", "key"))
    before = stored(b)

    outcome = b.commit([ExpectSeq("s", 99)], OTHERS[case], once=("s", "key"))

    assert outcome == Conflict("key", Event("s", 1, "t", 1, 1), "KEY_REUSED")
    assert stored(b) == before


def test_after_truncation_a_repeat_gives_the_first_result_and_a_reuse_compacted(b: AtomicBackend) -> None:
    first = b.commit([], [Append("s", "t", 1, {"n": 1})], once=("s", "key"))  # P-IDM-4, P-IDM-7
    b.commit([], [Truncate("s", 1)])

    assert b.commit([], [Append("s", "t", 5, {"n": 1})], once=("s", "key")) == first
    assert b.commit([], [Append("s", "t", 5, {"n": 2})], once=("s", "key")) == Conflict(
        "key", Compacted("s", 1), "KEY_REUSED"
    )


def test_scopes_and_keys_cannot_collide(b: AtomicBackend) -> None:  # P-IDM-3, P-IDM-6
    pairs: list[Once] = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a", "b%2Fc"), ("a", "b"), ("a/", "b")]
    pairs += [("x" * 1024, "k"), ("x" * 1023, "k"), ("/" * 1024, "/" * 1024), ("/" * 1024, "/" * 1023)]

    for index, once in enumerate(pairs):
        outcome = b.commit([], [Append(once[0], "t", 1, index)], once=once)
        assert isinstance(outcome, list)
        assert outcome[0].data == index
    for index, once in enumerate(pairs):
        assert isinstance(b.commit([], [Append(once[0], "t", 1, index)], once=once), list)

    assert sum(last_seq(b, name) for name in {scope for scope, _ in pairs}) == len(pairs)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_of_the_commit_scope_only_the_newest_markers_are_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-10
    monkeypatch.setattr(memory, "KEPT_COMMIT_MARKERS", 5)
    monkeypatch.setattr(transaction, "KEPT_COMMIT_MARKERS", 5)
    with closing(open_backend(kind, tmp_path)) as b:
        b.commit([], [Append("s", "t", 1, "kept")], once=("s", "of a stream"))
        for n in range(12):
            b.commit([], [Put("k", n)], once=("$commit", f"key {n:02}"))

        markers = [key for key in kv_keys_all(b) if key.startswith("$once/")]
        assert markers == [*(f"$once/$commit/key {n:02}" for n in range(7, 12)), "$once/s/of a stream"]
        assert b.commit([], [Put("k", 7)], once=("$commit", "key 07")) == []
        assert kv_get(b, "k") == 11
        b.commit([], [Put("k", 0)], once=("$commit", "key 00"))  # forgotten: it is a new commit
        assert kv_get(b, "k") == 0


# Redaction


def test_redact_puts_none_in_place_and_the_rest_stays(b: AtomicBackend) -> None:  # P-ERA-2
    data = {"name": "Ada", "tags": [1, {"mail": "a@b"}, 3]}
    b.commit([], [Append("s", "t", 1.5, data), Append("s", "t", 2, "whole")])

    b.commit([], [Redact("s", 1, ["tags", 1, "mail"]), Redact("s", 1, ["name"]), Redact("s", 2, [])])

    assert read(b, "s") == [
        Event("s", 1, "t", 1.5, {"name": None, "tags": [1, {"mail": None}, 3]}),
        Event("s", 2, "t", 2, None),
    ]
    assert verify(b) == []  # with new checksums


BAD_REDACTIONS: dict[str, tuple[Redact, type[Exception]]] = {
    "an event that is not there": (Redact("s", 9, ["a"]), NotFoundError),
    "a stream that is not there": (Redact("never", 1, ["a"]), NotFoundError),
    "an event of the same commit": (Redact("s", 3, ["a"]), NotFoundError),
    "a truncated event": (Redact("s", 1, ["a"]), NotFoundError),
    "a key that is not there": (Redact("s", 2, ["b"]), UsageError),
    "an index into a mapping": (Redact("s", 2, [0]), UsageError),
    "an index past the end": (Redact("s", 2, ["a", 1]), UsageError),
    "a negative index": (Redact("s", 2, ["a", -1]), UsageError),
    "a key into a number": (Redact("s", 2, ["a", 0, "c"]), UsageError),
}


@pytest.mark.parametrize("case", BAD_REDACTIONS)
def test_a_redaction_of_nothing_is_refused_before_the_first_write(b: AtomicBackend, case: str) -> None:
    b.commit([], [Append("s", "t", 1, {"a": [1]}), Append("s", "t", 1, {"a": [1]}), Truncate("s", 1)])
    before = stored(b)  # P-ERA-2, P-BKD-9
    redaction, error = BAD_REDACTIONS[case]

    with pytest.raises(error):
        b.commit([], [Put("k", 1), Append("s", "t", 2, {"a": 1}), redaction, Append("s", "t", 2, 1)])

    assert stored(b) == before


def test_a_redaction_of_what_the_same_commit_truncates_is_all_or_nothing(b: AtomicBackend) -> None:
    b.commit([], [Append("s", "t", 1, {"a": 1}), Append("s", "t", 1, {"a": 2})])  # P-BKD-9
    before = stored(b)

    try:
        b.commit([], [Put("k", 1), Truncate("s", 1), Redact("s", 1, ["a"]), Append("s", "t", 2, 3)])
    except (NotFoundError, UsageError):
        assert stored(b) == before
    else:
        assert [event.seq for event in read(b, "s")] == [2, 3]
        assert kv_get(b, "k") == 1


# Many threads on one backend


def test_threads_on_one_stream_get_consecutive_seqs_each_in_its_order(b: AtomicBackend) -> None:  # P-LOG-11
    writers, each = 8, 25

    def write(writer: int) -> None:
        for n in range(each):
            own = Append(f"own {writer}", "t", n, n, globally=True)
            b.commit([], [Append("s", "t", n, [writer, n]), own])

    in_threads([partial(write, i) for i in range(writers)])

    found = read(b, "s")
    assert [event.seq for event in found] == [*range(1, writers * each + 1)]
    for writer in range(writers):
        assert [event.data[1] for event in found if event.data[0] == writer] == [*range(each)]
    everywhere = [event for event in read_global(b) if isinstance(event, Event)]
    assert len(everywhere) == writers * each
    for writer in range(writers):
        assert [e.seq for e in everywhere if e.stream == f"own {writer}"] == [*range(1, each + 1)]


def test_of_racers_with_one_expectation_exactly_one_wins(b: AtomicBackend) -> None:  # P-CON-6, P-BKD-11
    wins: list[int] = []

    def race(racer: int) -> None:
        for seq in range(10):
            expected: list[Expectation] = [ExpectSeq("s", seq), ExpectKey(f"k{seq}", ABSENT)]
            outcome = b.commit(expected, [Append("s", "t", 1, racer)])
            if isinstance(outcome, Conflict):
                b.wait("s", seq, timeout_s=WAIT_S)
            else:
                wins.append(outcome[0].seq)

    in_threads([partial(race, i) for i in range(6)])

    assert sorted(wins) == [*range(1, 11)]
    assert [event.seq for event in read(b, "s")] == [*range(1, 11)]


def test_two_first_calls_under_one_key_give_one_event_to_both(b: AtomicBackend) -> None:  # P-IDM-5
    outcomes: list[Outcome] = []

    def call() -> None:
        outcomes.extend(b.commit([], [Append("s", "t", 1, n)], once=("s", f"key {n}")) for n in range(10))

    in_threads([call] * 6)

    assert len(read(b, "s")) == 10
    assert len(outcomes) == 60
    assert all(isinstance(outcome, list) for outcome in outcomes)
    assert len({outcome[0].seq for outcome in outcomes if isinstance(outcome, list)}) == 10


def in_threads(calls: Sequence[Callable[[], object]]) -> None:
    """Run all at once; the first error of any is raised, and a thread that does not end is a failure."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def guarded(call: Callable[[], object]) -> None:
        try:
            start.wait(WAIT_S)
            call()
        except BaseException as error:  # noqa: BLE001  # raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread is stuck"


@pytest.mark.parametrize("stream", [None, 1, b"s", ["s"]])
def test_a_stream_that_is_no_name_is_told_so(b: AtomicBackend, stream: Any) -> None:  # P-API-4
    for act in (commit, lambda *args: b.commit(*args[1:])):
        with pytest.raises(UsageError, match="stream is"):
            act(b, [], [Append(stream, "t", 1, 1)])


# GroupCommit by itself


class Disk:
    """Stands for a backend's transaction: it notes the groups, and its first one waits until it may go on."""

    def __init__(self, *, held: bool = False) -> None:
        self.groups: list[list[Any]] = []
        self.threads: list[int] = []
        self.may_go = threading.Event()
        self.is_reached = threading.Event()
        self.failures: dict[int, BaseException] = {}  # by number of the group
        if not held:
            self.may_go.set()

    def run(self, group: list[Prepared]) -> Sequence[Outcome | BaseException]:
        number = len(self.groups)
        self.groups.append([label(prepared) for prepared in group])
        self.threads.append(threading.get_ident())
        self.is_reached.set()
        assert self.may_go.wait(WAIT_S)
        if number in self.failures:
            raise self.failures[number]
        return [answer(label(prepared)) for prepared in group]


def labelled(name: object) -> Prepared:
    return prepare([], [Put("k", name)])


def label(prepared: Prepared) -> Any:
    write = prepared.writes[0]
    assert isinstance(write, Put)
    return write.value


def answer(name: object) -> Outcome | BaseException:
    if isinstance(name, str) and name.startswith("bad"):
        return KeyError(name)
    return [Event("s", 1, "t", 1, name)]


class Callers:
    """Threads that submit, one each, and what became of them."""

    def __init__(self, group: GroupCommit) -> None:
        self.group = group
        self.outcomes: dict[object, object] = {}
        self.threads: list[threading.Thread] = []

    def submit(self, prepared: Prepared, name: object) -> None:
        def call() -> None:
            try:
                self.outcomes[name] = self.group.submit(prepared)
            except BaseException as error:  # noqa: BLE001  # it is what the test looks at
                self.outcomes[name] = error

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        self.threads.append(thread)

    def submit_in_line(self, names: Sequence[object]) -> None:
        """Each once the one before stands in line."""
        for name in names:
            waiting = len(self.group._waiting)
            self.submit(labelled(name), name)
            until(partial(self.is_in_line, waiting + 1))

    def is_in_line(self, waiting: int) -> bool:
        return len(self.group._waiting) == waiting

    def end(self) -> dict[object, object]:
        for thread in self.threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self.threads), "a caller is stuck"
        return self.outcomes


def until(condition: Callable[[], bool]) -> None:
    ticking, passed = threading.Event(), 0.0
    while not condition():
        ticking.wait(0.001)
        passed += 0.001
        assert passed < WAIT_S, "it never came true"


def gathered(disk: Disk, group: GroupCommit, names: Sequence[object]) -> Callers:
    """A leader in the middle of its group of one, and `names` waiting behind it."""
    callers = Callers(group)
    callers.submit(labelled("leader"), "leader")
    assert disk.is_reached.wait(WAIT_S)
    callers.submit_in_line(names)
    return callers


def test_a_lone_caller_runs_in_its_own_thread() -> None:  # P-BKD-11
    disk, before = Disk(), set(threading.enumerate())
    group = GroupCommit(disk.run)

    outcomes = [group.submit(labelled(n)) for n in range(3)]

    assert outcomes == [answer(n) for n in range(3)]
    assert disk.groups == [[0], [1], [2]]
    assert disk.threads == [threading.get_ident()] * 3
    assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile


def test_those_who_come_while_the_disk_is_busy_form_one_group() -> None:  # P-BKD-11
    disk = Disk(held=True)
    callers = gathered(disk, GroupCommit(disk.run), range(9))

    disk.may_go.set()
    outcomes = callers.end()

    assert disk.groups == [["leader"], [*range(9)]]
    assert outcomes == {name: answer(name) for name in ["leader", *range(9)]}


def test_who_leads_after_a_crowd_lets_it_gather_as_long_as_it_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # P-BKD-11
    disk = Disk()
    group = GroupCommit(disk.run)
    callers, coming, looks = Callers(group), iter(["b", "c"]), 0

    def look_again(_: float) -> None:
        nonlocal looks
        looks += 1
        callers.submit_in_line([name for name in [next(coming, None)] if name])

    monkeypatch.setattr(group_commit, "time", SimpleNamespace(sleep=look_again))
    group.submit_each([labelled(n) for n in range(4)])
    group.submit(labelled("a"))
    callers.end()
    group.submit_each([labelled("x"), labelled("y")])
    group.submit(labelled("z"))
    group.submit(labelled("alone"))

    assert disk.groups == [[*range(4)], ["a", "b", "c"], ["x", "y"], ["z"], ["alone"]]
    assert looks == 3 + 1 + 1  # until nobody comes to a; once for x and y, once for z; a crowd of one is none


ALIKE: dict[str, list[Any]] = {"stream": ["a"], "type": ["t"], "globally": [True]}
APART: dict[str, list[Any]] = {"stream": ["a", "b"], "type": ["t", "u"], "globally": [True, False]}
TIMES: list[list[Any]] = [[1], [10**6], [1, 1.0], [0, 0.0, -0.0], ["1", 1], [1, 2]]


@given(
    st.data(),
    st.sampled_from([ALIKE, APART, *[ALIKE | {k: APART[k]} for k in APART]]),
    st.sampled_from(TIMES),
)
def test_a_batch_is_prepared_by_columns_as_it_is_event_by_event(
    data: st.DataObject, pools: dict[str, list[Any]], times: list[Any]
) -> None:  # P-BKD-9, P-BKD-10
    fields = {name: st.sampled_from(pool) for name, pool in pools.items()}
    appends = st.builds(Append, **fields, at=st.sampled_from(times), data=st.integers() | st.text())
    writes = data.draw(st.lists(appends, min_size=2, max_size=12))

    made = prepare([], writes, ("$commit", "k"))

    steps, size, digest = _prepare_each(writes, True)
    assert (made.size, made.digest, len(made.steps)) == (size, digest, len(steps))
    for ours, theirs in zip(made.steps, steps, strict=True):
        assert isinstance(ours, Block)
        assert isinstance(theirs, Block)
        assert repr((ours.stream, ours.types, ours.ats, ours.texts, ours.crcs, ours.globally)) == repr(
            (theirs.stream, theirs.types, theirs.ats, theirs.texts, theirs.crcs, theirs.globally)
        )
        assert list(pointer_runs(ours, 5)) == list(pointer_runs(theirs, 5))
        assert (ours.is_of_one_type, ours.is_at_once) == (theirs.is_of_one_type, theirs.is_at_once)


def test_no_answer_is_given_before_the_groups_transaction_is_durable() -> None:  # P-BKD-11
    disk = Disk(held=True)
    callers = gathered(disk, GroupCommit(disk.run), range(3))

    assert callers.outcomes == {}

    disk.may_go.set()
    assert len(callers.end()) == 4


def test_a_group_has_at_most_so_many_commits() -> None:
    disk = Disk(held=True)
    callers = gathered(disk, GroupCommit(disk.run, most=3), range(7))

    disk.may_go.set()
    callers.end()

    assert disk.groups == [["leader"], [0, 1, 2], [3, 4, 5], [6]]


def test_a_group_has_at_most_the_bytes_of_one_commit() -> None:  # P-OPS-4
    disk = Disk(held=True)
    group = GroupCommit(disk.run)
    callers = gathered(disk, group, [])
    sizes = [MAX_COMMIT_BYTES // 2, MAX_COMMIT_BYTES // 2, 1, MAX_COMMIT_BYTES, 1]
    for name, size in enumerate(sizes):
        prepared = labelled(name)
        prepared.size = size
        callers.submit(prepared, name)
        until(partial(callers.is_in_line, name + 1))

    disk.may_go.set()
    callers.end()

    assert disk.groups == [["leader"], [0, 1], [2], [3], [4]]


def test_an_error_of_one_does_not_touch_the_others() -> None:  # P-BKD-11
    disk = Disk(held=True)
    callers = gathered(disk, GroupCommit(disk.run), [1, "bad 2", 3])

    disk.may_go.set()
    outcomes = callers.end()

    assert disk.groups == [["leader"], [1, "bad 2", 3]]
    assert repr(outcomes.pop("bad 2")) == "KeyError('bad 2')"
    assert outcomes == {name: answer(name) for name in ("leader", 1, 3)}


def test_a_failed_group_fails_its_callers_only_and_the_lead_is_handed_on() -> None:  # P-BKD-11
    disk = Disk(held=True)
    disk.failures[1] = OSError("the disk is gone")
    group = GroupCommit(disk.run, most=2)
    callers = gathered(disk, group, range(5))

    disk.may_go.set()
    outcomes = callers.end()

    assert disk.groups == [["leader"], [0, 1], [2, 3], [4]]
    assert [isinstance(outcomes[n], OSError) for n in range(5)] == [True, True, False, False, False]
    assert group.submit(labelled("later")) == answer("later")


def test_an_interrupt_is_the_leaders_own_and_the_others_do_not_know_their_outcome() -> None:  # P-DUR-9
    disk = Disk(held=True)
    disk.failures[1] = KeyboardInterrupt()
    callers = gathered(disk, GroupCommit(disk.run, most=2), range(4))

    disk.may_go.set()
    outcomes = callers.end()

    assert isinstance(outcomes[0], KeyboardInterrupt)
    assert isinstance(outcomes[1], OutcomeUnknown)
    assert (outcomes[2], outcomes[3]) == (answer(2), answer(3))


def test_a_transaction_that_answers_too_few_fails_its_whole_group() -> None:
    group = GroupCommit(lambda _: [])

    with pytest.raises(ValueError, match="shorter"):
        group.submit(labelled(1))

    assert group._leader is None


class Interrupted(Exception):
    pass


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("others", [0, 2])
def test_a_caller_that_is_interrupted_while_it_waits_does_not_take_the_lead_with_it(others: int) -> None:
    disk = Disk(held=True)  # P-BKD-11
    group = GroupCommit(disk.run)
    callers = gathered(disk, group, [])
    handler = signal.signal(signal.SIGUSR1, interrupt)

    def strike() -> None:
        until(lambda: len(group._waiting) == 1)
        callers.submit_in_line(range(others))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    striking = threading.Thread(target=strike, daemon=True)
    try:
        striking.start()
        with pytest.raises(Interrupted):
            group.submit(labelled("interrupted"))
    finally:
        signal.signal(signal.SIGUSR1, handler)
    striking.join(WAIT_S)
    disk.may_go.set()
    callers.submit(labelled("later"), "later")

    assert callers.end() == {name: answer(name) for name in ["leader", *range(others), "later"]}
    assert group._leader is None


def test_many_threads_never_block_each_other_for_good() -> None:  # P-BKD-11
    chance = random.Random(7)
    numbers = threading.Lock()
    runs = 0

    def run(group: list[Prepared]) -> Sequence[Outcome | BaseException]:
        nonlocal runs
        with numbers:
            runs += 1
            fails = chance.random() < 0.1
        if fails:
            raise OSError(f"group {runs}")
        return [answer(label(prepared)) for prepared in group]

    group = GroupCommit(run, most=7)
    done: list[str] = []

    def write(writer: int) -> None:
        for n in range(200):
            name = f"bad {writer} {n}" if n % 10 == 0 else f"{writer} {n}"
            try:
                outcome: object = group.submit(labelled(name))
            except KeyError as error:
                outcome = error
            except OSError:
                continue
            assert repr(outcome) == repr(answer(name))
            done.append(name)

    in_threads([partial(write, i) for i in range(24)])

    assert len(set(done)) == len(done) > 24 * 200 // 2
    assert (group._waiting, group._leader) == ([], None)


def test_a_backend_folds_commits_and_a_conflict_of_one_does_not_touch_the_others(
    tmp_path: Path, group_sizes: list[int]
) -> None:  # P-BKD-11
    from strandline.persist.backends.sqlite import SqliteBackend

    with closing(SqliteBackend(tmp_path / "store.db")) as b:

        def write(writer: int) -> None:
            for n in range(30):
                outcome = b.commit([ExpectKey("never", ABSENT)], [Append(f"s{writer}", "t", n, n)])
                assert isinstance(outcome, list)
                assert (
                    b.commit([ExpectSeq("s0", 10**6)], [Append("never", "t", n, n)])
                    == Conflict(10**6, last_seq(b, "s0"), "STALE")
                    or writer != 0
                )
                with pytest.raises(NotFoundError):
                    b.commit([], [Put("never", 1), Redact("never", 1, [])])

        in_threads([partial(write, i) for i in range(8)])

        assert max(group_sizes) > 1
        assert sum(group_sizes) == 8 * 30 * 3
        assert {name: last_seq(b, name) for name in streams_all(b)} == {f"s{i}": 30 for i in range(8)}
        assert not kv_has(b, "never")
