"""Every verb of the command line: what all of them have, found by walking the tree (L-CLI-1, -2, -3)."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from strandline.cli import cli

# L-CLI-1, word by word; `dlq …` and `server token …` leave theirs open.
VERBS = """
    init, up, status, append, flush, load, read, sql, sync, sink list, sink verify, sink history, sink rewind,
    sink skip, sink release, sink forget, prove, dlq list, spool list, spool check, spool lost,
    spool quarantine list, backfill list, backfill plan, backfill run, retention run, maintain, purge, import,
    config show, config validate, config schema, doctor, server run, server token list
"""
NO_JSON: dict[str, str] = {}  # a verb that cannot have it, and why
DESTRUCTIVE = ("dlq drop", "persist erase", "purge", "spool lost", "spool quarantine drop")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, name
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


ALL = dict(commands(cli))


def options(command: click.Command) -> set[str]:
    return {opt for param in command.params for opt in param.opts}


def test_every_verb_of_the_specification_is_there() -> None:
    """L-CLI-1."""
    wanted = {each.strip() for each in VERBS.replace("\n", " ").split(",")}

    assert wanted - ALL.keys() == set()


@pytest.mark.parametrize("verb", ALL)
def test_a_verb_takes_json_and_says_what_it_prints(verb: str) -> None:
    """L-CLI-3."""
    has_json = "--json" in options(ALL[verb])

    assert has_json != (verb in NO_JSON)


@pytest.mark.parametrize("verb", ALL)
def test_the_help_of_a_verb_has_an_example_that_it_takes(verb: str) -> None:
    """The example is parsed as a shell and click would: a verb or an option that is not there fails."""
    found = re.search(r"For example: (strandline .*?)(?:\n\n|$)", ALL[verb].help or "", re.DOTALL)
    assert found, f"{verb} shows no example"
    line = re.split(r" > |, and ", " ".join(found[1].split()))[0]

    words = shlex.split(line)[1:]

    assert " ".join(words).startswith(verb)
    rest = words[len(verb.split()) :]
    context = ALL[verb].make_context(verb, rest)  # raises click.UsageError where it does not fit
    assert context.command is ALL[verb]


@pytest.mark.parametrize("verb", ALL)
def test_an_option_that_is_not_there_is_wrong_use(verb: str) -> None:
    """L-CLI-2: exit code 2, and two lines on stderr."""
    ended = CliRunner().invoke(cli, [*verb.split(), "--no-such-option"])

    assert ended.exit_code == 2
    assert re.fullmatch(rf"strandline {verb}: usage: .*\nhint: .*\n", ended.stderr)
    assert ended.stdout == ""


@pytest.mark.parametrize("verb", DESTRUCTIVE)
def test_what_deletes_asks_or_needs_yes_and_can_be_tried_first(verb: str) -> None:
    """L-CLI-3."""
    assert {"--yes", "--dry-run"} <= options(ALL[verb])
