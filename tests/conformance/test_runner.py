"""The kit finds what is planted, names it, and calls nothing green that did not run."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.conformance.case import Suite
from strandline.conformance.runner import certify
from strandline.conformance.scoreboard import CaseResult
from strandline.conformance.shipped_fixtures import BasicFixture, MemoryFixture
from strandline.conformance.suites import ALL
from strandline.errors import UsageError
from tests.conformance.planted import (
    EMPTY,
    GREEN,
    ITS_OWN,
    SHORT,
    SMALL,
    EndsTheProcessFixture,
    ForgetsTheMarkFixture,
    HangsFixture,
    LacksEverythingFixture,
    LosesHalfABatchFixture,
    NoStoreFixture,
    no_fixture,
    result_of,
)


def suites(*names: str) -> list[Suite]:
    return [suite for suite in ALL if suite.name in names]


def is_gone(pid: int) -> bool:
    """Whether it is, soon: a killed process is there until it is waited for."""
    until = time.monotonic() + 30
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(0.01)
        return False
    return True


def test_a_backend_that_forgets_its_mark_is_found() -> None:
    board = certify(ForgetsTheMarkFixture, suites("log", "compaction"))

    broken = {case.id for case in board.cases if case.outcome == "fail"}
    assert "log/truncating-above-the-last-seq-empties-the-stream-and-leaves-its-mark" in broken
    assert "compaction/numbering-goes-on-after-compaction" in broken
    assert board.exit_code == 1


def test_a_backend_that_loses_half_a_batch_is_found() -> None:
    board = certify(LosesHalfABatchFixture, suites("batch"))

    broken = {case.id for case in board.cases if case.outcome == "fail"}
    assert "batch/specs-may-come-from-an-iterator" in broken
    assert board.exit_code == 1


def test_a_failure_is_named_with_expected_and_actual() -> None:  # C-7
    board = certify(MemoryFixture, [SMALL])

    failed = result_of(board, "small/the-first-seq-is-2")
    assert (failed.outcome, failed.expected, failed.actual) == ("fail", "2", "1")
    assert board.exit_code == 1
    assert result_of(board, "small/the-first-seq-is-1").outcome == "pass"


def test_a_case_that_hangs_is_a_timeout_and_ends_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C-2, C-6
    monkeypatch.setenv("PLANTED_PID", str(tmp_path / "pid"))

    board = certify(HangsFixture, suites("kv"), timeout_s=8)

    hung = result_of(board, "kv/delete-removes-the-key")
    assert hung.outcome == "timeout"
    assert result_of(board, "kv/put-overwrites").outcome == "pass"
    assert board.count("timeout") >= 1
    assert is_gone(int((tmp_path / "pid").read_text()))
    assert board.total == 22
    assert board.exit_code == 1


def test_a_case_that_ends_the_process_is_an_error_and_the_others_run() -> None:  # C-6
    board = certify(EndsTheProcessFixture, suites("kv"))

    ended = result_of(board, "kv/delete-removes-the-key")
    assert ended.outcome == "error"
    assert "the planted end" in ended.detail
    assert "the planted end" in board.suites[0].note
    assert result_of(board, "kv/items-page-through-more-keys-than-fit-one-page").outcome == "pass"
    assert board.total == 22
    assert board.exit_code == 1


def test_a_store_that_cannot_be_made_is_an_error() -> None:
    board = certify(NoStoreFixture, [GREEN])

    assert result_of(board, "green/it-passes").outcome == "error"
    assert "the disk is full" in result_of(board, "green/it-passes").detail
    assert board.exit_code == 1


def test_a_fixture_that_cannot_be_made_is_an_error_of_every_case() -> None:
    board = certify(no_fixture, [SMALL])

    assert [case.outcome for case in board.cases] == ["error"] * 3
    assert "no such host" in board.suites[0].note
    assert board.exit_code == 1


def test_a_declared_gap_is_skipped_with_its_reason() -> None:  # C-9
    board = certify(LacksEverythingFixture, [SMALL])

    skipped = result_of(board, "small/it-is-skipped-where-nothing-is-atomic")
    assert (skipped.outcome, skipped.detail) == ("skipped", "atomic: it is old")


def test_zero_cases_is_a_failure() -> None:  # C-6
    assert certify(MemoryFixture, [EMPTY]).exit_code == 1
    assert certify(MemoryFixture, []).exit_code == 1


def test_fewer_cases_than_expected_is_a_failure() -> None:  # C-6
    board = certify(MemoryFixture, [SHORT])

    assert board.count("pass") == 1
    assert board.faults == ["short ran 1 of 2 expected cases"]
    assert board.exit_code == 1


def test_all_passed_is_a_success_but_no_level_is_stated_of_a_part() -> None:  # C-13
    board = certify(MemoryFixture, [GREEN])

    assert (board.exit_code, board.level) == (0, None)
    assert board.level_note == "not stated: only some suites were run"


def test_a_suite_may_bring_its_own_fixture() -> None:  # C-3
    assert certify(MemoryFixture, [ITS_OWN]).exit_code == 0


def test_progress_is_told_of_each_case_in_order() -> None:
    told: list[CaseResult] = []

    certify(MemoryFixture, [SMALL], progress=told.append)

    assert [result.id for result in told] == [case.id for case in SMALL.cases]


def test_a_factory_that_cannot_go_to_another_process_is_refused() -> None:
    local: Any = lambda: MemoryFixture()  # noqa: E731, PLW0108  # one that does not pickle

    with pytest.raises(UsageError, match="cannot be sent"):
        certify(local, [GREEN])


def test_two_suites_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="one name"):
        certify(MemoryFixture, [GREEN, GREEN])


def test_a_backend_of_ten_operations_is_certified_through_the_lift() -> None:  # P-BKD-12
    board = certify(BasicFixture, suites("log", "kv", "commit", "threads"))

    assert board.exit_code == 0
    assert board.count("pass") > 60
    assert {case.outcome for case in board.cases if case.id.startswith("threads/")} == {"skipped"}
