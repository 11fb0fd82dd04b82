"""The SQLite store at its edges: files that are swapped, damaged or oddly named, and numbers out of range."""

import itertools
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from strandline.errors import (
    CorruptionError,
    EventCorrupt,
    NotFoundError,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.persist import (
    Append,
    Put,
    Redact,
    append,
    append_batch,
    backup,
    kv_get,
    kv_items,
    kv_put,
    mem_backend,
    open_store,
    quarantine,
    read,
    read_from,
    read_since,
    restore,
    truncate_through,
    verify,
)
from strandline.persist.backends.sqlite import SqliteBackend, file, handle
from strandline.persist.backends.sqlite import read as sqlite_read
from strandline.persist.features import upkeep as upkeep_module
from tests.conftest import as_any

WAIT_S = 30
PAGE_BYTES = 4096


def fill(b: SqliteBackend, stream: str, n: int, *, size: int = 300) -> None:
    append_batch(b, stream, [("t", i, {"text": f"<{stream}-{i:06}>" + "x" * size}) for i in range(1, n + 1)])


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def spoil(path: Path, marker: str) -> None:
    """Change a row of the closed file, in the one place where `marker` is."""
    content = path.read_bytes()
    assert content.count(marker.encode()) == 1
    overwrite(path, content.index(marker.encode()) + 1, b"?")


def spoil_page(path: Path, marker: str) -> None:
    """Overwrite the head of the page that has `marker`, so that SQLite finds no rows in it at all."""
    overwrite(path, path.read_bytes().index(marker.encode()) // PAGE_BYTES * PAGE_BYTES, b"Z" * 64)


# Quarantine


@pytest.mark.parametrize("seq", [0, -1, -(2**36) + 1, 2**70, 1.0, True, None])
def test_quarantine_refuses_what_is_no_seq(b: SqliteBackend, seq: Any) -> None:
    append(b, "victim", "t", 1, 1)
    append(b, "b", "t", 1, 1)

    with pytest.raises(UsageError):
        quarantine(b, "b", seq, 1)

    assert len(read(b, "victim")) == len(read(b, "b")) == 1


def test_quarantine_stays_inside_its_stream(b: SqliteBackend) -> None:
    fill(b, "a", 5)
    fill(b, "victim", 5)
    truncate_through(b, "a", 2)

    for seq in (2**36 + 1, 2**36, 6, 2, 1):
        with pytest.raises(NotFoundError):
            quarantine(b, "a", seq, 1)

    assert (len(read(b, "a")), len(read(b, "victim")), verify(b)) == (3, 5, [])


# The file under an open store


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    with closing(SqliteBackend(other)) as restored:
        append(restored, "s", "t", 1, "restored")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    other.replace(path)


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("swap", [replace, remove])
def test_nothing_is_acknowledged_into_a_file_that_is_no_longer_there(
    swap: Callable[[Path], None], path: Path
) -> None:
    with closing(SqliteBackend(path)) as b:
        append(b, "s", "t", 1, "before")
        swap(path)

        for call in (lambda: append(b, "s", "t", 1, "lost"), lambda: kv_put(b, "k", 1), lambda: read(b, "s")):
            with pytest.raises(StoreUnavailable, match="replaced or removed under this store"):
                call()

    assert path.exists() is (swap is replace)
    if swap is replace:
        with closing(SqliteBackend(path, create=False)) as b:
            assert [event.data for event in read(b, "s")] == ["restored"]
            assert verify(b) == []


@pytest.mark.parametrize("swap", [replace, remove])
def test_a_new_reader_does_not_open_another_file(swap: Callable[[Path], None], path: Path) -> None:
    with closing(SqliteBackend(path)) as b:
        append(b, "s", "t", 1, "before")
        swap(path)

        with b._reader(), pytest.raises(StoreUnavailable, match="replaced or removed under this store"):
            read(b, "s")
        with pytest.raises(StoreUnavailable):
            list(b.dump())

    assert path.exists() is (swap is replace), "nor makes one"


def test_a_store_that_is_replaced_while_it_is_opened_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_replace(*args: Any, **options: Any) -> apsw.Connection:
        connection = real(*args, **options)
        if path.exists():
            monkeypatch.undo()
            replace(path)
        return connection

    real = file.open_file
    SqliteBackend(path).close()
    monkeypatch.setattr(handle, "open_file", open_and_replace)

    with pytest.raises(StoreUnavailable, match="replaced or removed"):
        SqliteBackend(path)


def test_a_store_that_cannot_be_looked_at_once_it_is_open_leaves_no_connection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[apsw.Connection] = []
    real = file.open_file

    def noted(*args: Any, **options: Any) -> apsw.Connection:
        opened.append(real(*args, **options))
        return opened[-1]

    monkeypatch.setattr(handle, "open_file", noted)
    monkeypatch.setattr(handle, "identity_of", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        SqliteBackend(path)

    with pytest.raises(apsw.ConnectionClosedError):
        opened[0].pragma("user_version")


def test_a_file_that_was_only_renamed_along_with_its_folder_opens_anew(tmp_path: Path) -> None:
    with closing(SqliteBackend(tmp_path / "one" / "store.db")) as b:
        append(b, "s", "t", 1, 1)
    (tmp_path / "one").rename(tmp_path / "two")

    with closing(SqliteBackend(tmp_path / "two" / "store.db", create=False)) as b:
        assert len(read(b, "s")) == 1


# Opening


def make_header_only(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.execute("CREATE TABLE t (n); DROP TABLE t")
    connection.close()


EMPTY: dict[str, Callable[[Path], object]] = {"no bytes": Path.touch, "no tables": make_header_only}


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=str)
@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_file_is_no_store_and_none_is_made_of_it(
    kind: str, options: dict[str, Any], path: Path
) -> None:  # P-API-4
    EMPTY[kind](path)
    before = path.read_bytes()

    with pytest.raises(NotFoundError, match="empty file"):
        SqliteBackend(path, **options)

    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_an_empty_file_becomes_a_store_where_one_may_be_made(path: Path) -> None:  # P-API-4
    path.touch()

    with closing(SqliteBackend(path)) as b:
        assert append(b, "s", "t", 1, 1).seq == 1


@pytest.mark.parametrize("name", ["x" * 300, "a\0b.db", "\ud800.db"], ids=["long", "NUL", "surrogate"])
@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}], ids=str)
def test_a_path_that_can_name_no_file_is_a_usage_error(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises((UsageError, NotFoundError)):
        open_store(str(tmp_path / name), **options)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_busy_timeout_is_a_finite_number(timeout: Any, path: Path) -> None:
    with pytest.raises(UsageError, match="busy_timeout_s"):
        SqliteBackend(path, busy_timeout_s=timeout)

    assert not path.exists()


@pytest.mark.parametrize("timeout", [0, 0.5, 10**12])
def test_any_finite_busy_timeout_is_taken(timeout: float, path: Path) -> None:
    with closing(SqliteBackend(path, busy_timeout_s=timeout)) as b:
        assert append(b, "s", "t", 1, 1).seq == 1


def test_a_store_with_a_log_beside_it_opens_for_reading(b: SqliteBackend, path: Path, tmp_path: Path) -> None:
    append(b, "s", "t", 1, 1)
    assert path.with_name("store.db-wal").stat().st_size > 0
    (tmp_path / "crashed").mkdir()
    for suffix in ("", "-wal"):  # what a crash leaves: a log, and no index of it
        shutil.copy(f"{path}{suffix}", tmp_path / "crashed" / f"store.db{suffix}")

    for place in (path, tmp_path / "crashed" / "store.db"):
        with closing(SqliteBackend(place, read_only=True)) as reader:
            assert len(read(reader, "s")) == 1


# Errors of the driver


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_file_descriptors_finds_the_store_unavailable(b: SqliteBackend) -> None:
    append(b, "s", "t", 1, 1)
    calls: list[Callable[[], Any]] = [lambda: b.last_seq("s"), lambda: list(b.dump()), b.verify]
    with b._reader():
        for call in calls:
            with no_more_files():
                try:
                    call()
                except Exception as error:  # noqa: BLE001  # pytest needs files of its own
                    failed = error
            assert isinstance(failed, StoreUnavailable)

    assert b.last_seq("s") == 1


def damaged(path: Path) -> SqliteBackend:
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 300)
        fill(b, "z", 300)
        b.commit([], [Put(f"k{i:05}", f"<key-{i:05}>" + "x" * 200) for i in range(300)])
    spoil_page(path, "<s-000150>")
    return SqliteBackend(path)


