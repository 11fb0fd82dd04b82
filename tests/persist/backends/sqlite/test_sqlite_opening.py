"""The SQLite store as a file: what it opens, makes and upgrades, and what it refuses."""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest

from strandline.errors import (
    NotFoundError,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist import (
    Append,
    append,
    append_batch,
    backup,
    commit,
    last_seq,
    mem_backend,
    open_store,
    read,
    read_global,
    verify,
)
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends.sqlite import SqliteBackend, file
from strandline.persist.backends.sqlite.file import refuse_affected_library
from tests.conftest import as_any
from tests.persist.backends.sqlite.behind import WAIT_S, fill, raw, rows_of


@pytest.mark.parametrize("version", ["3.7.0", "3.37.2", "3.50.4", "3.51.2"])
def test_a_library_that_can_corrupt_a_store_is_refused(version: str) -> None:
    with pytest.raises(StoreUnavailable, match=version) as refused:
        refuse_affected_library(version)

    assert "pip install -U apsw" in str(refused.value.hint)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.54.1", "4.0.0"])
def test_a_sound_library_is_taken(version: str) -> None:
    refuse_affected_library(version)


def test_opening_asks_which_library_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_LEAST_LIBRARY", (99, 0, 0))

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
    known = file._migrations()
    monkeypatch.setattr(file, "_migrations", lambda: [*known, *scripts])
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
