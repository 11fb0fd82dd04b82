"""What keeps a node small, done when it is due: each chore at its interval, for as long as a process runs.

    chore/<name>    when it was last done, in the store: a restart does not do it again, nor put it off

Whoever owns a driver calls `tick` about once a second; where nothing is due that is a read of the store for
each chore. Chores are done one after another, in a thread of their own: most need the same lease, and all of
them Spark. Two processes may both find one due: what they do is safe beside each other, and one of them finds
nothing to do.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from strandline.base.clock import Clock
from strandline.persist import AtomicBackend, Put

STOP_S: Final = 2.0


class Chore(NamedTuple):
    """`act` gives what it did, for whoever is told; what it raises is told too."""

    name: str
    interval_us: int
    act: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A chore that is over; an error stands where its result would."""

    name: str
    began: int
    result: Any


class Chores:
    """One for a process. `tick` and `stop` are for one thread; `tell` is called in the thread of a chore."""

    def __init__(
        self, b: AtomicBackend, clock: Clock, chores: Sequence[Chore], tell: Callable[[Done], None]
    ) -> None:
        self._b, self._clock, self._chores, self._tell = b, clock, chores, tell
        self._thread: threading.Thread | None = None
        self._under_way: str | None = None
        self._early: dict[str, int] = {}  # now, when the last time was found to be later than that
        self._is_stopped = False

    def due(self) -> list[str]:
        """Those that are due now. Where a clock went back, the last time counts as one of now: else a chore
        would not be due for as long."""
        now = self._clock.now_us()
        return [each.name for each in self._chores if now - self._last(each.name, now) >= each.interval_us]

    def next_at(self, name: str) -> int:
        """When a chore is due next; a time that is past is now."""
        now = self._clock.now_us()
        chore = next(each for each in self._chores if each.name == name)
        return self._last(name, now) + chore.interval_us

    def tick(self) -> list[str]:
        """Begin what is due, unless something is under way; its names."""
        if self._is_stopped or (self._thread is not None and self._thread.is_alive()):
            return []
        due = set(self.due())
        begun = [each for each in self._chores if each.name in due]
        if begun:
            self._thread = threading.Thread(target=lambda: self._work(begun), name="chores", daemon=True)
            self._thread.start()
        return [each.name for each in begun]

    def wait(self, timeout_s: float) -> list[str]:
        """Until all that is under way has ended, for at most so long; what has not."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return [] if self._under_way is None else [self._under_way]

    def stop(self) -> list[str]:
        """Begin nothing more, and tell what is still under way after STOP_S: it ends with the process, and
        the next one goes on with it."""
        self._is_stopped = True
        return self.wait(STOP_S)

    def _last(self, name: str, now: int) -> int:
        found = last_done(self._b, name) or 0
        if found > now:
            self._early[name] = min(self._early.get(name, now), now)
        return min(found, self._early.get(name, found))

    def _work(self, chores: Sequence[Chore]) -> None:
        for chore in chores:
            if self._is_stopped:
                break
            self._under_way = chore.name
            self._do(chore)
        self._under_way = None

    def _do(self, chore: Chore) -> None:
        began = self._clock.now_us()
        self._early.pop(chore.name, None)
        result: Any
        try:
            result = chore.act()
        except Exception as error:  # noqa: BLE001  # told, and no other chore is the worse for it
            result = error
        try:
            # After it: a crash leaves it due. After an error too: it would fail again at once.
            self._b.commit([], [Put(_key(chore.name), began)])
        except Exception as error:  # noqa: BLE001  # told as well: it is due again, and safe to repeat
            self._tell(Done(chore.name, began, error))
        self._tell(Done(chore.name, began, result))


def last_done(b: AtomicBackend, name: str) -> int | None:
    """When a chore was last begun that came to its end; None if never."""
    found: Any = b.kv_get(_key(name))
    return found if type(found) is int else None


def _key(name: str) -> str:
    return f"chore/{name}"