def test_no_error_of_the_driver_comes_out_of_a_damaged_store(path: Path, tmp_path: Path) -> None:
    with closing(damaged(path)) as b, closing(mem_backend()) as memory:
        calls: list[Callable[[], Any]] = [
            lambda: read(b, "s"),
            lambda: list(b.dump()),
            lambda: backup(b, tmp_path / "backup.db"),
            lambda: restore(memory, path),
            lambda: b.scrub(rewrite=True),
            lambda: quarantine(b, "s", 150, 1),
            lambda: read_since(b, "s", 0),
        ]
        for call in calls:
            with pytest.raises(CorruptionError):
                call()

        assert len(list(b.dump(raw=True))) > 300
        assert (read(memory, "s"), len(read(b, "z"))) == ([], 300)
        with pytest.raises(CorruptionError, match="event 150 of stream 's' cannot be set aside"):
            quarantine(b, "s", 150, 1)
        assert append(b, "other", "t", 1, 1).seq == 1


def test_a_backup_names_the_damage_of_its_source(path: Path, tmp_path: Path) -> None:  # P-OPS-2
    with closing(damaged(path)) as b, pytest.raises(EventCorrupt) as found:
        backup(b, tmp_path / "backup.db")

    assert found.value.stream == "s"
    assert found.value.seq is not None
    assert 150 - 12 <= found.value.seq <= 150
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store.db"]


