"""Completion as a real bash does it, by the script that `strandline completion bash` prints."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.cli import cli

FILE = """\
version = 1
[datasets.orders]
[sinks.centre]
type = "forward"
url = "http://centre.example"
[sinks.archive]
type = "blob"
destination = "local"
dir = "archive"
[backfill.shop]
type = "files"
path = "old"
dataset = "orders"
"""
# Fills COMPREPLY as readline has it filled, for the words that are given, the last one incomplete.
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_strandline_completion strandline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "strandline.toml").write_text(FILE)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "strandline"
    command.write_text(
        f'#!/bin/sh\nexec {sys.executable} -X importtime -m strandline "$@" 2>>{tmp_path}/imported\n'
    )
    command.chmod(0o755)
    return tmp_path


def completed(home: Path, *words: str) -> list[str]:
    script = home / "script"
    script.write_text(CliRunner().invoke(cli, ["completion", "bash"]).stdout)
    ended = subprocess.run(
        ["bash", "-c", ASK, "bash", str(script), "strandline", *words],
        cwd=home,
        env={**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["st"], ["status"]),
        (["config", ""], ["schema", "show", "validate"]),
        (["sync", ""], ["archive", "centre"]),
        (["flush", "or"], ["orders"]),
        (["prove", "centre", "lo"], ["logs"]),
        (["backfill", "run", ""], ["shop"]),
        (["server", "token", "new", "laptop", "--dataset", "o"], ["orders"]),
        (["status", "--wa"], ["--watch"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
    ids=" ".join,
)
def test_bash_completes_verbs_options_and_the_names_of_the_file(
    home: Path, words: list[str], wanted: list[str]
) -> None:
    assert completed(home, *words) == wanted


def test_names_come_from_the_file_alone(home: Path) -> None:
    """L-CLI-4: no store is opened or made, and Spark is not even imported."""
    assert completed(home, "sync", "c") == ["centre"]

    assert sorted(path.name for path in home.iterdir()) == ["bin", "imported", "script", "strandline.toml"]
    imported = (home / "imported").read_text()
    assert "pyspark" not in imported
    assert "click" in imported


def test_a_file_with_a_fault_completes_nothing_and_says_nothing(home: Path) -> None:
    (home / "strandline.toml").write_text("version = 2\n")

    assert completed(home, "sync", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(shell: str, tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["completion", shell])
    assert printed.exit_code == 0
    assert "_STRANDLINE_COMPLETE" in printed.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here to read it")
    script = tmp_path / "script"
    script.write_text(printed.stdout)

    subprocess.run([shell, "-n", script], check=True)
