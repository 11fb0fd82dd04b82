"""A node without Spark for tests of keeping it small: the simulated table and disk, nothing goes wrong by
itself, a clock that a test moves, and a crash where a test wants one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.flush.flush import flush
from strandline.ingest.append import Receipt, append
from strandline.maintenance.store_upkeep import Tidied, tidy
from strandline.persist import BlobRef
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Limits
from strandline.state.context import Site
from strandline.state.sink_progress import Intent, event_of, instance_stream, intent_data, sink_stream
from tests.simulation import DATASET, World

GRACE_S = 86_400
HOUR_US = 3_600_000_000


class Crash(BaseException):
    """As if the process were killed here."""


@dataclass
class Calm:
    """One process at a time; `restarted` is the next one."""

    world: World = field(default_factory=lambda: World(0))

    def __post_init__(self) -> None:
        self.world.is_calm = True
        self.world.now_us = int(datetime.now(UTC).timestamp()) * 1_000_000  # as the disk has it
        self.site = self.world.site()
        self.next = 0

    def restarted(self) -> Site:
        self.world.now_us += 100_000_000  # leases of the dead one end
        self.site = self.world.site()
        return self.site

    def forward(self, *, hours: float) -> None:
        self.world.now_us += int(hours * HOUR_US)

    def append(self, count: int = 1, source: str | None = "web-1", **options: Any) -> Receipt:
        rows = [{"key": f"k{self.next + each}"} for each in range(count)]
        self.next += count
        return append(self.site, DATASET, rows, source=source, **options)

    def flush(self) -> None:
        flush(self.site, self.world.table, DATASET)

    def land(self, count: int = 1, source: str | None = "web-1") -> str:
        receipt = self.append(count, source)
        self.flush()
        assert receipt.segment is not None
        return receipt.segment

    def tidy(self, **options: Any) -> Tidied:
        done = tidy(self.site, grace_s=GRACE_S, **options)
        assert not done.errors, done.errors
        return done

    def after_grace(self) -> Tidied:
        """Tidied soon, and once the grace period is over."""
        self.forward(hours=0.1)
        self.tidy()
        self.forward(hours=25)
        return self.tidy()

    def blobs(self) -> set[str]:
        return {cid for cid, _ in self.world.content.stored()}

    def keys(self, prefix: str) -> list[str]:
        return [key for key, _ in self.site.b.kv_scan(prefix, after="", limit=10_000)]


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, module: str, nth: int) -> Iterator[Callable[[], list[str]]]:
    """The nth failpoint of a room that is come by ends the process; the names of those that were."""
    passed: list[str] = []

    def reach(name: str) -> None:
        passed.append(name)
        if len(passed) == nth:
            raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.reach", reach)
        yield lambda: passed


def open_letter(site: Site, dataset: str, body: BlobRef) -> str:
    """A dead letter of row 1 of web-1 that waits at sink `centre`; its id."""
    at, stream = site.clock.now_us(), sink_stream("centre", dataset, "web-1")
    intent = Intent("i", 0, 1, 0, 0, Limits(unit_rows=10), 1, 0, at=at)
    facts: dict[str, Any] = {"intent": "i", "lo": 0, "hi": 1, "epoch": 0, "seqs": [[0, 1]], "rows": 1}
    facts |= {"schema": 1, "kind": "refused", "http_status": 422, "answer": "", "body": body, "unit": "u"}
    opened = event_of(instance_stream("centre"), "opened", at, fingerprint="f", start="all")
    intended = event_of(stream, "intended", at, **intent_data(intent))
    site.b.commit([], [opened, intended, event_of(stream, "lettered", at, **facts)])
    assert site.standing.lines().line("centre", Strand(dataset, "web-1")).letters == (2,)
    return f"centre/{dataset}/web-1:2"
