"""What every verb of the pipeline works on: the store, the content, a clock, the settings, and how it all
stands."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from strandline.base.clock import Clock, SystemClock
from strandline.config.config import Config
from strandline.config.datasets import with_declared
from strandline.config.keys import FlushSection, SpoolSection
from strandline.persist import AtomicBackend, kv_put_new, open_store
from strandline.rows.dataset import Dataset, Strand
from strandline.state.dataset_versions import DatasetUnknown, Recorded, recorded
from strandline.state.next_number import Head
from strandline.state.node_state import Standing
from strandline.storage import ContentStore, open_content

ORIGIN: Final = "origin"  # the key of the store's id


@dataclass(slots=True)
class Site:
    """One process's hold on a node. Threads share it."""

    b: AtomicBackend
    content: ContentStore
    clock: Clock
    standing: Standing
    spool: SpoolSection
    flush: FlushSection
    declared: Callable[[str], Dataset | None] = lambda _: None  # a dataset as it is configured
    is_strict: bool = False  # refuse datasets that nobody declared
    random_hex: Callable[[], str] = lambda: f"{random.SystemRandom().getrandbits(128):032x}"
    heads: dict[str, Head] = field(default_factory=dict)  # where this process last saw each ledger
    # by sink and strand: the first seq that is owed, and when that was numbered
    firsts: dict[tuple[str, Strand], tuple[int, int]] = field(default_factory=dict)
    # by sink and strand: when the destination was last compared with what is recorded of it
    compared_at: dict[tuple[str, Strand], int] = field(default_factory=dict)
    _schemas: dict[str, Recorded] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def numbering(self, ledgers: Iterable[str]) -> Iterator[None]:
        """Threads of one process number the rows of a strand in turn: only other processes make conflicts.
        Those of different strands commit together, which costs them one wait for the disk."""
        with self._lock:
            locks = [self._locks.setdefault(ledger, threading.Lock()) for ledger in sorted(ledgers)]
        with ExitStack() as stack:
            for each in locks:  # in one order, so that no two wait for each other
                stack.enter_context(each)
            yield

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

    @property
    def origin(self) -> str:
        """The id of the store, minted once: whoever comes second takes what is there."""
        while (kept := self.b.kv_get(ORIGIN)) is None:
            kv_put_new(self.b, ORIGIN, self.random_hex())
        return str(kept)

    def known(self, name: str) -> Recorded:
        """The dataset, which someone declared or appended to; else DatasetUnknown."""
        found = self.schema(name)
        if found.event == 0 and self.declared(name) is None:
            raise DatasetUnknown(name, self.standing.datasets())
        return found


def open_site(config: Config, *, clock: Clock | None = None) -> Site:
    """The store and the content of a node, opened. Close `site.b`."""
    b = open_store(config.store_url)
    return Site(
        b,
        open_content(config.content_url, **config.content_options()),
        clock or SystemClock(),
        Standing(b),
        config.spool,
        config.flush,
        config.declared,
        bool(config.node.strict_datasets),
    )
