"""The result of a certification, and its two files.

scoreboard.json, of which only `seconds` differ between runs with equal outcomes:

    {
      "backend": "sqlite", "level": "durable", "level_note": "", "version": "0.1.0", "fingerprint": "9f…",
      "suites": {"log": {"pass": 25, "fail": 0, "error": 0, "timeout": 0, "skipped": 0, "expected": 25,
                         "seconds": 0.41, "not_passed": []}, …},
      "total_pass": 430, "total_fail": 0, "total_error": 0, "total_timeout": 0, "total_skipped": 2,
      "total_expected": 432, "total": 432,
      "cases": {"log/…": "pass", …},
      "not_passed": [{"id": "log/…", "outcome": "fail", "expected": "…", "actual": "…", "detail": "…"}, …],
      "notes": {"log": "what the suite's process wrote, if it ended badly"}
    }

scoreboard.md is the same for people, without seconds. Both appear under their names only when they are whole.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from strandline.conformance.case import Suite
from strandline.conformance.fixture import LEVELS, Level

Outcome: TypeAlias = Literal["pass", "fail", "error", "timeout", "skipped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("pass", "fail", "error", "timeout", "skipped")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How one case went: `expected` and `actual` where it failed, `detail` why else it did not pass."""

    id: str
    outcome: Outcome
    level: Level = "basic"
    seconds: float = 0.0
    expected: str = ""
    actual: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The cases of one suite that were run or reported, and what its process said if it ended badly."""

    name: str
    expected: int
    cases: tuple[CaseResult, ...]
    note: str = ""

    def count(self, outcome: Outcome) -> int:
        return sum(case.outcome == outcome for case in self.cases)

    @property
    def seconds(self) -> float:
        return sum(case.seconds for case in self.cases)

    @property
    def is_short(self) -> bool:
        return len(self.cases) < self.expected


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """What a backend was found to keep of its promises."""

    backend: str
    suites: tuple[SuiteResult, ...]
    fingerprint: str
    version: str
    is_whole: bool = True  # every standard suite was asked for; else no level is stated
    level: Level | None = field(init=False)
    level_note: str = field(init=False)

    def __post_init__(self) -> None:
        level, note = _level_reached(self)
        object.__setattr__(self, "level", level)
        object.__setattr__(self, "level_note", note)

    @property
    def cases(self) -> Iterator[CaseResult]:
        return (case for suite in self.suites for case in suite.cases)

    def count(self, outcome: Outcome) -> int:
        return sum(suite.count(outcome) for suite in self.suites)

    @property
    def total(self) -> int:
        return sum(len(suite.cases) for suite in self.suites)

    @property
    def faults(self) -> list[str]:
        """Why the exit status is not 0; empty if it is."""
        broken = ("fail", "error", "timeout")
        return [
            f"{case.id}: {case.outcome}" for case in self.cases if case.outcome in broken
        ] + self.shortfalls

    @property
    def shortfalls(self) -> list[str]:
        """What was not even tried: fewer cases than expected, or none at all."""
        found = [
            f"{suite.name} ran {len(suite.cases)} of {suite.expected} expected cases"
            for suite in self.suites
            if suite.is_short
        ]
        return found if self.count("pass") else [*found, "no case passed"]

    @property
    def exit_code(self) -> int:
        return 1 if self.faults else 0

    def as_json(self) -> dict[str, Any]:
        suites = {
            suite.name: {
                **{outcome: suite.count(outcome) for outcome in OUTCOMES},
                "expected": suite.expected,
                "seconds": round(suite.seconds, 2),
                "not_passed": [case.id for case in suite.cases if case.outcome != "pass"],
            }
            for suite in self.suites
        }
        return {
            "backend": self.backend,
            "level": self.level,
            "level_note": self.level_note,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "suites": suites,
            **{f"total_{outcome}": self.count(outcome) for outcome in OUTCOMES},
            "total_expected": sum(suite.expected for suite in self.suites),
            "total": self.total,
            "cases": {case.id: case.outcome for case in self.cases},
            "not_passed": [
                {
                    "id": case.id,
                    "outcome": case.outcome,
                    "expected": case.expected,
                    "actual": case.actual,
                    "detail": case.detail,
                }
                for case in self.cases
                if case.outcome != "pass"
            ],
            "notes": {suite.name: suite.note for suite in self.suites if suite.note},
        }

    def as_markdown(self) -> str:
        return "\n".join(_markdown(self)) + "\n"

    def write(self, folder: Path) -> None:
        """Put scoreboard.json and scoreboard.md into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(
            folder / "scoreboard.json", json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        )
        _write_whole(folder / "scoreboard.md", self.as_markdown())


def library_version() -> str:
    try:
        return version("strandline")
    except PackageNotFoundError:
        return "unknown"


