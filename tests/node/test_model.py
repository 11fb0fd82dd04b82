"""The whole pipeline, with real Spark and real crashes, against lists in memory (L-ACC-4).

A seed draws what happens: appends and loads of one source and of several, with columns that nobody had
before; flushes; readers that go on from their tokens, page by page; and processes that die at a random step,
whose requests are handed in again some time later. After every crash, and at the end, everything that was
promised holds.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import pytest

from strandline.node.node import Node
from tests.crash.pipeline_case import DATASET, SOURCES, Case, Follower, Request
from tests.crash.test_pipeline_kill import APPEND_STEPS, LAND_STEPS, LOAD_STEPS, OBJECT_STEPS, PLAN_STEPS

STEPS: Final = (*APPEND_STEPS, *OBJECT_STEPS, *PLAN_STEPS, *LAND_STEPS, *LOAD_STEPS)
COMMIT_STEPS: Final = ("commit.before", "commit.after")


class Model:
    """One run. The node is opened anew after each crash."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.oracle = case, case.oracle
        self.random = random.Random(seed)
        self.columns = 0
        self.happened: Counter[str] = Counter()
        self.oracle.followers |= {source: Follower() for source in SOURCES}
        self._stack = ExitStack()
        self.node = self._open()

    def run(self, steps: int) -> None:
        acts: dict[Callable[[], None], int] = {
            self.append: 6,
            self.load: 1,
            self.flush: 4,
            self.follow: 5,
            self.grow: 2,
            self.crash: 2,
            self.hand_in_again: 2,
        }
        try:
            self.append()
            for _ in range(steps):
                (act,) = self.random.choices([*acts], [*acts.values()])
                self.happened[act.__name__] += 1
                act()
            self.case.recover(self.node)
        finally:
            self._stack.close()

    def append(self) -> None:
        self.case.hand_in(self.node, self._request("append"))

    def load(self) -> None:
        self.case.hand_in(self.node, self._request("load"))

    def flush(self) -> None:
        self.node.flush(DATASET)

    def follow(self) -> None:
        self.oracle.follow(
            self.node, max_rows=self.random.choice([3, 10, 1_000]), pages=self.random.randint(1, 3)
        )

    def grow(self) -> None:
        self.columns += 1
        self.append()

    def hand_in_again(self) -> None:
        """Some request, of which nobody may know whether it was done."""
        self.case.hand_in(self.node, self.random.choice([*self.oracle.requests.values()]))

    def crash(self) -> None:
        """A child works until it dies at a random step, or has done everything."""
        steps = STEPS if self.random.random() < 0.8 else COMMIT_STEPS
        failpoint = f"{self.random.choice(steps)}:{self.random.randint(1, 3)}"
        acts = [self.random.choice(["append", "append", "load", "flush"]) for _ in range(3)]
        self._stack.close()
        with self.case.child(failpoint) as child:
            for act in acts:
                if act == "flush":
                    child.do("flush", dataset=DATASET)
                else:
                    self.case.hand_in(child, self._request(act))
            child.hang_up()
            self.happened["kills"] += child.was_killed()
        self.node = self._open()
        self.oracle.check(self.node, is_settled=False)

    def _open(self) -> Node:
        return self._stack.enter_context(self.case.node())

    def _request(self, kind: str) -> Request:
        sources = self.random.sample(SOURCES, self.random.randint(1, len(SOURCES)))
        more: dict[str, Any] = {}
        if self.columns and self.random.random() < 0.7:
            more[f"column_{self.random.randint(1, self.columns)}"] = self.random.choice([1, 2**40])
        return self.oracle.request(kind, {source: self.random.randint(1, 6) for source in sources}, **more)


def run(case: Case, seed: int, steps: int) -> Counter[str]:
    print(f"seed {seed}, {steps} steps")
    model = Model(case, seed)
    try:
        model.run(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}, {steps} steps, after {dict(model.happened)}")
        raise
    print(dict(model.happened))
    return model.happened


@pytest.mark.parametrize("seed", [0])
def test_random_work_and_random_crashes_keep_every_promise(case: Case, seed: int) -> None:
    run(case, seed, 20)  # L-ACC-4, L-SEQ-7, L-FLUSH-2, L-SPOOL-3, L-SPOOL-5, L-SCH-4


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(100, 121))
def test_more_random_work_and_random_crashes_keep_every_promise(case: Case, seed: int) -> None:
    happened = run(case, seed, 60)

    assert happened["kills"] > 0
