"""A batch stands in line for the global order as runs, and comes out of it event by event."""

from contextlib import closing
from typing import Any

import psycopg
import pytest

from strandline.errors import StoreUnavailable
from strandline.persist.backend import Append, Put
from strandline.persist.backends.postgres import PostgresBackend, backend, portable, transaction
from strandline.persist.backends.postgres import schema as schema_module
from strandline.persist.core.block import pointer_sum
from tests.conftest import as_any
from tests.persist.backends.postgres.beside import Opened


def ordered(b: PostgresBackend) -> list[Any]:
    found: list[Any] = []
    while page := list(b.global_range(len(found) + 1, limit=1000)):
        found += [(place, as_any(event).data) for place, event in page]
    return found


@pytest.mark.parametrize("a_pass", [1, 7, 10_000])
def test_runs_are_taken_apart_in_order(
    opened: Opened, sql: Any, a_pass: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-GLB-1, P-GLB-2
    monkeypatch.setattr(backend, "POSITIONS_A_PASS", a_pass)
    monkeypatch.setattr(transaction, "POSITIONS_A_PASS", a_pass)
    b = opened()
    writes = [Append("s", "t", n // 1500, n, globally=True) for n in range(2500)]
    writes += [Append("s", "t", "noon", n, globally=n % 5 != 0) for n in range(2500, 2520)]
    b.commit([], writes)
    b.commit([], [Append("other", "t", 1, 0, globally=True)])

    runs = [count for (count,) in sql("select count from in_line order by id")]
    assert runs == [1000, 500, 1000, 4, 4, 4, 4, 1]

    expected = [*(write.data for write in writes if write.globally), 0]
    assert [data for _, data in ordered(b)] == expected
    assert b.last_seq("$global") == len(expected)
    assert b.verify() == []


def test_one_is_one_and_1_is_not_1_0(opened: Opened, sql: Any) -> None:  # P-GLB-2
    b = opened()
    ats: list[Any] = [1, 1, 1.0, 1.0, -0.0, 0.0, "1", "1"]
    b.commit([], [Append("s", "t", at, n, globally=True) for n, at in enumerate(ats)])

    assert sql("select seq, count from in_line order by id") == [(1, 2), (3, 2), (5, 1), (6, 1), (7, 2)]
    assert ordered(b) == [(n + 1, n) for n in range(8)]
    assert [repr(event.at) for event in b.read_range("$global", 1, 99, limit=99)] == [*map(repr, ats)]


def test_what_waits_in_line_is_dumped_in_its_place(opened: Opened, sql: Any) -> None:  # P-OPS-1
    b = opened()
    b.commit([], [Append("s", "t", 1, n, globally=True) for n in range(5)])

    waiting = list(portable.dump(b._pool.connect, lambda: None))
    assert sql("select count from in_line") == [(5,)]
    pointers = [record.body[:3] for record in waiting if record.kind == "pointer"]
    assert pointers == [(n, "s", n) for n in range(1, 6)]
    assert waiting == list(b.dump())


def test_a_store_of_format_1_is_brought_to_this_one(
    opened: Opened, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-3
    first = [each for each in schema_module.migrations() if each[0] == 1]
    with monkeypatch.context() as patch:
        patch.setattr(schema_module, "migrations", lambda: first)
        with closing(opened()) as old:
            assert sql("select value from meta where name = 'format'") == [("1",)]
            with pytest.raises(StoreUnavailable):
                old.commit([], [Append("s", "t", 1, n, globally=True) for n in range(2)])
            old.commit([], [Append("s", "t", 1, 0), Put("k", 1)])
    in_line = "insert into queue (stream_id, seq, crc, at_int) select id, 1, %s, 1 from stream where id > 0"
    sql(in_line, pointer_sum(0, "s", 0, 1))

    b = opened()
    b.commit([], [Append("s", "t", 1, n, globally=True) for n in (1, 2)])

    with pytest.raises(psycopg.errors.UndefinedTable):  # what an older version would do from now on
        sql(in_line, 1)
    assert b.info()["format"] == 2
    assert ordered(b) == [(1, 0), (2, 1), (3, 2)]
    assert b.verify() == []
