"""The stores that a host has open: its own one, or one for each name at a host for tests."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from strandline.errors import OutcomeUnknown, UsageError
from strandline.persist.backend import AtomicBackend, Backend
from strandline.persist.core.lift import atomic
from strandline.persist.wire import SCRATCH_HEADER

OpenNamed: TypeAlias = Callable[[str], Backend]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")  # it becomes a file name, or part of a schema's
_KEPT_OPEN: Final = 32


class _Open:
    """An open store and how many requests are in it."""

    def __init__(self, store: AtomicBackend) -> None:
        self.store, self.users, self.is_spent = store, 0, False


class Stores:
    """Opens what is asked for, lends it to one request at a time or to many, and closes what nobody uses.

    A store that cannot say whether it stored something may refuse all further use: it is opened anew.
    """

    def __init__(
        self, open_named: OpenNamed, *, is_scratch: bool, kept_open: int | None = _KEPT_OPEN
    ) -> None:
        self.is_scratch = is_scratch
        self._open_named = open_named
        self._kept_open = kept_open
        self._open: dict[str, _Open] = {}  # the one used last comes last
        self._lock = threading.Lock()

    @contextmanager
    def use(self, scratch: str | None) -> Iterator[AtomicBackend]:
        name = self._name(scratch)
        lent = self._lend(name)
        try:
            yield lent.store
        except OutcomeUnknown:
            lent.is_spent = True
            raise
        finally:
            for store in self._give_back(name, lent):
                store.close()

    def close(self) -> None:
        with self._lock:
            left, self._open = list(self._open.values()), {}
        for each in left:
            each.store.close()

    def _name(self, scratch: str | None) -> str:
        if not self.is_scratch:
            if scratch is not None:
                raise UsageError(f"this host takes no {SCRATCH_HEADER}", hint="start it with --scratch")
            return ""
        if scratch is None:
            raise UsageError(
                f"this host keeps scratch stores only, and the request has no {SCRATCH_HEADER}",
                hint="open it with scratch=name, or start a host without --scratch",
            )
        if not _NAME.fullmatch(scratch):
            raise UsageError(
                f"{scratch!r:.80} is no name of a scratch store",
                hint="up to 40 letters, digits, - and _, the first a letter or a digit",
            )
        return scratch

    def _lend(self, name: str) -> _Open:
        with self._lock:
            lent = self._open.pop(name, None)
            if lent is None:
                lent = _Open(atomic(self._open_named(name)))
            self._open[name] = lent
            lent.users += 1
            return lent

    def _give_back(self, name: str, lent: _Open) -> list[AtomicBackend]:
        """What is to be closed now."""
        with self._lock:
            lent.users -= 1
            if lent.is_spent and self._open.get(name) is lent:
                del self._open[name]
            done = [lent.store] if lent.is_spent and lent.users == 0 else []
            if self._kept_open is not None:
                idle = [key for key, each in self._open.items() if each.users == 0]
                surplus = idle[: max(0, len(self._open) - self._kept_open)]
                done += [self._open.pop(key).store for key in surplus]
            return done


def one_store(open_it: Callable[[], Backend]) -> Stores:
    """A host's own store, opened at once, so that what is wrong with it shows before anyone connects."""
    stores = Stores(lambda _: open_it(), is_scratch=False)
    with stores.use(None):
        return stores
