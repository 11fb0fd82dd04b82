"""Who of ours is certified by the kit, and who is left out and why: nobody is forgotten (C-11, C-12)."""

import ast
from collections.abc import Iterator
from pathlib import Path

from strandline.conformance.publish import BACKENDS
from strandline.conformance.rules import ELSEWHERE
from tests.conformance import test_backends

ROOT = Path(__file__).parents[2]
OPERATIONS = {"append", "read", "last_seq", "streams", "kv_get", "kv_put"}

# Each class that keeps a store, by the names under which it is certified.
ADOPTERS = {
    "MemoryBackend": {"memory"},
    "SqliteBackend": {"sqlite"},
    "PostgresBackend": {"postgres"},
    "IoBackend": {"mock_durable", "remote"},
    "TenOperations": {"basic"},
    "LiftedBackend": {"basic"},
}
EXCLUDED = {
    "Backend": "a protocol: it keeps nothing",
}


def classes_that_keep_a_store() -> Iterator[str]:
    for folder in ("src", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "def last_seq" not in text:  # most of them; to parse them all takes seconds
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                    if names >= OPERATIONS:
                        yield node.name


def certified() -> set[str]:
    """Those that run under the runner of the day, by the ids of the tests that have them do so."""
    marks = test_backends.test_a_backend_keeps_every_promise_at_its_level.pytestmark  # type: ignore[attr-defined]  # pytest sets it
    return {str(each.id) for mark in marks if mark.name == "parametrize" for each in mark.args[1]}


def test_each_class_that_keeps_a_store_is_certified_or_left_out_with_a_reason() -> None:  # C-12
    found = set(classes_that_keep_a_store())

    assert found == {*ADOPTERS, *EXCLUDED}
    assert all(EXCLUDED.values())


def test_every_adopter_runs_under_the_runner_of_the_day() -> None:  # C-11
    adopters = {name for names in ADOPTERS.values() for name in names}

    assert certified() == adopters
    assert set(BACKENDS) <= adopters, "whose scoreboards are published"


def test_what_needs_a_runner_of_its_own_is_named_with_its_place() -> None:  # C-12
    assert all((ROOT / place).is_file() for place in ELSEWHERE.values())
