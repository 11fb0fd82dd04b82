"""A backfill beside others: processes that capture the same rows live, a kill, keys without number."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.backfill import write as write_module
from strandline.backfill.run import Order, run
from strandline.errors import UsageError
from strandline.node.node import Node
from strandline.sources.provider import ProviderOptions, Window
from strandline.sources.registry import GROUP, make_provider, provider_types
from tests.backfill.rig import Given, backfill, hook, left_out, numbers, parts, table

CHILD = Path(__file__).with_name("live_child.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "provider"
PROCESSES = 4
SHARE = 10  # rows of a bundle for each process: four are captured before the check, four after it
BUNDLE = PROCESSES * SHARE
ROWS = 6 * BUNDLE


class Live:
    """Processes that capture rows, each in its share of a bundle."""

    def __init__(self, home: Path, dataset: str) -> None:
        self._children = [
            subprocess.Popen(
                [sys.executable, CHILD, home, dataset],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(PROCESSES)
        ]
        self._told = 0

    def begin(self, first: int, rows: int) -> None:
        """So many rows each, from a number on; it is not waited for them."""
        for at, child in enumerate(self._children):
            assert child.stdin is not None
            child.stdin.write(f"{first + at * SHARE} {first + at * SHARE + rows}\n")
            child.stdin.flush()
        self._told += 1

    def wait(self) -> None:
        for child in self._children:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(self._told)] == ["done\n"] * self._told
        self._told = 0

    def end(self) -> list[int]:
        for child in self._children:
            child.communicate(timeout=120)
        return [child.returncode for child in self._children]


@pytest.fixture
def live(node: Node) -> Iterator[Live]:
    made = Live(node.config.home, "twice")
    yield made
    assert made.end() == [0] * PROCESSES


def test_processes_that_capture_the_same_rows_live_and_a_backfill_make_one_row_of_each(
    node: Node, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BF-4, L-BF-6, F-25: of a dataset that keeps what comes twice. `n` tells who wrote a row."""
    monkeypatch.setattr(write_module, "BUNDLE_ROWS", BUNDLE)
    unchecked: list[int] = []

    def before(_: str, ordinal: int) -> None:
        unchecked.append(ordinal * BUNDLE)
        live.begin(ordinal * BUNDLE, 4)  # some of them before the check, some while it looks

    def checked() -> None:
        if unchecked:
            live.begin(unchecked.pop() + 4, 4)
            live.wait()

    hook(monkeypatch, "backfill.append", checked, times=ROWS)
    chunks = [[{"id": f"k{n}", "n": -n} for n in range(at, at + BUNDLE)] for at in range(0, ROWS, BUNDLE)]

    result = backfill(node, Given({"history": chunks}, dataset="twice", before=before))

    captured = [n for n in range(ROWS) if n % SHARE < 8]
    written = [-n for n in range(ROWS) if n % SHARE >= 8]
    assert (result.status, result.tally.written) == ("done", len(written))
    assert sum(left_out(result)) == len(captured)
    assert numbers(node, "twice") == sorted([*written, *captured])
    assert backfill(node, Given({"history": chunks}, dataset="twice")).tally.written == 0


KILLED = """
import sys
from pathlib import Path
from strandline.backfill import write
from tests.backfill.rig import Given, backfill, open_here
write.BUNDLE_ROWS = 10
chunks = [[{"n": n} for n in range(at, at + 10)] for at in range(0, 50, 10)]
backfill(open_here(Path(sys.argv[1])), Given({"item": chunks}, dataset="plain"))
"""


@pytest.mark.parametrize("place", ["backfill.append:3", "append.commit:3", "append.committed:3"])
def test_a_run_that_is_killed_is_completed_by_the_next_without_a_repeat(node: Node, place: str) -> None:
    """L-BF-10, of rows without identity."""
    environment = {**os.environ, "STRANDLINE_FAILPOINT": place}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, node.config.home],
        env=environment,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert killed.returncode == -9

    chunks = [[{"n": n} for n in range(at, at + 10)] for at in range(0, 50, 10)]
    result = backfill(node, Given({"item": chunks}, dataset="plain"))

    done = 30 if place == "append.committed:3" else 20
    assert (result.tally.chunk_known, result.tally.written) == (done, 50 - done)
    assert numbers(node, "plain") == list(range(50))


MEASURED = """
import resource, sys
from pathlib import Path
from tests.backfill.rig import Given, backfill, open_here, parts

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

node = open_here(Path(sys.argv[1]))
node.append("twice", parts(*range(10_000)), source="a")
node.flush("twice")
backfill(node, Given({"item": [parts(*range(at, at + 10_000)) for at in (0, 10_000)]}, dataset="twice"))
before = most()
found = backfill(node, Given({"item": [parts(*range(at, at + 10_000)) for at in (0, 4_995_000)]})).tally
print(found.committed, found.written, found.doubts, most() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_history(node: Node) -> None:
    """F-27, L-BF-9: neither the heap of Spark, which is 1 GiB, nor our own. The keys alone would be more."""
    history = node.spark.range(5_000_000).selectExpr("concat('k', id) as id", "id as n")
    node.load("parts", history, source="a")

    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, node.config.home],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    *tally, grown = map(int, measured.stdout.split())
    assert tally == [15_000, 5_000, 0]
    assert grown < 150_000  # KiB


@pytest.mark.slow
def test_memory_does_not_grow_with_the_spool(node: Node) -> None:  # F-27, L-SPOOL-10
    for at in range(0, 1_000_000, 50_000):
        node.append("parts", parts(*range(at, at + 50_000)), source="a")

    result = backfill(node, Given({"item": [parts(*range(995_000, 1_005_000))]}))

    assert (result.tally.spooled, result.tally.written, result.tally.doubts) == (5_000, 5_000, 0)


# A package of someone else's


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of examples/provider, as an installer would leave it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    [(name, value)] = project["entry-points"][GROUP].items()
    facts = tmp_path / "site" / "strandline_mbox_provider-0.1.0.dist-info"
    facts.mkdir(parents=True)
    facts.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    facts.joinpath("entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(facts.parent)
    monkeypatch.syspath_prepend(EXAMPLE)


MAIL = """From a@example Thu Jan  1 00:00:00 2026
Message-ID: <{0}@example>
Date: Thu, 01 Jan 2026 10:00:00 +0000
From: a@example
Subject: number {0}

Body {0}

"""


@pytest.mark.usefixtures("installed")
def test_a_provider_of_a_package_brings_rows_in(node: Node) -> None:  # L-BF-1
    assert "mbox" in provider_types()
    folder = node.config.home / "mail"
    folder.mkdir()
    (folder / "in.mbox").write_text(MAIL.format(1) + MAIL.format(2))
    (folder / "out.mbox").write_text(MAIL.format(2) + MAIL.format(3))
    keys: dict[str, Any] = {"path": "mail", "dataset": "parts"}
    provider = make_provider("mbox", ProviderOptions("mail", keys, node.config.home))

    result = run(node.site, node.backfills, provider, Order("mail", Window(), quiesce_s=0))

    assert (result.tally.written, result.tally.in_chunk) == (3, 1)
    assert [row[0] for row in table(node, columns="subject")] == ["number 1", "number 2", "number 3"]


@pytest.mark.usefixtures("installed")
def test_a_key_that_a_provider_does_not_know_is_refused(tmp_path: Path) -> None:
    keys = {"path": "mail", "dataset": "parts", "speed": 3}
    with pytest.raises(UsageError, match="does not know speed"):
        make_provider("mbox", ProviderOptions("mail", keys, tmp_path))
