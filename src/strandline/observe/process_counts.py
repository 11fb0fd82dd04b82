"""What this process alone knows of its work, counted from its start: what runs of sinks cost, what was
skipped, how requests were answered. (What the store knows is counted there, for ever.)"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

# What came of requests, and the seconds for which senders were put off by why, to the page of metrics.
MetricsPage = Callable[[Mapping[str, int], Mapping[str, int]], bytes]

RUN_COUNTERS: Final = (
    "spark_jobs",
    "files_opened",
    "data_bytes_read",
    "rows_read",
    "requests",
    "control_writes",
)


class Live:
    """Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, str, str], int] = {}

    def add(self, what: str, name: str, detail: str = "", by: int = 1) -> None:
        """So many more of `what`, of the sink or dataset `name`."""
        with self._lock:
            self._counted[what, name, detail] = self._counted.get((what, name, detail), 0) + by

    def run(self, sink: str, facts: Mapping[str, int | str | None]) -> None:
        """A run of a sink is over. What Spark did not tell counts as unknown, never as 0."""
        self.add("runs", sink, str(facts["status"]))
        for name in RUN_COUNTERS:
            value = facts[name]
            if isinstance(value, int):
                self.add(name, sink, by=value)
            else:
                self.add("unknown", sink, name)

    def counted(self, what: str) -> dict[tuple[str, str], int]:
        """By name and detail."""
        with self._lock:
            return {(name, detail): n for (kind, name, detail), n in self._counted.items() if kind == what}
