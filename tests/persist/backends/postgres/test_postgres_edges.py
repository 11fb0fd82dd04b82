"""The edges of the Postgres backend: rows that others hold, a store that is replaced, odd options."""

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

import pytest

from strandline.errors import EventCorrupt, StoreUnavailable, UsageError
from strandline.persist import mem_backend
from strandline.persist.backend import Append, ExpectKey, ExpectSeq, Put, Truncate, Write
from strandline.persist.backends.postgres import PostgresBackend, backend, read
from strandline.persist.backends.postgres.bell import Bell
from strandline.persist.core.prepare import prepare
from strandline.persist.event import Conflict, Event
from strandline.persist.value import MAX_SEQ
from tests.persist.backends.postgres.beside import Opened, Sql


def append(stream: str, data: Any = None) -> Append:
    return Append(stream, "t", 0, data)


# A store that is replaced


def test_the_lineage_is_that_of_the_store_that_is_there_now(
    b: PostgresBackend, opened: Opened, sql: Sql, schema: str
) -> None:  # P-OPS-1
    b.commit([], [append("s")])
    before = b.info()["lineage"]
    sql(f'drop schema "{schema}" cascade')

    replaced = opened()

    after = replaced.info()["lineage"]
    assert after != before
    assert (b.info()["lineage"], b.kv_get("$lineage"), next(b.dump()).body) == (
        after,
        after,
        ("lineage", after),
    )


def test_a_store_can_be_filled_through_its_only_connection(opened: Opened) -> None:  # P-OPS-2
    source = mem_backend()
    source.commit([], [append("s", 1), Put("k", 2)])
    b = opened(pool_size=1, timeout_s=1)

    b.load(source.dump())

    assert ([event.data for event in b.read("s")], b.kv_get("k")) == ([1], 2)
    with pytest.raises(UsageError, match="not empty"):
        b.load(source.dump())


# One of a group


def test_who_waits_for_a_row_holds_up_nobody_else(opened: Opened, sql: Sql) -> None:  # P-BKD-11
    b = opened(pool_size=2, timeout_s=30)
    b.commit([], [append("x"), append("y"), Put("k", 0)])
    sql("begin")
    sql("select from stream where name = 'x' for update")

    with ThreadPoolExecutor(24) as pool:
        held = [pool.submit(b.commit, [], [append("x", n)], once=("x", f"{n}")) for n in range(8)]
        both: list[Write] = [append("x"), append("y")]
        held.append(pool.submit(b.commit, [], both))
        free = [pool.submit(b.commit, [], [append("y", n), Put("k", n)]) for n in range(8)]
        free += [pool.submit(b.commit, [ExpectSeq("z", 9)], [append("z")]) for _ in range(4)]
        done, _ = wait(free, timeout=20)

        assert len(done) == len(free)
        assert not any(future.done() for future in held)
        assert [b.last_seq("x"), b.last_seq("y")] == [1, 9]
        assert free[-1].result() == Conflict(9, 0, "STALE", "z")

        sql("rollback")
        assert all(future.result(30) for future in held)

    assert [b.last_seq("x"), b.last_seq("y")] == [10, 10]
    assert (b.info()["commits"], b.verify()) == (18, [])


def test_who_waits_too_long_is_told_and_nothing_of_it_is_written(opened: Opened, sql: Sql) -> None:
    b = opened(timeout_s=0.3)  # P-BKD-11, P-REC-9
    b.commit([], [Put("k", 0)])
    sql("begin")
    sql("select from kv where key = 'k' for update")

    outcomes = b._run([prepare([], [Put("k", 1), append("s")]), prepare([], [append("s")])])
    with pytest.raises(StoreUnavailable, match="lock"):
        b.commit([], [Put("k", 1), append("s")])

    sql("rollback")
    assert isinstance(outcomes[0], backend._HeldUp)
    assert outcomes[1] == b.read("s") == [Event("s", 1, "t", 0, None)]
    assert b.kv_get("k") == 0


