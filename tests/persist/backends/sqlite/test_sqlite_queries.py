"""Time queries of the SQLite store against the reference."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.persist import (
    Append,
    Put,
    append_batch,
    events,
    kv_items,
    mem_backend,
    streams,
    truncate_through,
)
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.backends.sqlite import read as sqlite_read

ATS = (
    st.integers(-5, 5)
    | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
    | st.sampled_from([-0.0, 0.0, 0.5, 1.0, 1.5, -2.5, float(2**53), 1e300, -1e300, 5e-324])
    | st.text("aAé\U0001f9ff 09~", min_size=1, max_size=3)
)
TYPES = st.sampled_from("xyz")


class Pair:
    """One SQLite store and one in memory, with the same streams, all of their own."""

    def __init__(self, path: Path) -> None:
        self.sqlite = SqliteBackend(path, synchronous="NORMAL")
        self.memory = mem_backend()
        self.made = 0

    def stream(self, specs: list[tuple[str, Any, Any]], truncated: int) -> str:
        self.made += 1
        name = f"s{self.made}"
        for b in (self.sqlite, self.memory):
            append_batch(b, name, specs)
            truncate_through(b, name, truncated)
        return name


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("pair") / "store.db")
    yield both
    both.sqlite.close()


@pytest.mark.parametrize(("few", "scan"), [(2000, 20_000), (3, 20_000), (3, 4), (0, 0)])
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TYPES, ATS, st.none()), max_size=30),
    st.integers(0, 12),
    st.lists(
        st.tuples(
            st.none() | ATS,
            st.none() | ATS,
            st.none() | TYPES | st.just("never"),
            st.integers(0, 33),
            st.none() | st.integers(0, 33),
            st.none() | st.integers(0, 8),
        ),
        min_size=1,
        max_size=10,
    ),
)
def test_queries_give_what_the_reference_gives(
    pair: Pair, few: int, scan: int, specs: list[Any], truncated: int, queries: list[Any]
) -> None:  # P-QRY-1 to P-QRY-4, P-BKD-6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_read, "FEW_MATCHES", few)
        patch.setattr(sqlite_read, "SCAN_ROWS", scan)
        stream = pair.stream(specs, truncated)
        for start, end, type_, first, last, limit in queries:
            options = {
                "start": start,
                "end": end,
                "type": type_,
                "first": first,
                "last": last,
                "limit": limit,
            }
            found, expected = (
                [repr(event) for event in events(b, stream, **options)] for b in (pair.sqlite, pair.memory)
            )
            assert found == expected, f"{options}"


def test_many_matches_and_sparse_windows_are_found_in_order(pair: Pair) -> None:  # P-QRY-3, P-QRY-8
    n = 30_000
    specs = [("even" if i % 2 == 0 else "odd", i * 7919 % n if i < 5000 else 10**6 + i, i) for i in range(n)]
    specs += [("odd", i % 50, n + i) for i in range(3000)]  # late events with an old time, far behind
    stream = pair.stream(specs, 100)

    windows: list[dict[str, Any]] = [
        {"start": 0, "end": 49},
        {"start": 0, "end": 49, "type": "odd"},
        {"start": 0, "end": 49, "type": "even"},
        {"start": 0, "end": n},
        {"start": 10**6, "end": None},
        {"start": 10**6, "end": None, "type": "even", "first": 29_000},
        {"start": None, "end": 49, "first": 6000},
        {"start": None, "end": 49, "first": 6000, "last": 31_000},
        {"start": 10**6 + 25_000, "end": 10**6 + 25_003},
        {"start": "a", "end": None},
        {"start": 5, "end": 4},
    ]
    for window in windows:
        found, expected = (
            [event.seq for event in events(b, stream, **window)] for b in (pair.sqlite, pair.memory)
        )
        assert found == expected, f"{window}"


NAMES = 3000


def steps_of(b: SqliteBackend, read: Callable[[], object]) -> int:
    """How many steps of its machine SQLite takes for a read, in tens."""
    taken = 0

    def count() -> bool:
        nonlocal taken
        taken += 1
        return False

    with b._reader() as connection:
        connection.set_progress_handler(count, 10)
    read()
    with b._reader() as connection:
        connection.set_progress_handler(None)
    return taken


@pytest.mark.parametrize("what", ["keys", "streams"])
def test_the_last_page_of_names_takes_no_more_steps_than_the_first(
    what: str, tmp_path: Path
) -> None:  # P-BKD-7, P-BKD-8
    names = [f"n/{number:05}" for number in range(NAMES)]
    with closing(SqliteBackend(tmp_path / "s.db")) as b:
        b.commit([], [Put(name, 1) if what == "keys" else Append(name, "t", 1, 1) for name in names])
        scan = b.kv_scan if what == "keys" else b.stream_scan

        first = steps_of(b, lambda: scan("n/", after="", limit=10))
        last = steps_of(b, lambda: scan("n/", after=names[-11], limit=10))

        assert [found[0] for found in scan("n/", after=names[-11], limit=10)] == names[-10:]
        assert [found[0] for found in scan("n/02", after="n/01500", limit=2)] == ["n/02000", "n/02001"]
        assert last <= first + 2
        found = [key for key, _ in kv_items(b, prefix="n/")] if what == "keys" else streams(b)
        assert found == names
