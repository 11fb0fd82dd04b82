"""The Postgres backend on a real server: parity with memory, concurrency, lost connections, upkeep."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import (
    EventCorrupt,
    NotFoundError,
    OutcomeUnknown,
    SequenceError,
    StoreUnavailable,
    StrandlineError,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist import erase_stream, mem_backend, open_store, redact
from strandline.persist.audit import audit
from strandline.persist.backend import (
    Append,
    AtomicBackend,
    Damage,
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
from strandline.persist.backends.postgres import PostgresBackend, backend, sweep
from strandline.persist.event import ABSENT, Compacted, Conflict, Event, Scalar
from strandline.persist.prepare import prepare
from strandline.persist.value import MAX_SEQ
from tests.conftest import UNSYNCED

CHILD = Path(__file__).with_name("postgres_child.py")
Opened = Callable[..., PostgresBackend]


@pytest.fixture
def schema() -> str:
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def opened(postgres_url: str, schema: str) -> Iterator[Opened]:
    """Opens the store of this test, any number of times."""
    stores: list[PostgresBackend] = []

    def open_it(**options: Any) -> PostgresBackend:
        stores.append(PostgresBackend(postgres_url, schema=schema, **options))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade')


@pytest.fixture
def b(opened: Opened) -> PostgresBackend:
    return opened()


@pytest.fixture
def sql(postgres_url: str, schema: str) -> Iterator[Callable[..., list[Any]]]:
    """Runs a statement beside the store's back."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'set search_path = "{schema}"')

        def run(query: str, *given: Any) -> list[Any]:
            cursor = connection.execute(query, given or None)
            return cursor.fetchall() if cursor.description else []

        yield run


def start(act: str, url: str, schema: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), act, url, schema, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(children: list[subprocess.Popen[str]]) -> list[str]:
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return said


def contents(store: Any) -> list[Any]:
    """Everything but the lineage, as other backends give it."""
    return [record for record in store.dump() if record.kind != "meta"]


def outcome_of(store: AtomicBackend, *commit: Any, **once: Any) -> Any:
    try:
        return store.commit(*commit, **once)
    except StrandlineError as error:
        return type(error)


# Parity with memory

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


# Opening


def test_a_store_is_found_again_with_its_lineage(opened: Opened) -> None:  # P-REC-1, P-REC-2, P-REC-8
    first = opened()
    first.commit([], [Append("s", "t", 0, 1)], once=("s", "k"))
    lineage = first.info()["lineage"]
    first.close()

    again = opened(create=False)

    assert again.info()["lineage"] == lineage
    assert again.commit([], [Append("s", "t", 9, 1)], once=("s", "k")) == [Event("s", 1, "t", 0, 1)]
    assert again.commit([], [Append("s", "t", 0, 2)]) == [Event("s", 2, "t", 0, 2)]


def test_what_is_not_there_is_created_only_on_request(
    opened: Opened, sql: Any, schema: str
) -> None:  # P-API-4
    with pytest.raises(NotFoundError, match=schema):
        opened(create=False)

    assert sql("select from pg_namespace where nspname = %s", schema) == []


def test_processes_that_create_it_at_once_get_one_store(
    postgres_url: str, opened: Opened, schema: str
) -> None:  # P-OPS-3
    children = [start("open_only", postgres_url, schema) for _ in range(6)]

    lineages = set(finish(children))

    assert lineages == {opened(create=False).info()["lineage"] + "\n"}


def test_a_newer_format_is_refused(opened: Opened, sql: Any) -> None:  # P-OPS-3
    opened().close()
    sql("update meta set value = '999' where name = 'format'")

    with pytest.raises(UnsupportedFormat, match="999"):
        opened()


def test_a_server_that_is_not_there_is_unavailable() -> None:  # P-API-4
    with pytest.raises(StoreUnavailable):
        PostgresBackend("postgresql:///x?host=/nonexistent", timeout_s=2)


@pytest.mark.parametrize("name", ["", "x" * 64, "pg_mine", "a\0b", 3])
def test_a_schema_that_cannot_be_is_refused(name: Any, postgres_url: str) -> None:  # P-API-4
    with pytest.raises(UsageError):
        PostgresBackend(postgres_url, schema=name)


