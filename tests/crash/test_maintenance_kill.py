"""SIGKILL at every named step of retention, compaction, expiry and purge.

A child does one of them, and dies at a step. Rows come in and land, as they would; then the same is done
again, and all is as if nobody had died: what stays is there once and as it was, nothing that went is back,
each count is recorded once, every sink gets what is left once (L-ACC-3; design.md, section 9).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from strandline import maintenance
from strandline.ingest import quarantine
from strandline.maintenance.compaction import merge
from strandline.node.node import Node
from tests.crash.maintenance_case import SECRET, Books, branches_of
from tests.crash.pipeline_case import DATASET
from tests.crash.pipeline_child import ACTS

RETENTION_STEPS: Final = (
    "retention.intend",
    "retention.intended",
    "retention.delete",
    "retention.deleted",
    "retention.record",
    "retention.recorded",
)
COMPACTION_STEPS: Final = (
    "compaction.begun",
    "compaction.branched",
    "compaction.rewritten",
    "compaction.checked",
    "compaction.staged",
    "compaction.landed",
    "compaction.recorded",
    "compaction.dropped",
)
ABANDON_STEPS: Final = (
    "compaction.barred",
    "compaction.unnamed",
    "compaction.abandon",
)  # of a run that another left
EXPIRY_STEPS: Final = ("maintain.expired", "maintain.swept")
PURGE_STEPS: Final = (
    "purge.intend",
    "purge.intended",
    "purge.deleted",
    "purge.recorded",
    "purge.quarantine_drop",
    "purge.quarantine_dropped",
    "purge.quarantine",
    "purge.swept",
    "purge.expired",
)
TIDY_STEPS: Final = ("sweep.", "fold.")  # how those begin that test_sweeps_kill.py kills at


def test_every_named_step_of_keeping_is_killed_at_here() -> None:  # L-ACC-3
    rooms = Path(maintenance.__path__[0]).rglob("*.py")
    named = re.findall(r'\breach\("([^"]+)"\)', "\n".join(room.read_text() for room in rooms))

    keeps = {*RETENTION_STEPS, *COMPACTION_STEPS, *ABANDON_STEPS, *EXPIRY_STEPS, *PURGE_STEPS}
    assert {step for step in named if not step.startswith(TIDY_STEPS)} == keeps


@dataclass(frozen=True)
class Verb:
    """What a child is told to do, and which rows go by it."""

    act: str
    arguments: Mapping[str, Any]
    gone: Callable[[Books], set[int]]

    def run(self, node: Node) -> dict[str, Any]:
        (did,) = ACTS[self.act](node, **self.arguments)
        assert isinstance(did, dict)
        return did


def delivered_long_ago(books: Books) -> set[int]:
    return {1, 2, 3, 4, 5}


def repeats(books: Books) -> set[int]:
    """All but the first of each identity in its strand."""
    seen: set[tuple[str, str]] = set()
    found = set()
    for n, row in sorted(books.rows.items()):
        place = (row["source"], row["key"])
        found |= {n} if place in seen else set()
        seen.add(place)
    return found


def secrets(books: Books) -> set[int]:
    return {n for n, row in books.rows.items() if row["key"] == SECRET}


def none(_: Books) -> set[int]:
    return set()


PRUNE: Final = Verb("prune", {}, delivered_long_ago)
COMPACT: Final = Verb("maintain", {"dataset": DATASET, "compact": True, "expire": False}, repeats)
EXPIRE: Final = Verb("maintain", {"dataset": DATASET, "compact": False, "expire": True}, none)
PURGE: Final = Verb("purge", {"dataset": DATASET, "where": f"key = '{SECRET}'"}, secrets)
QUICK: Final = {("retention.deleted", 1), ("compaction.landed", 1), ("purge.deleted", 1)}
EVERY: Final = (
    *((step, 1, PRUNE) for step in RETENTION_STEPS),
    *((step, 1, COMPACT) for step in COMPACTION_STEPS),
    *((step, nth, EXPIRE) for step, nth in (("maintain.expired", 1), ("maintain.expired", 2))),
    ("maintain.swept", 1, EXPIRE),
    *((step, 1, PURGE) for step in PURGE_STEPS),
)


def kill_of(step: str, nth: int, verb: Verb) -> Any:
    marks = () if (step, nth) in QUICK else (pytest.mark.slow,)
    return pytest.param(step, nth, verb, marks=marks, id=f"{step}-{nth}")


@pytest.mark.parametrize(("step", "nth", "verb"), [kill_of(*each) for each in EVERY])
def test_a_process_killed_at_a_step_of_keeping_a_node_small_loses_doubles_and_revives_nothing(
    books: Books, step: str, nth: int, verb: Verb
) -> None:  # L-ACC-3, L-RET-7, L-CMP-2, L-CMP-4, L-POL-3
    case = books.case
    with case.child(f"{step}:{nth}") as child:
        did = child.do(verb.act, **verb.arguments)
        assert child.was_killed(), f"nobody comes by {step} {nth} times: {did}"

    with case.node() as node:
        settle(books, node, verb)


def settle(books: Books, node: Node, verb: Verb) -> None:
    """Whoever comes next: others hand rows in meanwhile, and the verb is done again."""
    gone = verb.gone(books)
    books.check_between(node, gone)
    books.append(node, "web-1", "new")
    node.flush(DATASET)
    verb.run(node)
    again = verb.run(node)
    assert not any(again[what] for what in ("rows", "runs", "expired") if what in again), again
    books.check(node, gone)
    if verb is PURGE:
        check_nothing_secret_is_left(books, node)
    if verb is EXPIRE:
        assert len(node.keeping.rewriter.snapshots(DATASET)) == 1


def check_nothing_secret_is_left(books: Books, node: Node) -> None:
    """L-POL-3: neither in the spool, in quarantine nor in any file of the table."""
    entries = quarantine.entries(node.site.b, DATASET)
    assert [quarantine.rows_of(node.site.content, each) for each in entries] == [[{"key": "h", "n": "none"}]]
    files = [path for path in (books.case.home / "content").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    tables = (books.case.home / "warehouse").rglob("*.parquet")
    assert all(SECRET not in pq.read_table(path, columns=["key"])["key"].to_pylist() for path in tables)


class Crash(BaseException):
    """As if the process ended here."""


@pytest.mark.slow
@pytest.mark.parametrize("step", ABANDON_STEPS)
def test_a_process_killed_while_it_gives_up_the_rewrite_of_another(
    books: Books, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CMP-7

    def crash(name: str) -> None:
        if name == "compaction.staged":
            raise Crash

    with books.case.node() as node:
        with monkeypatch.context() as patched:
            patched.setattr(merge, "reach", crash)
            with pytest.raises(Crash):
                COMPACT.run(node)
        assert len(branches_of(node)) == 1

    with books.case.child(step) as child:
        child.do(COMPACT.act, **COMPACT.arguments)
        assert child.was_killed(), f"nobody comes by {step}"

    with books.case.node() as node:
        settle(books, node, COMPACT)
