"""What a case can say: comparisons that are structural, strict about types and easy about sequences."""

from typing import Any

import pytest

from strandline.conformance.check import (
    CaseFailed,
    at_most,
    call,
    different,
    each_raises,
    equal,
    raises,
    truthy,
)
from strandline.persist import ABSENT, Conflict, Event


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([1, 2], (1, 2)),
        (iter([1, [2]]), [1, (2,)]),
        ({"a": (1,)}, {"a": [1]}),
        (Event("s", 1, "t", 1, {"x": (1,)}), Event("s", 1, "t", 1, {"x": [1]})),
        (Conflict(0, 1, "STALE", "a"), Conflict(0, 1, "STALE", "b")),
        (float("nan"), float("nan")),
        (ABSENT, ABSENT),
    ],
)
def test_the_flavour_of_a_sequence_does_not_matter(left: Any, right: Any) -> None:  # C-4
    equal(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ([], {}), (None, False), ([1], [1, 2]), (ABSENT, None)],
)
def test_types_do(left: Any, right: Any) -> None:  # C-4
    different(left, right)
    with pytest.raises(CaseFailed):
        equal(left, right)


def test_a_failure_carries_both_sides() -> None:
    with pytest.raises(CaseFailed) as caught:
        equal([1], [2], "the note")

    assert (caught.value.expected, caught.value.actual, caught.value.note) == ("[2]", "[1]", "the note")
    assert str(caught.value) == "expected [2], got [1] (the note)"


def test_a_long_value_is_cut() -> None:
    with pytest.raises(CaseFailed) as caught:
        equal("x" * 10_000, "y")

    assert len(caught.value.actual) < 2_100


def test_raises_wants_the_right_error() -> None:
    with raises(ZeroDivisionError) as caught:
        print(1 // 0)
    assert isinstance(caught.error, ZeroDivisionError)

    with pytest.raises(CaseFailed, match="expected KeyError, got no error"), raises(KeyError):
        pass
    with pytest.raises(CaseFailed, match="expected KeyError, got ZeroDivisionError"), raises(KeyError):
        print(1 // 0)


def test_each_of_a_table_must_raise() -> None:
    each_raises(ValueError, {"int": call(int, "x")})

    with pytest.raises(CaseFailed, match="the odd one"):
        each_raises(ValueError, {"int": call(int, "x"), "the odd one": call(int, "1")})
    with pytest.raises(CaseFailed, match="TypeError"):
        each_raises(ValueError, {"type": call(int, [])})


def test_truth_and_bounds() -> None:
    truthy([1], "something")
    at_most(1, 2)

    with pytest.raises(CaseFailed, match="expected something, got"):
        truthy([], "something")
    with pytest.raises(CaseFailed, match="expected at most 2, got 3"):
        at_most(3, 2)
