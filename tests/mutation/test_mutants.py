"""The mutants themselves, and the page of them: what is tried is what is said."""

import ast
from collections import Counter

import pytest

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.publish import PAGE, harmless, kept, main, page, those, unexplained
from tests.mutation.runner import PACKAGE, ROOMS, Known, choose_tests, chosen

TEXT = '''\
"""A module, with a text of ümlauts that takes two bytes a letter."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from never import mutated

LIMIT = 3


def take(b: "Ü", stream: str, n: int = 1) -> list[int]:
    """A docstring is no statement."""
    if n < LIMIT and stream:
        raise ValueError(f"ü {n + 1} is few")
    b.write(stream, n)
    reach("take.written")
    return []
'''


def edits() -> list[tuple[str, str, str]]:
    return [(each.kind, each.before, each.after) for each in mutants_of("take.py", TEXT)]


def test_each_kind_of_bug_is_made_where_it_can_be() -> None:
    assert edits() == [
        ("off by 1", "3", "(3 + 1)"),
        ("off by 1", "1", "(1 + 1)"),
        ("boundary", "n < LIMIT", "(n <= LIMIT)"),
        ("inverted", "n < LIMIT and stream", "((n < LIMIT) or (stream))"),
        ("negated", "n < LIMIT", "(not (n < LIMIT))"),
        ("silent", 'raise ValueError(f"ü {n + 1} is few")', "pass"),
        ("dropped", "b.write(stream, n)", "pass"),
        ("swapped", "stream, n", "n, stream"),
    ]


def test_a_mutant_is_one_edit_that_parses_and_names_its_function() -> None:
    made = mutants_of("take.py", TEXT)

    assert [each.function for each in made] == ["", *["take"] * 7]
    for each in made:
        text = each.applied(TEXT)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT))
        assert text.replace(each.after, each.before, 1) == TEXT or each.kind == "dropped"


def test_a_seed_chooses_the_same_mutants_again_and_as_many_of_each_room() -> None:
    first, again, other = chosen(1, 50), chosen(1, 50), chosen(2, 50)

    assert first == again
    assert first != other
    rooms = Counter(next(room for room in ROOMS if each.module.startswith(f"{room}/")) for each in first)
    assert rooms == dict.fromkeys(ROOMS, 10)
    for each in first:
        ast.parse(each.applied((PACKAGE / each.module).read_text()))
    assert len({each.id for each in first}) == 50


def test_a_mutant_is_tried_by_the_tests_that_run_its_function_the_fastest_first() -> None:
    def mutant(function: str) -> Mutant:
        return Mutant("persist/core/lift.py", function, 1, "negated", 0, "a", "b")

    known = [
        Known("quick", 0.1, frozenset({"persist/core/lift.py atomic"})),
        Known("other", 0.2, frozenset({"persist/core/prepare.py prepare"})),
        Known("slow", 0.3, frozenset({"persist/core/lift.py atomic", "persist/core/lift.py other"})),
        Known("too slow", 1_000.0, frozenset({"persist/core/lift.py atomic"})),
    ]

    assert [each.name for each in choose_tests(mutant("atomic"), known)] == ["quick", "slow"]
    assert [each.name for each in choose_tests(mutant(""), known)] == ["quick", "slow"]


def test_the_page_is_made_of_the_counts_and_lists_each_survivor() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert text == page(kept())
    assert text.count("\n| ") - text.count("\n|---") >= len(harmless())
    assert text.partition("nobody has judged")[2].count("\n- ") >= len(unexplained(kept()))
    assert harmless().keys() <= set(those(kept(), "survived"))


def test_an_option_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--in-place"])

    assert "--in-place" in capsys.readouterr().err
