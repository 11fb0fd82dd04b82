"""Bugs that are planted in a copy of the tree, and the tests that must catch them."""

import pytest

from tests.faults.bugs import BUGS, Bug
from tests.faults.count import ROOT
from tests.faults.planted import main


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_text_that_a_bug_takes_the_place_of_is_there(bug: Bug) -> None:
    assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.text) == 1


def test_a_planted_bug_is_caught() -> None:  # C-15
    number = 1 + [bug.name for bug in BUGS].index("an expectation is met by any higher mark")

    count = main([number])

    assert count.broken == []
    assert count.tried["caught"] == 1
