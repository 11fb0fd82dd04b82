"""What others may watch of a process that serves: its page of metrics, and what it counts for that."""

from collections.abc import Callable

from strandline.config.config import Config
from strandline.daemon.due_syncs import Ended
from strandline.delivery.result import SyncResult
from strandline.maintenance.chores import Done
from strandline.node.status import status_of
from strandline.observe.process_counts import Live, MetricsPage
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld


def metrics_page(config: Callable[[], Config], site: Site, live: Live) -> MetricsPage | None:
    """What gives the page; None where [observe] metrics is off. UsageError where what it needs is not
    installed."""
    if not config().observe.metrics:
        return None
    from strandline.node.metrics import Metrics

    return Metrics(lambda: status_of(config(), site), live).page


def count(live: Live, over: Ended | Done) -> None:
    """Something is over. That another process does the same is no error."""
    if isinstance(over.result, SyncResult):
        live.run(over.name, over.result.facts())
    elif isinstance(over.result, Exception) and not isinstance(over.result, LeaseHeld):
        live.add("errors", over.what if isinstance(over, Ended) else "chore", over.name)
