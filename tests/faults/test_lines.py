"""Lines that are cut, processes that stall, streams that were emptied: on every kind of store."""

from pathlib import Path

import pytest

from tests.conftest import place_of
from tests.faults import lines, marks, stalls


def test_an_answer_that_is_cut_off_over_http_has_one_effect(tmp_path: Path) -> None:  # P-DUR-9
    place_of("remote", tmp_path)  # it asks whether there is a remote at all

    count = lines.remote_cuts(times=60)

    assert count.broken == []
    assert count.tried["answers to commits cut"] > 50


def test_an_answer_of_postgres_that_is_cut_off_is_repeated_or_called_unknown(tmp_path: Path) -> None:
    schema = place_of("postgres", tmp_path).options["schema"]  # P-DUR-9

    count = lines.postgres_cuts(times=20, schema=schema)

    assert count.broken == []
    assert set(count.tried.values()) == {10}


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "remote"])
def test_writers_that_are_stopped_and_killed_lose_nothing(kind: str) -> None:  # P-REC-9, P-LOG-11
    count = stalls.stalled(kind, times=10, writers=3)

    assert count.broken == []
    assert count.tried["events"] > 0


def test_a_writer_stopped_in_its_commit_keeps_others_out_and_they_are_told() -> None:  # P-OPS-4
    count = stalls.held_lock(times=25)

    assert count.broken == []
    assert count.tried["refused while another was stopped"] > 0


def test_a_host_that_stalls_past_the_timeout_leaves_an_outcome_that_a_repeat_settles() -> None:  # P-DUR-9
    count = stalls.stopped_host(times=6)

    assert count.broken == []
    assert count.tried == {"told: outcome_unknown": 6}


@pytest.mark.parametrize(("cell", "how"), marks.quick_cells())
def test_an_emptied_stream_keeps_its_mark(cell: str, how: str, tmp_path: Path) -> None:
    store = marks.cells()[cell](tmp_path, how)  # P-DUR-10, P-BKD-1, P-LOG-7, P-IDM-4

    assert marks.fault_of(store) is None
