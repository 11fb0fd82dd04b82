"""A reader that follows many writers sees every event."""

from pathlib import Path

from tests.conftest import place_of
from tests.faults.gap import measure


def test_a_reader_that_follows_six_writers_misses_nothing(tmp_path: Path) -> None:  # P-GLB-4
    place = place_of("postgres", tmp_path)

    count = measure("ours", place.target, place.options["schema"], events=6_000)

    assert count.broken == []
    assert count.tried["events"] == 6_000


def test_the_same_reader_of_a_serial_column_misses_some(
    tmp_path: Path,
) -> None:  # so it is seen
    place = place_of("postgres", tmp_path)

    count = measure("naive", place.target, place.options["schema"], events=6_000)

    assert count.tried["never delivered"] > 0
