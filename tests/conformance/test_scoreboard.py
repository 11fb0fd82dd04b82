"""The scoreboard: its files, its level, and what the gates between two of them let through."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from strandline.conformance.fixture import Level
from strandline.conformance.scoreboard import (
    CaseResult,
    Outcome,
    Scoreboard,
    SuiteResult,
    compare,
    diff,
    fingerprint,
)
from tests.conformance.planted import GREEN, SMALL


def case(name: str, outcome: Outcome = "pass", level: Level = "basic", **more: Any) -> CaseResult:
    return CaseResult(f"s/{name}", outcome, level, **more)


def board(*cases: CaseResult, backend: str = "b", expected: int | None = None) -> Scoreboard:
    suite = SuiteResult("s", len(cases) if expected is None else expected, cases)
    return Scoreboard(backend, (suite,), "fingerprint", "1.0")


EVERY_LEVEL = (case("a"), case("b", level="atomic"), case("c", level="shared"), case("d", level="durable"))


def test_the_level_is_the_highest_with_all_below_it() -> None:  # C-13
    assert (board(*EVERY_LEVEL).level, board(*EVERY_LEVEL).level_note) == ("durable", "")


def test_a_failure_of_a_level_stops_below_it() -> None:
    shared = replace(EVERY_LEVEL[2], outcome="fail")

    found = board(*EVERY_LEVEL[:2], shared, EVERY_LEVEL[3])

    assert (found.level, found.level_note) == ("atomic", "shared is not reached: s/c")


def test_a_level_that_is_not_claimed_is_not_reached() -> None:
    durable = replace(EVERY_LEVEL[3], outcome="skipped", detail="durable: in memory")

    found = board(*EVERY_LEVEL[:3], durable)

    assert (found.level, found.level_note) == ("shared", "durable is not claimed: in memory")
    assert found.exit_code == 0


def test_a_gap_beside_the_levels_takes_none_away() -> None:
    skipped = case("e", "skipped", "basic", detail="damage: cannot")

    assert board(*EVERY_LEVEL, skipped).level == "durable"


def test_the_json_has_the_fields_of_old_and_the_new_ones() -> None:  # C-5
    found = board(case("a", seconds=1.234), case("b", "fail", expected="1", actual="2")).as_json()

    assert (found["total_pass"], found["total_fail"], found["total"]) == (1, 1, 2)
    assert found["suites"] == {
        "s": {
            "pass": 1,
            "fail": 1,
            "error": 0,
            "timeout": 0,
            "skipped": 0,
            "expected": 2,
            "seconds": 1.23,
            "not_passed": ["s/b"],
        }
    }
    assert found["cases"] == {"s/a": "pass", "s/b": "fail"}
    assert found["not_passed"][0] == {
        "id": "s/b",
        "outcome": "fail",
        "expected": "1",
        "actual": "2",
        "detail": "",
    }


def test_the_files_are_the_same_bytes_for_equal_outcomes(tmp_path: Path) -> None:  # C-5
    first = board(case("a", seconds=1.0), case("b", "skipped", detail="damage: cannot"))
    second = board(case("a", seconds=9.0), case("b", "skipped", detail="damage: cannot"))

    first.write(tmp_path / "first")
    second.write(tmp_path / "second")

    def without_seconds(folder: str) -> Any:
        found = json.loads((tmp_path / folder / "scoreboard.json").read_text())
        for suite in found["suites"].values():
            del suite["seconds"]
        return found

    markdown = [(tmp_path / folder / "scoreboard.md").read_bytes() for folder in ("first", "second")]
    assert markdown[0] == markdown[1]
    assert without_seconds("first") == without_seconds("second")
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == [
        "scoreboard.json",
        "scoreboard.md",
    ]


def test_the_table_has_a_bold_total_and_names_what_went_wrong() -> None:
    text = board(case("a"), case("b", "fail", expected="1", actual="2")).as_markdown()

    assert "| s | 1 | 1 | 0 | 0 | 0 | 2 | 2 |" in text
    assert "| **total** | **1** | **1** |" in text
    assert "- `s/b` (fail): expected 1; got 2" in text


def test_the_parity_gate_finds_a_missing_and_a_different_case() -> None:  # C-9
    one = board(case("a"), case("b"), case("c"), backend="one")
    two = board(case("a"), case("b", "fail"), backend="two")

    assert compare([one, two]) == ["s/b: one pass, two fail", "s/c: one pass, two missing"]
    assert compare([one, one]) == []


def test_the_parity_gate_lets_a_declared_gap_through() -> None:
    one = board(case("a"), backend="one")
    two = board(case("a", "skipped", detail="damage: cannot"), backend="two")

    assert compare([one, two]) == []


def test_the_gate_for_changes_tells_every_difference_upwards_too() -> None:  # C-10
    before = board(case("a"), case("b", "fail"), case("gone"))
    after = board(case("a"), case("b"), case("new"))

    assert diff(before, after) == ["s/b: fail -> pass", "s/gone: pass -> missing", "s/new: missing -> pass"]
    assert diff(before, before) == []


def test_a_fingerprint_changes_with_the_cases() -> None:
    assert fingerprint([SMALL]) == fingerprint([SMALL])
    assert fingerprint([SMALL]) != fingerprint([SMALL, GREEN])
