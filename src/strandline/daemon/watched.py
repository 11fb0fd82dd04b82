"""What others may watch of a process that serves: its page of metrics, and what it counts for that."""

from collections.abc import Callable

from strandline.delivery.driver import Ended
from strandline.delivery.result import SyncResult
from strandline.keeping.driver import Done
from strandline.observe.live import Live, MetricsPage
from strandline.pipeline.config import Config
from strandline.pipeline.lease import LeaseHeld
from strandline.pipeline.site import Site
from strandline.status import status_of


def metrics_page(config: Callable[[], Config], site: Site, live: Live) -> MetricsPage | None:
    """What gives the page; None where [observe] metrics is off. UsageError where what it needs is not
    installed."""
    if not config().observe.metrics:
        return None
    from strandline.observe.metrics import Metrics

    return Metrics(lambda: status_of(config(), site), live).page


def count(live: Live, over: Ended | Done) -> None:
    """Something is over. That another process does the same is no error."""
    if isinstance(over.result, SyncResult):
        live.run(over.name, over.result.facts())
    elif isinstance(over.result, Exception) and not isinstance(over.result, LeaseHeld):
        live.add("errors", over.what if isinstance(over, Ended) else "chore", over.name)
