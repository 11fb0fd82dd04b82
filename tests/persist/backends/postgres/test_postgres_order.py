"""The global order of a Postgres store, and who waits for it."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.persist.backend import Append
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.event import Compacted, Event
from tests.persist.backends.postgres.beside import Opened, finish, start


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
