"""The SQLite store as a file: what it refuses to open, what it notices, what it leaves, and who shares it."""

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import (
    CorruptionError,
    EventCorrupt,
    HistoryGap,
    LineageMismatch,
    NotFoundError,
    OutcomeUnknown,
    StoreUnavailable,
    StrandlineError,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist import (
    Append,
    Damage,
    Delete,
    Event,
    ExpectSeq,
    MoveCursor,
    ProjectionState,
    Put,
    Redact,
    Truncate,
    append,
    append_batch,
    append_once,
    backup,
    checkpoint,
    commit,
    consumer,
    count,
    erase_stream,
    events,
    global_events,
    global_trim,
    is_conflict,
    kv_get,
    kv_put,
    last_seq,
    mem_backend,
    open_store,
    poll,
    project,
    quarantine,
    read,
    read_global,
    redact,
    restore,
    stats,
    streams,
    truncate_through,
    verify,
)
from strandline.persist.backend import AtomicBackend, Portable
from strandline.persist.backends import sqlite, sqlite_file, sqlite_read
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.backends.sqlite_file import APPLICATION_ID, connect, refuse_affected_library
from strandline.persist.backends.sqlite_transaction import SEQ_BITS, SEQ_MASK
from strandline.persist.prepare import prepare
from tests.conftest import as_any

WAIT_S = 30
GROUP = [("old", "old"), ("new", "new"), ("new", "new"), ("other", "new")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def b(path: Path) -> Iterator[SqliteBackend]:
    with closing(SqliteBackend(path)) as opened:
        yield opened


@contextmanager
def raw(path: Path, *, page_check: bool = True) -> Iterator[apsw.Connection]:
    """A connection behind the backend's back; it keeps the page checksums right, as a program would."""
    connection = connect(path, synchronous="FULL", busy_timeout_s=WAIT_S)
    if not page_check:
        connection.pragma("checksum_verification", "off")
    try:
        yield connection
    finally:
        connection.close()


def edit(path: Path, statement: str, *bindings: Any) -> None:
    with raw(path) as connection:
        connection.execute(statement, bindings)
        assert connection.changes() > 0, "the statement changed nothing"


def place(b: SqliteBackend, stream: str, seq: int) -> int:
    """The id of an event's row."""
    with raw(b._path) as connection:
        id_ = connection.execute("SELECT id FROM streams WHERE name = ?", (stream,)).get
    return int((id_ << SEQ_BITS) + seq)


def flip(path: Path, marker: bytes) -> None:
    """Change one bit of the closed file, in the one place where `marker` is."""
    content = bytearray(path.read_bytes())
    assert content.count(marker) == 1
    content[content.index(marker) + 3] ^= 0x04
    path.write_bytes(content)


def fill(b: SqliteBackend, stream: str, n: int, *, size: int = 0) -> None:
    append_batch(
        b,
        stream,
        [("added", i, {"n": i, "text": f"<{stream}-{i:06}>" + "x" * size}) for i in range(1, n + 1)],
    )


def mark_of(stream: str, seq: int) -> bytes:
    return f"<{stream}-{seq:06}>".encode()


def total(value: int, event: Event) -> int:
    return value + int(event.data["n"])


# Opening


@pytest.mark.parametrize("version", ["3.7.0", "3.37.2", "3.50.4", "3.51.2"])
def test_a_library_that_can_corrupt_a_store_is_refused(version: str) -> None:
    with pytest.raises(StoreUnavailable, match=version) as refused:
        refuse_affected_library(version)

    assert "pip install -U apsw" in str(refused.value.hint)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.54.1", "4.0.0"])
def test_a_sound_library_is_taken(version: str) -> None:
    refuse_affected_library(version)


def test_opening_asks_which_library_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_LEAST_LIBRARY", (99, 0, 0))

    with pytest.raises(StoreUnavailable, match="can corrupt a store"):
        SqliteBackend(path)

    assert not path.exists()


def make_foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (n)")
    connection.commit()
    connection.close()


def make_foreign_with_a_version(path: Path) -> None:
    make_foreign(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a text": lambda path: path.write_text("dear diary\n" * 1000),
    "a short text": lambda path: path.write_text("hello"),
    "random bytes": lambda path: path.write_bytes(os.urandom(8192)),
    "a SQLite file of somebody else": make_foreign,
    "a SQLite file of somebody else with a version": make_foreign_with_a_version,
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}], ids=str)
def test_what_is_no_store_is_refused_and_left_as_it_is(
    kind: str, options: dict[str, Any], path: Path
) -> None:
    FOREIGN[kind](path)
    before = path.read_bytes() if path.is_file() else None

    with pytest.raises(UsageError) as refused:
        SqliteBackend(path, **options)

    assert str(path) in refused.value.message
    assert refused.value.hint
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=str)
def test_a_store_that_is_not_there_is_not_made(options: dict[str, Any], tmp_path: Path) -> None:  # P-API-4
    with pytest.raises(NotFoundError, match="there is no store"):
        SqliteBackend(tmp_path / "folder" / "store.db", **options)

    assert list(tmp_path.iterdir()) == []


def test_the_folders_above_a_new_store_are_made(tmp_path: Path) -> None:  # P-API-4
    with closing(open_store(f"sqlite:///{tmp_path}/a/b/store.db")) as b:
        append(b, "s", "t", 1, 1)

    assert (tmp_path / "a" / "b" / "store.db").is_file()


