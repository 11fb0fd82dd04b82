"""Retention as a user meets it, over a real Spark: the verbs of a node, readers whose tokens are older than
what is left, and the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from strandline.cli import cli
from strandline.config.config import FILE_NAME
from strandline.maintenance.chores import Chores, Done
from strandline.maintenance.retention.prune import PruneResult
from strandline.node.node import Node, open_node
from strandline.node.status import status_of
from strandline.read.visible import BehindFront
from tests.maintenance.house import HandClock
from tests.node.test_node import SETTINGS

TIMEOUT_S = 300


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path, clock: HandClock) -> Iterator[Node]:
    home = tmp_path / "node"
    home.mkdir()
    (home / FILE_NAME).write_text(SETTINGS)
    with open_node(home, clock=clock) as opened:
        yield opened


def land(node: Node, first: int, last: int, source: str = "a") -> None:
    node.append("rows", [{"n": n} for n in range(first, last + 1)], source=source)
    node.flush("rows")


def pruned(node: Node) -> PruneResult:
    result = node.keeping.prune()["rows"]
    assert isinstance(result, PruneResult), result
    return result


def ns(pages: Any) -> list[int]:
    return [row["n"] for page in pages for row in page.rows]


def test_the_running_product_takes_old_rows_out_by_itself(node: Node, clock: HandClock) -> None:
    """F-19, L-RET-1: by its interval, on a clock that a test moves, also after a restart."""
    told: list[Done] = []
    land(node, 1, 5)

    def tick() -> list[str]:
        chores = Chores(node.site.b, clock, node.keeping.chores(), told.append)
        begun = [each for each in chores.tick() if each == "retention"]
        assert chores.wait(TIMEOUT_S) == []
        return begun

    assert tick() == ["retention"]
    clock.forward(hours=0.5)
    assert tick() == []
    clock.forward(days=91)
    assert tick() == ["retention"]
    assert node.read("rows").count() == 0
    last = [each for each in told if each.name == "retention"][-1]
    assert last.result["rows"].rows == 5
    assert status_of(node.config, node.site).datasets[0].retention.rows == 5


def test_a_reader_behind_the_front_is_told_and_goes_on_only_if_it_says_so(
    node: Node, clock: HandClock
) -> None:
    """L-READ-8: of a strand and of all sources; tokens stay as they are, and new ones too."""
    land(node, 1, 10)
    start, start_all = node.end("rows", source="a"), node.end("rows")
    land(node, 11, 20)
    clock.forward(days=50)
    land(node, 21, 30)
    middle, middle_all = node.end("rows", source="a"), node.end("rows")
    clock.forward(days=41)
    assert pruned(node).rows == 20
    land(node, 31, 35)

    with pytest.raises(BehindFront) as told:
        node.read("rows", source="a", since=start)
    assert (told.value.kind, told.value.since, told.value.front, told.value.rows) == (
        "behind_front",
        10,
        20,
        10,
    )
    with pytest.raises(BehindFront) as told:
        node.scan("rows", since=start_all)
    assert (told.value.since, told.value.front) == (1, 2)
    with pytest.raises(BehindFront):
        node.explain("rows", source="a", since=start)

    on = node.scan("rows", source="a", since=start, on_pruned="continue")
    assert ns(on) == list(range(21, 36))
    assert ns(node.scan("rows", since=start_all, on_pruned="continue")) == list(range(21, 36))
    assert ns(node.scan("rows", source="a", since=middle)) == list(range(31, 36))
    assert ns(node.scan("rows", since=middle_all)) == list(range(31, 36))
    assert node.read("rows").count() == 15  # without a token nobody is behind
    assert node.end("rows", source="a") == on.end


def test_pages_across_a_run_skip_and_repeat_nothing_that_is_left(node: Node, clock: HandClock) -> None:
    """L-READ-8, L-READ-7: in one scan, which has its snapshot, and from page to page by token."""
    land(node, 1, 10)
    clock.forward(days=60)
    land(node, 11, 20)
    land(node, 1, 6, "b")
    clock.forward(days=31)

    scan = node.scan("rows", source="a", max_rows=4)
    pages = iter(scan)
    seen = [row["n"] for row in next(pages).rows]
    token = node.scan("rows", source="a", max_rows=12)
    first = next(iter(token))
    assert pruned(node).rows == 10
    seen += [row["n"] for page in pages for row in page.rows]
    assert seen == list(range(1, 21))
    rest = node.scan("rows", source="a", since=first.token, max_rows=3)
    assert ns(rest) == list(range(13, 21))
    assert ns(node.scan("rows", max_rows=3)) == [*range(11, 21), *range(1, 7)]


def test_the_command_line_counts_prunes_and_reads_on(
    node: Node, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-CLI-1, L-CLI-2, L-CLI-3: `retention run`, its dry run, and `read --on-pruned`."""
    home = str(node.config.home)
    land(node, 1, 5)
    token = node.end("rows", source="a")
    land(node, 6, 9)
    clock.forward(days=100)
    monkeypatch.setattr("strandline.state.context.SystemClock", lambda: clock)

    def run(*args: str, expect: int = 0) -> Any:
        done = CliRunner().invoke(cli, [*args, "--home", home])
        assert done.exit_code == expect, done.output
        return done

    dry = json.loads(run("retention", "run", "--dry-run", "--json").stdout)
    assert (dry["dataset"], dry["rows"], dry["dry_run"]) == ("rows", 9, True)
    table = run("retention", "run", "rows").stdout
    assert table.split() == [
        *("DATASET", "CUTOFF", "ROWS", "EVICTED", "STRANDS", "HELD"),
        *("rows", "2027-01-25T08:00:00Z", "9", "0", "1"),
    ]
    assert json.loads(run("retention", "run", "rows", "--json").stdout)["rows"] == 0
    behind = run("read", "rows", "--source", "a", "--since", token, expect=3)
    assert "behind_front: dataset 'rows', source 'a': up to 4 rows after seq 5 are pruned" in behind.stderr
    on = run("read", "rows", "--source", "a", "--since", token, "--on-pruned", "continue", "--json")
    assert json.loads(on.stdout.splitlines()[-1])["end"]["rows"] == 0
    status = json.loads(run("status", "--json").stdout)
    assert status["datasets"][0]["retention"]["rows"] == 9
    assert "RETENTION" in run("status").stdout
