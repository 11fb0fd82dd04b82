"""What is due, and starting it: a run of each sink by its schedule, a flush of each dataset whose spool is
large enough or old enough.

Whoever owns a driver calls `tick` about once a second. Runs and flushes are apart: a sink never has rows
flushed for it, so that the number of flushes follows the rows and not the sinks. Each has a thread of its
own, and a destination that is slow or dead delays nothing else. Where nothing is new a tick is a few reads of
the store.

Nothing that a driver knows must outlive it. When a sink last delivered is in the store; a run that found
nothing to deliver is remembered here alone, and after a restart the sink is looked at once more.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from strandline.delivery.api import Deliveries
from strandline.delivery.backoff import retry_s
from strandline.delivery.result import SyncResult
from strandline.flush.flush import FlushReport, due
from strandline.state.context import Site
from strandline.state.flush_plan import Reason
from strandline.state.lease import LeaseHeld

STOP_S: Final = 2.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Flush = Callable[[str, Reason], FlushReport]


@dataclass(frozen=True, slots=True)
class Ended:
    """A run of a sink, or a flush of a dataset, that is over; an error stands where its result would."""

    what: Literal["sink", "flush"]
    name: str
    began: int
    result: SyncResult | FlushReport | Exception


@dataclass(frozen=True, slots=True)
class Tick:
    """The sinks of which a run began, those that were due while one was still under way, and the datasets of
    which a flush began."""

    runs: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    flushes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Flushing:
    """Flushes of a dataset that landed nothing, one after another, and when the next may begin."""

    attempts: int = 0
    not_before: int = 0


class Driver:
    """One for a process; another process may have one too. `tick` and `stop` are for one thread.

    `flush` lands what is pending of a dataset, and raises LeaseHeld soon where another process does. `tell`
    is called with all that ends, in the thread of what ended; LeaseHeld once each time that a sink was due.
    `cancel` ends the Spark jobs of runs (`Node.cancel_jobs`).
    """

    def __init__(
        self,
        site: Site,
        deliveries: Deliveries,
        flush: Flush,
        tell: Callable[[Ended], None],
        *,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._site, self._deliveries, self._flush, self._tell = site, deliveries, flush, tell
        self._cancel = cancel
        self._crons = {name: deliveries.cron(name) for name in deliveries.names()}
        self._last: dict[str, int] = {}  # when the last run of a sink began
        self._counted: dict[str, int] = {}  # up to when skipped runs of a sink are counted
        self._flushing: dict[str, _Flushing] = {}
        self._jobs: dict[tuple[str, str], threading.Thread] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.ticks_skipped = 0

    def tick(self) -> Tick:
        """Start what is due now and not under way. Raises what the store does: UnavailableError where it does
        not answer, and then the next tick may."""
        if self._stop.is_set():
            return Tick()
        now = self._site.clock.now_us()
        flushes = tuple(name for name in self._site.standing.datasets() if self._begin_flush(name, now))
        chosen = [name for name in self._crons if self._is_due(name, self._last_run(name, now), now)]
        busy = [name for name in chosen if self._is_on("sink", name)]
        runs = tuple(name for name in chosen if name not in busy)
        for name in runs:
            self._begin_run(name, now)
        return Tick(runs, tuple(name for name in busy if self._skip(name, self._last[name], now)), flushes)

    def wait(self, timeout_s: float) -> list[str]:
        """Until all that is under way has ended, for at most so long; what has not."""
        until = time.monotonic() + timeout_s
        for thread in self._jobs.values():
            thread.join(max(until - time.monotonic(), 0))
        return sorted(thread.name for thread in self._jobs.values() if thread.is_alive())

    def stop(self) -> list[str]:
        """Begin nothing more, end every wait, after STOP_S cancel what runs, and tell what is still under way
        after as long again: a request, or a flush. It ends with the process, and its open intent or plan is
        taken up by the next one."""
        self._stop.set()
        if not self.wait(STOP_S):
            return []
        self._cancel()
        return self.wait(STOP_S)

    # Sinks

    def _last_run(self, name: str, now: int) -> int:
        """Where a clock went back, the run counts as one of now: else none would be due for as long."""
        with self._lock:
            if name not in self._last:
                lines = self._site.standing.lines().of(name)
                self._last[name] = max((line.at for line in lines.values()), default=0)
            self._last[name] = min(self._last[name], now)
            self._counted[name] = min(self._counted.get(name, 0), now)
            return self._last[name]

    def _is_due(self, name: str, last: int, now: int) -> bool:
        return self._crons[name].due(_time(last), _time(now))

    def _begin_run(self, name: str, now: int) -> None:
        with self._lock:
            before, self._last[name] = self._last[name], now

        def work() -> SyncResult | Exception | None:
            try:
                return self._deliveries.sync(name, is_command=False, stop=self._stop)
            except LeaseHeld as error:  # it stays due, for when the other run is over
                with self._lock:
                    self._last[name] = before
                return error if self._skip(name, before, now) else None
            except Exception as error:  # noqa: BLE001  # told, and no other sink is the worse for it
                return error

        self._start("sink", name, now, work)

    def _skip(self, name: str, last: int, now: int) -> bool:
        """Count a run that was due and not begun, once, however many ticks see it."""
        with self._lock:
            is_new = self._is_due(name, max(last, self._counted[name]), now)
            if is_new:
                self._counted[name] = now
                self.ticks_skipped += 1
            return is_new

    # Datasets

    def _begin_flush(self, dataset: str, now: int) -> bool:
        state = self._flushing.setdefault(dataset, _Flushing())
        if self._is_on("flush", dataset) or now < state.not_before:
            return False
        reason = due(self._site, dataset)
        if reason is None:
            return False

        def work() -> FlushReport | Exception:
            result: FlushReport | Exception
            try:
                result = self._flush(dataset, reason)
            except Exception as error:  # noqa: BLE001  # told, and no other dataset is the worse for it
                result = error
            # What fails, or waits for a damaged segment, is due with every tick.
            has_landed = not isinstance(result, Exception) and bool(result.flushes or result.landed_loads)
            state.attempts = 0 if has_landed else state.attempts + 1
            wait_s = retry_s(state.attempts) if state.attempts else 0
            state.not_before = self._site.clock.now_us() + int(wait_s * 1e6)
            return result

        self._start("flush", dataset, now, work)
        return True

    # Threads

    def _is_on(self, what: str, name: str) -> bool:
        thread = self._jobs.get((what, name))
        return thread is not None and thread.is_alive()

    def _start(
        self,
        what: Literal["sink", "flush"],
        name: str,
        began: int,
        work: Callable[[], SyncResult | FlushReport | Exception | None],
    ) -> None:
        def run() -> None:
            if (result := work()) is not None:
                self._tell(Ended(what, name, began, result))

        # A daemon thread: a request that hangs must not keep the process from ending.
        thread = threading.Thread(target=run, name=f"{what} {name}", daemon=True)
        self._jobs[what, name] = thread
        thread.start()


def _time(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
