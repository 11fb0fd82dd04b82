"""examples/read_by_token.py: what is new is read once, and counted once whatever happens to a run."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline
from examples.read_by_token import counted, kept, main, progress, run
from strandline.node.node import Node
from strandline.persist import AtomicBackend, open_store
from tests.examples.nodes import home_in

ROOT = Path(__file__).parents[2]
ENDS_S = 300


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:
    with strandline.open(home_in(tmp_path / "shop")) as opened:
        sell(opened, "till-1", north=250, south=400)
        sell(opened, "till-2", north=125)
        yield opened


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(open_store(tmp_path / "jobs.db")) as opened:
        yield opened


def sell(node: Node, source: str, **cents: int) -> None:
    node.append("sales", [{"shop": shop, "cents": sum_} for shop, sum_ in cents.items()], source=source)
    node.flush("sales")


def test_a_run_reads_what_is_new_alone_and_adds_it(
    node: Node, jobs: AtomicBackend
) -> None:  # L-READ-3, L-READ-9
    first = run(node, jobs)
    sell(node, "till-1", south=100, west=1)
    plan = node.explain("sales", since=first["token"])
    second = run(node, jobs)

    assert first["cents"] == {"north": 375, "south": 400}
    assert (plan.files_opened, plan.files_pruned) == (1, 2)
    assert second["cents"] == {"north": 375, "south": 500, "west": 1}
    assert progress(jobs) == second


def test_a_run_with_nothing_new_changes_nothing(node: Node, jobs: AtomicBackend) -> None:  # L-READ-9
    first = run(node, jobs)

    assert run(node, jobs) == first
    assert node.explain("sales", since=first["token"]).files_opened == 0


def test_a_run_killed_before_its_result_is_kept_counts_nothing_twice(
    node: Node, jobs: AtomicBackend, tmp_path: Path
) -> None:  # P-KV-7
    killed = subprocess.run(
        [sys.executable, "-m", "tests.examples.job_child", tmp_path / "shop", tmp_path / "jobs.db"],
        cwd=ROOT,
        capture_output=True,
        timeout=ENDS_S,
        check=False,
    )
    left = progress(jobs)
    sell(node, "till-1", south=100)
    again = run(node, jobs)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert json.loads(killed.stdout) == {"north": 375, "south": 400}
    assert left is None
    assert again["cents"] == {"north": 375, "south": 500}


def test_of_two_runs_at_once_the_late_one_is_dropped(node: Node, jobs: AtomicBackend) -> None:  # P-KV-7
    early = counted(node, None)
    sell(node, "till-1", south=100)
    late = counted(node, None)

    assert [kept(jobs, None, early), kept(jobs, None, late)] == [True, False]
    assert run(node, jobs)["cents"] == {"north": 375, "south": 500}


def test_each_run_of_the_program_sums_what_it_sold(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # L-READ-9
    home = home_in(tmp_path / "shop")
    main(str(home))
    main(str(home))

    assert capsys.readouterr().out.splitlines()[-4:] == [
        "2 files to read, 0 that need no look",
        "{'north': 375, 'south': 400}",
        "2 files to read, 2 that need no look",
        "{'north': 750, 'south': 800}",
    ]
