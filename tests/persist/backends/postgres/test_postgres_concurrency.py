"""Threads and processes on one Postgres store."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from strandline.persist.backend import (
    Append,
    Delete,
    ExpectKey,
    ExpectSeq,
    Put,
    Truncate,
    Write,
)
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.event import ABSENT, Conflict, Event
from tests.persist.backends.postgres.beside import Opened, finish, start


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
