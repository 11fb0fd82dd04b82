"""Damage to the SQLite store: what is noticed, named and set aside."""

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from strandline.errors import (
    CorruptionError,
    EventCorrupt,
    HistoryGap,
    NotFoundError,
    StoreUnavailable,
)
from strandline.persist import (
    Damage,
    Event,
    MoveCursor,
    ProjectionState,
    append,
    append_batch,
    append_once,
    backup,
    checkpoint,
    commit,
    consumer,
    count,
    events,
    kv_get,
    kv_put,
    last_seq,
    poll,
    project,
    quarantine,
    read,
    read_global,
    stats,
    streams,
    truncate_through,
    verify,
)
from strandline.persist.backends.sqlite import SqliteBackend, file
from strandline.persist.backends.sqlite.file import APPLICATION_ID
from tests.persist.backends.sqlite.behind import edit, fill, flip, mark_of, place, raw


def total(value: int, event: Event) -> int:
    return value + int(event.data["n"])


def test_a_flipped_bit_in_an_event_is_noticed_and_named_and_never_returned(path: Path) -> None:  # P-INT-2
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 40, size=1000)
        fill(b, "t", 40, size=1000)
    flip(path, mark_of("s", 17))

    with closing(SqliteBackend(path)) as b:
        with pytest.raises(EventCorrupt) as found:
            read(b, "s")
        assert found.value.stream == "s"
        first = found.value.seq
        assert first is not None
        assert 17 - 4 <= first <= 17, "the first event on the damaged page"
        with pytest.raises(EventCorrupt) as exact:
            b.event_at("s", 17)
        assert (exact.value.stream, exact.value.seq) == ("s", 17)
        with pytest.raises(EventCorrupt):
            project(b, "s", total, 0)
        with pytest.raises(EventCorrupt):
            list(events(b, "s", type="added", first=17))
        with pytest.raises(EventCorrupt):
            list(events(b, "s", start=17, end=17))
        assert [event.seq for event in events(b, "s", last=first - 1)] == [*range(1, first)]
        assert len(read(b, "t")) == 40
        assert [damage[:3] for damage in verify(b) if damage.what != "file"] == [("event", "s", 17)]


@pytest.mark.parametrize("seq", [1, 20, 40])
def test_a_flipped_bit_anywhere_in_a_row_is_found_by_verify(path: Path, seq: int) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 40, size=6000)  # with overflow pages
    flip(path, mark_of("s", seq))

    with closing(SqliteBackend(path)) as b:
        with pytest.raises(EventCorrupt, match=f"event {seq} of stream 's'"):
            b.event_at("s", seq)
        assert ("event", "s", seq) in [damage[:3] for damage in verify(b)]


