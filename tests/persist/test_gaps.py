"""Events that are missing or in another's place: readers of all events raise."""

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner

from strandline.cli import cli
from strandline.errors import NotFoundError
from strandline.persist import (
    AtomicBackend,
    Compacted,
    EventCorrupt,
    HistoryGap,
    ProjectionState,
    ack,
    append,
    append_batch,
    checkpoint,
    compact,
    consumer,
    events,
    gappend,
    global_events,
    global_log,
    global_pos,
    global_trim,
    poll,
    project,
    project_global,
    project_resume,
    quarantine,
    read,
    read_between,
    read_by_type,
    read_from,
    read_global,
    read_where,
    replay,
    truncate_through,
    verify,
)
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.reserved import GLOBAL
from tests.persist.backends.sqlite.behind import edit, fill, mark_of, place

PAGE_BYTES = 4096


class Store(NamedTuple):
    b: AtomicBackend
    lose: Callable[[str, int], object]  # an event's row
    lose_position: Callable[[int], object]  # a pointer's row


def added(value: int, event: Any) -> int:
    return value + int(event.data)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        memory = MemoryBackend()

        def pop(stream: str, seq: int) -> object:
            return memory._streams[stream].rows.pop(seq)

        yield Store(memory, pop, partial(pop, GLOBAL))
    elif request.param == "sqlite":
        with closing(SqliteBackend(tmp_path / "store.db")) as sqlite:
            delete = "DELETE FROM events WHERE id = ?"
            lost = "DELETE FROM pointers WHERE position = ?"
            yield Store(
                sqlite,
                lambda stream, seq: edit(sqlite._path, delete, place(sqlite, stream, seq)),
                lambda position: edit(sqlite._path, lost, position),
            )
    else:
        url, schema = request.getfixturevalue("postgres_url"), f"t{uuid4().hex[:16]}"
        delete = f"""delete from "{schema}".event where seq = %s
            and stream_id = (select id from "{schema}".stream where name = %s)"""
        with (
            psycopg.connect(url, autocommit=True) as beside,
            closing(PostgresBackend(url, schema=schema)) as postgres,
        ):
            lost = f'delete from "{schema}".pointer where position = %s'
            yield Store(
                postgres,
                lambda stream, seq: beside.execute(delete.encode(), (seq, stream)),
                lambda position: beside.execute(lost.encode(), (position,)),
            )
            postgres.close()
            beside.execute(f'drop schema "{schema}" cascade'.encode())


@pytest.mark.parametrize("lost", [1, 4, 7])
def test_a_reader_of_all_events_raises_for_one_that_is_missing(
    store: Store, lost: int
) -> None:  # P-LOG-4, P-LOG-13, P-PRJ-9
    b = store.b
    for n in range(1, 8):
        append(b, "s", "t", n, n)
    c = consumer(b, "mailer", "s")
    store.lose("s", lost)

    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: read(b, "s"),
        "read_from": lambda: read_from(b, "s", lost),
        "read_between": lambda: read_between(b, "s", 1, 7),
        "one": lambda: read_between(b, "s", lost, lost),
        "read_where": lambda: read_where(b, "s", lambda event: event.seq > 2),
        "events": lambda: list(events(b, "s", limit=7)),
        "project": lambda: project(b, "s", added, 0),
        "allow_gap": lambda: project(b, "s", added, 0, allow_gap=True),
        "replay": lambda: replay(b, "s", "total", added, 0),
        "compact": lambda: compact(b, "s", "total", added, 0),
        "poll": lambda: [ack(c, event.seq) for _ in range(3) for event in poll(c)],
    }
    for call in calls.values():
        with pytest.raises(EventCorrupt, match=f"event {lost} of stream 's' is damaged: it is missing"):
            call()
    assert b.truncated_through("s") == 0, "nothing was compacted"
    assert [event.seq for event in read_by_type(b, "s", "t")] == [n for n in range(1, 8) if n != lost]


def test_an_event_that_is_missing_can_be_set_aside(store: Store) -> None:  # P-INT-3
    b = store.b
    for n in range(1, 5):
        append(b, "s", "t", n, n)
    store.lose("s", 3)
    with pytest.raises(EventCorrupt):
        read(b, "s")

    quarantine(b, "s", 3, 1)

    assert [event.seq for event in read(b, "s")] == [1, 2, 4]
    assert [(damage.what, damage.seq) for damage in verify(b)] == [("quarantined", 3)]
    with pytest.raises(HistoryGap):
        project(b, "s", added, 0)
    for stream, seq in (("s", 3), ("s", 5), (GLOBAL, 1), ("none", 1)):
        with pytest.raises(NotFoundError):
            quarantine(b, stream, seq, 2)


