"""Concurrent appends and swaps have an order that a single thread could have made."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import KINDS, open_backend, place_of
from tests.faults.count import Count
from tests.faults.histories import judge, of_processes, of_threads
from tests.faults.linear import NEVER, UNKNOWN, Call, not_linear, not_stored, register, stream


def put(value: int, start: int, end: int) -> Call:
    return Call("k", "put", (value,), None, start, end)


def get(value: int, start: int, end: int) -> Call:
    return Call("k", "get", (), value, start, end)


def swap(expected: int, new: int, result: Any, start: int, end: int) -> Call:
    return Call("k", "swap", (expected, new), result, start, end)


def appended(seq: int, start: int, end: int) -> Call:
    return Call("s", "append", (7,), [seq], start, end)


def expected(mark: int, result: Any, start: int, end: int) -> Call:
    return Call("s", "expect", (mark, 7), result, start, end)


RIGHT = {
    "a read during a write gives the old value": [put(1, 0, 9), get(0, 2, 3)],
    "a read during a write gives the new value": [put(1, 0, 9), get(1, 2, 3)],
    "two swaps, one wins": [swap(0, 1, True, 0, 9), swap(0, 2, 1, 0, 9)],
    "writes that overlap, read in the other order": [put(1, 0, 9), put(2, 1, 8), get(1, 10, 11)],
    "a swap whose answer was lost was made": [swap(0, 1, UNKNOWN, 0, NEVER), get(1, 2, 3)],
    "a swap whose answer was lost was not made": [swap(0, 1, UNKNOWN, 0, NEVER), get(0, 2, 3)],
}
WRONG = {
    "a value that was overwritten comes back": [put(1, 0, 1), put(2, 2, 3), get(1, 4, 5)],
    "a read goes back": [put(1, 0, 9), get(1, 2, 3), get(0, 4, 5)],
    "two swaps both win": [swap(0, 1, True, 0, 9), swap(0, 2, True, 0, 9)],
    "a swap loses to nothing": [swap(0, 1, 0, 0, 9)],
    "a swap names a value that was never there": [put(1, 0, 1), swap(5, 2, 7, 2, 3)],
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_checker_finds_the_order_of_a_history_that_has_one(name: str) -> None:
    assert not_linear(RIGHT[name], register, 0) == []


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_refuses_a_history_that_has_no_order(name: str) -> None:
    assert not_linear(WRONG[name], register, 0) == ["k"]


@pytest.mark.parametrize(
    "calls",
    [
        [appended(1, 0, 1), appended(1, 2, 3)],
        [appended(2, 0, 1), appended(1, 2, 3)],
        [appended(1, 0, 1), Call("s", "mark", (), 0, 2, 3)],
        [appended(1, 0, 9), expected(0, [1], 0, 9)],
        [appended(1, 0, 1), appended(3, 2, 3)],
        [appended(1, 0, 1), expected(1, [3], 2, 3)],
    ],
    ids=[
        "a seq twice",
        "seqs against time",
        "a mark that lags",
        "both from 0",
        "a seq that is skipped",
        "a seq that is not the next of what was expected",
    ],
)
def test_the_checker_refuses_streams_that_no_thread_could_have_made(calls: list[Call]) -> None:
    assert not_linear(calls, stream, 0) == ["s"]


def test_the_checker_misses_a_row_that_was_acknowledged_and_one_that_was_not() -> None:
    calls = [appended(1, 0, 1), expected(1, [2], 2, 3), expected(1, 2, 4, 5)]

    assert not_stored(calls, [(1, 7), (2, 7)]) == []
    assert not_stored(calls, [(1, 7)]) == ["event 2 with 7 was acknowledged and is not stored"]
    assert not_stored(calls, [(1, 7), (2, 7), (3, 8)]) == ["event 3 with 8 was never acknowledged"]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_threads_have_an_order(kind: str, tmp_path: Path) -> None:  # P-CAS-5, P-CON-6, P-LOG-11
    count = Count(kind, "seed 1")
    with closing(open_backend(kind, tmp_path)) as b:
        judge(of_threads(b, threads=6, calls=60, seed=1), b, count)

    assert count.broken == []
    assert count.tried["that overlapped another about the same"] > 0.2 * count.tried["calls"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "remote"])
def test_calls_of_processes_have_an_order(kind: str, tmp_path: Path) -> None:  # P-CAS-5, P-CON-6, P-LOG-11
    count, place = Count(kind, "seed 1"), place_of(kind, tmp_path)
    with closing(place.open()) as b:
        judge(of_processes(place, processes=4, calls=250, seed=1), b, count)

    assert count.broken == []
    assert count.tried["calls"] == 1000
    assert count.tried["that overlapped another about the same"] > 250