def test_every_page_of_the_file_is_checked(path: Path) -> None:  # P-INT-2
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 60, size=300)
        for n in range(30):
            kv_put(b, f"k{n}", {"n": n, "text": "x" * 300})
            append(b, "g", "t", n, {"n": n}, globally=True)
        expected = seen(b)
    sound = path.read_bytes()
    page_size = int.from_bytes(sound[16:18], "big")

    for page in range(1, len(sound) // page_size):
        damaged = bytearray(sound)
        damaged[page * page_size + page_size // 2] ^= 0x10
        path.write_bytes(damaged)
        try:
            b = SqliteBackend(path)
        except CorruptionError:
            continue  # what every use needs: the lineage, the schema
        with closing(b):
            try:
                found = seen(b)
            except CorruptionError:
                assert any(verify(b)), f"a damaged page {page} is noticed by a read, but not by verify"
            else:
                assert found == expected, f"a damaged page {page} changed what is read"


def seen(b: SqliteBackend) -> Any:
    return (
        [read(b, name) for name in streams(b)],
        [kv_get(b, f"k{n}") for n in range(30)],
        read_global(b),
        list(events(b, "s", type="added")),
        list(events(b, "s", start=10, end=20)),
        stats(b)["events"],
    )


def test_verify_of_a_sound_store_finds_nothing(b: SqliteBackend) -> None:  # P-INT-3
    fill(b, "s", 2000)
    append(b, "g", "t", "noon", {"n": 1}, globally=True)
    append_once(b, "s", "key", "t", 1.5, {"n": 1})
    kv_put(b, "k", {"$x": 2**70})
    checkpoint(b, "g", "snap", total, 0)
    truncate_through(b, "s", 1500)

    assert verify(b) == []


SWAP = """
    UPDATE events SET id = -1 WHERE id = :s7;
    UPDATE events SET id = :s7 WHERE id = :s8;
    UPDATE events SET id = :s8 WHERE id = -1;
"""
EDITS: dict[str, tuple[str, list[tuple[str, str, int]]]] = {
    "the data of an event": (
        "UPDATE events SET data = replace(data, '000007', '000077') WHERE id = :s7",
        [("event", "s", 7)],
    ),
    "the at of an event": ("UPDATE events SET at = at + 1 WHERE id = :s7", [("event", "s", 7)]),
    "the kind of an at": ("UPDATE events SET at = 7.0 WHERE id = :s7", [("event", "s", 7)]),
    "an at as text": ("UPDATE events SET at = '7' WHERE id = :s7", [("event", "s", 7)]),
    "the type of an event": (
        "UPDATE events SET type = (SELECT id FROM types WHERE name = 'other') WHERE id = :s7",
        [("event", "s", 7)],
    ),
    "a type without a name": ("UPDATE events SET type = 999 WHERE id = :s7", [("event", "s", 7)]),
    "data that is no text": ("UPDATE events SET data = x'ff00fe' WHERE id = :s7", [("event", "s", 7)]),
    "data that is a number": ("UPDATE events SET data = 12 WHERE id = :s7", [("event", "s", 7)]),
    "a checksum": ("UPDATE events SET sum = sum + 1 WHERE id = :s7", [("event", "s", 7)]),
    "two events swapped": (
        SWAP,
        [("event", "s", 7), ("event", "s", 8)],
    ),
    "a missing event": ("DELETE FROM events WHERE id = :s7", [("event", "s", 7)]),
    "two missing events": ("DELETE FROM events WHERE id IN (:s7, :s8)", [("event", "s", 7)]),
    "the last event missing": ("DELETE FROM events WHERE id = :s7 + 3", [("event", "s", 10)]),
    "the first event missing": ("DELETE FROM events WHERE id = :s7 - 6", [("event", "s", 1)]),
    "a mark that went back": (
        "UPDATE streams SET mark = 8 WHERE name = 's'",
        [("mark", "s", 8), ("mark", "s", 8)],
    ),
    "a mark that went ahead": ("UPDATE streams SET mark = 11 WHERE name = 's'", [("event", "s", 11)]),
    "a truncation point above the mark": (
        "UPDATE streams SET truncated = 99, swept = 99 WHERE name = 's'",
        [("mark", "s", 10)],
    ),
    "the value of a key": ("UPDATE keys SET value = '2' WHERE name = 'k'", [("key", "k", 0)]),
    "a value that is no text": ("UPDATE keys SET value = x'ff' WHERE name = 'k'", [("key", "k", 0)]),
    "the name of a key": ("UPDATE keys SET name = 'l' WHERE name = 'k'", [("key", "l", 0)]),
    "a marker": (
        "UPDATE keys SET value = replace(value, 'digest', 'Digest') WHERE name = '$once/s/key'",
        [("marker", "$once/s/key", 0)],
    ),
    "a snapshot": (
        "UPDATE keys SET value = replace(value, 'snap', 'Snap') WHERE name = '$snapshot/snap'",
        [("key", "$snapshot/snap", 0)],
    ),
    "what a pointer names": (
        "UPDATE pointers SET event = event - 1 WHERE position = 2",
        [("pointer", "$global", 2)],
    ),
    "the stream of a pointer": (
        "UPDATE pointers SET event = 5 WHERE position = 2",
        [("pointer", "$global", 2)],
    ),
    "the at of a pointer": ("UPDATE pointers SET at = 'now' WHERE position = 2", [("pointer", "$global", 2)]),
    "a missing pointer": ("DELETE FROM pointers WHERE position = 2", [("event", "$global", 2)]),
    "the last pointer of a run": (
        "UPDATE pointers SET event = event - 1 WHERE position = 8",
        [("event", "$global", 4), ("pointer", "$global", 8)],
    ),
    "the length of a run": (
        "UPDATE pointers SET sum = sum - 1 WHERE position = 8",
        [("event", "$global", 4), ("pointer", "$global", 8)],
    ),
    "a missing run": ("DELETE FROM pointers WHERE position = 8", [("event", "$global", 4)]),
    "a pointer before a run": ("DELETE FROM pointers WHERE position = 3", [("event", "$global", 3)]),
    "a pointer above the mark": (
        "UPDATE streams SET mark = 7 WHERE name = '$global'",
        [("mark", "$global", 7)],
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_verify_names_what_was_changed_behind_its_back(name: str, path: Path) -> None:  # P-INT-1, P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 9)
        append_once(b, "s", "key", "other", 10, {"n": 10})
        for n in range(3):
            append(b, "g", "t", n, {"n": n}, globally=True)
        append_batch(b, "g", [("t", 9, {"n": n}) for n in range(5)], globally=True)
        kv_put(b, "k", 1)
        checkpoint(b, "g", "snap", total, 0)
        s7 = place(b, "s", 7)
    statement, expected = EDITS[name]
    with raw(path) as connection:
        connection.execute(statement, {"s7": s7, "s8": s7 + 1})
        assert connection.changes() > 0

    with closing(SqliteBackend(path)) as b:
        found = verify(b)
        assert [damage[:3] for damage in found] == expected
        assert all(isinstance(damage, Damage) and damage.found for damage in found)
        with pytest.raises(CorruptionError):  # P-OPS-2
            backup(b, path.with_name("backup.db"))

    assert not path.with_name("backup.db").exists()
    assert [entry.name for entry in path.parent.iterdir() if "partial" in entry.name] == []


def test_verify_names_every_one_of_many(path: Path) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 300)
        fill(b, "t", 300)
        s0, t0 = place(b, "s", 0), place(b, "t", 0)
    edit(path, "UPDATE events SET at = -1 WHERE id % 7 = 0 AND id BETWEEN ? AND ?", s0, s0 + 300)
    edit(path, "DELETE FROM events WHERE id IN (?, ?, ?)", t0 + 5, t0 + 100, t0 + 101)

    with closing(SqliteBackend(path)) as b:
        found = [(damage.name, damage.seq) for damage in verify(b)]

    changed = [("s", seq) for seq in range(1, 301) if (s0 + seq) % 7 == 0]
    assert found == [*changed, ("t", 5), ("t", 100)]


def test_quarantine_leaves_a_gap_that_reads_pass_and_folds_do_not(path: Path) -> None:  # P-INT-3, P-PRJ-9
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 10, size=500)
    flip(path, mark_of("s", 4))

    with closing(SqliteBackend(path)) as b:
        with pytest.raises(EventCorrupt):
            read(b, "s")
        quarantine(b, "s", 4, 99)

        assert [event.seq for event in read(b, "s")] == [1, 2, 3, 5, 6, 7, 8, 9, 10]
        assert (count(b, "s"), last_seq(b, "s"), b.event_at("s", 4)) == (9, 10, None)
        with pytest.raises(HistoryGap) as gap:
            project(b, "s", total, 0)
        assert gap.value.truncated_through == 4
        assert project(b, "s", total, 0, allow_gap=True) == ProjectionState(55 - 4, 10)
        c = consumer(b, "c", "s")
        assert [event.seq for event in poll(c)] == [1, 2, 3]
        commit(b, [], [MoveCursor(c, 3)])
        with pytest.raises(HistoryGap):
            poll(c)
        for _ in range(2):
            assert [damage[:3] for damage in verify(b)] == [("quarantined", "s", 4)]
        kept = kv_get(b, "$quarantine/s/00000000000000000004")
        assert bytes.fromhex(kept["raw"][2]).count(b"x" * 500) == 1
        assert read(b, "$quarantined")[0].data == {"stream": "s", "seq": 4}
        assert append(b, "s", "t", 1, {"n": 11}).seq == 11
        truncate_through(b, "s", 4)
        assert (verify(b), count(b, "s")) == ([], 7)


def test_quarantine_of_what_is_not_there_is_not_found(b: SqliteBackend) -> None:  # P-INT-3
    append(b, "s", "t", 1, 1)

    for stream, seq in (("s", 2), ("never", 1)):
        with pytest.raises(NotFoundError):
            quarantine(b, stream, seq, 1)

    assert verify(b) == []
    assert streams(b) == ["s"]


def test_a_store_without_page_checksums_is_refused(path: Path) -> None:  # P-INT-2
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute(file._migrations()[0])
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.execute("INSERT INTO meta VALUES ('lineage', 'abc')")
    connection.close()

    with pytest.raises(StoreUnavailable, match="no page checksums"):
        SqliteBackend(path)