def test_the_global_order_raises_for_an_event_that_is_missing(store: Store) -> None:  # P-GLB-5, P-GLB-9
    b = store.b
    for n in range(1, 8):
        gappend(b, "s", "t", n, n)
    c = consumer(b, "mailer", GLOBAL)
    truncate_through(b, "s", 2)
    quarantine(b, "s", 4, 1)
    gone = [Compacted("s", seq) for seq in (1, 2, 4)]
    assert [event for event in read_global(b) if isinstance(event, Compacted)] == gone

    store.lose("s", 6)

    for call in (
        lambda: read_global(b),
        lambda: project_global(b, added, 0, skip_compacted=True),
        lambda: poll(c),
    ):
        with pytest.raises(EventCorrupt, match="event 6 of stream 's' is damaged: it is missing"):
            call()
    quarantine(b, "s", 6, 1)
    assert read_global(b)[5] == Compacted("s", 6)


def test_what_was_truncated_or_set_aside_is_not_missing(store: Store) -> None:  # P-INT-3, P-LOG-13
    b = store.b
    for n in range(1, 10):
        append(b, "s", "t", n, n)
    truncate_through(b, "s", 2)
    for seq in (4, 5, 9):
        quarantine(b, "s", seq, 1)
        with pytest.raises(NotFoundError):
            quarantine(b, "s", seq, 2)

    assert [event.seq for event in read(b, "s")] == [3, 6, 7, 8]
    assert [event.seq for event in read_from(b, "s", 5)] == [6, 7, 8]
    assert [event.seq for event in read_between(b, "s", 4, 5)] == []
    assert read_from(b, "s", 12) == []
    assert read_between(b, "s", 7, 3) == []
    assert read(b, "none") == []
    with pytest.raises(HistoryGap) as gap:
        project_resume(b, "s", added, ProjectionState(0, 2))
    assert (gap.value.prior_seq, gap.value.truncated_through) == (2, 5)
    quarantine(b, "s", 3, 1)
    truncate_through(b, "s", 5)
    assert [event.seq for event in read(b, "s")] == [6, 7, 8]
    assert append(b, "s", "t", 10, 10).seq == 10
    assert [event.seq for event in read(b, "s")] == [6, 7, 8, 10]


def test_a_reader_that_a_truncation_overtakes_raises_history_gap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-13
    monkeypatch.setattr("strandline.persist.features.log.PAGE", 2)
    b = store.b
    for n in range(1, 10):
        append(b, "s", "t", n, n)
    reader = events(b, "s")
    assert next(reader).seq == 1

    truncate_through(b, "s", 9)

    assert next(reader).seq == 2
    with pytest.raises(HistoryGap) as gap:
        next(reader)
    assert (gap.value.prior_seq, gap.value.truncated_through) == (2, 9)


@pytest.mark.parametrize("damage", ["swapped", "doubled"])
def test_pages_in_each_others_place_are_never_folded(damage: str, tmp_path: Path) -> None:  # P-PRJ-1, P-PRJ-9
    path = tmp_path / "store.db"
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 300, size=20)
        checkpoint(b, "s", "before", lambda n, event: n + event.data["n"], 0)
    one, other = leaves(path, "s", 300)[1:3]
    misplace(path, one, other, damage)

    with closing(SqliteBackend(path)) as b:
        for call in (
            lambda: read(b, "s"),
            lambda: project(b, "s", lambda n, event: n + event.data["n"], 0),
            lambda: compact(b, "s", "total", lambda n, event: n + event.data["n"], 0),
        ):
            with pytest.raises(EventCorrupt):
                call()
        assert b.truncated_through("s") == 0


def leaves(path: Path, stream: str, n: int) -> list[int]:
    """The numbers of the pages that hold the events of a stream, in order."""
    content = path.read_bytes()
    found = {content.index(mark_of(stream, seq)) // PAGE_BYTES: None for seq in range(1, n + 1)}
    return list(found)


def misplace(path: Path, one: int, other: int, damage: str) -> None:
    """Write one page of the closed file over another, or let the two change places; checksums stay right."""
    content = bytearray(path.read_bytes())
    first, second = (slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES) for page in (one, other))
    kept = content[first]
    content[first] = content[second]
    if damage == "swapped":
        content[second] = kept
    path.write_bytes(content)


