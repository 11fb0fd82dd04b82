"""SIGKILL at every named step of a backfill, in chunks and as a frame: each row comes in once (L-ACC-3)."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline import backfill, sources
from strandline.node.node import Node
from tests.crash.maintenance_case import Books, by_n, table_of
from tests.crash.pipeline_case import DATASET
from tests.crash.pipeline_child import ACTS

BACKFILL_STEPS: Final = (
    "backfill.ledgers",
    "backfill.spooled",
    "backfill.committed",
    "backfill.append",
    "backfill.appended",
)
CHUNKS: Final = "chunks"
FRAMES: Final = "frames"
APPENDS: Final = ("append.segment_stored", "append.commit", "append.committed")
LOADS: Final = (
    "load.fixed",
    "load.reserve",
    "load.reserved",
    "land.staged",
    "land.published",
    "load.dropped",
)
QUICK: Final = ("load.reserved", FRAMES)


def test_every_named_step_of_a_backfill_is_killed_at_here() -> None:  # L-ACC-3
    rooms = [room for each in (backfill, sources) for room in Path(each.__path__[0]).rglob("*.py")]
    named = set(re.findall(r'\breach\("([^"]+)"\)', "\n".join(room.read_text() for room in rooms)))

    assert named == {*BACKFILL_STEPS}


@pytest.fixture
def history(books: Books) -> Books:
    """Files of rows that the node has, in its table or its spool, and of rows that it lacks."""
    rows = [{"key": key, "n": 100 + at} for at, key in enumerate(("a", "i", "x", "y", "x", "z"))]
    home = books.case.home
    (home / "chunks").mkdir()
    (home / "chunks" / "old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "frames").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), home / "frames" / "old.parquet")
    return books


def kill_of(step: str, name: str) -> Any:
    marks = () if (step, name) == QUICK else (pytest.mark.slow,)
    return pytest.param(step, name, marks=marks, id=f"{name}-{step}")


@pytest.mark.parametrize(
    ("step", "name"),
    [
        *(kill_of(step, CHUNKS) for step in (*BACKFILL_STEPS, *APPENDS)),
        *(kill_of(step, FRAMES) for step in (*BACKFILL_STEPS, *LOADS)),
    ],
)
def test_a_backfill_killed_at_a_step_is_completed_by_the_next_and_writes_no_row_twice(
    history: Books, step: str, name: str
) -> None:  # L-BF-4, L-BF-10, L-ACC-3
    with history.case.child(step) as child:
        did = child.do("backfill", name=name)
        assert child.was_killed(), f"nobody comes by {step}: {did}"

    with history.case.node() as node:
        node.flush(DATASET)  # or rows of one identity would meet in a flush, which makes them one
        history.append(node, "web-1", "y")  # captured live meanwhile: before it is filled in, or after
        (did,) = ACTS["backfill"](node, name=name)
        assert (did["status"], did["doubts"]) == ("done", [])
        (again,) = ACTS["backfill"](node, name=name)
        assert again["written"] == 0
        node.flush(DATASET)
        check_backfilled(history, node)


def check_backfilled(books: Books, node: Node) -> None:
    """Each identity that was filled in is there once; what was handed in is there as ever."""
    table = table_of(node)
    filled = [row for row in table if row["n"] >= 100]
    assert by_n([row for row in table if row["n"] < 100]).keys() == books.rows.keys()
    live = {row["key"] for row in books.rows.values() if row["source"] == "web-1"}
    late = {"y"} & {row["key"] for row in filled}  # the backfill was first
    assert Counter(row["key"] for row in filled) == Counter(({"x", "y", "z"} - live) | late)
    books.rows |= {row["n"]: {"key": row["key"], "n": row["n"], "source": row["source"]} for row in filled}
    books.check(node, set())