def fingerprint(suites: Iterable[Suite]) -> str:
    """Changes when a case comes, goes, or changes its level or needs, and with the library's version."""
    lines = [f"{case.id} {case.level} {','.join(case.needs)}" for suite in suites for case in suite.cases]
    return sha256("\n".join([library_version(), *lines]).encode()).hexdigest()[:16]


def compare(scoreboards: Sequence[Scoreboard]) -> list[str]:
    """The parity gate between backends: each case that is missing on one or went differently on two.

    What one of them declared as missing is no difference: it was skipped, with a reason, and counts nowhere
    as a pass.
    """
    found = []
    by_backend = {board.backend: {case.id: case.outcome for case in board.cases} for board in scoreboards}
    for case_id in _ids(by_backend.values()):
        outcomes = {backend: cases.get(case_id, "missing") for backend, cases in by_backend.items()}
        if (
            len({outcome for outcome in outcomes.values() if outcome != "skipped"}) > 1
            or "missing" in outcomes.values()
        ):
            found.append(
                f"{case_id}: " + ", ".join(f"{backend} {outcome}" for backend, outcome in outcomes.items())
            )
    return found


def diff(before: Scoreboard, after: Scoreboard) -> list[str]:
    """The parity gate for a change of the kit itself: every difference, for the better too."""
    return diff_cases(
        {case.id: case.outcome for case in before.cases}, {case.id: case.outcome for case in after.cases}
    )


def diff_cases(before: dict[str, Outcome], after: dict[str, Outcome]) -> list[str]:
    """The same of two `cases` mappings, as scoreboard.json has them."""
    return [
        f"{case_id}: {before.get(case_id, 'missing')} -> {after.get(case_id, 'missing')}"
        for case_id in _ids([before, after])
        if before.get(case_id) != after.get(case_id)
    ]


def _ids(mappings: Iterable[dict[str, Outcome]]) -> list[str]:
    return list(dict.fromkeys(case_id for mapping in mappings for case_id in mapping))


def _level_reached(board: Scoreboard) -> tuple[Level | None, str]:
    """The highest level all of whose cases, and all below, passed; and what stands before the next one."""
    if not board.is_whole:
        return None, "not stated: only some suites were run"
    if short := [suite.name for suite in board.suites if suite.is_short]:
        return None, f"none: {', '.join(short)} ran fewer cases than expected"
    reached: Level | None = None
    for level in LEVELS:
        cases = [case for case in board.cases if case.level == level]
        broken = [case.id for case in cases if case.outcome in ("fail", "error", "timeout")]
        if broken:
            more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
            return reached, f"{level} is not reached: {broken[0]}{more}"
        gap = next(
            (c.detail for c in cases if c.outcome == "skipped" and c.detail.startswith(f"{level}: ")), None
        )
        if gap is not None:
            return reached, f"{level} is not claimed: {gap.partition(': ')[2]}"
        if not any(case.outcome == "pass" for case in cases):
            return reached, f"{level} is not reached: no case of it passed"
        reached = level
    return reached, ""


def _markdown(board: Scoreboard) -> Iterator[str]:
    yield f"# Conformance of {board.backend}"
    yield ""
    yield f"Level reached: **{board.level or 'none'}**{f' ({board.level_note})' if board.level_note else ''}."
    yield f"Library version {board.version}, cases {board.fingerprint}."
    yield ""
    yield "| Suite | Pass | Fail | Error | Timeout | Skipped | Total | Expected |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for suite in board.suites:
        counts = " | ".join(str(suite.count(outcome)) for outcome in OUTCOMES)
        yield f"| {suite.name} | {counts} | {len(suite.cases)} | {suite.expected} |"
    totals = " | ".join(f"**{board.count(outcome)}**" for outcome in OUTCOMES)
    expected = sum(suite.expected for suite in board.suites)
    yield f"| **total** | {totals} | **{board.total}** | **{expected}** |"
    broken = [case for case in board.cases if case.outcome not in ("pass", "skipped")]
    if broken:
        yield ""
        yield "## Not passed"
        yield ""
        for case in broken:
            yield f"- `{case.id}` ({case.outcome}): {_in_words(case)}"
    if board.shortfalls:
        yield ""
        yield from (f"- {shortfall}" for shortfall in board.shortfalls)
    yield from _skipped(board)


def _skipped(board: Scoreboard) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for case in board.cases:
        if case.outcome == "skipped":
            reasons.setdefault(case.detail, []).append(case.id)
    if reasons:
        yield ""
        yield "## Skipped"
        for reason, ids in reasons.items():
            yield ""
            yield f"{reason}:"
            yield ""
            yield from (f"- `{case_id}`" for case_id in ids)


def _in_words(case: CaseResult) -> str:
    if case.expected or case.actual:
        text = f"expected {case.expected}; got {case.actual}"
    else:
        text = case.detail.strip().splitlines()[-1] if case.detail.strip() else "no more is known"
    return text.replace("\n", " ")[:500]


def _write_whole(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never a part; what a crash leaves is another name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