def test_one_that_cannot_be_sent_fails_alone(b: PostgresBackend) -> None:  # P-BKD-11
    group = [prepare([], [append("s", n)]) for n in range(5)]
    block: Any = group[3].steps[0]
    block.ats[0] = 2**70

    outcomes = b._run(group)

    assert isinstance(outcomes[3], BaseException)
    assert [event.data for event in b.read("s")] == [0, 1, 2, 4]
    assert all(isinstance(outcome, list) for n, outcome in enumerate(outcomes) if n != 3)


def test_what_concerns_all_is_not_tried_for_each(
    b: PostgresBackend, sql: Sql, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-11
    sql(f'drop schema "{schema}" cascade')
    calls = 0

    call = PostgresBackend._call

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return call(*given)

    monkeypatch.setattr(PostgresBackend, "_call", counted)
    with pytest.raises(StoreUnavailable):
        b._run([prepare([], [append("s", n)]) for n in range(5)])

    assert calls == 1


def test_a_server_that_goes_while_a_group_is_parted_fails_only_the_parts_that_are_left(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-11
    group = [prepare([], [append("s", n)]) for n in range(4)]
    block: Any = group[1].steps[0]
    block.ats[0] = 2**70
    call = PostgresBackend._call

    def gone_at_the_end(store: PostgresBackend, prepareds: Any, *given: Any) -> Any:
        if prepareds[0] is group[2]:
            raise StoreUnavailable("it is gone", hint="")
        return call(store, prepareds, *given)

    monkeypatch.setattr(PostgresBackend, "_call", gone_at_the_end)

    outcomes = b._run(group)

    assert outcomes[0] == b.read("s") == [Event("s", 1, "t", 0, 0)]
    assert [type(outcome) for outcome in outcomes[2:]] == [StoreUnavailable] * 2


def test_who_needs_only_what_is_free_is_decided_though_another_needs_it_too(
    b: PostgresBackend, sql: Sql
) -> None:  # P-BKD-11
    b.commit([], [append("x"), append("y")])
    sql("begin")
    sql("select from stream where name = 'x' for update")

    both = prepare([], [append("y"), append("x")])
    outcomes = b._run([both, prepare([], [append("y")]), prepare([], [append("x")]), both])

    sql("rollback")
    assert [type(outcome) for outcome in outcomes] == [
        backend._HeldUp,
        list,
        backend._HeldUp,
        backend._HeldUp,
    ]
    assert (b.last_seq("x"), b.last_seq("y")) == (1, 2)


def test_a_truncation_point_of_any_size_is_taken(b: PostgresBackend) -> None:  # P-LOG-8
    b.commit([], [append("s"), append("s")])
    group = [prepare([], [Truncate("s", 0)]), prepare([], [append("s")]), prepare([], [Truncate("s", 1)])]
    group[0].steps[0] = Truncate("s", -(10**30))

    outcomes = b._run(group)

    assert outcomes == [[], [Event("s", 3, "t", 0, None)], []]
    assert b.truncated_through("s") == 1
    b.truncate_through("s", 10**30)
    assert b.truncated_through("s") == 3


# The bell


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """All descriptors below 1024 are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no more than {hard} descriptors can be had")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048 if soft < 2048 else soft, hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < 1100:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def timed_wait(store: PostgresBackend, mark: int) -> tuple[int, float]:
    return store.wait("s", mark, timeout_s=5), time.monotonic()


def lag_of_a_waiter(writer: PostgresBackend, reader: PostgresBackend) -> float:
    """The least of a few: a poll takes about a quarter of a second."""
    lags = []
    for _ in range(5):
        mark = reader.last_seq("s")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(timed_wait, reader, mark)
            time.sleep(0.06)
            began = time.monotonic()
            writer.commit([], [append("s")])
            found, woken = waiting.result()
        assert found == mark + 1
        lags.append(woken - began)
    return min(lags)


@pytest.mark.usefixtures("many_descriptors")
def test_the_bell_rings_above_descriptor_1023(opened: Opened) -> None:  # P-SUB-12
    writer, reader = opened(), opened()
    writer.commit([], [append("s")])

    assert lag_of_a_waiter(writer, reader) < 0.1
    assert reader._bell._inner.fileno() > 1023


def test_the_bell_goes_on_after_a_failure(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = opened(), opened()  # P-SUB-12
    failed = threading.Event()
    hear = Bell._hear

    def fail_once(bell: Bell, *given: Any) -> None:
        if bell is reader._bell and not failed.is_set():
            failed.set()
            raise ValueError("something that nobody thought of")
        hear(bell, *given)

    monkeypatch.setattr(Bell, "_hear", fail_once)
    writer.commit([], [append("s")])
    reader.wait("s", 1, timeout_s=0.1)

    assert failed.wait(5)
    assert reader._bell._listens.wait(5)
    assert lag_of_a_waiter(writer, reader) < 0.1


def test_a_bell_whose_thread_is_gone_gets_another(opened: Opened) -> None:  # P-SUB-12
    writer, reader = opened(), opened()
    writer.commit([], [append("s")])
    gone = threading.Thread(target=int)
    gone.start()
    gone.join()
    reader._bell._thread = gone

    assert lag_of_a_waiter(writer, reader) < 0.1
    assert reader._bell._thread is not gone


# Reads by time


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("every", [1, 2, 5, 17, 60])
@pytest.mark.parametrize("type_", [None, "u"])
def test_a_window_is_read_the_same_by_walk_and_by_index(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch, limit: int, every: int, type_: str | None
) -> None:  # P-QRY-3, P-QRY-8
    monkeypatch.setattr(read, "_NEAR_ROWS", 2)
    model = mem_backend()
    kinds: list[Any] = [7, 7.5, 9, -1.0]
    for store in (b, model):
        store.commit(
            [],
            [
                Append("s", "tu"[n // 3 % 2], kinds[n % 4] if n // 4 % every == 0 else -5, n)
                for n in range(120)
            ],
        )
        store.commit([], [Truncate("s", 5)])

    for start, end in [(0, None), (None, 8), (7.5, 7.5), (-5, -5), ("a", None), (100, None)]:
        found, first = [], 1
        while page := list(b.read_range("s", first, MAX_SEQ, limit=limit, type=type_, start=start, end=end)):
            found += page
            first = page[-1].seq + 1
        expected = model.read_range("s", 1, MAX_SEQ, limit=200, type=type_, start=start, end=end)
        assert found == list(expected), (start, end)


def test_the_end_of_a_large_window_is_found_without_reading_it_again(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-QRY-8
    b.commit([], [append("s", n) for n in range(50)])

    def unwanted(*_: Any) -> bool:
        raise AssertionError("the index of the whole window was asked")

    monkeypatch.setattr(read, "_is_small", unwanted)

    assert len(list(b.read_range("s", 1, MAX_SEQ, limit=99, start=0))) == 50
    assert list(b.read_range("s", 51, MAX_SEQ, limit=99, start=0)) == []
    assert list(b.read_range("s", 1, MAX_SEQ, limit=99, start=1)) == []


# Markers


def test_gaps_in_the_numbers_of_markers_cost_none_of_the_newest(
    b: PostgresBackend, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-10
    monkeypatch.setattr(backend, "KEPT_COMMIT_MARKERS", 3)

    for n in range(5):
        b.commit([], [append("s", n)], once=("$commit", f"c{n}"))
        sql("select setval('marker_nr', nextval('marker_nr') + 50)")

    assert b.kv_keys() == [f"$once/$commit/c{n}" for n in (2, 3, 4)]


def test_markers_are_trimmed_once_in_a_while_and_the_newest_stay(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-10
    monkeypatch.setattr(backend, "KEPT_COMMIT_MARKERS", 300)

    for some in range(7):
        b._run(
            [prepare([], [append("s")], ("$commit", f"{n:04}")) for n in range(some * 100, some * 100 + 100)]
        )
    for n in range(700, 703):
        b.commit([], [append("s")], once=("$commit", f"{n:04}"))

    kept = b.kv_keys()
    assert kept[-300:] == [f"$once/$commit/{n:04}" for n in range(403, 703)]
    assert len(kept) <= 303


@pytest.mark.parametrize("damage", ["text = replace(text, 'runs', 'rums')", "seqs = '{7}'", "sum = sum + 1"])
def test_a_damaged_marker_answers_nothing(b: PostgresBackend, sql: Sql, damage: str) -> None:  # P-INT-2
    b.commit([], [append("s", 1)], once=("s", "k"))
    sql(f"update kv set {damage}")

    outcomes = b._run([prepare([], [append("s", 1)], ("s", "k")), prepare([], [append("s", 2)])])

    assert isinstance(outcomes[0], EventCorrupt)
    assert outcomes[1] == [Event("s", 2, "t", 0, 2)]
    with pytest.raises(EventCorrupt):
        b.commit([], [append("s", 1)], once=("s", "k"))


def test_what_a_conflict_shows_is_checked(b: PostgresBackend, sql: Sql) -> None:  # P-INT-2
    b.commit([], [append("s", "first"), Put("v", 1)], once=("s", "k"))
    sql("update event set data = '\"other\"'")
    sql("update kv set text = '[' where key = 'v'")

    with pytest.raises(EventCorrupt):
        b.commit([], [append("s", "second")], once=("s", "k"))
    outcomes = b._run([prepare([ExpectKey("v", 2)], [append("s")]), prepare([], [append("s", 3)])])

    assert isinstance(outcomes[0], EventCorrupt)
    assert outcomes[1] == [Event("s", 2, "t", 0, 3)]


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"pool_size": 0}, {"pool_size": -1}, {"pool_size": "8"}, {"pool_size": 2.0}, {"pool_size": True},
        {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"timeout_s": float("inf")},
        {"timeout_s": "1"}, {"timeout_s": None}, {"timeout_s": True},
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused(postgres_url: str, options: dict[str, Any]) -> None:  # P-API-4
    with pytest.raises(UsageError, match=next(iter(options))):
        PostgresBackend(postgres_url, **options)


def test_a_very_long_timeout_is_taken(postgres_url: str, schema: str, sql: Sql) -> None:  # P-API-4
    with closing(PostgresBackend(postgres_url, schema=schema, timeout_s=1e30)) as b:
        assert b.commit([], [append("s")]) == [Event("s", 1, "t", 0, None)]
    sql(f'drop schema "{schema}" cascade')


def test_an_event_of_another_stream_is_refused(b: PostgresBackend) -> None:  # P-BKD-2
    with pytest.raises(UsageError, match="is no event of"):
        b.append("s", Event("r", 1, "t", 0, None))

    assert b.streams() == []


def test_groups_of_two_stores_on_one_stream_take_turns(opened: Callable[..., PostgresBackend]) -> None:
    def bring(store: PostgresBackend) -> list[int]:  # P-LOG-2, P-CON-6
        pairs = [[prepare([], [Append("s", "t", 1, n)]) for _ in range(2)] for n in range(50)]
        return [outcome[0].seq for pair in pairs for outcome in store._run(pair)]  # type: ignore[index]

    stores = [opened(), opened(), opened()]
    with ThreadPoolExecutor(len(stores)) as pool:
        seqs = [seq for found in pool.map(bring, stores) for seq in found]

    assert sorted(seqs) == list(range(1, 301))
    assert stores[0].last_seq("s") == 300


def test_an_expectation_is_looked_at_once_the_stream_is_locked(b: PostgresBackend, sql: Sql) -> None:
    b.commit([], [append("s", 1)])  # P-CON-1, P-CON-6
    sql("begin")
    sql("update stream set last_seq = 2 where name = 's'")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(b.commit, [ExpectSeq("s", 1)], [append("s", 2)])
        while not sql("select pid from pg_locks where not granted"):
            time.sleep(0.01)
        sql("commit")

        assert waiting.result(60) == Conflict(1, 2, "STALE")
    assert b.last_seq("s") == 2
