"""SIGKILL at every named step of a sweep or a fold: whoever goes on leaves what would have been left.

They need no Spark. Each kill is on a copy of one node, and compared with a copy on which nobody died
(L-ACC-3, L-SPOOL-6, L-SPOOL-14, L-CTL-6).
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from strandline import maintenance
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import Node
from strandline.persist import blob_store
from strandline.rows.dataset import Strand
from strandline.state import archive
from strandline.state.archive import past_events
from tests.crash.maintenance_case import DAY_S, SETTINGS, Books
from tests.crash.pipeline_case import DATASET, Case, Nursery, lake_of, session_conf
from tests.crash.pipeline_child import ACTS
from tests.spark_sessions import ConnectServer, lake_session

SWEEP_STEPS: Final = ("sweep.doomed", "sweep.bytes", "sweep.removed", "sweep.walked")
STRAY_STEPS: Final = ("sweep.marked", "sweep.stray_doomed", "sweep.stray_bytes")
FOLD_STEPS: Final = ("fold.based", "fold.part", "fold.archived", "fold.truncated", "fold.trimmed")
APPEND_COUNT: Final = 340  # more than are worth folding
FIRST: Final = tuple((step, 1) for step in (*SWEEP_STEPS, *STRAY_STEPS, *FOLD_STEPS))
LATER: Final = (
    ("sweep.bytes", 100),
    ("sweep.stray_bytes", 2),
    ("fold.part", 2),
    ("fold.archived", 2),
    ("fold.truncated", 2),
)


def test_every_named_step_of_a_sweep_or_fold_is_killed_at_here() -> None:  # L-ACC-3
    rooms = [*Path(maintenance.__path__[0]).rglob("*.py"), Path(archive.__file__)]
    named = re.findall(r'\breach\("([^"]+)"\)', "\n".join(room.read_text() for room in rooms))

    wanted = {*SWEEP_STEPS, *STRAY_STEPS, *FOLD_STEPS}
    assert {step for step in named if step.startswith(("sweep.", "fold."))} == wanted


@pytest.fixture
def old_node(
    nursery: Nursery, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Books]:
    """Many appends that have landed, most of them delivered, and blobs that nothing names: a month ago."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    home = nursery.home(max_rows=10_000)
    with (home / "strandline.toml").open("a") as file:
        file.write(SETTINGS.replace("max_object_rows = 2", "max_object_rows = 200"))
    with lake_session(connect_server, session_conf(lake_of(home))) as session:
        books = Books(Case(nursery, home, session))
        with books.case.node() as node:
            for each in range(APPEND_COUNT):
                books.append(node, "web-1", f"k{each}")
                books.append(node, "web-2", f"k{each}")
            node.flush(DATASET)
            node.deliveries.sync("archive")
            books.append(node, "web-1", "late")
            node.flush(DATASET)
            for stray in (b"one", b"two", b"three"):
                blob_store(node.site.content, stray, "text/plain")
            assert tidied(node) == {"segments": 0, "strays": 0, "events": 0}
            books.note_tokens(node)
            books.note(node)
        books.case.ahead_s += 31 * DAY_S
        yield books


def tidied(node: Node) -> Any:
    (did,) = ACTS["tidy"](node)
    return did


def answers(node: Node) -> dict[str, Any]:
    """What is asked of old history, and what the next rows rest on."""
    site = node.site
    strands = [Strand(DATASET, source) for source in ("web-1", "web-2")]
    streams = [each.name for each in site.b.stream_scan("", after="", limit=1_000)]
    return {
        "tallies": [site.standing.strand_state(each) for each in strands],
        "numbers": site.standing.numbers(DATASET),
        "lines": site.standing.lines().of("archive"),
        "events": {each: list(past_events(site, each)) for each in streams if not each.startswith("$")},
    }


def remains(node: Node) -> dict[str, Any]:
    """What is left in the store and in the content store."""
    b = node.site.b
    return {
        "blobs": sorted(cid for cid, _ in node.site.content.stored()),
        "segments": b.kv_scan("segment/", after="", limit=10_000),
        "archived": b.kv_scan("archived/", after="", limit=100),
        "truncated": {each.name: each.truncated_through for each in b.stream_scan("", after="", limit=1_000)},
    }


@pytest.mark.slow
@pytest.mark.parametrize("kills", [FIRST, LATER], ids=["first", "later"])
def test_a_node_killed_at_any_step_of_a_sweep_or_fold_is_left_as_if_it_had_lived(
    old_node: Books, tmp_path: Path, kills: tuple[tuple[str, int], ...]
) -> None:  # L-SPOOL-6, L-SPOOL-14, L-CTL-6, F-43
    case, home = old_node.case, old_node.case.home

    def copy(name: str) -> None:
        case.home = Path(shutil.copytree(home, tmp_path / name))

    copy("lived")
    with case.node() as node:
        before = answers(node)
        did = tidied(node)
        assert (did["segments"], did["strays"]) == (2 * APPEND_COUNT + 1, 3)
        assert did["events"] > APPEND_COUNT
        wanted = remains(node)

    for step, nth in kills:
        copy(f"{step}-{nth}")
        with case.producer(f"{step}:{nth}") as child:
            child.do("tidy")
            assert child.was_killed(), f"nobody comes by {step} {nth} times"
        with case.node() as node:
            assert answers(node) == before, f"a kill at {step} changes an answer"
            tidied(node)
            assert answers(node) == before, f"a kill at {step} changes an answer later"
            assert remains(node) == wanted, f"a kill at {step} leaves other things"

    with case.node() as node:
        old_node.check(node, set())
