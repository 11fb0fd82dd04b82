"""Many processes on one strand: its numbers are given out once, in order, and a reader that follows sees each
row once, in that order (F-6, F-9)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest

from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import open_node
from tests.crash.pipeline_case import DATASET, Case, Child, Nursery, lake_of, session_conf
from tests.crash.pipeline_child import load_some, read_until
from tests.spark_sessions import ConnectServer, lake_session

SOURCE: Final = "web-1"
FIRST: Final = {"key": "first", "n": 0}
WRITERS: Final = 8
LOADS: Final = 2
LOAD_ROWS: Final = 7
MAX_ROWS: Final = 2_000  # of one flush
PASSWORD: Final = "STRANDLINE_TEST_PASSWORD"  # the name of the variable


@pytest.fixture
def crowd(nursery: Nursery, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """A node for many, on SQLite."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    home = nursery.home(max_rows=MAX_ROWS)
    conf = session_conf(lake_of(home))
    with nursery.child(home).await_warm() as warm, lake_session(connect_server, conf) as session:
        yield Case(nursery, home, session, warm)


def all_append(writers: Sequence[Child], appends: int, rows: int) -> None:
    for number, writer in enumerate(writers):
        writer.tell(
            "append_many", dataset=DATASET, source=SOURCE, writer=f"w{number}", appends=appends, rows=rows
        )


def check(writers: Sequence[Child], loaded: Sequence[Sequence[int]], read: Sequence[str], rows: int) -> None:
    """The numbers that writers and loads were told cover everything once, and the reader had their rows in
    that order."""
    told = {1: FIRST["key"]}
    count = 1
    for number, writer in enumerate(writers):
        for n, lo in enumerate(only(writer)["los"]):
            told |= {lo + 1 + i: f"w{number}-{n}-{i}" for i in range(rows)}
            count += rows
    for n, (lo, hi) in enumerate(loaded):
        assert hi - lo == LOAD_ROWS
        assert {*read[lo:hi]} == {f"load-{n}-{i}" for i in range(LOAD_ROWS)}, (
            "the rows of a load, in any order"
        )
        told |= dict(enumerate(read[lo:hi], lo + 1))
        count += LOAD_ROWS
    assert len(told) == count, "a number was given out twice"
    assert [*read] == [told[seq] for seq in range(1, count + 1)]


def only(child: Child) -> Any:
    (did,) = child.listen()
    assert "error" not in did, did
    return did


@pytest.mark.parametrize(
    ("appends", "rows"),
    [
        pytest.param(50, 10, id="500-rows"),
        pytest.param(500, 20, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)], id="10000-rows"),
    ],
)
def test_eight_processes_append_to_one_strand_while_others_load_flush_and_read(
    crowd: Case, appends: int, rows: int
) -> None:  # F-6, L-SEQ-1 to L-SEQ-3, L-SEQ-7, L-SPOOL-4
    total = 1 + WRITERS * appends * rows + LOADS * LOAD_ROWS
    with ExitStack() as stack:
        flusher = stack.enter_context(crowd.child())
        writers = [stack.enter_context(crowd.producer(is_later=False)) for _ in range(WRITERS)]
        node = stack.enter_context(crowd.node(is_later=False))
        node.append(DATASET, [FIRST], source=SOURCE)

        all_append(writers, appends, rows)
        flusher.tell("flush_until", dataset=DATASET, source=SOURCE, seq=total)
        (loaded,) = load_some(node, dataset=DATASET, source=SOURCE, loads=LOADS, rows=LOAD_ROWS)
        (read,) = read_until(node, dataset=DATASET, source=SOURCE, rows=total, flushes=False)

        check(writers, loaded["ranges"], read["keys"], rows)
        assert only(flusher)["flushes"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("appends", "rows"), [(50, 10)])
def test_eight_processes_append_to_one_strand_on_postgres(
    nursery: Nursery, tcp_postgres: str, monkeypatch: pytest.MonkeyPatch, appends: int, rows: int
) -> None:
    """F-6, L-SPOOL-4. The catalog is in Postgres too, hence a Spark of its own: it loads, flushes, reads."""
    url = urlsplit(tcp_postgres)
    monkeypatch.setenv(PASSWORD, unquote(url.password or ""))
    place = url._replace(netloc=f"{url.username}@{url.hostname}:{url.port}").geturl()
    home = nursery.home(
        store={"url": place, "password": f"env:{PASSWORD}"}, max_rows=MAX_ROWS, is_classic=True
    )
    total = 1 + WRITERS * appends * rows + LOADS * LOAD_ROWS
    with ExitStack() as stack:
        loader = stack.enter_context(nursery.child(home)).begin()
        writers = [stack.enter_context(Child(home, is_warm=False)).begin() for _ in range(WRITERS)]
        with open_node(home) as node:
            node.append(DATASET, [FIRST], source=SOURCE)

        all_append(writers, appends, rows)
        (loaded,) = loader.do("load_some", dataset=DATASET, source=SOURCE, loads=LOADS, rows=LOAD_ROWS)
        (read,) = loader.do("read_until", dataset=DATASET, source=SOURCE, rows=total, flushes=True)

        check(writers, loaded["ranges"], read["keys"], rows)
