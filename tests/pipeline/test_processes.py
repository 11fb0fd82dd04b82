"""Many processes on one strand, beside a flusher and a reader that follows by token (F-6, L-SEQ-3)."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from strandline.pipeline.node import Node
from tests.pipeline.test_node import open_here

WRITERS: Final = 8
DATASET: Final = "shared"
WRITER: Final = """
import sys
import strandline

home, who, rows, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with strandline.open(home) as node:
    print("ready", flush=True)
    sys.stdin.readline()
    for start in range(0, rows, batch):
        node.append("shared", [{"who": who, "i": i} for i in range(start, start + batch)], source="one")
"""


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:
    with open_here(tmp_path / "node") as opened:
        yield opened


class Follower:
    """Keeps a token and what it has read; every row must come once, in order, without a gap."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._token: str | None = None
        self.rows: list[tuple[str, int]] = []
        self.visible = 0

    def read_on(self) -> None:
        scan = self._node.scan(DATASET, source="one", since=self._token, max_rows=5_000, refresh="never")
        for page in scan:
            self.rows += [(row["who"], row["i"]) for row in page.rows]
            self._token = page.token
        visible = self._node.site.standing.tallies(DATASET)["one"].visible_through
        assert visible >= self.visible, "V went back"
        self.visible = visible


def run(node: Node, rows: int, batch: int, *, loads: int) -> Follower:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(node.config.home), str(who), str(rows), str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in range(WRITERS)
    ]
    node.append(DATASET, [{"who": "first", "i": 0}], source="one")
    follower = Follower(node)
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    while any(child.poll() is None for child in children):
        node.flush(DATASET)
        follower.read_on()
        if loads:
            loads -= 1
            df = node.spark.range(100).selectExpr(f"'load-{loads}' AS who", "id AS i")
            node.load(DATASET, df, source="one")
    for child in children:
        assert child.wait() == 0
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()
    node.flush(DATASET)
    follower.read_on()
    return follower


def check(node: Node, follower: Follower, rows: int, loaded: int) -> None:
    wanted = 1 + WRITERS * rows + loaded
    table = node.reader.rows(node.site.known(DATASET).dataset, internal=True)
    count, distinct, highest = table.selectExpr(
        "count(*)", "count(DISTINCT _sl_seq)", "max(_sl_seq)"
    ).collect()[0]
    assert (count, distinct, highest) == (wanted, wanted, wanted)  # consecutive, and none twice
    assert len(follower.rows) == len(set(follower.rows)) == wanted
    for who in range(WRITERS):
        assert [i for name, i in follower.rows if name == str(who)] == list(range(rows))


def test_eight_processes_append_while_a_flusher_and_a_reader_run(node: Node) -> None:
    follower = run(node, rows=500, batch=20, loads=0)

    check(node, follower, 500, 0)


def test_loads_that_reserve_in_between_share_no_number(node: Node) -> None:
    follower = run(node, rows=200, batch=10, loads=2)

    loaded = sum(name.startswith("load-") for name, _ in follower.rows)
    assert loaded in (100, 200)
    check(node, follower, 200, loaded)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_eighty_thousand_rows_of_eight_processes(node: Node) -> None:
    follower = run(node, rows=10_000, batch=100, loads=5)

    check(node, follower, 10_000, sum(name.startswith("load-") for name, _ in follower.rows))
