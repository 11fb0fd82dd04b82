"""Backup and restore of the SQLite store."""

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import (
    CorruptionError,
    LineageMismatch,
    NotFoundError,
    OutcomeUnknown,
    StoreUnavailable,
    UsageError,
)
from strandline.persist import (
    Append,
    Event,
    Put,
    append,
    append_once,
    backup,
    checkpoint,
    consumer,
    global_trim,
    kv_get,
    kv_put,
    last_seq,
    mem_backend,
    poll,
    quarantine,
    read,
    read_global,
    restore,
    truncate_through,
    verify,
)
from strandline.persist.backend import Portable
from strandline.persist.backends.sqlite import SqliteBackend
from tests.persist.backends.sqlite.behind import WAIT_S, edit, fill, flip, mark_of


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


DISK_EDITS = [
    *BACKUP_EDITS,
    "DELETE FROM keys WHERE name = 'k'",
    "DELETE FROM streams WHERE name = 't'",
]


@pytest.mark.parametrize("statement", DISK_EDITS)
def test_a_restore_whose_disk_loses_or_changes_a_row_is_refused_before_it_says_done(
    b: SqliteBackend, tmp_path: Path, statement: str
) -> None:  # P-OPS-2: what is verified is what was stored, and not what was read
    append(b, "t", "t", 1, 1)
    truncate_through(b, "t", 1)
    backed_up(b, tmp_path / "backup.db")

    class BadDisk(SqliteBackend):
        def load(self, records: Any) -> Any:
            counts = super().load(records)
            edit(tmp_path / "restored.db", statement)
            return counts

    with (
        closing(BadDisk(tmp_path / "restored.db")) as restored,
        pytest.raises(CorruptionError, match="the restored store differs from its backup"),
    ):
        restore(restored, tmp_path / "backup.db")


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
    from strandline.persist.backends import memory
    from strandline.persist.backends.sqlite import transaction

    monkeypatch.setattr(memory, "KEPT_COMMIT_MARKERS", 5)
    monkeypatch.setattr(transaction, "KEPT_COMMIT_MARKERS", 5)
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


def test_a_backup_whose_own_file_fails_in_a_commit_is_told_as_not_made(
    b: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-2
    def fail(*_: Any) -> None:
        raise OutcomeUnknown("the sync failed", once=None)

    monkeypatch.setattr(SqliteBackend, "load", fail)

    with pytest.raises(StoreUnavailable, match="no backup was made"):
        backup(b, tmp_path / "one.db")

    assert not list(tmp_path.glob("*backup*")) + list(tmp_path.glob("one.db*"))
