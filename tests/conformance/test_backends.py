"""Our own backends keep every promise, each at its level. What the machine lacks is skipped aloud, and fails
in CI.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from strandline.conformance.fixture import FixtureFactory
from strandline.conformance.hosts import local_postgres, local_remote, local_sqlite
from strandline.conformance.publish import local_memory
from strandline.conformance.runner import certify
from strandline.conformance.shipped_fixtures import BasicFixture, MockDurableFixture
from strandline.errors import UnavailableError
from tests.conftest import UNSYNCED, lacks

Local = Callable[[], AbstractContextManager[FixtureFactory]]


@contextmanager
def local_basic() -> Iterator[FixtureFactory]:
    yield BasicFixture


@contextmanager
def local_mock_durable() -> Iterator[FixtureFactory]:
    yield MockDurableFixture


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("local", "level"),
    [
        pytest.param(local_basic, "basic", id="basic"),
        pytest.param(local_memory, "atomic", id="memory"),
        pytest.param(local_mock_durable, "atomic", id="mock_durable"),
        pytest.param(local_sqlite, "durable", id="sqlite"),
        pytest.param(partial(local_postgres, UNSYNCED), "durable", id="postgres"),
        pytest.param(local_remote, "durable", id="remote"),
    ],
)
def test_a_backend_keeps_every_promise_at_its_level(local: Local, level: str) -> None:  # C-13, C-14
    try:
        with local() as factory:
            board = certify(factory)
    except (UnavailableError, ImportError) as error:
        lacks(str(error))

    not_passed = [case for case in board.cases if case.outcome not in ("pass", "skipped")]
    assert [(case.id, case.expected, case.actual, case.detail) for case in not_passed] == []
    assert board.faults == []
    assert (board.level, board.total) == (level, board.as_json()["total_expected"])
