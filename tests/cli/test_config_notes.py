"""What is odd in a configuration, and no fault, is told by whatever reads it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.config.config import FILE_NAME

ODD = """version = 1
[sinks.centre]
type = "forward"
url = "https://centre.example"
include = ["lgs"]
[sinks.again]
type = "forward"
url = "https://centre.example"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / FILE_NAME).write_text(ODD)
    return tmp_path


def run(home: Path, *words: str) -> Result:
    done = CliRunner().invoke(cli, [*words, "--home", str(home)], input='{"n": 1}\n')
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("words", [("append", "logs", "--source", "a"), ("sink", "list"), ("status",)])
def test_each_oddity_is_a_note_on_stderr_once_in_a_command(home: Path, words: tuple[str, ...]) -> None:
    """L-CFG-2, L-WM-4: data on stdout, all else on stderr."""
    done = run(home, *words)

    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert "'lgs' is no dataset that is declared" in notes[0]
    assert "deliver to one destination" in notes[1]
    assert "note" not in done.stdout


def test_status_has_them_beside_a_health_that_is_good(home: Path) -> None:  # L-OBS-5
    found = json.loads(run(home, "status", "--json").stdout)

    assert (found["health"], found["causes"], len(found["notes"])) == ("ok", [], 2)


def test_a_configuration_without_oddities_is_read_in_silence(home: Path) -> None:
    (home / FILE_NAME).write_text("version = 1\n")

    assert run(home, "status").stderr == ""
