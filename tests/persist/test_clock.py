"""The store asks nobody for the time: `at` is the caller's."""

import re
import time
from contextlib import closing
from pathlib import Path

import pytest

import strandline.persist
from strandline.persist import append_once, read, seen
from tests.conftest import open_backend

ASKS = re.compile(
    r"\btime\.(time|time_ns|gmtime|localtime|ctime|strftime)\b|from time import|\bdatetime\b"
    r"|\b(now|julianday|clock_timestamp|statement_timestamp)\(|\bcurrent_(time|date|timestamp)\b",
    re.IGNORECASE,
)


def test_neither_the_code_of_the_store_nor_its_sql_asks_for_the_time_of_day() -> None:  # P-EVT-3
    room = Path(strandline.persist.__file__).parent
    files = [path for path in room.rglob("*") if path.suffix in (".py", ".sql")]

    found = [
        f"{path.name}: {line}"
        for path in files
        for line in path.read_text().splitlines()
        if ASKS.search(line)
    ]

    assert len(files) > 50
    assert found == []


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])  # a host has its own clock
@pytest.mark.parametrize("days", [-400, 2, 400])
def test_a_key_is_known_whatever_the_clock_says(
    kind: str, days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-IDM-1, P-EVT-3
    now_s = time.time()
    with closing(open_backend(kind, tmp_path)) as b:
        first = append_once(b, "s", "key", "t", 1, "data")

        monkeypatch.setattr(time, "time", lambda: now_s + days * 86_400)
        monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 10**9))

        assert seen(b, "s", "key")
        assert append_once(b, "s", "key", "t", 2, "data") == first
        assert read(b, "s") == [first]
