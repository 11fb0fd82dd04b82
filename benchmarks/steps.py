"""Where the time of an act goes, by the places that it names on its way."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from strandline.base import failpoint


@dataclass(slots=True)
class Steps:
    """Stands in for the failpoints of this process: none of them is set, and each passing is noted."""

    passed: list[tuple[str, float]] = field(default_factory=list)

    def __contains__(self, name: object) -> bool:
        self.passed.append((str(name), time.perf_counter()))
        return False

    def spans_ms(self, began: float, ended: float) -> dict[str, float]:
        """The time from each place to the next, `begin` and `end` included."""
        places = [("begin", began), *self.passed, ("end", ended)]
        spans: dict[str, float] = {}
        for (left, since), (name, at) in pairwise(places):
            spans[f"{left} to {name}"] = spans.get(f"{left} to {name}", 0.0) + (at - since) * 1000
        return spans


@contextmanager
def noted() -> Iterator[Steps]:
    """Note what is passed inside, in any thread: have only one at work."""
    steps, kept = Steps(), failpoint._points  # noqa: SLF001  # tests reach them by an environment variable
    failpoint._points = steps  # type: ignore[assignment]  # noqa: SLF001  # it answers all that is asked
    try:
        yield steps
    finally:
        failpoint._points = kept  # noqa: SLF001
