"""Ranges against plain sets of seqs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.base.ranges import Range, RangeSet
from strandline.errors import UsageError

ranges = st.builds(lambda lo, n: Range(lo, lo + n), st.integers(0, 40), st.integers(0, 12))


def seqs(each: Range) -> set[int]:
    return set(range(each.lo + 1, each.hi + 1))


def union(found: list[Range]) -> set[int]:
    return set().union(*map(seqs, found))


@given(ranges, st.integers(1, 7))
def test_cut_pieces_follow_each_other_and_hold_the_whole(each: Range, width: int) -> None:
    pieces = list(each.cut(width))

    assert union(pieces) == seqs(each)
    assert sum(map(len, pieces)) == len(each)
    assert all(len(piece) <= width for piece in pieces)


@given(ranges)
def test_halves_meet_at_the_middle(each: Range) -> None:
    if len(each) < 2:
        with pytest.raises(UsageError):
            each.halves()
        return

    low, high = each.halves()

    assert (low.lo, low.hi, high.hi) == (each.lo, high.lo, each.hi)
    assert abs(len(low) - len(high)) <= 1


@given(st.lists(ranges), ranges)
def test_a_set_agrees_with_the_seqs_in_it(held: list[Range], asked: Range) -> None:
    made = RangeSet.of(held)
    model = union(held)
    grown = RangeSet()
    for each in held:
        grown = grown.with_(each)

    assert grown == made
    assert len(made) == len(model)
    assert all(left.hi < right.lo for left, right in zip(made.ranges, made.ranges[1:], strict=False))
    assert union(made.within(asked)) == model & seqs(asked)
    assert union(made.holes(asked)) == seqs(asked) - model
    assert made.covers(asked) == (seqs(asked) <= model)
    assert all((seq in made) == (seq in model) for seq in range(56))
    through = made.through(asked.lo)
    assert set(range(asked.lo + 1, through + 1)) <= model
    assert through + 1 not in model


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\(5, 3\]"):
        Range(5, 3)
