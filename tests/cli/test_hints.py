"""What messages tell a person to run is there to be run."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

import strandline
from strandline.cli import cli

SOURCE: Final = Path(strandline.__file__).parent
_COMMAND: Final = re.compile(r"`strandline ([^`]*)`|\bstrandline ([a-z]+ --[^\s`\"')]+)")
_OPTION: Final = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
_GAP: Final = "…"  # where a message puts a name


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in code, those of an f-string joined."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(each) for each in ast.walk(node)}
            yield node.lineno, "".join(_constant(each) for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _constant(node: ast.AST) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else _GAP


def hints(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield from texts(node.value)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


def commands() -> list[tuple[str, str]]:
    """Where, and what follows `strandline` there."""
    return [
        (f"{name}:{line}", " ".join((found[1] or found[2]).split()))
        for name, tree in modules()
        for line, text in texts(tree)
        for found in _COMMAND.finditer(text)
    ]


def every_option(command: click.Command = cli) -> set[str]:
    found = {option for each in command.params for option in each.opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= every_option(below)
    return found


def fault_of(words: str) -> str | None:
    """Why there is no such command, None if there is."""
    command: click.Command = cli
    for word in words.split():
        if word.endswith(":"):
            break  # what a command says
        if word.startswith("--"):
            known = {option for each in command.params for option in each.opts}
            if word.partition("=")[0].rstrip(".,;:") not in known | {"--help"}:
                return f"{command.name} has no {word}"
        elif isinstance(command, click.Group) and _GAP not in word:
            below = command.get_command(click.Context(command), word)
            if below is None:
                return f"{command.name} has no command {word}"
            command = below
    return None


def test_every_command_that_a_message_names_is_there() -> None:
    named = commands()

    assert len(named) > 20
    assert [(where, words, fault) for where, words in named if (fault := fault_of(words))] == []


def test_every_option_that_a_hint_names_is_there() -> None:
    known = every_option()
    foreign = {"--add-modules"}

    found = [
        (f"{name}:{line}", option)
        for name, tree in modules()
        for line, text in hints(tree)
        for option in _OPTION.findall(text)
    ]

    assert [(where, option) for where, option in found if option not in known | foreign] == []


@pytest.mark.parametrize("words", ["nothing", "spool nothing", "flush --nothing", "maintain --nothing"])
def test_a_command_that_is_not_there_is_found_out(words: str) -> None:
    assert fault_of(words)
