"""Damage in a Postgres store, and moving, sweeping, rewriting and describing it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from strandline.errors import EventCorrupt, NotFoundError, UsageError
from strandline.persist import erase_stream, mem_backend, redact
from strandline.persist.audit import audit
from strandline.persist.backend import Append, Damage, ExpectSeq, Put, Truncate
from strandline.persist.backends.postgres import PostgresBackend, sweep
from strandline.persist.event import Compacted, Conflict, Event
from tests.persist.backends.postgres.beside import Opened, contents

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