def test_a_store_below_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        SqliteBackend(tmp_path / "file" / "store.db")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format_is_refused(path: Path, read_only: bool) -> None:  # P-OPS-3
    SqliteBackend(path).close()
    with raw(path) as connection:
        connection.pragma("user_version", 99)

    with pytest.raises(UnsupportedFormat, match="format 99, this version knows up to"):
        SqliteBackend(path, read_only=read_only)


def with_migrations(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> int:
    known = sqlite_file._migrations()
    monkeypatch.setattr(sqlite_file, "_migrations", lambda: [*known, *scripts])
    return len(known)


def test_an_older_format_is_upgraded_on_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # P-OPS-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 5)
        lineage = b.info()["lineage"]
    old = with_migrations(
        monkeypatch,
        "CREATE TABLE counted (n); INSERT INTO counted SELECT count(*) FROM events;",
        "CREATE TABLE later (n);",
    )

    with closing(SqliteBackend(path)) as b:
        assert (b.info()["format"], b.info()["lineage"]) == (old + 2, lineage)
        assert len(read(b, "s")) == 5
        append(b, "s", "t", 1, 1)
    with raw(path) as connection:
        assert connection.execute("SELECT n FROM counted").get == 5
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat):
        SqliteBackend(path)


def test_an_upgrade_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 5)
    with_migrations(monkeypatch, "CREATE TABLE fine (n);", "INSERT INTO missing VALUES (1);")

    with pytest.raises(apsw.SQLError):
        SqliteBackend(path)

    monkeypatch.undo()
    with closing(SqliteBackend(path)) as b:
        assert len(read(b, "s")) == 5
    with raw(path) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'fine'").get == 0


def test_pointers_of_the_first_format_are_runs_of_one(path: Path) -> None:  # P-OPS-3, P-GLB-2
    with closing(SqliteBackend(path)) as b:
        for n in range(3):
            append(b, "s", "t", 1, {"n": n}, globally=True)
        before = read_global(b)
    with raw(path) as connection:
        connection.pragma("user_version", 1)

    with closing(SqliteBackend(path, read_only=True)) as b:
        assert (read_global(b), b.info()["format"]) == (before, 1)
    with closing(SqliteBackend(path)) as b:
        append_batch(b, "s", [("t", 1, {"n": 3}), ("t", 1, {"n": 4})], globally=True)
        assert [as_any(event).data["n"] for event in read_global(b)] == [0, 1, 2, 3, 4]
        assert (b.info()["format"], verify(b)) == (2, [])


def test_a_batch_of_one_time_is_one_row_of_the_global_order(path: Path) -> None:  # P-GLB-2, P-GLB-9, P-GLB-11
    def filled(b: AtomicBackend) -> None:
        for n in range(4):
            kept = [Append("a", "t", 7, {"n": n, "i": i}, globally=True) for i in range(4)]
            apart = [Append("b", "t", i, {"n": n, "i": i}, globally=i % 2 == 0) for i in range(4)]
            commit(b, [], [*kept, *apart])
        b.truncate_through("a", 6)
        b.truncate_through("$global", 2)

    with closing(SqliteBackend(path)) as b:
        filled(b)
        filled(model := mem_backend())
        assert rows_of(path, "pointers") == 4 * 3
        for first, limit in product(range(26), (1, 2, 3, 5, 100)):
            assert [*b.global_range(first, limit=limit)] == [*model.global_range(first, limit=limit)]
            for start, end in ((None, None), (7, 7), (None, 2)):
                found, wanted = (
                    [*each.read_range("$global", first, first + 7, limit=limit, start=start, end=end)]
                    for each in (b, model)
                )
                assert found == wanted
        copy = path.with_name("copy.db")
        backup(b, copy)
        assert verify(b) == []
    with closing(SqliteBackend(copy)) as again:
        assert [*again.global_range(1, limit=100)] == [*model.global_range(1, limit=100)]


def test_many_that_open_an_older_format_at_once_upgrade_it_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-3
    SqliteBackend(path).close()
    old = with_migrations(monkeypatch, "CREATE TABLE counted (n);")

    opened = in_threads(6, lambda _: SqliteBackend(path))

    for each in opened:
        assert each.info()["format"] == old + 1
        each.close()


@pytest.mark.parametrize("round_", range(10))
def test_many_that_make_one_store_at_once_share_it(path: Path, round_: int) -> None:  # P-API-4, P-INT-2
    opened = in_threads(8, lambda _: SqliteBackend(path))
    for each in opened:
        fill(each, "s", 20, size=500)

    assert len({each.info()["lineage"] for each in opened}) == 1
    assert [last_seq(each, "s") for each in opened] == [160] * 8
    for each in opened:
        each.close()
    with closing(SqliteBackend(path)) as b:  # every page was written with its checksum, by each of them
        assert len(read(b, "s")) == 160
        assert verify(b) == []


def in_threads(n: int, call: Callable[[int], Any]) -> list[Any]:
    results: dict[int, Any] = {}
    start = threading.Barrier(n)

    def run(index: int) -> None:
        start.wait(WAIT_S)
        results[index] = call(index)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(results) == n, "a thread failed or is stuck"
    return [results[index] for index in range(n)]


# Options and life


