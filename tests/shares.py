"""Which of many like cases `make test` runs. The others are not gone: the slow suite has them.

@pytest.mark.parametrize("point", some(POINTS, "compaction.landed"))
"""

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All `cases` as parameters, those that are not `quick` marked slow."""
    given = list(cases)
    unknown = [each for each in quick if each not in given]
    assert not unknown, f"{unknown} are none of {given}"
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in given]
