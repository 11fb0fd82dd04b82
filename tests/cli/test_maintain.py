"""`strandline maintain` as a command: what it prints, how it ends (L-CLI-2)."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from strandline.cli import cli
from tests.node.test_node import open_here


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRANDLINE_HOME", raising=False)


def run(home: Path, *args: str, expect: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["maintain", *args, "--home", str(home)])
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    return done


def objects(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines() if '"compacted"' in line]


def test_what_is_due_is_told_and_then_done(spark: SparkSession, tmp_path: Path) -> None:  # L-CMP-1
    home = tmp_path / "node"
    with open_here(home, "[compaction]\nfile_count = 3\nmax_tick_s = 600\n") as node:
        for number in range(3):
            node.append("rows", [{"n": number}], source="a")
            node.flush("rows")

    (planned,) = objects(run(home, "rows", "--dry-run", "--json"))
    (done,) = objects(run(home, "rows", "--json"))

    assert (planned["due"], planned["compacted"], planned["dry_run"]) == (1, [], True)
    (merged,) = done["compacted"]
    assert (merged["files_in"], merged["files_out"], merged["rows"]) == (3, 1, 3)
    assert (done["due"], done["failed"], done["orphans"], done["dry_run"]) == (0, [], 0, False)
    (again,) = objects(run(home, "rows", "--json"))
    assert (again["compacted"], again["expired"], again["orphans"]) == ([], 0, None)


def test_a_node_without_tables_has_nothing_to_maintain_and_needs_no_spark(tmp_path: Path) -> None:
    home = tmp_path / "node"
    with open_here(home) as node:
        node.append("rows", [{"n": 1}], source="a")

    (done,) = objects(run(home, "rows", "--json"))

    assert (done["compacted"], done["due"], done["expired"], done["orphans"]) == ([], 0, 0, None)


@pytest.mark.parametrize(
    "words", [["--relocate", "--expire-only"], ["--expire-only", "--compact-only"], ["rows", "--relocate"]]
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, words: list[str]) -> None:
    with open_here(tmp_path / "node"):
        pass

    run(tmp_path / "node", *words, expect=2)