def test_a_schema_name_is_quoted(postgres_url: str) -> None:  # P-API-4
    name = f'odd "{uuid4().hex[:8]}"; drop'
    with closing(open_store(postgres_url, schema=name)) as store:
        store.commit([], [Append("s", "t", 0, 1)])
        assert store.last_seq("s") == 1
        assert store.wait("s", 0, timeout_s=1) == 1


def test_a_missing_driver_names_the_extra() -> None:  # P-API-4
    code = "import sys; sys.modules['psycopg'] = None\nfrom strandline.persist import open_store\n"
    code += "try: open_store('postgresql:///x')\nexcept ValueError as e: print(type(e).__name__, e.hint)"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.split(maxsplit=1) == ["UsageError", 'pip install "strandline[postgres]"\n']


def test_after_close_every_use_is_an_error_and_no_thread_is_left(opened: Opened) -> None:  # P-BKD-7
    before = set(threading.enumerate())
    store = opened()
    store.commit([], [Append("s", "t", 0, 1)])
    store.wait("s", 1, timeout_s=0.05)

    store.close()
    store.close()

    assert set(threading.enumerate()) == before
    uses: list[Callable[[], Any]] = [
        lambda: store.commit([], [Put("k", 1)]),
        lambda: store.last_seq("s"),
        lambda: store.read_range("s", 5, 1, limit=0),
        lambda: store.wait("s", 0, timeout_s=1),
        lambda: list(store.dump()),
        store.info,
    ]
    for use in uses:
        with pytest.raises(UsageError, match="closed"):
            use()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads is the point
def test_a_child_of_a_fork_must_open_its_own(b: PostgresBackend) -> None:  # P-API-5
    b.commit([], [Append("s", "t", 0, 1)])

    child = os.fork()
    if child == 0:
        code = 1
        try:
            b.last_seq("s")
        except UsageError:
            code = 0
        finally:
            os._exit(code)

    assert os.waitpid(child, 0)[1] == 0
    assert b.commit([], [Append("s", "t", 0, 2)]) == [Event("s", 2, "t", 0, 2)]


# Concurrency


