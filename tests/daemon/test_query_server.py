"""The desk of a daemon, over a real Spark: what it finds is what a command would find by itself (L-CLI-4)."""

import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strandline.config.config import FILE_NAME
from strandline.daemon.query_server import DeskFailed, QueryServer, asked_at
from strandline.node.node import Node, open_node
from strandline.node.query import PAGE_ROWS, Query, QueryRefused, QueryResult, ask
from tests.node.test_node import SETTINGS

PATIENCE_S = 60
TYPED = "SELECT n, timestamp_micros(n) AS t, cast(n AS decimal(9,2)) AS d, map('k', array(n)) AS m FROM logs"


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:  # it is the node's, too
    home = tmp_path / "node"
    home.mkdir()
    (home / FILE_NAME).write_text(SETTINGS)
    with open_node(home) as opened:
        opened.append("logs", [{"n": n} for n in range(3)], source="a")
        opened.flush("logs")
        yield opened


@pytest.fixture
def desk(node: Node) -> Iterator[str]:
    with closing(QueryServer(node)) as opened:
        yield str(opened.path)


def asked(desk: str, text: str, **options: Any) -> QueryResult:
    found = asked_at(desk, Query(text, **options), wants_schema=True)
    assert found is not None
    return found


def rows(found: QueryResult) -> list[Any]:
    return [row for page in found.pages for row in page]


def test_what_the_desk_finds_is_what_the_node_finds(node: Node, desk: str) -> None:
    here, there = ask(node, Query(TYPED)), asked(desk, TYPED)

    assert (there.columns, there.arrow_schema()) == (here.columns, here.arrow_schema())
    assert (found := rows(there)) == rows(here)
    at = datetime(1970, 1, 1, 0, 0, 0, 2, UTC)
    assert found[2] == {"n": 2, "t": at, "d": Decimal("2.00"), "m": {"k": [2]}}
    assert found[2]["t"].tzinfo is UTC


def test_many_rows_come_by_pages_and_a_limit_holds(desk: str) -> None:
    many = f"SELECT id FROM range({PAGE_ROWS * 2 + 1})"

    assert sorted(row["id"] for row in rows(asked(desk, many))) == list(range(PAGE_ROWS * 2 + 1))
    assert len(rows(asked(desk, many, limit=7))) == 7


def test_the_desk_flushes_where_it_is_asked_to_and_tells_how_old_the_rows_are(node: Node, desk: str) -> None:
    node.append("logs", [{"n": 3}], source="a")

    stale = asked(desk, "SELECT n FROM logs", refresh="never")
    assert (stale.ages["logs"].pending_rows, len(rows(stale))) == (1, 3)
    fresh = asked(desk, "SELECT n FROM logs", refresh="always")
    assert (fresh.ages["logs"].pending_rows, len(rows(fresh))) == (0, 4)


def test_a_query_that_is_refused_is_refused_with_its_remedy(desk: str) -> None:  # L-CLI-4
    with pytest.raises(QueryRefused, match="nothing_of_this_name") as caught:
        asked(desk, "SELECT * FROM nothing_of_this_name")

    assert caught.value.hint == "the datasets are: logs"


def test_queries_at_once_do_not_see_each_other(node: Node, desk: str) -> None:
    for n in range(4):
        node.append(f"logs_{n}", [{"n": n}], source="a")
        node.flush(f"logs_{n}")

    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda n: rows(asked(desk, f"SELECT n FROM logs_{n % 4}")), range(12))

    assert list(found) == [[{"n": n % 4}] for n in range(12)]


def test_who_leaves_ends_the_query(spark: SparkSession, desk: str) -> None:
    """A person who presses Ctrl-C must not leave a Spark busy."""
    forever = "SELECT sum(a.id * b.id) FROM range(10000000) a CROSS JOIN range(10000000) b"
    running = spark.sparkContext.statusTracker().getActiveJobsIds
    before = set(running())
    with Client(desk, "AF_UNIX") as connection:
        connection.send((version("strandline"), Query(forever), False))
        wait_for(lambda: set(running()) - before)

    wait_for(lambda: not set(running()) - before)


def wait_for(is_so: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


def test_only_the_owner_can_enter_and_nothing_is_left(node: Node) -> None:
    with closing(QueryServer(node)) as opened:
        folder = opened.path.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    assert not folder.exists()
    assert asked_at(str(opened.path), Query("SELECT 1"), wants_schema=False) is None


def test_a_daemon_of_another_version_is_not_asked(desk: str) -> None:
    with Client(desk, "AF_UNIX") as connection:
        connection.send(("0.0.0", Query("SELECT 1"), False))
        kind, error = connection.recv()

    assert (kind, type(error)) == ("failed", DeskFailed)


def test_a_daemon_that_ends_in_the_middle_is_an_error_and_no_end_of_the_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "desk")

    def half() -> None:
        with listener.accept() as connection:
            connection.recv()
            connection.send(("found", ["n"], {}, None))
            connection.send(("page", [{"n": 1}]))

    with Listener(path, "AF_UNIX") as listener:
        thread = Thread(target=half)
        thread.start()
        with pytest.raises(DeskFailed, match="it ended"):
            rows(asked(path, "SELECT n FROM logs"))
        thread.join()