@pytest.mark.parametrize(("level", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_the_durability_level_is_the_one_asked_for(path: Path, level: str, number: int) -> None:  # P-REC-9
    with closing(SqliteBackend(path, synchronous=level)) as b:
        append(b, "s", "t", 1, 1)
        with b._reader() as reader:
            for connection in (b._writer, reader):
                assert connection.pragma("synchronous") == number
                assert connection.pragma("journal_mode") == "wal"
                assert connection.pragma("secure_delete") == 1
                assert connection.pragma("checksum_verification") == "1"
    with closing(SqliteBackend(path)) as b:
        assert b._writer.pragma("synchronous") == 2, "the default survives power loss"


@pytest.mark.parametrize("level", ["OFF", "full", "", None])
def test_another_durability_level_is_refused(path: Path, level: Any) -> None:
    with pytest.raises(UsageError):
        SqliteBackend(path, synchronous=level)

    assert not path.exists()


def test_a_stuck_writer_elsewhere_is_store_unavailable_and_nothing_is_written(path: Path) -> None:  # P-OPS-4
    with closing(SqliteBackend(path, busy_timeout_s=0.05)) as b, raw(path) as other:
        append(b, "s", "t", 1, 1)
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match=r"held the store for over 0\.05 s"):
            append(b, "s", "t", 1, 2)
        assert len(read(b, "s")) == 1, "readers do not wait for a writer"

        other.execute("ROLLBACK")
        assert append(b, "s", "t", 1, 3).seq == 2


def test_a_sweep_that_cannot_run_does_not_hide_that_the_commit_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7; StoreUnavailable says that nothing was written
    with closing(SqliteBackend(path, busy_timeout_s=0.05)) as b, raw(path) as other:
        fill(b, "s", 3)

        def lock(step: str) -> None:
            if step == "commit.acknowledged":
                other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(sqlite, "reach", lock)
        outcome = b.commit([], [Append("s", "t", 1, {"n": 4}), Truncate("s", 3)])
        other.execute("ROLLBACK")

        assert outcome == [Event("s", 4, "t", 1, {"n": 4})]
        assert [event.seq for event in read(b, "s")] == [4]


def test_a_commit_that_the_disk_cannot_confirm_has_an_unknown_outcome(b: SqliteBackend) -> None:  # P-DUR-9
    append(b, "s", "t", 1, 1)
    writer = b._writer
    b._writer = as_any(FailingCommit(writer, apsw.IOError("disk I/O error")))

    with pytest.raises(OutcomeUnknown) as lost:
        append_once(b, "s", "key", "t", 1, 2)
    assert lost.value.once == ("s", "key")
    b._writer = writer
    with pytest.raises(StoreUnavailable, match="cannot be used any more"):
        append(b, "s", "t", 1, 3)


def test_a_full_disk_writes_nothing_and_the_store_goes_on(b: SqliteBackend) -> None:
    writer = b._writer
    b._writer = as_any(FailingCommit(writer, apsw.FullError("database or disk is full")))

    with pytest.raises(StoreUnavailable, match="disk is full"):
        append(b, "s", "t", 1, 1)

    b._writer = writer
    assert append(b, "s", "t", 1, 2).seq == 1


class FailingCommit:
    """The writer's connection on a disk that fails when it matters."""

    def __init__(self, connection: apsw.Connection, error: Exception) -> None:
        self._connection, self._error = connection, error

    def execute(self, statement: str, *bindings: Any) -> Any:
        if statement == "COMMIT":
            raise self._error
        return self._connection.execute(statement, *bindings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_an_undone_transaction_leaves_no_names_behind(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # an id that was never committed is given out anew, by another process
    def fail(step: str) -> None:
        if step == "commit.before":
            raise ZeroDivisionError

    with closing(SqliteBackend(path)) as other:
        monkeypatch.setattr(sqlite, "reach", fail)
        with pytest.raises(ZeroDivisionError):
            append(b, "mine", "my type", 1, "mine")
        monkeypatch.undo()
        append(other, "theirs", "their type", 1, "theirs")
        append(b, "mine", "my type", 1, "mine")

        for each in (b, other):
            assert read(each, "mine") == [Event("mine", 1, "my type", 1, "mine")]
            assert read(each, "theirs") == [Event("theirs", 1, "their type", 1, "theirs")]
    assert verify(b) == []


def test_a_mark_that_another_has_moved_is_read_anew(b: SqliteBackend, path: Path) -> None:  # P-CON-1, P-LOG-2
    """The writer remembers the marks that it has set, as long as nobody else writes."""
    with closing(SqliteBackend(path)) as other:
        for turn in range(1, 10, 3):
            assert append(b, "s", "t", 1, 1, globally=True).seq == turn
            assert append(other, "s", "t", 1, 1, globally=True).seq == turn + 1
            truncate_through(other, "s", turn + 1)
            assert is_conflict(commit(b, [ExpectSeq("s", turn)], [Append("s", "t", 1, 1)]))
            done = commit(b, [ExpectSeq("s", turn + 1)], [Append("s", "t", 1, 1, globally=True)])
            assert done == [Event("s", turn + 2, "t", 1, 1)]

        assert [place for place, _ in other.global_range(1, limit=20)] == list(range(1, 10))
    assert verify(b) == []


def test_a_mark_that_a_restore_has_set_is_read_anew(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-1
    fill(b, "s", 5)
    backup(b, tmp_path / "backup.db")

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored:
        assert is_conflict(commit(restored, [ExpectSeq("s", 5)], [Append("s", "t", 1, 1)]))
        restore(restored, tmp_path / "backup.db")

        assert append(restored, "s", "t", 1, 1).seq == 6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 63, 64, 65, 200])
def test_what_a_group_writes_is_there_however_many_it_is_of(b: SqliteBackend, count: int) -> None:  # P-BKD-9
    writes = [Append(f"s{n}", "t", n, n, globally=True) for n in range(count)]
    commit(b, [], [*writes, *(Put(f"k{n}", n) for n in range(count))])
    commit(b, [], [*writes, *(Delete(f"k{n}") for n in range(1, count))])

    assert [[event.data for event in read(b, f"s{n}")] for n in range(count)] == [
        [n] * 2 for n in range(count)
    ]
    assert [as_any(event).data for event in read_global(b)] == [*range(count), *range(count)]
    assert b.kv_keys() == ["k0"]
    assert verify(b) == []


def test_those_of_a_group_who_repeat_what_is_stored_are_told_so(b: SqliteBackend) -> None:  # P-IDM-1, P-IDM-7
    append_once(b, "s", "old", "t", 1, "old")
    twice = [prepare([], [Append("s", "t", 1, data)], ("s", key)) for data, key in GROUP]

    outcomes = b._commit_group(twice)

    assert [as_any(outcome)[0].seq for outcome in outcomes[:3]] == [1, 2, 2]
    assert is_conflict(as_any(outcomes[3]))
    assert [event.data for event in read(b, "s")] == ["old", "new"]


@pytest.mark.parametrize("seed", range(20))
def test_commits_of_many_callers_come_to_what_they_would_one_by_one(
    b: SqliteBackend, tmp_path: Path, seed: int
) -> None:  # P-BKD-11
    chance = random.Random(seed)
    streams, keys = ["a", "b"], ["k", "l"]
    kinds: list[Callable[[], Any]] = [
        lambda: Append(chance.choice(streams), "t", 1, chance.randrange(3), globally=chance.random() < 0.5),
        lambda: Append(chance.choice(streams), "t", 1, {1, 2}),  # which is refused
        lambda: Put(chance.choice(keys), chance.randrange(3)),
        lambda: Delete(chance.choice(keys)),
        lambda: Truncate(chance.choice(streams), chance.randrange(9)),
        lambda: Redact(chance.choice(streams), chance.randrange(1, 5), []),  # which may not be there
    ]

    def some() -> tuple[list[Any], list[Any], tuple[str, str] | None]:
        writes = [chance.choices(kinds, [9, 1, 3, 1, 1, 1])[0]() for _ in range(chance.randrange(1, 4))]
        expected: list[Any] = [ExpectSeq(chance.choice(streams), chance.randrange(4))]
        return (
            chance.choice([[], expected]),
            writes,
            chance.choice([None, ("$commit", f"{chance.randrange(9)}")]),
        )

    def outcome_of(*commit: Any) -> Any:
        try:
            return b.commit(commit[0], commit[1], once=commit[2])
        except StrandlineError as error:
            return repr(error)

    with closing(SqliteBackend(tmp_path / "many.db")) as many:
        for _ in range(10):
            commits = [some() for _ in range(chance.randrange(6))]
            found = [
                repr(each) if isinstance(each, Exception) else each for each in many.commit_each(commits)
            ]

            assert found == [outcome_of(*each) for each in commits]
        assert [*dumped(many)] == [*dumped(b)]
        assert verify(many) == []


def test_what_became_of_commits_is_told_though_the_sweep_after_them_fails(
    b: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-11
    def fail(_: SqliteBackend) -> None:
        raise CorruptionError("a page is damaged")

    fill(b, "x", 3)
    monkeypatch.setattr(SqliteBackend, "_sweep", fail)

    outcomes = b.commit_each([([], [Append("y", "t", 1, 1)], None), ([], [Truncate("x", 2)], None)])

    assert outcomes == [[Event("y", 1, "t", 1, 1)], []]
    assert b.commit([], [Truncate("x", 3)]) == []


def test_appends_go_on_while_much_is_swept(b: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "SWEEP_ROWS", 10)  # P-LOG-7
    append_batch(b, "s", [("t", 1, n) for n in range(3000)])
    sweeping = threading.Thread(target=truncate_through, args=(b, "s", 3000))
    sweeping.start()
    appended = 0
    while sweeping.is_alive():
        append(b, "other", "t", 1, 1)
        appended += 1
    sweeping.join()

    assert appended > 20, "of the 300 steps most leave others a turn"


def dumped(b: SqliteBackend) -> list[Any]:
    return [record for record in b.dump() if record.kind != "meta"]


def test_a_stream_that_is_full_takes_nothing_of_the_commit(b: SqliteBackend, path: Path) -> None:  # P-BKD-9
    append(b, "full", "t", 1, 1)
    edit(path, "UPDATE streams SET mark = ? WHERE name = 'full'", SEQ_MASK)

    with pytest.raises(StoreUnavailable, match="is full"):
        b.commit([], [Append("other", "t", 1, 1), Put("k", 1), Append("full", "t", 1, 1)])

    assert (streams(b), last_seq(b, "full"), kv_get(b, "k")) == (["full"], SEQ_MASK, None)


def test_a_closed_store_is_a_usage_error_and_may_be_closed_again(path: Path) -> None:
    b = SqliteBackend(path)
    append(b, "s", "t", 1, 1)
    pages = events(b, "s")
    b.close()
    b.close()

    for call in (
        lambda: append(b, "s", "t", 1, 1),
        lambda: read(b, "s"),
        lambda: last_seq(b, "s"),
        lambda: kv_get(b, "k"),
        lambda: b.wait("s", 0, timeout_s=0),
        b.info,
        b.verify,
        b.scrub,
        lambda: next(pages),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_close_wakes_those_who_wait(path: Path) -> None:
    b = SqliteBackend(path)
    waiting = threading.Event()
    errors: list[Exception] = []

    def wait() -> None:
        waiting.set()
        try:
            b.wait("s", 0, timeout_s=WAIT_S)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(WAIT_S)
    b.close()
    thread.join(WAIT_S)

    assert len(errors) == 1


def test_a_child_after_a_fork_is_refused_and_does_the_parent_no_harm(b: SqliteBackend) -> None:  # P-API-5
    append(b, "s", "t", 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        os._exit(_refusals(b))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 4
    assert append(b, "s", "t", 1, 2).seq == 2
    assert verify(b) == []


def _refusals(b: SqliteBackend) -> int:
    refused = 0
    for call in (lambda: append(b, "s", "t", 1, 1), lambda: read(b, "s"), b.scrub, lambda: kv_put(b, "k", 1)):
        try:
            call()
        except UsageError:
            refused += 1
    b.close()
    return refused


def test_a_store_that_is_open_for_reading_reads_what_others_write_and_writes_nothing(
    b: SqliteBackend, path: Path
) -> None:
    with closing(SqliteBackend(path, read_only=True)) as reader:
        append(b, "s", "t", 1, 1)

        assert len(read(reader, "s")) == 1
        assert reader.wait("s", 0, timeout_s=WAIT_S) == 1
        assert verify(reader) == []
        for call in (lambda: append(reader, "s", "t", 1, 1), lambda: kv_put(reader, "k", 1), reader.scrub):
            with pytest.raises(StoreUnavailable):
                call()

    assert (last_seq(b, "s"), kv_get(b, "k")) == (1, None)


# Several users of one file


def test_two_backends_in_one_process_are_one_store(b: SqliteBackend, path: Path) -> None:  # P-LOG-11
    with closing(SqliteBackend(path)) as other:
        for n in range(10):
            append(b if n % 2 else other, "s", f"type {n}", n, n)
            kv_put(other if n % 2 else b, "k", n)

        assert read(b, "s") == read(other, "s")
        assert [event.data for event in read(b, "s")] == [*range(10)]
        assert [event.type for event in read(other, "s")] == [f"type {n}" for n in range(10)]
        assert kv_get(b, "k") == kv_get(other, "k") == 9


WRITE_ON_REQUEST = """
import sys
from strandline.persist import append, open_store
b = open_store(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(append(b, line.strip(), "t", 1, {"text": "from another process"}).seq, flush=True)
"""


@contextmanager
def writer_elsewhere(path: Path) -> Iterator[Callable[[str], None]]:
    """Another process with the store open, and how to have it append to a stream without waiting for it."""
    command = [sys.executable, "-c", WRITE_ON_REQUEST, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"

        def request(stream: str) -> None:
            assert child.stdin
            child.stdin.write(stream + "\n")
            child.stdin.flush()

        yield request
        child.stdin.close()
        assert child.wait(WAIT_S) == 0


def test_a_wait_ends_with_the_commit_of_another_process(b: SqliteBackend, path: Path) -> None:  # P-BKD-7
    with writer_elsewhere(path) as append_elsewhere:
        append_elsewhere("s")
        began = time.monotonic()
        assert b.wait("s", 0, timeout_s=WAIT_S) == 1
        c = consumer(b, "c", "s", start=1)
        append_elsewhere("s")

        assert [event.seq for event in poll(c, timeout_s=WAIT_S)] == [2]  # P-SUB-12
        assert time.monotonic() - began < WAIT_S / 2
        assert b.wait("never", 0, timeout_s=0.01) == 0
        append_elsewhere("other")
        assert b.wait("s", 2, timeout_s=0.05) == 2


# Damage


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
    connection.execute(sqlite_file._migrations()[0])
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.execute("INSERT INTO meta VALUES ('lineage', 'abc')")
    connection.close()

    with pytest.raises(StoreUnavailable, match="no page checksums"):
        SqliteBackend(path)


# Truncation, sweeping, scrubbing


def rows_of(path: Path, table: str = "events") -> int:
    with raw(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)


def test_a_truncation_commits_first_and_sweeps_in_steps_between_which_others_write(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7
    fill(b, "s", 95)
    monkeypatch.setattr(sqlite, "SWEEP_ROWS", 10)
    seen_at: list[tuple[str, int, int]] = []
    with closing(SqliteBackend(path)) as other:

        def look(step: str) -> None:
            if step in ("commit.acknowledged", "truncate.swept") and not looking:
                looking.append(True)
                seen_at.append((step, count(other, "s"), rows_of(path)))
                append(other, "other", "t", 1, 1)
                looking.pop()

        looking: list[bool] = []
        monkeypatch.setattr(sqlite, "reach", look)
        truncate_through(b, "s", 90)

    assert seen_at[0] == ("commit.acknowledged", 5, 95), "hidden at once, and still there"
    assert [step for step, _, _ in seen_at[1:]] == ["truncate.swept"] * 9
    assert {stored for _, stored, _ in seen_at} == {5}
    assert rows_of(path) == 5 + len(seen_at)
    assert last_seq(b, "other") == len(seen_at)
    assert verify(b) == []


def test_what_a_crash_leaves_unswept_is_hidden_and_the_next_truncation_sweeps_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7, P-REC-9
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 50)
        append(b, "g", "t", 1, {"n": 1}, globally=True)
        append(b, "g", "t", 1, {"n": 2}, globally=True)
        monkeypatch.setattr(SqliteBackend, "_sweep", lambda _: None)
        truncate_through(b, "s", 40)
        global_trim(b, 1)
    monkeypatch.undo()

    with closing(SqliteBackend(path)) as b:
        assert (rows_of(path), rows_of(path, "pointers")) == (52, 2)
        assert (count(b, "s"), [event.seq for event in read(b, "s")]) == (10, [*range(41, 51)])
        assert list(events(b, "s", start=1, end=40)) == []
        assert list(events(b, "s", type="added", last=40)) == []
        assert [position for position, _ in global_events(b, first=2)] == [2]
        assert verify(b) == []
        append(b, "t", "t", 1, 1)
        truncate_through(b, "t", 1)

        assert (rows_of(path), rows_of(path, "pointers")) == (12, 1)


SECRET = "tell-nobody-7f3a"


def files_with(folder: Path, text: str) -> list[str]:
    return [entry.name for entry in folder.iterdir() if text.encode() in entry.read_bytes()]


@pytest.mark.parametrize("size", [0, 20_000], ids=["in a page", "over many pages"])
def test_erased_bytes_are_in_none_of_the_files(b: SqliteBackend, path: Path, size: int) -> None:  # P-ERA-3
    for n in range(50):
        append(b, "kept", "t", n, {"n": n, "text": "y" * size})
        append(b, "s", "t", n, {"n": n, "text": SECRET + "x" * size})
    append_once(b, "s", "key", "t", 1, {"n": 1, "text": SECRET})
    checkpoint(b, "s", "snap", lambda value, event: [*value, event.data["text"][:20]], [])
    quarantine(b, "s", 7, 1)
    assert files_with(path.parent, SECRET)

    erase_stream(b, "s", 1, reason="asked to")

    assert files_with(path.parent, SECRET) == []
    assert (len(read(b, "kept")), read(b, "s"), last_seq(b, "s")) == (50, [], 51)
    assert verify(b) == []


@pytest.mark.parametrize("size", [0, 20_000], ids=["in a page", "over many pages"])
def test_redacted_bytes_are_in_none_of_the_files(b: SqliteBackend, path: Path, size: int) -> None:  # P-ERA-3
    for n in range(1, 21):
        append(b, "s", "t", n, {"n": n, "text": f"{SECRET}-{n:02}" + "x" * size})
    assert files_with(path.parent, f"{SECRET}-07")

    redact(b, "s", 7, ["text"], 1, reason="asked to")

    assert files_with(path.parent, f"{SECRET}-07") == []
    assert b.event_at("s", 7) == Event("s", 7, "t", 7, {"n": 7, "text": None})
    assert files_with(path.parent, f"{SECRET}-08")
    assert verify(b) == []


def test_bytes_that_moved_while_they_were_stored_are_gone_too(
    b: SqliteBackend, path: Path
) -> None:  # P-ERA-3
    for n in range(
        200
    ):  # pages split under way, other rows are deleted, and the log is checkpointed in between
        append(b, "s", "t", n, {"text": f"{SECRET}-{n}" + "x" * (n * 37 % 900)})
        append(b, f"other {n % 7}", "t", n, {"text": "y" * (n * 53 % 1500)})
        if n % 20 == 0:
            truncate_through(b, f"other {n % 7}", n)
    erase_stream(b, "s", 1, reason="asked to")

    assert files_with(path.parent, SECRET) == []


def test_a_reader_that_holds_the_log_is_named_and_a_repeat_finishes(path: Path) -> None:  # P-ERA-1, P-ERA-3
    with closing(SqliteBackend(path, busy_timeout_s=0.05)) as b, raw(path) as reader:
        append(b, "s", "t", 1, {"text": SECRET})
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").get == 1

        with pytest.raises(StoreUnavailable, match="a reader holds the log") as held:
            erase_stream(b, "s", 1, reason="asked to")
        assert held.value.hint
        assert read(b, "s") == []

        reader.execute("COMMIT")
        erase_stream(b, "s", 2, reason="asked to")

    assert files_with(path.parent, SECRET) == []


def test_scrub_can_rewrite_the_whole_file(b: SqliteBackend, path: Path) -> None:  # P-ERA-3
    fill(b, "s", 500, size=1000)
    truncate_through(b, "s", 495)

    b.scrub(rewrite=True)

    assert path.stat().st_size < 100_000
    assert [event.seq for event in read(b, "s")] == [*range(496, 501)]
    assert verify(b) == []


# Time queries against the reference


ATS = (
    st.integers(-5, 5)
    | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
    | st.sampled_from([-0.0, 0.0, 0.5, 1.0, 1.5, -2.5, float(2**53), 1e300, -1e300, 5e-324])
    | st.text("aAé\U0001f9ff 09~", min_size=1, max_size=3)
)
TYPES = st.sampled_from("xyz")


class Pair:
    """One SQLite store and one in memory, with the same streams, all of their own."""

    def __init__(self, path: Path) -> None:
        self.sqlite = SqliteBackend(path, synchronous="NORMAL")
        self.memory = mem_backend()
        self.made = 0

    def stream(self, specs: list[tuple[str, Any, Any]], truncated: int) -> str:
        self.made += 1
        name = f"s{self.made}"
        for b in (self.sqlite, self.memory):
            append_batch(b, name, specs)
            truncate_through(b, name, truncated)
        return name


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("pair") / "store.db")
    yield both
    both.sqlite.close()


@pytest.mark.parametrize(("few", "scan"), [(2000, 20_000), (3, 20_000), (3, 4), (0, 0)])
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TYPES, ATS, st.none()), max_size=30),
    st.integers(0, 12),
    st.lists(
        st.tuples(
            st.none() | ATS,
            st.none() | ATS,
            st.none() | TYPES | st.just("never"),
            st.integers(0, 33),
            st.none() | st.integers(0, 33),
            st.none() | st.integers(0, 8),
        ),
        min_size=1,
        max_size=10,
    ),
)
def test_queries_give_what_the_reference_gives(
    pair: Pair, few: int, scan: int, specs: list[Any], truncated: int, queries: list[Any]
) -> None:  # P-QRY-1 to P-QRY-4, P-BKD-6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_read, "FEW_MATCHES", few)
        patch.setattr(sqlite_read, "SCAN_ROWS", scan)
        stream = pair.stream(specs, truncated)
        for start, end, type_, first, last, limit in queries:
            options = {
                "start": start,
                "end": end,
                "type": type_,
                "first": first,
                "last": last,
                "limit": limit,
            }
            found, expected = (
                [repr(event) for event in events(b, stream, **options)] for b in (pair.sqlite, pair.memory)
            )
            assert found == expected, f"{options}"


def test_many_matches_and_sparse_windows_are_found_in_order(pair: Pair) -> None:  # P-QRY-3, P-QRY-8
    n = 30_000
    specs = [("even" if i % 2 == 0 else "odd", i * 7919 % n if i < 5000 else 10**6 + i, i) for i in range(n)]
    specs += [("odd", i % 50, n + i) for i in range(3000)]  # late events with an old time, far behind
    stream = pair.stream(specs, 100)

    windows: list[dict[str, Any]] = [
        {"start": 0, "end": 49},
        {"start": 0, "end": 49, "type": "odd"},
        {"start": 0, "end": 49, "type": "even"},
        {"start": 0, "end": n},
        {"start": 10**6, "end": None},
        {"start": 10**6, "end": None, "type": "even", "first": 29_000},
        {"start": None, "end": 49, "first": 6000},
        {"start": None, "end": 49, "first": 6000, "last": 31_000},
        {"start": 10**6 + 25_000, "end": 10**6 + 25_003},
        {"start": "a", "end": None},
        {"start": 5, "end": 4},
    ]
    for window in windows:
        found, expected = (
            [event.seq for event in events(b, stream, **window)] for b in (pair.sqlite, pair.memory)
        )
        assert found == expected, f"{window}"


# Backup and restore


def test_a_backup_while_others_write_is_one_instant(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    fill(b, "start", 2000)
    stop = threading.Event()
    started = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            both = [Append("left", "t", n, {"n": n}, globally=True), Append("right", "t", n, {"n": n})]
            b.commit([], [*both, Put("n", n)])
            started.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert started.wait(WAIT_S)
    backup(b, tmp_path / "one.db")
    backup(b, tmp_path / "two.db")
    stop.set()
    writer.join(WAIT_S)

    marks = []
    for name in ("one.db", "two.db"):
        with closing(SqliteBackend(tmp_path / f"restored-{name}")) as restored:
            counts = restore(restored, tmp_path / name)
            n = kv_get(restored, "n")
            assert last_seq(restored, "left") == last_seq(restored, "right") == n
            assert [event.data["n"] for event in read(restored, "left")] == [*range(1, n + 1)]
            assert len(read_global(restored)) == n
            assert counts["event"] == 2000 + 2 * n
            assert verify(restored) == []
            marks.append(n)
    assert 0 < marks[0] < marks[1] <= kv_get(b, "n")
    assert sorted(entry.name for entry in tmp_path.glob("*one.db*")) == ["one.db", "restored-one.db"]


def test_a_restored_store_is_equal_but_for_its_lineage(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-1
    fill(b, "s", 20)
    truncate_through(b, "s", 5)
    append_once(b, "s", "key", "t", "noon", {"n": 21}, globally=True)
    append(b, "g", "t", 1.5, {"n": 2**80}, globally=True)
    global_trim(b, 1)
    kv_put(b, "k", [None, True, 1, 1.0])
    checkpoint(b, "g", "snap", lambda value, _: value + 1, 0)
    consumer(b, "c", "g", start=1)
    quarantine(b, "s", 8, 1)
    backup(b, tmp_path / "backup.db")

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored, closing(mem_backend()) as memory:
        for target in (restored, memory):
            restore(target, tmp_path / "backup.db")

            assert everything(target) == everything(b)
            assert target.info()["lineage"] != b.info()["lineage"]
            with pytest.raises(LineageMismatch) as mismatch:
                consumer(target, "c", "g")
            assert mismatch.value.cursor == b.info()["lineage"]
            assert poll(consumer(target, "c", "g", start=0)) == read(b, "g")
            assert append_once(target, "s", "key", "t", 9, {"n": 21}, globally=True) == Event(
                "s", 21, "t", "noon", {"n": 21}
            )
            assert append(target, "s", "t", 1, {"n": 22}).seq == 22
            assert append(target, "h", "t", 1, 1, globally=True).stream == "h"
            assert target.last_seq("$global") == 3
            assert [damage.what for damage in verify(target)] == ["quarantined"]


def everything(b: Portable) -> list[Any]:
    return [repr(record) for record in b.dump() if record.kind != "meta"]


def test_a_copied_file_keeps_its_lineage(b: SqliteBackend, path: Path, tmp_path: Path) -> None:  # P-OPS-1
    append(b, "s", "t", 1, 1)
    consumer(b, "c", "s", start=1)
    lineage = b.info()["lineage"]
    b.close()
    (tmp_path / "copy.db").write_bytes(path.read_bytes())

    with closing(SqliteBackend(tmp_path / "copy.db")) as copy:
        assert copy.info()["lineage"] == lineage
        assert consumer(copy, "c", "s").seq == 1


def backed_up(b: SqliteBackend, to: Path) -> None:
    fill(b, "s", 50, size=500)
    kv_put(b, "k", "<key>" + "x" * 3000)
    backup(b, to)
    b.close()


@pytest.mark.parametrize("marker", [mark_of("s", 1), mark_of("s", 33), b"<key>"])
def test_a_backup_with_a_flipped_bit_is_refused_and_nothing_is_restored(
    b: SqliteBackend, tmp_path: Path, marker: bytes
) -> None:  # P-OPS-2
    backed_up(b, tmp_path / "backup.db")
    flip(tmp_path / "backup.db", marker)

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored:
        with pytest.raises(CorruptionError):
            restore(restored, tmp_path / "backup.db")
        assert everything(restored) == []


BACKUP_EDITS = [
    "UPDATE events SET data = '1' WHERE id & 68719476735 = 33",
    "DELETE FROM events WHERE id & 68719476735 = 33",
    "DELETE FROM events WHERE id & 68719476735 = 50",
    "UPDATE streams SET mark = 49 WHERE name = 's'",
    "UPDATE keys SET value = '1' WHERE name = 'k'",
]


@pytest.mark.parametrize("statement", BACKUP_EDITS)
def test_a_backup_that_was_changed_is_refused_and_nothing_is_restored(
    b: SqliteBackend, tmp_path: Path, statement: str
) -> None:  # P-OPS-2
    backed_up(b, tmp_path / "backup.db")
    edit(tmp_path / "backup.db", statement)

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored, closing(mem_backend()) as memory:
        for target in (restored, memory):
            with pytest.raises(CorruptionError):
                restore(target, tmp_path / "backup.db")
            assert everything(target) == []


def test_a_truncated_backup_file_is_refused(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    backed_up(b, tmp_path / "backup.db")
    content = (tmp_path / "backup.db").read_bytes()
    (tmp_path / "backup.db").write_bytes(content[: len(content) // 2])

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored:
        with pytest.raises((CorruptionError, StoreUnavailable)):
            restore(restored, tmp_path / "backup.db")
        assert everything(restored) == []


def test_backup_and_restore_never_overwrite(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    append(b, "s", "t", 1, 1)
    backup(b, tmp_path / "backup.db")

    with pytest.raises(UsageError, match="there already"):
        backup(b, tmp_path / "backup.db")
    with pytest.raises(UsageError, match="not empty"):
        restore(b, tmp_path / "backup.db")
    with pytest.raises(NotFoundError):
        restore(mem_backend(), tmp_path / "none.db")

    assert len(read(b, "s")) == 1


def test_a_backup_is_one_file_that_opens_as_a_store(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    fill(b, "s", 10)
    (tmp_path / "folder").mkdir()

    assert backup(b, tmp_path / "folder" / "backup.db") == {"meta": 2, "stream": 1, "event": 10}

    assert [entry.name for entry in (tmp_path / "folder").iterdir()] == ["backup.db"]
    with closing(SqliteBackend(tmp_path / "folder" / "backup.db", create=False)) as opened:
        assert len(read(opened, "s")) == 10


def test_of_the_commit_scope_the_markers_stay_bounded_after_a_restore(
    b: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-10
    from strandline.persist.backends import memory, sqlite_transaction

    monkeypatch.setattr(memory, "KEPT_COMMIT_MARKERS", 5)
    monkeypatch.setattr(sqlite_transaction, "KEPT_COMMIT_MARKERS", 5)
    for n in range(5):
        b.commit([], [Put("k", n)], once=("$commit", f"old {n}"))
    backup(b, tmp_path / "backup.db")

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored, closing(mem_backend()) as in_memory:
        for target in (restored, in_memory):
            restore(target, tmp_path / "backup.db")
            for n in range(5):
                target.commit([], [Put("k", n)], once=("$commit", f"new {n}"))
            kept = [key for key in target.kv_keys() if key.startswith("$once/$commit/")]
            assert kept == [f"$once/$commit/new {n}" for n in range(5)]
