"""Every rule has its case, every suite its number of cases, and every case an id that stays."""

import re
from pathlib import Path

import pytest

from strandline.conformance.case import Suite
from strandline.conformance.fixture import CAPABILITIES, LEVELS
from strandline.conformance.rules import ELSEWHERE, RULES
from strandline.conformance.suites import ALL, BASELINE

FLOORS = {
    "event": 6,
    "log": 9,
    "kv": 13,
    "project": 9,
    "subscribe": 9,
    "concurrency": 8,
    "snapshot": 11,
    "compaction": 11,
    "durable": 15,
    "blob": 14,
    "view": 11,
    "cas": 11,
    "catalog": 10,
    "query": 9,
    "batch": 10,
    "upcast": 9,
    "idempotency": 9,
    "global": 11,
    "example-acl": 10,
    "recovery": 6,
}
CASES = [case for suite in ALL for case in suite.cases]


def test_each_rule_is_cited_by_a_case_or_proved_elsewhere() -> None:
    cited = {rule for case in CASES for rule in case.rules}

    assert [rule for rule in RULES if rule not in cited and rule not in ELSEWHERE] == []


def test_no_case_cites_a_rule_that_is_not_there() -> None:
    assert [(case.id, rule) for case in CASES for rule in case.rules if rule not in RULES] == []
    assert [case.id for case in CASES if not case.rules] == []


def test_what_is_proved_elsewhere_is_there() -> None:
    root = Path(__file__).parents[2]

    for rule, place in ELSEWHERE.items():
        assert rule in RULES
        assert re.search(rf"\b{rule}\b", (root / place).read_text()), f"{place} does not cite {rule}"


def test_the_baseline_has_its_suites_and_at_least_its_counts() -> None:  # C-8
    assert {suite.name: suite.floor for suite in BASELINE} == FLOORS
    assert sum(FLOORS.values()) == 201
    assert all(len(suite.cases) >= suite.floor for suite in BASELINE)


@pytest.mark.parametrize("suite", ALL, ids=lambda suite: suite.name)
def test_a_suite_has_as_many_cases_as_it_expects(suite: Suite) -> None:
    assert len(suite.cases) == suite.expected


def test_every_level_has_cases_and_every_need_is_known() -> None:
    assert {case.level for case in CASES} == set(LEVELS)
    assert {need for case in CASES for need in case.needs} <= set(CAPABILITIES)


def test_ids_are_names_that_stay() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(re.fullmatch(r"[a-z-]+/[a-z0-9-]+", case.id) for case in CASES)


def test_no_suite_names_a_concrete_backend() -> None:  # C-1
    folder = Path(__file__).parents[2] / "src" / "strandline" / "conformance" / "suites"

    for path in folder.glob("*.py"):
        text = path.read_text().lower()
        for name in ("sqlitebackend", "postgresbackend", "remotebackend", "psycopg", "apsw", "backends."):
            assert name not in text, f"{path.name} names {name}"
