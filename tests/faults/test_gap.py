"""A reader that follows many writers sees every event."""

from collections.abc import Iterator

import pytest

from tests.conftest import scratch_postgres
from tests.faults.gap import measure


@pytest.fixture(scope="module")
def synced_url() -> Iterator[str]:
    """A server that syncs, unlike that of other tests: else no writer is slow."""
    with scratch_postgres() as server:
        yield server.url


def test_a_reader_that_follows_six_writers_misses_nothing(synced_url: str) -> None:  # P-GLB-4
    count = measure("ours", synced_url, "gap_ours", events=6_000)

    assert count.broken == []
    assert count.tried["events"] >= 5_500  # one writer of six was killed halfway
    assert count.tried["transactions given up"] > 50


def test_the_same_reader_of_a_serial_column_misses_some(synced_url: str) -> None:  # so it is seen
    count = measure("naive", synced_url, "gap_naive", events=6_000)

    assert count.tried["never delivered"] > 0
