"""The Postgres backend on a real server does what memory does."""

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.errors import SequenceError
from strandline.persist import mem_backend
from strandline.persist.backend import (
    Append,
    AtomicBackend,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Inspectable,
    Portable,
    Put,
    Redact,
    Truncate,
    Write,
)
from strandline.persist.backends.postgres import PostgresBackend, backend
from strandline.persist.core.prepare import prepare
from strandline.persist.event import ABSENT, Conflict, Event, Scalar
from strandline.persist.value import MAX_SEQ
from tests.persist.backends.postgres.beside import contents, outcome_of

STREAMS = st.sampled_from(["a", "b", "c-ü"])
KEYS = st.sampled_from(["k", "$once/a/x", "$once/$commit/x", "é/%"])
MARKER_KEYS = st.sampled_from(["$once/a/x", "$once/$commit/x"])
FORGOTTEN: st.SearchStrategy[Any] = st.just({"digest": None, "runs": []})
ATS = st.sampled_from([0, 1, -5, 2**63 - 1, 0.0, -0.0, 1.5, 1e300, "t", "ü"])
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1, 1.0, "x\0y", [], {}, {"n": [1, {"$x": 2}]}, 2**70]
)
WRITES = st.one_of(
    st.builds(Append, STREAMS, st.sampled_from("xy"), ATS, VALUES, globally=st.booleans()),
    st.builds(Append, STREAMS, st.just("z"), st.just(7), VALUES),
    st.builds(Put, st.sampled_from(["k", "é/%"]), VALUES),
    st.builds(Put, MARKER_KEYS, FORGOTTEN),
    st.builds(Delete, KEYS),
    st.builds(Truncate, STREAMS, st.integers(-1, 6)),
)
RARE_WRITES = st.one_of(
    WRITES,
    st.builds(Truncate, st.just("$global"), st.integers(0, 4)),
    st.builds(Redact, STREAMS, st.integers(1, 5), st.just([])),
)
EXPECTATIONS = st.one_of(
    st.builds(ExpectSeq, STREAMS, st.integers(0, 3)),
    st.builds(ExpectKey, KEYS, VALUES | FORGOTTEN | st.just(ABSENT)),
)
RARE_EXPECTATIONS = EXPECTATIONS | st.builds(ExpectSeq, st.just("$global"), st.integers(0, 3))
ONCES = st.none() | st.sampled_from([("a", "x"), ("a", "y"), ("$commit", "x")])


def fits(commit: tuple[list[Expectation], list[Write], Any]) -> bool:
    """A `once` names a stream that the commit appends to."""
    _, writes, once = commit
    return (
        once is None
        or once[0] == "$commit"
        or any(isinstance(write, Append) and write.stream == once[0] for write in writes)
    )


