"""Connections and servers that break, and what a commit asks of them."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import OutcomeUnknown, StoreUnavailable
from strandline.persist import Hub, subscribe
from strandline.persist.backend import (
    Append,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Put,
    Redact,
    Write,
)
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.backends.postgres.transaction import run_alone
from strandline.persist.core.commit import Repeated
from strandline.persist.event import ABSENT, Event
from strandline.persist.features.subscribe import publish_once
from tests.conftest import UNSYNCED
from tests.persist.backends.postgres.beside import Opened


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


def losing(act: Callable[..., Any], *, answers: int) -> Callable[..., Any]:
    """The same, but so many of its answers get lost, each after the server has worked."""
    left = answers

    def acted(*given: Any, **options: Any) -> Any:
        nonlocal left
        answer = act(*given, **options)
        left -= 1
        if left >= 0:
            raise OutcomeUnknown("the connection broke in the commit", once=options.get("once"))
        return answer

    return acted


def test_subscribers_are_told_of_a_commit_whose_first_answer_was_lost(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-DUR-9, P-SUB-11
    monkeypatch.setattr(PostgresBackend, "_call", losing(PostgresBackend._call, answers=1))
    told: list[int] = []
    hub = Hub(b)
    subscribe(hub, "s", lambda _, __, event: told.append(event.seq))

    published = [publish_once(hub, "s", "key", "t", 0, None) for _ in range(2)]

    assert published == [Event("s", 1, "t", 0, None)] * 2
    assert told == [1]


RUN_ALONE = "strandline.persist.backends.postgres.backend.run_alone"
REDACTING: Sequence[Write] = [Append("s", "t", 0, 1), Redact("s", 1, [])]


def test_a_redaction_whose_answer_is_lost_is_repeated_if_it_has_a_key(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-DUR-9, P-BKD-10
    b.commit([], [Append("s", "t", 0, 0)])
    monkeypatch.setattr(RUN_ALONE, losing(run_alone, answers=1))

    outcome, repeat = [b.commit([], REDACTING, once=("s", "key")) for _ in range(2)]

    assert outcome == repeat == [Event("s", 2, "t", 0, 1)]
    assert [type(outcome), type(repeat)] == [list, Repeated]
    assert b.last_seq("s") == 2


@pytest.mark.parametrize(("once", "answers"), [(None, 1), (("s", "key"), 2)])
def test_a_redaction_whose_answer_stays_lost_has_an_unknown_outcome(
    b: PostgresBackend, monkeypatch: pytest.MonkeyPatch, once: Any, answers: int
) -> None:  # P-DUR-9
    b.commit([], [Append("s", "t", 0, 0)])
    monkeypatch.setattr(RUN_ALONE, losing(run_alone, answers=answers))

    with pytest.raises(OutcomeUnknown) as caught:
        b.commit([], REDACTING, once=once)

    assert caught.value.once == once
    assert b.last_seq("s") == 2


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
