"""Writers that are stopped (SIGSTOP) for longer than their lease lasts, and wake up when another has done
their work: nothing lands twice, nothing is lost, and no reader passes what is still under way (L-SEQ-6 to
L-SEQ-8).
"""

import os
import signal
import subprocess
import sys
from typing import Any, Final

import pytest

from strandline.node.node import Node
from strandline.rows.dataset import Strand
from strandline.state.flush_plan import open_plan
from tests.crash.pipeline_case import DATASET, WAIT_S, Case
from tests.crash.test_pipeline_kill import begin

FLUSH_STEPS: Final = (
    "flush.plan",
    "flush.planned",
    "land.stage",
    "land.staged",
    "land.publish",
    "land.published",
    "land.record",
)
LOAD_STEPS: Final = ("load.reserved", *FLUSH_STEPS[2:])


def steps(names: tuple[str, ...], *, quick: str) -> list[Any]:
    return [pytest.param(name, marks=() if name == quick else (pytest.mark.slow,), id=name) for name in names]


# The switch itself


def test_a_process_stops_at_a_named_place_goes_on_when_it_is_told_and_dies_at_the_next() -> None:
    program = """if True:
        from strandline.base.failpoint import reach
        for name in ("here", "there", "here", "there", "there"):
            print(name, flush=True)
            reach(name)
        """
    env = {**os.environ, "STRANDLINE_FAILPOINT": "stop:here:2,there:3"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env) as process:
        stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stopped is not None
        assert (stopped.si_code, stopped.si_status) == (os.CLD_STOPPED, signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=WAIT_S)

    assert said.split() == [b"here", b"there", b"here", b"there", b"there"]
    assert process.returncode == -signal.SIGKILL


# A flusher


@pytest.mark.parametrize("step", steps(FLUSH_STEPS, quick="land.publish"))
def test_a_flusher_that_wakes_up_when_another_has_taken_over_lands_nothing_twice(
    case: Case, step: str
) -> None:  # L-SEQ-8, F-17
    begin(case)

    with case.child(f"stop:{step}") as child:
        case.hand_in(child, case.oracle.request("append", {"web-1": 3, "web-2": 2}))
        child.tell("flush", dataset=DATASET)
        child.await_stop()
        with case.node() as node:
            node.flush(DATASET)
            case.oracle.check(node)
            case.hand_in(node, case.oracle.request("append", {"web-2": 3}))
            node.flush(DATASET)
        child.resume()
        (did,) = child.listen()
        assert did.get("error") == "LeaseLost" or did["flushes"] == [2], did
        child.end()

    with case.node() as node:
        case.recover(node)


# A load


@pytest.mark.parametrize("step", steps(LOAD_STEPS, quick="load.reserved"))
def test_a_load_that_wakes_up_when_another_has_landed_it_lands_nothing_twice(case: Case, step: str) -> None:
    begin(case)  # L-SEQ-6, L-SEQ-8

    with case.child(f"stop:{step}") as child:
        request = case.oracle.request("load", {"web-2": 3, "a/b": 2})
        child.tell("load", dataset=DATASET, request=request.id, rows=request.rows)
        child.await_stop()
        with case.node() as node:
            assert len(node.flush(DATASET).landed_loads) == 1
            case.oracle.check(node)
        child.resume()
        (did,) = child.listen()
        assert did.get("error") == "LeaseLost" or did["request"] == request.id, did
        if "error" not in did:
            case.oracle.acknowledge(did)
        child.end()

    with case.node() as node:
        case.recover(node)


def test_the_late_publish_of_a_load_that_was_released_is_refused(case: Case) -> None:
    """L-SEQ-6: whoever released it looked before it was staged; its id was burned first."""
    begin(case)

    with case.child("stop:land.publish") as child:
        request = case.oracle.request("load", {"web-2": 3, "a/b": 2})
        child.tell("load", dataset=DATASET, request=request.id, rows=request.rows)
        child.await_stop()
        with case.node() as node:
            node.tables.burn(DATASET, open_id(node))
            assert len(node.flush(DATASET).released_loads) == 1
            case.hand_in(node, case.oracle.request("append", {"web-2": 2}))
            node.flush(DATASET)
            case.oracle.check(node)  # readers pass the gap
        child.resume()
        (did,) = child.listen()
        assert did["error"] == "LoadReleased", did
        child.end()

    with case.node() as node:
        case.oracle.check(node)
        case.recover(node)  # handed in again it lands, under other numbers
        assert request.ranges is not None
        assert request.ranges["web-2"].lo == 2 + 3 + 2


def open_id(node: Node) -> str:
    ((number, event),) = node.site.standing.numbers(DATASET).open.items()
    return open_plan(node.site.b, DATASET, number, event).id


def test_no_reader_passes_a_load_that_is_under_way(case: Case) -> None:  # L-SEQ-7, F-9
    begin(case)

    with case.child("stop:land.publish") as child:
        request = case.oracle.request("load", {"web-2": 3, "a/b": 2})
        child.tell("load", dataset=DATASET, request=request.id, rows=request.rows)
        child.await_stop()
        with case.node(is_later=False) as node:  # its lease is good still
            case.hand_in(node, case.oracle.request("append", {"web-2": 4, "web-1": 1}))
            assert node.flush(DATASET).landed_loads == ()
            assert node.site.standing.strand_state(Strand(DATASET, "web-2")).visible_through == 2
            assert node.site.standing.strand_state(Strand(DATASET, "web-1")).visible_through == 4
            assert node.site.standing.numbers(DATASET).visible == 1
            case.oracle.check(node, is_settled=False)
            child.resume()
            (did,) = child.listen()
            case.oracle.acknowledge(did)
            case.oracle.check(node)  # the readers have the rows of the load before those that came after it
        child.end()
