"""`strandline purge`, on a Spark Connect server (L-POL-3, L-CLI-1, L-CLI-2)."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.cli import cli
from tests.cli.test_verbs_with_spark import append, home, objects, run

__all__ = ["home"]

DATASET = "people"


@pytest.fixture
def filled(home: Path) -> Path:
    append(home, DATASET, *({"n": n, "user": f"u{n % 2}", "source": f"s{n % 3}"} for n in range(6)))
    bad = [{"n": "x", "user": "u1"}, {"n": "y", "user": "u0"}, {"n": 1, "user": {"odd": 1}}]
    text = "".join(json.dumps(row) + "\n" for row in bad)
    run(home, "flush", DATASET)
    run(home, "append", DATASET, "--source", "q", "--on-bad", "quarantine", stdin=text)
    append(home, DATASET, {"n": 7, "user": "u1", "source": "s0"})
    return home


def rows_of(home: Path) -> list[int]:
    found = run(home, "read", DATASET, "--format", "jsonl", "--refresh", "never").stdout
    return sorted(json.loads(line)["n"] for line in found.splitlines())


def test_rows_are_counted_asked_about_and_gone(filled: Path) -> None:
    (tried,) = objects(run(filled, "purge", DATASET, "--where", "user = 'u1'", "--dry-run", "--json"))
    assert (tried["rows"], tried["quarantined"], tried["undecided"], tried["pending"]) == (3, 1, 1, 1)
    assert rows_of(filled) == [0, 1, 2, 3, 4, 5]

    asked = CliRunner().invoke(cli, ["purge", DATASET, "--where", "user = 'u1'", "--home", str(filled)])
    assert (asked.exit_code, "add --yes" in asked.stderr) == (2, True)

    (done,) = objects(run(filled, "purge", DATASET, "--where", "user = 'u1'", "--yes", "--json", expect=3))
    assert (done["rows"], done["quarantined"], done["undecided"], done["whole"]) == (4, 1, 1, False)
    assert rows_of(filled) == [0, 2, 4]

    told = run(filled, "purge", DATASET, "--source", "q", "--yes")
    assert "0 rows are gone, and 2 in quarantine" in told.stdout
    run(filled, "prove")


def test_wrong_use_ends_with_2(filled: Path) -> None:
    assert "everything" in run(filled, "purge", DATASET, "--yes", expect=2).stderr
    assert (
        "predicate_unreadable"
        in run(filled, "purge", DATASET, "--where", "nobody = 1", "--yes", expect=2).stderr
    )
    assert "dataset_unknown" in run(filled, "purge", "nothing", "--source", "s", "--yes", expect=1).stderr
