"""A SQLite store for each test, in the file `path`."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.persist.backends.sqlite import SqliteBackend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def b(path: Path) -> Iterator[SqliteBackend]:
    with closing(SqliteBackend(path)) as opened:
        yield opened
