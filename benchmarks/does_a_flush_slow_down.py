"""Is the 1,000th flush as fast as the 10th?

The old table's flushes are timed beside those of a fresh one, which comes to its tenth meanwhile: what
slows the machine slows both. Housekeeping, where a flush does some, is on its clock.
"""

from typing import Final

from benchmarks.bare_tables import SOURCE
from benchmarks.frame import Bench, Case, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import arrow_rows
from strandline.node.node import Node

QUESTION = "Does a flush slow down?"
AGES: Final = (100, 500, 1_000)
YOUNG: Final = 10
ROWS: Final = 1_000


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    old = Flushed(node, "flushes_old")
    counted = bench.rounds + 1
    for age in AGES:
        through = bench.scaled(age) + (YOUNG if bench.is_quick else 0)
        fresh = Flushed(node, f"flushes_fresh_{age}")
        old.flush_until(through - counted)
        fresh.flush_until(YOUNG - counted)
        aged = f"flush {old.flushes + 2:,} to {through:,}"
        young = f"flush {fresh.flushes + 2} to {fresh.flushes + counted} of a fresh table"
        bench.run(Case(f"{ROWS:,} rows each", "s", {aged: old.flush, young: fresh.flush}, [young]))


class Flushed:
    """A dataset that is flushed again and again."""

    def __init__(self, node: Node, dataset: str) -> None:
        self._node, self._dataset, self.flushes = node, dataset, 0

    def flush(self) -> float:
        rows = arrow_rows(ROWS, self.flushes * ROWS)
        self._node.append(self._dataset, rows, source=SOURCE)
        self.flushes += 1
        return timed(lambda: self._node.flush(self._dataset))

    def flush_until(self, flushes: int) -> None:
        while self.flushes < flushes:
            self.flush()


if __name__ == "__main__":
    main({QUESTION: ask})
