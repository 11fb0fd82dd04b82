"""SIGKILL at every named step of append, flush and load: each row lands once, whatever was under way.

A child appends, flushes or loads, and dies at a step. Then another opens the node, hands in again what was
handed in, and flushes (L-ACC-3; design.md, section 9, 1 to 3).
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from strandline import config, flush, ingest, read, state
from strandline.lake.jobs.table_schema import TableUnavailable
from strandline.node.node import Node
from strandline.rows.dataset import Strand
from strandline.state.flush_plan import LoadPlan, open_plan
from strandline.storage import objects
from tests.crash.pipeline_case import DATASET, Case, Child

APPEND_STEPS: Final = (
    "append.judged",
    "append.segment",
    "append.segment_stored",
    "append.commit",
    "append.committed",
)
OBJECT_STEPS: Final = (
    "objects.staged",
    "objects.written",
    "objects.synced",
    "objects.published",
    "objects.durable",
)
COMMIT_STEPS: Final = ("commit.prepared", "commit.before", "commit.after", "commit.acknowledged")
PLAN_STEPS: Final = ("flush.plan", "flush.planned", "flush.ensured")
LAND_STEPS: Final = (
    "land.stage",
    "land.staged",
    "land.publish",
    "land.published",
    "land.record",
    "land.recorded",
)
LOAD_STEPS: Final = (
    "load.fix",
    "load.fixed",
    "load.reserve",
    "load.reserved",
    "load.ensured",
    "load.landed",
    "load.dropped",
)
# Each of these has a test of its own: nobody comes by where nothing else went wrong.
RARE_STEPS: Final = ("flush.amended", "land.refused", "load.burn", "load.burned")
KEEPING_STEPS: Final = ("fold.part",)  # see test_sweeps_kill.py


def test_every_named_step_of_the_pipeline_is_killed_at_here() -> None:  # L-ACC-3
    folders = [Path(room.__path__[0]) for room in (config, flush, ingest, objects, read, state)]
    rooms = [path for folder in folders for path in folder.rglob("*.py")]
    named = set(re.findall(r'\breach\("([^"]+)"\)', "\n".join(room.read_text() for room in rooms)))

    here = {*APPEND_STEPS, *OBJECT_STEPS, *PLAN_STEPS, *LAND_STEPS, *LOAD_STEPS, *RARE_STEPS}
    assert named == {*here, *KEEPING_STEPS}


# What the children do


def begin(case: Case) -> None:
    """Some rows are there, and some were read."""
    with case.node() as node:
        case.hand_in(node, case.oracle.request("append", {"web-1": 3, "web-2": 2}))
        node.flush(DATASET)
        case.oracle.follow(node)


def flushing(case: Case, child: Child) -> None:
    """Two appends, of several sources and of one, and a flush in two plans: the first ends in a segment."""
    for rows in ({"web-1": 5, "web-2": 4}, {"web-1": 5}):
        case.hand_in(child, case.oracle.request("append", rows))
    child.do("flush", dataset=DATASET)


def loading(case: Case, child: Child) -> None:
    """A load of two sources, above rows that are still in the spool."""
    case.hand_in(child, case.oracle.request("append", {"web-2": 2}))
    if case.hand_in(child, case.oracle.request("load", {"web-2": 3, "a/b": 4})):
        child.do("flush", dataset=DATASET)


QUICK: Final = {
    ("land.staged", 2, flushing),
    ("land.published", 1, flushing),
    ("load.reserved", 1, loading),
}
EVERY: Final = (
    *((step, nth, flushing) for step in (*PLAN_STEPS, *LAND_STEPS) for nth in (1, 2)),
    *((step, 1, loading) for step in (*LOAD_STEPS, *LAND_STEPS)),
)


def kill_of(step: str, nth: int, work: Callable[[Case, Child], None]) -> Any:
    marks = () if (step, nth, work) in QUICK else (pytest.mark.slow,)
    return pytest.param(step, nth, work, marks=marks, id=f"{work.__name__}-{step}-{nth}")


# The kills


@pytest.mark.parametrize(("step", "nth", "work"), [kill_of(*each) for each in EVERY])
def test_a_process_killed_at_a_step_of_a_flush_or_load_loses_and_doubles_nothing(
    case: Case, step: str, nth: int, work: Callable[[Case, Child], None]
) -> None:  # L-FLUSH-2, L-SEQ-4, L-SEQ-6, F-17
    begin(case)

    with case.child(f"{step}:{nth}") as child:
        work(case, child)
        assert child.was_killed(), f"nobody comes by {step} {nth} times"

    with case.node() as node:
        case.oracle.check(node, is_settled=False)
        case.recover(node)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "work"), [("land.staged", flushing), ("land.published", flushing), ("load.reserved", loading)]
)
def test_a_process_killed_together_with_its_spark_loses_and_doubles_nothing(
    classic_case: Case, step: str, work: Callable[[Case, Child], None]
) -> None:  # L-FLUSH-2, L-SEQ-6
    begin(classic_case)

    with classic_case.producer(step) as child:
        work(classic_case, child)
        assert child.was_killed(), f"nobody comes by {step}"

    with classic_case.producer() as child:  # on classic Spark too
        assert "error" not in child.do("flush", dataset=DATASET)[0]
        child.end()
    with classic_case.node() as node:
        classic_case.recover(node)


def test_an_append_killed_at_any_of_its_steps_is_there_whole_or_not_at_all(case: Case) -> None:
    """L-SPOOL-3, L-SPOOL-14, L-SEQ-4, F-44: at segment write and sync, at the ledger's commit, at its
    answer."""
    begin(case)
    for step in (*APPEND_STEPS, *OBJECT_STEPS, *COMMIT_STEPS):
        first = case.oracle.request("append", {"web-1": 1, "a/b": 1})
        second = case.oracle.request("append", {"a/b": 1, "web-1": 1})

        with case.producer(f"{step}:2") as child:
            acknowledged = [case.hand_in(child, each) for each in (first, second)]
            assert child.was_killed(), f"an append does not come by {step} twice"

        assert acknowledged != [True, True]
        with case.node() as node:
            for request in (first, second):
                case.hand_in(node, request)

    with case.node() as node:
        case.recover(node)


def test_a_flush_killed_when_it_was_cut_in_front_of_a_segment_that_turned_bad(case: Case) -> None:
    """L-FLUSH-13, L-SPOOL-13: the others land, the strand waits, and goes on when the bytes are back."""
    begin(case)
    with case.node() as node:
        case.hand_in(node, case.oracle.request("append", {"web-2": 2}))
        case.hand_in(node, bad := case.oracle.request("append", {"web-1": 3}))
        segment = segment_of(case, node, bad.id)
        good = segment.read_bytes()

    with case.child("stop:flush.planned,flush.amended") as child:
        child.tell("flush", dataset=DATASET)
        child.await_stop()
        segment.write_bytes(b"damaged")
        child.resume()
        child.listen()
        assert child.was_killed()

    with case.node() as node:
        report = node.flush(DATASET)
        assert [*report.held] == ["web-1"]
        assert bad.ranges is not None
        assert (
            node.site.standing.strand_state(Strand(DATASET, "web-1")).visible_through
            == bad.ranges["web-1"].lo
        )
        case.oracle.check(node, is_settled=False)
        segment.write_bytes(good)
        case.recover(node)


def segment_of(case: Case, node: Node, request: str) -> Path:
    cid = node.append(DATASET, case.oracle.requests[request].rows, request_id=request).segment
    assert cid is not None
    (found,) = (case.home / "content").rglob(cid.removeprefix("sha256-"))
    return found


@pytest.mark.slow
def test_a_flusher_killed_when_its_publish_was_refused(case: Case) -> None:  # L-SEQ-8
    begin(case)

    with case.child("stop:land.publish,land.refused") as child:
        case.hand_in(child, case.oracle.request("append", {"web-1": 5, "web-2": 4}))
        child.tell("flush", dataset=DATASET)
        child.await_stop()
        with case.node() as node:
            node.flush(DATASET)
            case.oracle.check(node)
        child.resume()
        child.listen()
        assert child.was_killed(), "Iceberg published an id twice"

    with case.node() as node:
        case.recover(node)


# A load whose input is gone


def reserve_and_lose_input(case: Case) -> None:
    """A load dies when its numbers are reserved, and then somebody removes its scratch table."""
    begin(case)
    with case.child("load.reserved") as child:
        case.hand_in(child, case.oracle.request("load", {"web-2": 3, "a/b": 4}))
        assert child.was_killed()
    with case.node() as node:
        drop_input(case, node)


def drop_input(case: Case, node: Node) -> None:
    ((number, event),) = node.site.standing.numbers(DATASET).open.items()
    plan = open_plan(node.site.b, DATASET, number, event)
    assert isinstance(plan, LoadPlan)
    case.session.sql(f"DROP TABLE {plan.input.table} PURGE")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["load.burn", "load.burned"])
def test_a_process_killed_while_it_gives_up_a_load(case: Case, step: str) -> None:  # L-SEQ-6
    reserve_and_lose_input(case)

    with case.child(step) as child:
        child.do("flush", dataset=DATASET)
        assert child.was_killed(), f"nobody comes by {step}"

    with case.node() as node:
        assert len(node.flush(DATASET).released_loads) == 1
        case.oracle.check(node, is_settled=False)
        case.recover(node)  # the same request lands now, with other numbers


def test_a_load_is_given_up_even_if_that_failed_once_in_between(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SEQ-6: the empty commit that burns its id was staged, and not published
    reserve_and_lose_input(case)
    with case.node() as node:
        with monkeypatch.context() as broken:
            broken.setattr(node.tables, "publish", no_answer)
            with pytest.raises(TableUnavailable):
                node.flush(DATASET)

        assert len(node.flush(DATASET).released_loads) == 1
        case.recover(node)


def no_answer(dataset: str, snapshot: int) -> None:
    raise TableUnavailable("publish to", dataset, ConnectionError(f"no answer to the pick of {snapshot}"))
