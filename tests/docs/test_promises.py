"""The page of promises and the pages that name tests: what they name is there, and no promise is without."""

import re
from pathlib import Path

import pytest

from strandline.conformance.rules import RULES
from strandline.conformance.sinks import CASES as SINK_CASES
from strandline.conformance.suites import ALL
from tests.docs.page import ROOT
from tools import promises

PAGES = [ROOT / "docs" / "promises.md", ROOT / "docs" / "architecture.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    cases = {case.id for suite in ALL for case in suite.cases} | {case.id for case in SINK_CASES}

    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    there = {file: dict(promises.tests_of((ROOT / file).read_text())) for file in {file for file, _ in named}}
    gone = [(file, test) for file, test in named if test not in there[file]]
    unknown = set(re.findall(r"`([a-z-]+/[a-z0-9-]+)`", text)) - cases

    assert named
    assert (gone, unknown) == ([], set())


@pytest.fixture(scope="module")
def shown() -> promises.Shown:
    return promises.citations()


def test_every_promise_is_shown_by_a_test(shown: promises.Shown) -> None:
    subjects = [*promises.read_subjects(), *promises.store_subjects()]

    assert [rule for subject in subjects for rule in subject.rules if not shown.of(rule)] == []


def test_every_promise_that_a_test_cites_is_on_the_page(shown: promises.Shown) -> None:
    known = {rule for subject in promises.read_subjects() for rule in subject.rules} | {*RULES}
    cited = {rule for rules in shown.by_name.values() for rule in rules}

    assert cited - known == set()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("L-SEQ-1, -3", ["L-SEQ-1", "L-SEQ-3"]),
        ("L-SEQ-1 to L-SEQ-3, F-6", ["L-SEQ-1", "L-SEQ-2", "L-SEQ-3", "F-6"]),
        ("P-LOG-11 and no UTF-8, G-1", ["P-LOG-11", "G-1"]),
    ],
)
def test_ids_are_found_as_tests_write_them(text: str, ids: list[str]) -> None:
    assert promises.cited(text) == ids