def test_a_damaged_value_is_named_by_its_key(path: Path, tmp_path: Path) -> None:  # P-INT-2
    damaged(path).close()
    spoil(path, "<key-00200>")

    with closing(SqliteBackend(path)) as b:
        for call in (kv_get, SqliteBackend.kv_has):
            with pytest.raises(EventCorrupt, match="key 'k00200' is damaged") as found:
                as_any(call)(b, "k00200")
            assert (found.value.stream, found.value.seq) == ("k00200", None)
        for scan in (b.kv_keys, lambda: list(kv_items(b)), lambda: b.kv_scan("k0019", after="", limit=99)):
            with pytest.raises(EventCorrupt) as found:
                as_any(scan)()
            assert found.value.seq is None
            assert "k00180" <= found.value.stream <= "k00200"
        assert kv_get(b, "k00001")
        with pytest.raises(CorruptionError, match=r"a page of the store at store\.db is damaged"):
            kv_put(b, "k00200", 1)


def test_damage_in_the_global_order_is_named_by_its_event(path: Path) -> None:  # P-INT-2
    with closing(SqliteBackend(path)) as b:
        for n in range(40):
            append(b, f"s{n % 2}", "t", n, f"<{n:06}>" + "x" * 3000, globally=True)
    spoil(path, "<000021>")

    with closing(SqliteBackend(path)) as b:
        with pytest.raises(EventCorrupt) as found:
            list(b.global_range(1, limit=100))
        assert (found.value.stream, found.value.seq) == ("s1", 11)
        assert len(list(b.global_range(23, limit=100))) == 18


# Verify


def test_verify_goes_on_behind_a_malformed_page(path: Path) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 1000)
        fill(b, "z", 1000)
        kv_put(b, "k", "<key>")
    for marker in ("<s-000200>", "<s-000700>"):
        spoil_page(path, marker)
    for marker in ("<s-000100>", "<s-000500>", "<s-000900>", "<z-000500>", "<key>"):
        spoil(path, marker)

    with closing(SqliteBackend(path)) as b:
        found = [damage for damage in verify(b) if damage.what != "file"]
        sound = [damage[1:3] for damage in found if "checksum" in damage.found]
        gone = [damage for damage in found if "cannot be read" in damage.found]

        assert sound == [("k", 0), ("s", 100), ("s", 500), ("s", 900), ("z", 500)]
        assert len(gone) == len(found) - len(sound) == 2
        for damage, seq in zip(gone, (200, 700), strict=True):
            assert (damage.what, damage.name) == ("event", "s")
            assert seq - 12 <= damage.seq <= seq
            assert "more up to seq" in damage.found
        for stream, seq in (("s", 100), ("s", 500), ("s", 900), ("z", 500)):
            quarantine(b, stream, seq, 1)
        with pytest.raises(CorruptionError, match="cannot be set aside"):
            quarantine(b, "s", 200, 1)
        assert (len(read(b, "z")), len(read_from(b, "s", 720))) == (999, 280)


