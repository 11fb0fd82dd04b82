"""A disk that dies, fills up, fails or loses its cache under the SQLite backend."""

import os
from pathlib import Path

import pytest

from strandline.persist.backends.sqlite import SqliteBackend
from tests.faults import failing
from tests.faults.count import in_another_process

NEVER = 10**9


def test_a_power_cut_at_any_write_or_sync_loses_nothing_acknowledged() -> None:  # P-REC-1, P-REC-2, P-REC-9
    count = in_another_process("power", seeds=2, stride=16, twice=250)

    assert count.broken == []
    assert count.tried["disks"] > 400
    assert count.tried["disks cut twice"] > 20


def test_a_commit_that_is_shared_is_there_as_a_whole_or_not_at_all() -> None:  # P-BKD-11, P-REC-9
    count = in_another_process("power", seeds=1, workloads=["groups"])

    assert count.broken == []
    assert count.tried["disks"] > 300


def test_who_commits_with_others_is_told_an_outcome_or_a_conflict_once_it_is_durable() -> None:  # P-BKD-11
    count = in_another_process("crowd", times=3)

    assert count.broken == []
    assert count.tried["of them conflicts"] > 20
    assert count.tried["syncs"] < count.tried["answers"] / 2


def test_a_backup_is_whole_where_there_is_one_and_one_that_was_told_of_stays() -> None:  # P-OPS-2, P-REC-9
    count = in_another_process("power", seeds=1, stride=2, twice=NEVER, workloads=["backups"])

    assert count.broken == []
    assert count.tried["disks"] > 200


def test_a_restore_is_wholly_there_or_not_at_all() -> None:  # P-OPS-2, P-REC-9
    count = in_another_process("power", seeds=1, workloads=["restores"])

    assert count.broken == []
    assert count.tried["disks"] > 100


def test_a_backup_or_a_restore_on_a_disk_that_fails_is_told_as_what_it_is() -> None:  # P-OPS-2, P-REC-9
    count = in_another_process("failing", stride=30, workloads=["backups", "restores"])

    assert count.broken == []


def test_without_a_sync_at_each_commit_a_power_cut_leaves_a_prefix_of_the_commits() -> None:  # P-REC-9
    count = in_another_process("power", seeds=2, stride=40, synchronous="NORMAL", may_lose=True)

    assert count.broken == []


def test_without_a_sync_at_each_commit_what_the_log_was_copied_with_stays() -> None:  # P-REC-9
    count = in_another_process(
        "power", seeds=1, synchronous="NORMAL", may_lose=True, workloads=["reopenings", "rewrites"]
    )

    assert count.broken == []
    assert count.tried["settled steps"] > 10


def test_a_loss_is_seen_where_there_is_one() -> None:  # what the two above rest on
    count = in_another_process("power", seeds=2, stride=60, synchronous="NORMAL")

    assert count.broken


def test_a_write_sync_or_read_that_fails_is_told_and_nothing_pretends() -> None:  # P-REC-9, P-DUR-9
    count = in_another_process("failing", stride=150)

    assert count.broken == []
    assert count.tried["told: the outcome is unknown"] > 10


def test_what_is_committed_after_a_failed_sync_and_a_kill_survives_a_power_cut() -> None:  # P-REC-1, P-REC-9
    count = in_another_process("failing", kinds=["sync"], workloads=["appends", "large_values"])

    assert count.broken == []
    assert count.tried["killed, opened again, then without power"] > 20


def test_a_file_that_cannot_be_made_cut_removed_or_shared_is_told_or_got_over() -> None:  # P-REC-9, P-API-4
    kinds = ["open", "cut", "delete", "grow"]

    count = in_another_process("failing", kinds=kinds, stride=4)

    assert count.broken == []
    assert all(count.tried[failing.KINDS[kind]] > 5 for kind in kinds)


def test_a_disk_that_fails_while_a_log_is_written_again_is_told_and_nothing_pretends() -> None:  # P-REC-9
    count = in_another_process("failing", kinds=["eio", "sync", "short"], workloads=["left_logs"], stride=7)

    assert count.broken == []


def test_a_read_that_fails_while_a_store_is_opened_is_an_error_of_ours() -> None:  # P-API-4
    count = in_another_process("failing", kinds=["read"], workloads=["keys"])

    assert count.broken == []


def test_the_folders_that_are_made_for_a_store_are_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-REC-9
    synced, really = set[int](), os.fsync

    def sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", sync)

    SqliteBackend(tmp_path / "a" / "b" / "store.db").close()

    assert {tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino} <= synced