def test_an_event_above_the_mark_is_not_read(tmp_path: Path) -> None:  # P-LOG-4
    with closing(SqliteBackend(tmp_path / "store.db")) as b:
        fill(b, "s", 8)
        edit(b._path, "UPDATE streams SET mark = 5 WHERE name = 's'")

        with pytest.raises(EventCorrupt, match="above the mark of the stream, which is 5"):
            read(b, "s")


@pytest.mark.parametrize("lost", [1, 4, 7])
def test_the_global_order_raises_for_a_position_that_is_missing(
    store: Store, lost: int
) -> None:  # P-GLB-4, P-GLB-5, P-GLB-9
    b = store.b
    for n in range(1, 8):
        gappend(b, f"g{n % 2}", "t", n, n)
    assert global_pos(b) == 7
    c = consumer(b, "mailer", GLOBAL)
    store.lose_position(lost)

    calls: dict[str, Callable[[], Any]] = {
        "read_global": lambda: read_global(b),
        "global_events": lambda: list(global_events(b, first=lost)),
        "global_log": lambda: global_log(b),
        "project_global": lambda: project_global(b, added, 0),
        "skip_compacted": lambda: project_global(b, added, 0, skip_compacted=True),
        "poll": lambda: [ack(c, position) for _ in range(3) for position, _ in poll(c)],
    }
    for call in calls.values():
        with pytest.raises(EventCorrupt, match=f"event {lost} of stream '.global' is damaged: it is missing"):
            call()


def test_a_position_that_was_trimmed_is_not_missing(store: Store) -> None:  # P-GLB-11
    b = store.b
    for n in range(1, 8):
        gappend(b, f"g{n % 2}", "t", n, n)
    c = consumer(b, "mailer", GLOBAL, start=3)
    global_trim(b, 3)

    assert [position for position, _ in global_events(b, first=4)] == [4, 5, 6, 7]
    assert [position for position, _ in poll(c)] == [4, 5, 6, 7]
    assert list(global_events(b, first=8)) == list(global_events(b, first=100)) == []
    with pytest.raises(HistoryGap) as gap:
        read_global(b)
    assert (gap.value.prior_seq, gap.value.truncated_through) == (0, 3)
    ack(c, 7)
    global_trim(b, 7)
    with pytest.raises(HistoryGap):
        list(global_events(b, first=7))
    assert list(global_events(b, first=8)) == []


@pytest.mark.parametrize("first", range(1, 13))
def test_a_run_that_is_lost_between_others_is_missing(first: int, tmp_path: Path) -> None:  # P-GLB-9
    with closing(SqliteBackend(tmp_path / "store.db")) as b:
        for stream in "abcd":
            append_batch(b, stream, [("t", 1, n) for n in range(3)], globally=True)
        before = list(b.global_range(first, limit=2))
        assert [position for position, _ in before] == list(range(first, min(first + 2, 13)))
        edit(b._path, "DELETE FROM pointers WHERE position = 6")

        with pytest.raises(EventCorrupt) if first <= 6 else nullcontext():
            assert len(list(global_events(b, first=first))) == 13 - first
        with pytest.raises(EventCorrupt) if first <= 6 else nullcontext():
            assert len(list(b.read_range(GLOBAL, first, 12, limit=100))) == 13 - first


@pytest.mark.parametrize("what", ["s", "--global"])
def test_a_follower_on_the_command_line_raises_for_what_is_missing(
    what: str, tmp_path: Path
) -> None:  # P-GLB-9
    path = tmp_path / "store.db"
    with closing(SqliteBackend(path)) as b:
        for n in range(1, 5):
            gappend(b, "s", "t", n, n)
        table, number = ("pointers", 3) if what == "--global" else ("events", place(b, "s", 3))
        key = "position" if what == "--global" else "id"
        edit(path, f"DELETE FROM {table} WHERE {key} = ?", number)

    ended = CliRunner().invoke(cli, ["persist", "follow", what, "--store", str(path), "--limit", "9"])

    assert (ended.exit_code, "3 of stream" in ended.stderr) == (1, True)