def test_threads_and_processes_get_dense_seqs(
    postgres_url: str, b: PostgresBackend, schema: str
) -> None:  # P-LOG-11, P-CON-6
    children = [start("append", postgres_url, schema, f"p{n}", 40) for n in range(4)]

    def work(n: int) -> None:
        for index in range(40):
            b.commit([], [Append("shared", f"t{n}", index, index)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    finish(children)

    events = b.read("shared")
    assert [event.seq for event in events] == list(range(1, 12 * 40 + 1))
    for name in {event.type for event in events}:
        assert [event.data for event in events if event.type == name] == list(range(40))
    assert [b.last_seq(f"own-p{n}") for n in range(4)] == [40] * 4


def test_increments_of_many_processes_are_never_lost(
    postgres_url: str, b: PostgresBackend, schema: str
) -> None:  # P-KV-7, P-CAS-5
    finish([start("count_up", postgres_url, schema, n, 30) for n in range(4)])

    assert b.kv_get("counter") == 120


def test_overlapping_commits_in_any_order_never_deadlock(opened: Opened, sql: Any) -> None:  # P-BKD-9
    names = list("abcdef")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = sql(deadlocks)
    stores = [opened(pool_size=2, timeout_s=20) for _ in range(6)]

    def work(n: int) -> int:
        done = 0
        for turn in range(30):
            order = names[(n + turn) % 6 :] + names[: (n + turn) % 6]
            order = order if n % 2 else order[::-1]
            writes: list[Write] = [Append(name, "t", 0, n, globally=True) for name in order[:4]]
            writes += [Put(name, n) if turn % 2 else Delete(name) for name in order[:3]]
            wanted = [ExpectKey(order[5], ABSENT)] if turn % 3 == 0 else []
            done += not isinstance(stores[n].commit(wanted, writes), Conflict)
        return done

    with ThreadPoolExecutor(6) as pool:
        done = sum(pool.map(work, range(6)))

    assert sum(stores[0].last_seq(name) for name in names) == 4 * done == stores[0].last_seq("$global")
    assert stores[0].verify() == []
    assert sql("select pg_stat_clear_snapshot()")
    assert sql(deadlocks) == before


def test_two_that_each_expect_what_the_other_writes_are_put_in_an_order(opened: Opened) -> None:  # P-BKD-9
    stores = [opened(), opened()]
    for turn in range(40):
        left, right = f"l{turn}", f"r{turn}"

        def write(n: int, left: str = left, right: str = right) -> Any:
            mine, other = (left, right) if n else (right, left)
            return stores[n].commit([ExpectKey(other, ABSENT), ExpectSeq(other, 0)], [Put(mine, n)])

        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(write, range(2)))

        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1, "both saw the other absent"


def test_two_first_uses_of_a_key_make_one_event_and_both_get_it(opened: Opened) -> None:  # P-IDM-5
    stores = [opened() for _ in range(4)]

    for turn in range(20):
        with ThreadPoolExecutor(4) as pool:
            once = ("s", f"k{turn}")
            found = list(pool.map(lambda b, o=once: b.commit([], [Append("s", "t", 0, 1)], once=o), stores))
        assert found == [[Event("s", turn + 1, "t", 0, 1)]] * 4


def test_a_key_that_is_taken_while_we_wait_for_the_stream_is_answered_as_known(
    opened: Opened, postgres_url: str, schema: str
) -> None:  # P-IDM-5
    stores = [opened(), opened()]
    stores[0].commit([], [Append("s", "t", 0, 1)])
    with psycopg.connect(postgres_url) as holder, ThreadPoolExecutor(2) as pool:
        holder.execute(f'select from "{schema}".stream where name = %s for update', ["s"])
        found = [pool.submit(b.commit, [], [Append("s", "t", 0, 2)], once=("s", "k")) for b in stores]
        until = time.monotonic() + 30
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        with psycopg.connect(postgres_url, autocommit=True) as beside:
            while (count := beside.execute(waiting).fetchone()) is not None and count[0] < 2:
                assert time.monotonic() < until, "nobody waits for the stream"
                time.sleep(0.01)
        holder.rollback()

    assert [each.result() for each in found] == [[Event("s", 2, "t", 0, 2)]] * 2
    assert (stores[0].last_seq("s"), stores[0].verify()) == (2, [])


def test_what_holds_the_place_of_an_absent_name_leaves_no_row(
    b: PostgresBackend, sql: Any
) -> None:  # P-BKD-4, P-KV-3
    conflict = b.commit([ExpectSeq("never", 1)], [Append("never", "t", 0, 1)])
    b.commit([ExpectKey("absent", ABSENT), ExpectSeq("also-never", 0)], [Put("k", 1)])
    b.commit([], [Truncate("nor-this", 5), Delete("k"), Delete("absent")])

    assert conflict == Conflict(1, 0, "STALE")
    assert sql("select name from stream") == [("$global",)]
    assert sql("select key from kv") == []


# The global order


def follow(store: PostgresBackend, is_over: Callable[[], bool]) -> list[tuple[int, Event | Compacted]]:
    """Read the global order from its start as it grows, each position once."""
    seen: list[tuple[int, Event | Compacted]] = []
    while True:
        over = is_over()
        page = list(store.global_range(len(seen) + 1, limit=100))
        seen += page
        if over and not page:
            return seen


def check_order(store: PostgresBackend, seen: list[tuple[int, Event | Compacted]]) -> None:
    assert [position for position, _ in seen] == list(range(1, len(seen) + 1))
    pages = (store.global_range(first, limit=500) for first in range(1, len(seen) + 1, 500))
    assert seen == [item for page in pages for item in page]
    marks = {head.name: head.last_seq for head in store.stream_scan("", after="", limit=99)}
    assert marks.pop("$global") == len(seen)
    for stream, mark in marks.items():
        seqs = [event.seq for _, event in seen if event.stream == stream]
        assert seqs == list(range(1, mark + 1)), f"of {stream} not all, or not in order"
    assert store.verify() == []


def tail_writers(url: str, opened: Opened, schema: str, seconds: float) -> int:
    store = opened()
    children = [start("write_globally", url, schema, n, seconds) for n in range(6)]
    seen = follow(store, lambda: all(child.poll() is not None for child in children))
    finish(children)
    check_order(store, seen)
    return len(seen)


def test_a_reader_of_the_global_order_misses_nothing(postgres_url: str, opened: Opened, schema: str) -> None:
    assert tail_writers(postgres_url, opened, schema, 2) > 50  # P-GLB-4, P-GLB-7, P-GLB-8


@pytest.mark.slow
def test_a_reader_of_the_global_order_misses_nothing_for_long(
    postgres_url: str, opened: Opened, schema: str
) -> None:  # P-GLB-4
    assert tail_writers(postgres_url, opened, schema, 60) > 1000


def test_what_was_acknowledged_first_comes_first(opened: Opened) -> None:  # P-GLB-4
    stores = [opened() for _ in range(4)]

    for n in range(40):
        stores[n % 4].commit([], [Append(f"s{n % 3}", "t", 0, n, globally=True)])
        if n % 7 == 0:
            stores[0].last_seq("$global")

    assert [event.data for _, event in stores[1].global_range(1, limit=99)] == list(range(40))  # type: ignore[union-attr]


def test_an_open_transaction_elsewhere_does_not_hold_up_the_reader(
    b: PostgresBackend, sql: Any
) -> None:  # P-GLB-4
    sql("begin")
    sql("insert into in_line (stream_id, seq, crc, at_int) values (1, 1, 1, 0)")

    b.commit([], [Append("s", "t", 0, 1, globally=True)])

    assert [event for _, event in b.global_range(1, limit=9)] == [Event("s", 1, "t", 0, 1)]
    sql("rollback")


# Connections that break


def kill_connections(url: str, is_over: threading.Event) -> None:
    """End every connection of every store, again and again."""
    query = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'strandline'"
    with psycopg.connect(url, autocommit=True) as connection:
        while not is_over.wait(0.02):
            connection.execute(query)


def told_by(store: PostgresBackend, key: str, once: Any) -> str:
    """What the caller of one commit knows of it."""
    try:
        store.commit([], [Append("s", key, 0, None, globally=True)], once=once)
    except OutcomeUnknown as error:
        return "unknown" if error.once == once else f"unknown under {error.once}"
    except StoreUnavailable:
        return "nothing"
    return "done"


def test_commits_under_broken_connections_have_one_effect_or_say_that_they_do_not_know() -> None:  # P-DUR-9
    is_over = threading.Event()
    keys = [(f"{n}-{turn}", ("s", f"{n}-{turn}") if n % 2 else None) for turn in range(25) for n in range(6)]
    with ScratchPostgres(settings=UNSYNCED) as server, closing(PostgresBackend(server.url)) as b:
        killer = threading.Thread(target=kill_connections, args=(server.url, is_over))
        killer.start()
        try:
            with ThreadPoolExecutor(6) as pool:
                told = dict(pool.map(lambda key: (key[0], told_by(b, *key)), keys))
        finally:
            is_over.set()
            killer.join()

        stored = [event.type for event in b.read("s")]
        assert len(stored) == len(set(stored))
        assert {key for key, what in told.items() if what == "done"} <= set(stored)
        assert not {key for key, what in told.items() if what == "nothing"} & set(stored)
        assert "done" in told.values()
        assert set(told.values()) <= {"done", "nothing", "unknown"}
        assert b.verify() == []


def test_a_stale_connection_is_replaced_before_anything_is_sent(
    postgres_url: str, b: PostgresBackend
) -> None:  # P-DUR-9
    b.commit([], [Append("s", "t", 0, 1)])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for free in list(b._pool._free):
            connection.execute("select pg_terminate_backend(%s)", [free.info.backend_pid])
    time.sleep(0.1)

    assert b.read("s") == [Event("s", 1, "t", 0, 1)]
    assert b.commit([], [Append("s", "t", 0, 2)]) == [Event("s", 2, "t", 0, 2)]


def test_a_row_that_is_held_too_long_is_unavailable_and_nothing_is_written(opened: Opened, sql: Any) -> None:
    b = opened(timeout_s=0.2)  # P-REC-9
    b.commit([], [Append("s", "t", 0, 1)])
    sql("begin")
    sql("select from stream where name = 's' for update")

    with pytest.raises(StoreUnavailable, match="lock"):
        b.commit([], [Append("s", "t", 0, 2)])
    with pytest.raises(StoreUnavailable, match="lock"):
        b.commit([ExpectSeq("s", 1)], [Append("s", "t", 0, 2)])

    sql("rollback")
    assert b.last_seq("s") == 1


def test_what_was_acknowledged_is_there_after_the_server_was_killed() -> None:  # P-REC-9, P-GLB-7
    with (
        ScratchPostgres(settings=UNSYNCED) as server,
        closing(PostgresBackend(server.url, timeout_s=20)) as b,
    ):
        for n in range(20):
            b.commit([], [Append("s", "t", n, n, globally=n % 2 == 0)], once=("s", str(n)))
        before = list(b.global_range(1, limit=5))
        server.kill()
        server.start()

        assert [event.data for event in b.read("s")] == list(range(20))
        assert list(b.global_range(1, limit=5)) == before
        assert b.commit([], [Append("s", "t", 99, 7)], once=("s", "7")) == [Event("s", 8, "t", 7, 7)]
        assert b.verify() == []


# One round trip


def test_a_commit_is_one_statement_whatever_is_in_it() -> None:  # P-LOG-11, P-BAT-5
    batch = [Append("s", "t", n, {"n": n}, globally=n % 2 == 0) for n in range(1000)]
    several: list[Write] = [*batch[:3], Append("u", "t", 0, 1), Put("k", 1), Delete("j")]
    cases: list[tuple[list[Expectation], list[Write], Any]] = [
        ([], [Append("s", "t", 0, 1)], None),
        ([], [*batch], None),
        ([ExpectSeq("u", 0), ExpectKey("k", ABSENT)], several, ("s", "once")),
        ([ExpectSeq("u", 0)], [*batch], None),
        ([], several, ("s", "once")),
        ([], [Put("k", 2)], None),
    ]
    with (
        ScratchPostgres(settings={**UNSYNCED, "log_statement": "all"}) as server,
        closing(PostgresBackend(server.url)) as b,
    ):
        (connection,) = b._pool._free
        of_commits = f"[{connection.info.backend_pid}] LOG:  "

        for preconditions, writes, once in cases:
            seen = len(server.log)
            b.commit(preconditions, writes, once=once)
            news = server.log[seen:]

            assert news.count(of_commits) == news.count(f"{of_commits}execute ") == 1, news


# Waiting


def timed_wait(store: PostgresBackend, stream: str, mark: int) -> tuple[int, float]:
    return store.wait(stream, mark, timeout_s=5), time.monotonic()


def test_a_waiter_in_another_object_is_woken_at_once(opened: Opened) -> None:  # P-SUB-12
    writer, reader = opened(), opened()
    writer.commit([], [Append("s", "t", 0, 0)])
    reader.wait("s", 1, timeout_s=0.01)
    lags = []

    for stream in ["s"] * 15 + ["$global"] * 5:
        mark = reader.last_seq(stream)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(timed_wait, reader, stream, mark)
            time.sleep(0.03)
            began = time.monotonic()
            writer.commit([], [Append("s", "t", 0, 0, globally=True)])
            found, woken = waiting.result()
        assert found == mark + 1
        lags.append(woken - began)

    assert sorted(lags)[len(lags) // 2] < 0.2, lags  # well under a poll


def test_a_wait_in_vain_takes_its_time_and_gives_the_mark(b: PostgresBackend) -> None:  # P-BKD-7
    b.commit([], [Append("s", "t", 0, 0)])

    began = time.monotonic()
    marks = b.wait("s", 1, timeout_s=0.3), b.wait("s", 0, timeout_s=9), b.wait("none", 0, timeout_s=0)

    assert marks == (1, 1, 0)
    assert 0.3 <= time.monotonic() - began < 9


# Integrity and upkeep

DAMAGES = {
    "update event set data = '22' where seq = 2": Damage("event", "s", 2, "its checksum does not match"),
    "update event set at_int = 9 where seq = 2": Damage("event", "s", 2, "its checksum does not match"),
    "update event set at_int = null, at_real = 2 where seq = 2": Damage(
        "event", "s", 2, "its checksum does not match"
    ),
    "update event set type = 'u' where seq = 2": Damage("event", "s", 2, "its checksum does not match"),
    "delete from event where seq = 2": Damage("event", "s", 2, "it is missing"),
    "update stream set last_seq = 2 where name = 's'": Damage(
        "mark", "s", 2, "an event has seq 3, above the mark"
    ),
    "update kv set text = '2' where key = 'k'": Damage("key", "k", 0, "its checksum does not match"),
    "update kv set seqs = '{9}' where key like '$once%'": Damage(
        "marker", "$once/s/m", 0, "its checksum does not match"
    ),
    "update kv set text = replace(text, '1', '2') where key like '$once%'": Damage(
        "marker", "$once/s/m", 0, "its checksum does not match"
    ),
    "update pointer set seq = 1": Damage("pointer", "$global", 1, "its checksum does not match"),
    "delete from pointer": Damage("event", "$global", 1, "it is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_never_returned(
    b: PostgresBackend, sql: Any, damage: str
) -> None:  # P-INT-1 to P-INT-3
    b.commit([], [Append("s", "t", n, n) for n in (1, 2)])
    b.commit([], [Append("s", "t", 3, 3, globally=True), Put("k", 1)], once=("s", "m"))
    assert b.last_seq("$global") == 1
    assert b.verify() == []

    sql(damage)

    expected = DAMAGES[damage]
    assert expected in b.verify()
    reads: dict[str, Callable[[], Any]] = {
        "event": lambda: b.read("s"),
        "key": lambda: b.kv_get("k"),
        "marker": lambda: b.kv_scan("$once", after="", limit=9),
        "pointer": lambda: list(b.global_range(1, limit=9)),
    }
    if expected.what in reads and "missing" not in expected.found:
        with pytest.raises(EventCorrupt):
            reads[expected.what]()


@pytest.mark.parametrize("column", ["seq", "at_int", "sum", "position"])
def test_each_pointer_of_a_page_is_checked_by_itself(
    b: PostgresBackend, sql: Any, column: str
) -> None:  # P-INT-1
    b.commit([], [Append("s", "t", 1, n, globally=True) for n in range(5)])
    b.commit([], [Append("u", "t", at, None, globally=True) for at in (1, 0.0, -0.0, "1")])
    b.commit([], [Truncate("s", 2)])
    whole = list(b.global_range(1, limit=99))
    assert [found.seq for _, found in whole] == [1, 2, 3, 4, 5, 1, 2, 3, 4]
    assert whole[:2] == [(n, Compacted("s", n)) for n in (1, 2)]

    sql(f"update pointer set {column} = {column} + 100 where position = 4")

    assert list(b.global_range(1, limit=3)) == whole[:3]
    with pytest.raises(EventCorrupt):
        list(b.global_range(1, limit=99))


def test_a_stream_that_vanished_is_missed(b: PostgresBackend, sql: Any) -> None:  # P-INT-3
    b.commit([], [Append("s", "t", n, n) for n in (1, 2)])

    ((number,),) = sql("delete from stream where name = 's' returning id")

    found = "it is missing, 2 events from seq 1 on have it"
    assert b.verify() == [Damage("mark", f"stream number {number}", 0, found)]


def test_a_damaged_event_can_be_set_aside(b: PostgresBackend, sql: Any) -> None:  # P-INT-3
    b.commit([], [Append("s", "t", n, n) for n in (1, 2, 3)])
    sql("update event set data = '[9' where seq = 2")

    b.quarantine("s", 2, 7)

    assert [event.seq for event in b.read("s")] == [1, 3]
    assert b.verify() == [Damage("quarantined", "s", 2, "it was set aside; its raw bytes are kept")]
    assert b.read("$quarantined") == [Event("$quarantined", 1, "quarantined", 7, {"stream": "s", "seq": 2})]
    with pytest.raises(NotFoundError):
        b.quarantine("s", 2, 8)


def filled(store: Any) -> Any:
    store.commit([], [Append("s", "t", at, {"at": at}, globally=True) for at in (1, 2.5, "x", -0.0)])
    store.commit([], [Append("u", "t", 1, None), Put("k", {"$x": 1})], once=("$commit", "c"))
    store.commit([], [Append("gone", "t", 1, None)], once=("gone", "m"))
    store.commit([], [Truncate("gone", 1), Truncate("s", 1), Truncate("$global", 1)])
    return store


def test_a_dump_goes_to_memory_and_back(b: PostgresBackend, postgres_url: str) -> None:  # P-OPS-2
    filled(b)
    memory = mem_backend()

    counts = memory.load(b.dump())
    with closing(PostgresBackend(postgres_url, schema=f"t{uuid4().hex[:16]}")) as copy:
        assert {**copy.load(memory.dump()), "meta": 3} == counts
        assert contents(copy) == contents(memory) == contents(b)
        assert audit(copy.dump()) == []
        assert copy.info()["lineage"] != b.info()["lineage"]
        for store in (b, copy):
            assert store.commit([], [Append("s", "t", 1, 1, globally=True)]) == [Event("s", 5, "t", 1, 1)]
            assert store.commit([], [Append("new", "t", 1, 1)]) == [Event("new", 1, "t", 1, 1)]
            assert store.commit([], [Append("gone", "t", 9, None)], once=("gone", "m")) == [
                Event("gone", 1, "t", 1, None)
            ]
        assert contents(copy) == contents(b)
        with pytest.raises(UsageError, match="not empty"):
            copy.load(memory.dump())


def test_a_load_that_fails_leaves_the_store_empty(b: PostgresBackend) -> None:  # P-OPS-2
    def cut() -> Iterator[Any]:
        yield from list(filled(mem_backend()).dump())[:-2]
        raise NotFoundError("the rest")

    with pytest.raises(NotFoundError):
        b.load(cut())

    assert contents(b) == []
    assert b.load(filled(mem_backend()).dump())["event"] == 4


def test_a_dump_shows_one_instant_while_writers_go_on(b: PostgresBackend) -> None:  # P-OPS-2
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            b.commit([], [Append(name, "t", 0, None, globally=True) for name in "ab"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            records = list(b.dump())
            marks = {body[0]: body[1] for kind, body in records if kind == "stream"}
            assert marks.get("a") == marks.get("b")
            assert marks.get("$global", 0) == 2 * marks.get("a", 0)
            assert audit(records) == []
    finally:
        is_over.set()
        writer.join()


def test_truncation_hides_at_once_and_a_sweep_that_was_cut_short_is_finished_later(
    b: PostgresBackend, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7
    b.commit([], [Append("s", "t", 0, n) for n in range(2500)])
    with monkeypatch.context() as cut:
        cut.setattr(sweep, "sweep", lambda _: None)
        b.truncate_through("s", 2400)
    assert sql("select count(*) from event") == [(2500,)]

    assert len(b.read("s")) == 100
    assert b.event_at("s", 2400) is None
    b.commit([], [Append("u", "t", 0, 1)])
    b.truncate_through("u", 1)

    assert sql("select count(*) from event") == [(100,)]
    assert sql("select count(*) from stream where swept < truncated") == [(0,)]
    assert (b.last_seq("s"), b.truncated_through("s"), b.last_seq("u")) == (2500, 2400, 1)


def test_erased_events_leave_the_tables_with_a_rewrite(
    b: PostgresBackend, sql: Any
) -> None:  # P-ERA-1 to P-ERA-3
    person = {"name": "somebody", "n": 1}
    b.commit([], [Append("s", "t", 0, person), Append("s", "t", 0, "kept")], once=("s", "k"))
    redact(b, "s", 1, ["name"], 5, reason="asked")

    assert b.read("s")[0].data == {"name": None, "n": 1}
    assert b.kv_get("$once/s/k") == {"digest": None, "runs": [["s", 1, 0, 2]]}
    erase_stream(b, "s", 6, reason="asked")
    b.scrub(rewrite=True)

    assert b.read("s") == []
    assert sql("select from event e join stream s on s.id = e.stream_id where s.name = 's'") == []
    repeated = b.commit([], [Append("s", "t", 0, person)], once=("s", "k"))
    assert repeated == Conflict("k", Compacted("s", 1), "KEY_REUSED")
    assert b.verify() == []


def test_info_counts_public_streams_and_this_objects_commits(
    opened: Opened,
) -> None:  # P-CAT-3, P-CAT-5, P-OPS-5
    b = filled(opened())
    b.commit([ExpectSeq("s", 99)], [Append("s", "t", 0, 0)])

    info = b.info()

    assert {
        name: info[name] for name in ("backend", "format", "streams", "events", "commits", "conflicts")
    } == {
        "backend": "postgres",
        "format": 2,
        "streams": 3,
        "events": 6,
        "commits": 4,
        "conflicts": 1,
    }
    assert info["bytes"] > 8192


def test_the_session_flushes_its_commits_whatever_the_server_defaults_to() -> None:  # P-REC-9
    settings_ = {"synchronous_commit": "off", "default_transaction_isolation": "serializable"}
    names = ("synchronous_commit", "transaction_isolation")
    with (
        ScratchPostgres(settings=settings_) as server,
        closing(PostgresBackend(server.url)) as b,
        b._pool.borrow() as connection,
    ):
        shown = [connection.execute(f"show {name}").fetchone() for name in names]

    assert shown == [("on",), ("read committed",)]