def commits(writes: Any, expectations: Any) -> Any:
    commit = st.tuples(st.lists(expectations, max_size=2), st.lists(writes, max_size=5), ONCES)
    return st.lists(commit.filter(fits), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def shared(postgres_url: str) -> Iterator[PostgresBackend]:
    """A store that many examples use, each after `emptied`."""
    with closing(PostgresBackend(postgres_url, schema=f"t{uuid4().hex[:16]}")) as store:
        yield store


def emptied(store: PostgresBackend) -> PostgresBackend:
    with store._pool.borrow() as connection:
        connection.execute("truncate event, kv, in_line, pointer; delete from stream where id <> 0;")
        connection.execute("update stream set last_seq = 0, truncated = 0, swept = 0")
    return store


SLOW_STORE = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SLOW_STORE
@given(history=commits(RARE_WRITES, RARE_EXPECTATIONS))
def test_any_history_of_commits_has_the_outcomes_and_the_contents_that_memory_has(
    shared: PostgresBackend, history: list[Any]
) -> None:  # P-BKD-6, P-BKD-9, P-BKD-10
    b, model = emptied(shared), mem_backend()

    for preconditions, writes, once in history:
        expected = outcome_of(model, preconditions, writes, once=once)
        assert outcome_of(b, preconditions, writes, once=once) == expected

    assert contents(b) == contents(model)
    assert b.verify() == []
    assert list(b.global_range(1, limit=99)) == list(model.global_range(1, limit=99))
    assert (b.streams(), b.kv_keys()) == (model.streams(), model.kv_keys())


@SLOW_STORE
@given(group=commits(WRITES, EXPECTATIONS))
def test_a_group_in_one_transaction_is_decided_as_if_each_were_alone(
    shared: PostgresBackend, group: list[Any]
) -> None:  # P-BKD-11
    b, model = emptied(shared), mem_backend()

    outcomes = b._run([prepare(*commit) for commit in group])

    # What stands under a reused key is read after the group, in which a later commit may have truncated it.
    for outcome, (preconditions, writes, once) in zip(outcomes, group, strict=True):
        expected = model.commit(preconditions, writes, once=once)
        if isinstance(expected, Conflict) and expected.reason == "KEY_REUSED":
            assert isinstance(outcome, Conflict)
            assert outcome.reason == "KEY_REUSED"
        else:
            assert outcome == expected
    assert contents(b) == contents(model)


def test_it_is_what_facets_and_upkeep_ask_for(b: PostgresBackend) -> None:  # P-BKD-7
    assert isinstance(b, AtomicBackend)
    assert isinstance(b, Inspectable)
    assert isinstance(b, Portable)


def test_the_basic_append_takes_only_the_next_seq(b: PostgresBackend) -> None:  # P-BKD-3
    assert b.append("s", Event("s", 1, "t", 0, None)) == 1

    for seq in (0, 1, 3):
        with pytest.raises(SequenceError):
            b.append("s", Event("s", seq, "t", 0, None))
    assert b.last_seq("s") == 1


def test_an_at_keeps_its_kind_and_windows_compare_by_value(b: PostgresBackend) -> None:  # P-VAL-2, P-QRY-3
    ats: list[Scalar] = [1, 1.0, 2**53 + 1, float(2**53), -0.0, 0, 2**63 - 1, 1e300, -1e300, "1", "b", 5e-324]
    b.commit([], [Append("s", "t", at, None) for at in ats])
    model = mem_backend()
    model.commit([], [Append("s", "t", at, None) for at in ats])

    assert [repr(event.at) for event in b.read("s")] == [repr(at) for at in ats]
    bounds: list[Any] = [None, 0, 1, 1.5, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, 9.3e18, "1", "a"]
    bounds += [-9.3e18, float("inf"), -float("inf"), float("nan"), 2**80, -(10**400)]
    for window in product(bounds, bounds):
        asked: Any = {"limit": 99, "start": window[0], "end": window[1]}
        found = list(b.read_range("s", 1, MAX_SEQ, **asked))
        assert found == list(model.read_range("s", 1, MAX_SEQ, **asked)), window


def test_a_window_far_from_the_first_seq_is_found_by_its_index(b: PostgresBackend) -> None:  # P-QRY-8
    b.commit([], [Append("s", "x" if n % 2 else "y", n, n) for n in range(9000)])
    b.commit([], [Append("s", "x", 4000.5, "late"), Append("s", "y", "text", "late")])

    found = list(b.read_range("s", 1, MAX_SEQ, limit=10, start=4000, end=4002))
    late = list(b.read_range("s", 4100, MAX_SEQ, limit=10, start=4000, end=4002))
    odd = list(b.read_range("s", 1, MAX_SEQ, limit=3, type="x", start=8000))

    assert [event.data for event in found] == [4000, 4001, 4002, "late"][: len(found)]
    assert [event.data for event in late] == ["late"]
    assert [event.data for event in odd] == [8001, 8003, 8005]
    assert [e.data for e in b.read_range("s", 8000, MAX_SEQ, limit=2, type="y")] == [8000, 8002]


def test_a_page_ends_at_a_number_of_bytes_and_the_next_goes_on(b: PostgresBackend) -> None:  # P-BKD-7
    big = "x" * (6 * 1024 * 1024)
    b.commit([], [Append("s", "t", 0, big, globally=True) for _ in range(5)])
    b.commit([], [Put(f"k{n}", big) for n in range(5)])

    sizes = [len(list(b.read_range("s", first, MAX_SEQ, limit=99))) for first in (1, 4)]

    assert sizes == [3, 2]
    assert len(b.read("s")) == 5
    assert [len(list(b.global_range(first, limit=99))) for first in (1, 4)] == [3, 2]
    assert [len(b.kv_scan("", after=after, limit=99)) for after in ("", "k2")] == [3, 2]


def test_names_come_in_order_of_code_points(b: PostgresBackend) -> None:  # P-BKD-8
    names = ["Z", "a", "a/b", "a0", "é", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffx", "~"]
    b.commit([], [Append(name, "t", 0, None) for name in names])
    b.commit([], [Put(name, 0) for name in names])

    assert b.streams() == b.kv_keys() == sorted(names)
    for prefix in ("a", "\ud7ff", "\U0010ffff", ""):
        expected = [name for name in sorted(names) if name.startswith(prefix)]
        assert [head.name for head in b.stream_scan(prefix, after="", limit=99)] == expected
        assert [key for key, _ in b.kv_scan(prefix, after="", limit=99)] == expected
    assert [head.name for head in b.stream_scan("", after="a/b", limit=2)] == ["a0", "~"]


def test_markers_of_the_commit_scope_are_bounded_and_those_of_streams_are_not(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-10, P-IDM-8
    monkeypatch.setattr(backend, "KEPT_COMMIT_MARKERS", 3)

    for n in range(6):
        b.commit([], [Append("s", "t", 0, n)], once=("$commit", f"c{n}"))
        b.commit([], [Append("s", "t", 0, n)], once=("s", f"s{n}"))

    assert b.kv_keys() == [f"$once/$commit/c{n}" for n in (3, 4, 5)] + [f"$once/s/s{n}" for n in range(6)]
