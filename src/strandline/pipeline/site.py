"""What every verb of the pipeline works on: the store, the content, a clock, the settings, and how it all
stands."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from strandline.clock import Clock
from strandline.content import ContentStore
from strandline.dataset import Dataset
from strandline.ledger.numbers import Head
from strandline.persist import AtomicBackend
from strandline.pipeline.config_datasets import with_declared
from strandline.pipeline.config_sections import Flush, Spool
from strandline.pipeline.registry import DatasetUnknown, Recorded, recorded
from strandline.pipeline.standing import Standing


@dataclass(slots=True)
class Site:
    """One process's hold on a node. Threads share it."""

    b: AtomicBackend
    content: ContentStore
    clock: Clock
    standing: Standing
    spool: Spool
    flush: Flush
    declared: Callable[[str], Dataset | None] = lambda _: None  # a dataset as it is configured
    is_strict: bool = False  # refuse datasets that nobody declared
    random_hex: Callable[[], str] = lambda: f"{random.SystemRandom().getrandbits(128):032x}"
    heads: dict[str, Head] = field(default_factory=dict)  # where this process last saw each ledger
    _schemas: dict[str, Recorded] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def numbering(self, dataset: str) -> threading.Lock:
        """Threads of one process number the rows of a dataset in turn: only other processes make
        conflicts."""
        with self._lock:
            return self._locks.setdefault(dataset, threading.Lock())

    def schema(self, name: str) -> Recorded:
        """The dataset as recorded, grown by what is configured; event 0 where nothing is recorded yet."""
        newest = self.standing.schema_event(name)
        known = self._schemas.get(name)
        if known is None or known.event != newest:
            known = recorded(self.b, name) or Recorded(Dataset(name), 0)
            self._schemas[name] = known
        configured = self.declared(name)
        if configured is None:
            return known
        if known.event == 0:
            return Recorded(configured, 0)
        return Recorded(with_declared(known.dataset, configured), known.event)

    def known(self, name: str) -> Recorded:
        """The dataset, which someone declared or appended to; else DatasetUnknown."""
        found = self.schema(name)
        if found.event == 0 and self.declared(name) is None:
            raise DatasetUnknown(name, self.standing.datasets())
        return found