def test_verify_names_every_event_that_it_cannot_read(path: Path) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 60, size=3000)  # one to a page
        fill(b, "t", 20, size=3000)
    for seq in (1, 20, 21, 22, 60):
        spoil_page(path, f"<s-{seq:06}>")

    with closing(SqliteBackend(path)) as b:
        found = [damage for damage in verify(b) if damage.what != "file"]

    assert [damage[:3] for damage in found] == [("event", "s", 1), ("event", "s", 20), ("event", "s", 60)]
    assert "2 more up to seq 22 cannot be read" in found[1].found


@pytest.mark.parametrize("table", ["streams", "types", "keys", "events", "pointers", "events_at", "meta"])
def test_verify_ends_whichever_table_lost_its_root(table: str, path: Path) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 400)
        append(b, "g", "t", 1, 1, globally=True)
        b.commit([], [Put(f"k{i:03}", "x" * 200) for i in range(100)])
        with b._reader() as connection:
            root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    overwrite(path, (root - 1) * PAGE_BYTES, b"Z" * 64)

    try:
        b = SqliteBackend(path)
    except CorruptionError:
        assert table == "meta"
        return
    with closing(b):
        assert verify(b)


def test_keys_behind_a_malformed_page_are_checked_too(path: Path) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        b.commit([], [Put(f"k{i:05}", f"<key-{i:05}>" + "x" * 200) for i in range(1000)])
    spoil_page(path, "<key-00500>")
    for n in (100, 900):
        spoil(path, f"<key-{n:05}>")

    with closing(SqliteBackend(path)) as b:
        found = verify(b)

    assert [damage.name for damage in found if damage.what == "key"] == ["k00100", "k00900"]
    assert any("keys after 'k00" in damage.found for damage in found)


# Backup


