"""Does a store of ten million events open, tell its mark and resume a projection as soon as a small one?"""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.frame import Bench, Case, main
from strandline.persist import AtomicBackend, Event, append_batch, last_seq, open_store, project_resume
from strandline.persist.event import ProjectionState

QUESTION = "Does a store slow down?"
FEW = 10_000
MANY = 10_000_000
BATCH = 10_000
TIMES = 50
NOTE = (
    "SQLite, one stream, all in the global order; an event has a few bytes. *Resume* goes on with a fold"
    " that is ten events behind."
)


def ask(bench: Bench) -> None:
    few, many = f"{FEW:,} events", f"{bench.scaled(MANY):,} events"
    paths = {few: bench.folder / "few.db", many: bench.folder / "many.db"}
    fill(paths[few], FEW)
    fill(paths[many], bench.scaled(MANY))
    for title, act in (("open and close", _open), ("mark", _mark), ("resume", _resume)):
        contenders = {name: partial(_median_ms, partial(act, path)) for name, path in paths.items()}
        bench.run(Case(f"To {title} (less is better)", "ms", contenders, [few], note=NOTE))


def fill(path: Path, count: int) -> None:
    with closing(open_store(path, synchronous="NORMAL")) as b:
        for first in range(0, count, BATCH):
            append_batch(b, "s", [("t", first, {"n": 1})] * BATCH, globally=True)


def _median_ms(prepare: Callable[[list[float]], None]) -> float:
    took: list[float] = []
    prepare(took)
    return statistics.median(took) * 1000


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _open(path: Path, took: list[float]) -> None:
    took += [_timed(lambda: open_store(path).close()) for _ in range(TIMES)]


def _mark(path: Path, took: list[float]) -> None:
    with closing(open_store(path)) as b:
        took += [_timed(lambda: last_seq(b, "s")) for _ in range(TIMES)]


def _resume(path: Path, took: list[float]) -> None:
    with closing(open_store(path)) as b:
        state = ProjectionState(0, last_seq(b, "s") - 10)
        took += [_timed(partial(_go_on, b, state)) for _ in range(TIMES)]


def _go_on(b: AtomicBackend, state: ProjectionState) -> None:
    assert project_resume(b, "s", _add, state).value == 10


def _add(total: int, event: Event) -> int:
    return total + int(event.data["n"])


if __name__ == "__main__":
    main({QUESTION: ask})
