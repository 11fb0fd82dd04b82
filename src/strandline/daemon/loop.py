"""What a daemon does by itself: looked at once a second, begun when it is due, each thing in its own thread.

    flushes and sinks   daemon.due_syncs      what is pending, what is owed
    chores              maintenance.chores    retention, compaction, sweeps
    backfills           backfill.run_history  by schedule, or once at first

A tick that fails, since the store does not answer, is told, and the next one tries again.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strandline.daemon.due_syncs import Driver, Ended
from strandline.daemon.metrics_page import count
from strandline.delivery.result import SyncResult
from strandline.errors import StrandlineError
from strandline.flush.flush import FlushReport
from strandline.maintenance.chores import Chores, Done
from strandline.maintenance.retention.prune import PruneResult
from strandline.maintenance.store_upkeep import Tidied
from strandline.maintenance.table_upkeep import Maintained
from strandline.node.node import Node
from strandline.observe.process_counts import Live
from strandline.state.lease import LeaseHeld

TICK_S: Final = 1.0
LAST_FLUSH_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class News:
    """Something that is over: of what kind, of which name, what came of it in numbers, and what went wrong.
    `is_idle` where there was nothing to do."""

    what: str
    name: str
    facts: Mapping[str, Any]
    error: str = ""
    is_idle: bool = False


class Loop:
    """The ticks of a daemon. `tell` is called from many threads."""

    def __init__(self, node: Node, tell: Callable[[News], None], live: Live | None = None) -> None:
        self._node, self._tell, self._live = node, tell, live or Live()
        self._driver, self._chores = self._made()
        self._backfills: dict[str, threading.Thread] = {}
        self._complained = ""

    def _made(self) -> tuple[Driver, Chores]:
        node = self._node
        driver = Driver(
            node.site,
            node.deliveries,
            lambda dataset, reason: node.flush(dataset, reason=reason, timeout_s=0),
            self._over,
            cancel=node.cancel_jobs,
        )
        return driver, Chores(node.site.b, node.site.clock, node.keeping.chores(), self._over)

    def _over(self, over: Ended | Done) -> None:
        count(self._live, over)
        self._tell(news_of(over))

    def tick(self) -> None:
        """Begin what is due. Whatever fails is told once, however often it does."""
        try:
            for name in self._driver.tick().skipped:
                self._live.add("skipped", name)
            self._chores.tick()
            for due in self._node.backfills.due():
                self._begin_backfill(due.instance, due.why)
            self._complained = ""
        except Exception as error:  # noqa: BLE001  # the store may answer the next time
            found = _said(error)
            if found != self._complained:
                self._tell(News("tick", "", {}, error=found))
            self._complained = found

    def reload(self) -> None:
        """By the configuration that the node has now. What is under way ends as it began."""
        self._driver, self._chores = self._made()

    def stop(self) -> list[str]:
        """Begin nothing more, land what is pending if that takes moments, and tell what is still under way:
        it ends with the process, and the next one goes on with it."""
        left = [*self._driver.stop(), *self._chores.stop()]
        flushing = threading.Thread(target=self._last_flush, name="last flush", daemon=True)
        flushing.start()
        flushing.join(LAST_FLUSH_S)
        threads = [*self._backfills.values(), flushing]
        return [*left, *(each.name for each in threads if each.is_alive())]

    def _last_flush(self) -> None:
        try:
            datasets = self._node.datasets()
        except StrandlineError as error:
            self._tell(News("flush", "", {}, error=_said(error)))
            return
        for dataset in datasets:
            try:
                report = self._node.flush(dataset, reason="shutdown", timeout_s=0)
            except Exception as error:  # noqa: BLE001  # told; the rows are safe in the spool
                self._tell(News("flush", dataset, {}, error=_said(error)))
            else:
                self._tell(_flushed(dataset, report))

    def _begin_backfill(self, name: str, why: Any) -> None:
        thread = self._backfills.get(name)
        if thread is not None and thread.is_alive():
            return

        def work() -> None:
            try:
                result = self._node.backfills.run(name, why=why)
            except LeaseHeld:
                return  # another process runs it
            except Exception as error:  # noqa: BLE001  # told, and nothing else is the worse for it
                self._tell(News("backfill", name, {}, error=_said(error)))
            else:
                self._tell(News("backfill", name, result.facts(), is_idle=not result.tally.written))

        thread = threading.Thread(target=work, name=f"backfill {name}", daemon=True)
        self._backfills[name] = thread
        thread.start()


# What is over, in a few words


def news_of(over: Ended | Done) -> News:
    what = over.what if isinstance(over, Ended) else "chore"
    result = over.result
    if isinstance(result, LeaseHeld):  # another process does it
        return News(what, over.name, {}, is_idle=True)
    if isinstance(result, Exception):
        return News(what, over.name, {}, error=_said(result))
    if isinstance(result, FlushReport):
        return _flushed(over.name, result)
    if isinstance(result, SyncResult):
        facts = {"rows": result.rows, "bytes": result.bytes, "requests": result.requests}
        troubles = "; ".join(sorted({f"{each.kind}: {each.text:.200}" for each in result.troubles}))
        return News(what, over.name, facts, error=troubles, is_idle=result.status == "idle")
    if isinstance(result, Tidied):
        facts = {"segments": result.segments.segments, "blobs": result.strays.blobs}
        return News(
            what,
            over.name,
            facts,
            error="; ".join(map(_said, result.errors)),
            is_idle=not any(facts.values()),
        )
    if isinstance(result, Mapping):
        return _by_dataset(what, over.name, result)
    return News(what, over.name, {}, is_idle=True)


def _by_dataset(what: str, name: str, results: Mapping[str, Any]) -> News:
    facts: dict[str, Any] = {}
    for dataset, result in results.items():
        if isinstance(result, PruneResult) and result.rows:
            facts[dataset] = {"rows": result.rows, "evicted": result.evicted}
        elif isinstance(result, Maintained) and (result.walk.runs or result.expired):
            facts[dataset] = {"compacted": len(result.walk.runs), "expired": result.expired}
    wrong = {
        dataset: _said(each)
        for dataset, each in results.items()
        if isinstance(each, Exception) and not isinstance(each, LeaseHeld)
    }
    error = "; ".join(f"{dataset}: {text}" for dataset, text in wrong.items())
    return News(what, name, facts, error=error, is_idle=not facts)


def _flushed(dataset: str, report: FlushReport) -> News:
    facts = {"rows": report.rows, "flushes": len(report.flushes)}
    held = ", ".join(report.held)
    return News(
        "flush",
        dataset,
        facts,
        error=f"held: {held}" if held else "",
        is_idle=not (report.flushes or report.landed_loads),
    )


def _said(error: BaseException) -> str:
    if isinstance(error, StrandlineError):
        return f"{error.kind}: {error.message}"
    return f"{type(error).__name__}: {error}"