def test_a_backup_may_have_a_long_name(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    fill(b, "s", 10)
    target = tmp_path / ("y" * 250)

    backup(b, target)

    with closing(mem_backend()) as restored:
        restore(restored, target)
        assert len(read(restored, "s")) == 10


@pytest.mark.parametrize("name", ["y" * 256, "a/b\0c", "\ud800", "store.db/backup.db"])
def test_a_backup_that_cannot_be_named_is_an_error_of_ours(
    b: SqliteBackend, tmp_path: Path, name: str
) -> None:  # P-OPS-2
    append(b, "s", "t", 1, 1)
    before = sorted(entry.name for entry in tmp_path.iterdir())

    with pytest.raises((UsageError, StoreUnavailable)):
        backup(b, tmp_path / name)

    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_of_two_backups_to_one_name_one_is_made_whole(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    fill(b, "s", 3000)
    outcomes: list[Any] = []
    start = threading.Barrier(2)

    def back_up() -> None:
        start.wait(WAIT_S)
        try:
            outcomes.append(backup(b, tmp_path / "backup.db"))
        except StrandlineError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=back_up, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["UsageError", "dict"]
    with closing(SqliteBackend(tmp_path / "backup.db", create=False)) as copy:
        assert (len(read(copy, "s")), verify(copy)) == (3000, [])
    assert [entry.name for entry in tmp_path.iterdir() if "strandline-backup" in entry.name] == []


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_comes_up_during_a_backup_is_not_overwritten(
    b: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:  # P-OPS-2
    target = tmp_path / "backup.db"
    append(b, "s", "t", 1, 1)
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse_to_link)

    def come_up(step: str) -> None:
        if step == "backup.sealed":
            target.write_text("theirs")

    monkeypatch.setattr(upkeep_module, "reach", come_up)
    with pytest.raises(UsageError, match="there already"):
        backup(b, target)
    assert target.read_text() == "theirs"

    monkeypatch.setattr(upkeep_module, "reach", lambda _: None)
    backup(b, tmp_path / "other.db")
    with closing(SqliteBackend(tmp_path / "other.db", create=False)) as copy:
        assert len(read(copy, "s")) == 1
    assert [entry.name for entry in tmp_path.iterdir() if "strandline-backup" in entry.name] == []


def refuse_to_link(_: Path, target: Path) -> None:
    raise PermissionError(1, "Operation not permitted", str(target))


def test_a_backup_removes_no_file_but_its_own(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-2
    others = [f".[ab]*.{os.getpid()}.partial", f".a.{os.getpid()}.partial", ".strandline-backup-00000000"]
    for name in others:
        (tmp_path / name).write_text("theirs")

    backup(b, tmp_path / "[ab]*")

    assert [(tmp_path / name).read_text() for name in others] == ["theirs"] * 3


# Reads


def test_a_time_read_costs_as_much_for_its_last_page_as_for_its_first(path: Path) -> None:  # P-QRY-8
    with closing(SqliteBackend(path, synchronous="NORMAL")) as b:
        append_batch(b, "s", [("t", i, None) for i in range(30_000)])

        def steps(first: int) -> int:
            with b._reader() as connection:
                id_ = connection.execute("SELECT id FROM streams WHERE name = 's'").get
                made = itertools.count()
                connection.set_progress_handler(lambda: next(made) < 0, 1000)
                rows = sqlite_read.page_rows(connection, id_, first, 30_000, 500, None, 0, None)
                assert [row[2] for row in rows] == [*range(first - 1, first + 499)]
                connection.set_progress_handler(None)
            return next(made) + 1

        assert steps(29_001) <= 2 * steps(1)


@pytest.mark.parametrize("first", [2**63, 10**30])
def test_the_global_order_ends_before_any_number_that_is_too_large(b: SqliteBackend, first: int) -> None:
    append(b, "s", "t", 1, 1, globally=True)

    assert list(b.global_range(first, limit=10)) == []
    assert len(list(b.global_range(-first, limit=10))) == 1


# Life


def test_a_reader_that_comes_back_after_the_close_is_closed(path: Path) -> None:
    b = SqliteBackend(path)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            b.wait("s", 0, timeout_s=WAIT_S)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until = time.monotonic() + WAIT_S
    while b._idle and time.monotonic() < until:
        time.sleep(0.001)  # until the waiting one has taken it
    b.close()
    thread.join(WAIT_S)

    assert (len(errors), b._idle) == (1, [])
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["store.db"], (
        "the last one closed the log"
    )


def test_a_commit_that_was_refused_is_not_counted(b: SqliteBackend) -> None:  # P-OPS-5
    append(b, "s", "t", 1, 1)

    for seq in (1, 2):
        with pytest.raises(StrandlineError):
            b.commit([], [Append("s", "t", 1, 1), Redact("s", seq, ["nowhere"])])

    assert (b.info()["commits"], b.info()["conflicts"], b.last_seq("s")) == (1, 0, 1)


def test_what_else_is_damaged_on_a_page_goes_along_with_what_is_set_aside(
    tmp_path: Path,
) -> None:  # P-INT-2, -3
    path = tmp_path / "s.db"
    b = SqliteBackend(path)
    append_batch(b, "s", [("t", i, f"value-{i:04}") for i in range(1, 31)])
    b.close()
    raw = path.read_bytes()
    for seq in (7, 9):
        raw = raw.replace(f"value-{seq:04}".encode(), f"vandal{seq:04}".encode())
    path.write_bytes(raw)

    b = SqliteBackend(path)
    quarantine(b, "s", 7, 1)

    assert [event.seq for event in read(b, "s")] == [n for n in range(1, 31) if n not in (7, 9)]
    assert all(event.data.startswith("value-") for event in read(b, "s"))
    assert {(damage.what, damage.seq) for damage in verify(b)} == {("quarantined", 7), ("quarantined", 9)}
    b.close()
