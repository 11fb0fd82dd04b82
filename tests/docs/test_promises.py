"""The page of promises and the pages that name tests: what they name is there, and no promise is without."""

import re
from pathlib import Path

import pytest

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


def test_every_promise_that_a_test_cites_has_words(shown: promises.Shown) -> None:
    subjects = [*promises.read_subjects(), *promises.store_subjects()]

    assert promises.without_words(subjects, shown) == []


def test_an_id_that_nobody_knows_or_that_is_not_built_is_found_where_it_is_cited() -> None:
    subjects = promises.read_subjects()
    shown = promises.Shown({"one": ["L-SEQ-1", "D-OTLP-99"], "two": ["MG-1"]})
    assert "MG-1" in [id_ for part in promises.not_built(subjects) for id_ in part.ids]

    assert promises.without_words(subjects, shown) == [("one", "D-OTLP-99"), ("two", "MG-1")]


def test_a_promise_that_nothing_keeps_yet_is_listed_as_not_built_and_cited_by_no_test(
    shown: promises.Shown,
) -> None:
    subjects = [*promises.read_subjects(), *promises.store_subjects()]
    missing = {id_ for part in promises.not_built(subjects) for id_ in part.ids}

    assert "MG-1" in missing
    assert not missing & {rule for rules in shown.by_name.values() for rule in rules}
    text = promises.page(subjects, shown, promises.not_built(subjects))
    assert missing <= set(promises.cited(text.partition(promises.NOT_BUILT)[2]))


def test_a_promise_that_gets_words_is_not_listed_as_not_built_any_more() -> None:
    ids = [id_ for part in promises.not_built([]) for id_ in part.ids]
    assert "M-16" in ids

    built = promises.Subject("Moved", "", dict.fromkeys(ids[:-1], "it is so"))

    assert [part.ids for part in promises.not_built([built])] == [ids[-1:]]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["M-4"], "M-4"),
        (["M-4", "M-7", "M-8", "M-9"], "M-4, M-7 to M-9"),
        (["S-SQL-1", "S-SQL-2", "S-COL-3"], "S-SQL-1 to S-SQL-2, S-COL-3"),
    ],
)
def test_neighbours_are_drawn_together(ids: list[str], text: str) -> None:
    assert promises.spans(ids) == text
    assert promises.cited(text) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("L-SEQ-1, -3", ["L-SEQ-1", "L-SEQ-3"]),
        ("L-SEQ-1 to L-SEQ-3, F-6", ["L-SEQ-1", "L-SEQ-2", "L-SEQ-3", "F-6"]),
        ("P-LOG-11 and no UTF-8, G-1", ["P-LOG-11", "G-1"]),
        ("D-OTLP-3, D-CDC-1, S-SQL-2 to S-SQL-4", ["D-OTLP-3", "D-CDC-1", "S-SQL-2", "S-SQL-3", "S-SQL-4"]),
        ("W-UI-1, W-MCP-1, MT-21, -22", ["W-UI-1", "W-MCP-1", "MT-21", "MT-22"]),
        ("MG-1 is not M-1, nor RA-2 R-2", ["MG-1", "M-1", "RA-2", "R-2"]),
        ("HMAC-SHA-256, ISO-8601, AA-1, ARM-64, R-1x", []),
    ],
)
def test_ids_are_found_as_tests_write_them(text: str, ids: list[str]) -> None:
    assert promises.cited(text) == ids
