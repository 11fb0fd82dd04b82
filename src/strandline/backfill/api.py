"""All providers of a node: what is configured of them, what is due, and running them.

Spark is asked for by the first chunk that must be looked up; where all of them are known none is started.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from strandline.backfill import run_history
from strandline.backfill.result import BackfillCounts, BackfillResult
from strandline.backfill.run import Order, Tell, run
from strandline.backfill.run_history import Due, Why
from strandline.config.config import Config
from strandline.config.sources import ProviderConfig, ProviderNotConfigured, default_provider
from strandline.observe.span import span
from strandline.sources.provider import FrameProvider, Item, Provider, ProviderOptions, Window
from strandline.sources.registry import make_provider, provider_types
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld, held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.lake.jobs.lookup_frame import FrameLookup
    from strandline.lake.jobs.stage import IcebergTables

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Host(Protocol):
    """What of a node a backfill needs."""

    config: Config
    site: Site

    @property
    def spark(self) -> "SparkSession": ...

    @property
    def tables(self) -> "IcebergTables": ...

    def flush(self, dataset: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """A provider as `backfill list` shows it. One that is not configured can be run on command, if it needs
    no key."""

    name: str
    type: str
    is_configured: bool
    is_enabled: bool
    can_run: bool
    schedule: str
    last: dict[str, Any] | None
    last_at: int | None


class Backfills:
    """It is what a run needs, too (Means). `open_for_write` is called before anything is written."""

    def __init__(self, host: Host, open_for_write: Callable[[], None]) -> None:
        self._host, self._open = host, open_for_write
        self._lookup: FrameLookup | None = None

    # What there is

    def names(self) -> list[str]:
        """Those that run when all are run."""
        return sorted(name for name, each in self._host.config.backfill.items() if each.enabled)

    def listed(self) -> list[Listed]:
        """Those that are configured, and the kinds that are not."""
        configured = self._host.config.backfill
        kinds = [name for name in provider_types() if name not in configured]
        return [self._listed(name) for name in [*sorted(configured), *kinds]]

    def _listed(self, name: str) -> Listed:
        found = self._host.config.backfill.get(name)
        stands_in = found or default_provider(name)
        event = run_history.last_ended(self._host.site.b, name)
        return Listed(
            name,
            stands_in.type if stands_in else name,
            found is not None,
            found is not None and found.enabled,
            stands_in is not None,
            found.schedule if found else "",
            None if event is None else dict(event.data),
            None if event is None else int(event.at),
        )

    def configured(self, name: str) -> ProviderConfig:
        found = self._host.config.backfill.get(name) or default_provider(name)
        if found is None:
            raise ProviderNotConfigured(name, sorted(self._host.config.backfill))
        return found

    def provider(self, name: str) -> Provider:
        """With its secrets, looked up now."""
        config, found = self._host.config, self.configured(name)
        site = self._host.site
        options = ProviderOptions(name, found.keys, config.home, lambda dataset: site.schema(dataset).dataset)
        return make_provider(found.type, options)

    def window(self, name: str, since: datetime | None = None, until: datetime | None = None) -> Window:
        """As it is asked for; without a start as far back as the provider's `window_days`, or else as any
        dataset keeps its rows."""
        if since is not None:
            return Window(since, until)
        days = self.configured(name).window_days
        if days is None:
            retention = self._host.config.retention
            kept = [retention.default_days, *(each.days for each in retention.datasets.values())]
            each = [day for day in kept if day is not None]
            days = 0 if 0 in each else max(each)
        return Window(self._now() - timedelta(days=days) if days else None, until)

    # Running

    def due(self) -> list[Due]:
        """What should run now; see strandline.backfill.run_history."""
        return run_history.due(self._host.site, self._host.config.backfill, self._host.site.clock.now_us())

    def run(
        self,
        name: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        dataset: str | None = None,
        is_dry: bool = False,
        why: Why = "command",
        tell: Tell | None = None,
    ) -> BackfillResult:
        """Write what a provider has and the node has not. LeaseHeld where another runs the same one."""
        site, config, provider = self._host.site, self.configured(name), self.provider(name)
        order = Order(name, self.window(name, since, until), config.quiesce_s, is_dry, dataset)
        if is_dry:
            return run(site, self, provider, order, tell=tell)
        self._open()
        with (
            span("backfill", provider=name, why=why) as told,
            held(site.b, site.clock, f"backfill/{name}") as lease,
        ):
            id_ = site.random_hex()
            run_history.began(site, lease, name, id_, why, order.window)
            result = run(site, self, provider, order, tell=tell)
            run_history.ended(site, lease, name, id_, result)
            told.set(status=result.status, written=result.tally.written, skipped=result.tally.left_out)
        return result

    def lookup(self) -> "FrameLookup":
        from strandline.lake.jobs.lookup_frame import FrameLookup

        session = self._host.spark
        if self._lookup is None or self._lookup.session is not session:
            options = self._host.config.content_options()
            self._lookup = FrameLookup(session, self._host.site.content, content_options=options)
        return self._lookup

    def land(self, dataset: str) -> None:
        try:
            self._host.flush(dataset)
        except LeaseHeld:
            return  # another lands these rows right now

    def write_frame(
        self, instance: str, provider: FrameProvider, item: Item, *, is_dry: bool
    ) -> BackfillCounts:
        from strandline.backfill.frame import write_frame

        host = self._host
        return write_frame(
            host.site,
            host.tables,
            self.lookup(),
            instance,
            item,
            provider.frame(item, host.spark),
            is_dry=is_dry,
        )

    def _now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self._host.site.clock.now_us())
