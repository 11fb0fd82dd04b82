"""SIGKILL at every named step of a delivery, to objects and to another node: each row arrives once.

A child appends, flushes and delivers, and dies at a step. Then another opens the node, hands in again what
was handed in, and delivers (L-ACC-3, L-WM-10; design.md, section 9, 4).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from strandline import delivery, sinks
from strandline.delivery.audit.verify import verify
from strandline.delivery.result import SyncResult
from strandline.node.node import Node
from tests.crash.pipeline_case import DATASET, SOURCES, Case, Child
from tests.server.receivers import Sender, receiving
from tests.sites import spooled_rows

INTENT_STEPS: Final = ("intent.write", "intent.written")
JOB_STEPS: Final = ("deliver.job", "deliver.done", "deliver.record", "deliver.recorded")
BLOB_STEPS: Final = ("blob.put", "blob.stored")
FORWARD_STEPS: Final = ("forward.post", "forward.answer")
SETTINGS: Final = """
[node]
name = "edge"
[sinks.archive]
type = "blob"
destination = "local"
dir = "archive"
encoder = "jsonl"
max_object_rows = 2
[sinks.centre]
type = "forward"
url = "{url}"
token = "file:token"
max_unit_rows = 2
"""


def test_every_named_step_of_a_delivery_is_killed_at_here() -> None:  # L-ACC-3
    rooms = [room for each in (delivery, sinks) for room in Path(each.__path__[0]).rglob("*.py")]
    named = set(re.findall(r'\breach\("([^"]+)"\)', "\n".join(room.read_text() for room in rooms)))

    assert named == {*INTENT_STEPS, *JOB_STEPS, *BLOB_STEPS, *FORWARD_STEPS}


@pytest.fixture
def centre(case: Case, tmp_path: Path) -> Iterator[Sender]:
    """Another node, and the settings that name it."""
    with receiving(tmp_path / "centre") as receiver:
        (case.home / "token").write_text(receiver.token)
        with (case.home / "strandline.toml").open("a") as file:
            file.write(SETTINGS.format(url=receiver.url))
        yield receiver


def archived(case: Case) -> Counter[str]:
    return Counter(
        json.loads(line)["key"]
        for path in (case.home / "archive").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )


def received(centre: Sender) -> Counter[str]:
    return Counter(
        row["key"] for source in SOURCES for _, row in spooled_rows(centre.site, DATASET, f"edge/{source}")
    )


def work(case: Case, child: Child) -> None:
    """Two sources, several units each, to both sinks in turn; then more of one, so that a line moves on."""
    for rows in ({"web-1": 5, "web-2": 3}, {"web-1": 3}):
        case.hand_in(child, case.oracle.request("append", rows))
        child.do("flush", dataset=DATASET)
        for name in ("archive", "centre"):
            child.do("sync", name=name)


def settle(case: Case, node: Node, centre: Sender) -> None:
    case.recover(node)
    for run in node.sync().runs.values():
        assert isinstance(run, SyncResult), run
        assert run.status in ("exported", "idle"), run
    wanted = Counter(row["key"] for request in case.oracle.requests.values() for row in request.rows)
    assert archived(case) == wanted
    assert received(centre) == wanted
    deliveries = node.deliveries
    for name in deliveries.names():
        verdicts = list(verify(node.site, deliveries.sink(name), deliveries.terms(name), deliveries.sender))
        assert [each.status for each in verdicts] == ["ok"] * len(verdicts), verdicts
    assert {run.status for run in node.sync().runs.values() if isinstance(run, SyncResult)} == {"idle"}


QUICK: Final = {("blob.stored", 2), ("forward.answer", 3), ("deliver.record", 2)}
EVERY: Final = [
    *((step, nth) for step in (*INTENT_STEPS, *JOB_STEPS) for nth in (1, 2, 3)),
    *((step, nth) for step in (*BLOB_STEPS, *FORWARD_STEPS) for nth in (1, 2, 3, 5)),
]


def kill_of(step: str, nth: int) -> Any:
    marks = () if (step, nth) in QUICK else (pytest.mark.slow,)
    return pytest.param(step, nth, marks=marks, id=f"{step}-{nth}")


@pytest.mark.parametrize(("step", "nth"), [kill_of(*each) for each in EVERY])
def test_a_sender_killed_at_a_step_loses_and_doubles_nothing(
    case: Case, centre: Sender, step: str, nth: int
) -> None:  # L-ACC-3, L-WM-10, F-11, F-34
    with case.child(f"{step}:{nth}") as child:
        work(case, child)
        assert child.was_killed(), f"nobody comes by {step} {nth} times"

    with case.node() as node:
        settle(case, node, centre)
