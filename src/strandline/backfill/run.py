"""A run of one provider: its items one after another, each row of them written once.

Everything that a run knows is in the store: which chunks are written, and with them their rows. So a run that
was cut short is run again, and a run beside live appends writes what those have not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from strandline.backfill.chunk import ChunkMark, ChunkPart, parts, rows_whole
from strandline.backfill.lost_rows import lost_in, removed_in
from strandline.backfill.result import BackfillCounts, BackfillResult, Failure
from strandline.backfill.write import Bundle, Overtaken, write_bundle
from strandline.errors import OutcomeUnknown, StrandlineError, UsageError
from strandline.flush.flush import due
from strandline.ingest.append import SpoolFull
from strandline.lake.ports.lookup import Lookup
from strandline.sources.provider import Chunk, FrameProvider, Item, Provider, SkippingProvider, Window
from strandline.state.context import Site

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Means(Protocol):
    """What a run needs beside the store: Spark, which is started by the first who asks."""

    def lookup(self) -> Lookup: ...

    def land(self, dataset: str) -> None:
        """Flush what is pending of a dataset. Where another does right now, that is as good."""

    def write_frame(
        self, instance: str, provider: FrameProvider, item: Item, *, is_dry: bool
    ) -> BackfillCounts:
        """Land the rows of a frame that are not there yet."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: a provider by its name, over a window."""

    instance: str
    window: Window
    quiesce_s: float = 180
    is_dry: bool = False
    only: str | None = None  # a dataset


Tell = Callable[[str, BackfillCounts], None]  # the item that is under way, and how far the run is


def run(
    site: Site, means: Means, provider: Provider, order: Order, *, tell: Tell | None = None
) -> BackfillResult:
    """Write what the provider has and the node has not. What fails is in the result, but for what only our
    own bug or an interrupt could raise."""
    return _Run(site, means, provider, order, tell or (lambda _, __: None)).run()


@dataclass(slots=True)
class _Run:
    site: Site
    means: Means
    provider: Provider
    order: Order
    tell: Tell
    tally: BackfillCounts = field(default_factory=BackfillCounts)
    bundle: Bundle = field(default_factory=Bundle)
    put_off: dict[tuple[str, str], Item] = field(default_factory=dict)
    stopped: set[tuple[str, str]] = field(default_factory=set)
    is_last: bool = False  # what is overtaken now is not tried again

    def run(self) -> BackfillResult:
        error: Failure | None = None
        try:
            for item in self._items():
                self._take(item)
        except Exception as found:  # noqa: BLE001  # the listing is the provider's; what came before it counts
            error = _failure("", found)
        self._write()
        self.is_last = True
        self.stopped -= self.put_off.keys()
        for item in self.put_off.values():
            self._take(item)
            self._write()
        if isinstance(self.provider, SkippingProvider):
            self.tally.skipped = dict(self.provider.skipped)
        return BackfillResult(self.order.instance, self.tally, self.order.is_dry, error)

    def _items(self) -> Iterator[Item]:
        """Those of the window that have been left alone for long enough."""
        quiet = (
            _EPOCH
            + timedelta(microseconds=self.site.clock.now_us())
            - timedelta(seconds=self.order.quiesce_s)
        )
        for item in self.provider.items(self.order.window):
            if self.order.only is not None and item.dataset != self.order.only:
                continue
            if item.modified is not None and item.modified > quiet:
                self.tally.waiting += 1
            else:
                yield item

    def _take(self, item: Item) -> None:
        if not self.is_last:
            self.tally.items += 1
        self.tell(item.id, self.tally)
        try:
            if item.is_frame:
                self._take_frame(item)
                return
            if (known := rows_whole(self.site, self.order.instance, item)) is not None:
                self.tally.chunk_known += known
                return
            is_lost = partial(self._is_lost, item)
            for part in parts(self.site.b, self.order.instance, item, self._rows(item), is_lost=is_lost):
                if not isinstance(part, int):
                    self._add(part)
                elif not self.is_last:
                    self.tally.chunk_known += part
                if _name(item) in self.stopped:
                    return  # what is behind a chunk that is not written waits for the next run
        except Exception as error:  # noqa: BLE001  # of the provider, or of this item alone: the run goes on
            self._fail([item], error)

    def _is_lost(self, item: Item, mark: ChunkMark) -> bool:
        """Whether rows of a chunk were given up since it was written, and can be told from others."""
        lost = lost_in(self.site, item.dataset, mark.waiting)
        if removed := removed_in(self.site, item.dataset, mark.waiting, lost):
            self.tally.doubt(
                f"{item.id!r}: rows of {item.dataset}/{source} were lost after it was written, and others "
                "were removed since, so that nobody can say which are missing: none is written again"
                for source in removed
            )
        return bool(lost) and not removed

    def _rows(self, item: Item) -> Iterator[Chunk]:
        yield from self.provider.rows(item)

    def _take_frame(self, item: Item) -> None:
        self._write()
        if not isinstance(self.provider, FrameProvider):
            raise UsageError(
                f"{item.id!r} is a frame, and its provider gives none", hint="correct the provider"
            )
        try:
            found = self.means.write_frame(self.order.instance, self.provider, item, is_dry=self.order.is_dry)
        except Overtaken as error:
            self._overtaken([item], error)
        else:
            self._count(found)

    # Bundles

    def _add(self, part: ChunkPart) -> None:
        if not self.bundle.takes(part):
            self._write()
        self.bundle.add(part)
        if self.bundle.is_full:
            self._write()
        self.tell(part.item.id, self.tally)

    def _write(self) -> None:
        bundle, self.bundle = self.bundle, Bundle()
        if not bundle.parts:
            return
        items = list({_name(part.item): part.item for part in bundle.parts}.values())
        try:
            self._count(self._written(bundle))
        except Overtaken as error:
            self._overtaken(items, error)
        except StrandlineError as error:
            self._fail(items, error)

    def _written(self, bundle: Bundle) -> BackfillCounts:
        is_dry, dataset = self.order.is_dry, bundle.parts[0].item.dataset
        lookup = self.means.lookup
        try:
            found = write_bundle(self.site, lookup, bundle, is_dry=is_dry)
        except SpoolFull:
            self.means.land(dataset)
            found = write_bundle(self.site, lookup, bundle, is_dry=is_dry)
        if not is_dry and due(self.site, dataset) in ("size", "age"):
            self.means.land(dataset)
        return found

    def _overtaken(self, items: Sequence[Item], error: Overtaken) -> None:
        if self.is_last:
            self._fail(items, error)
        else:
            self.put_off.update((_name(item), item) for item in items)
            self.stopped |= self.put_off.keys()

    # Counts

    def _count(self, found: BackfillCounts) -> None:
        tally = self.tally
        tally.written += found.written
        tally.committed += found.committed
        tally.spooled += found.spooled
        tally.in_chunk += found.in_chunk
        tally.chunk_known += found.chunk_known
        tally.quarantined += found.quarantined
        tally.doubt(found.doubt_texts)

    def _fail(self, items: Sequence[Item], error: Exception) -> None:
        for item in items:
            if _name(item) not in self.stopped:
                self.stopped.add(_name(item))
                self.tally.failures.append(_failure(item.id, error))


def _name(item: Item) -> tuple[str, str]:
    return item.dataset, item.id


def _failure(item: str, error: Exception) -> Failure:
    if isinstance(error, OutcomeUnknown):
        return Failure(item, "unknown", error.message)
    if isinstance(error, StrandlineError):
        return Failure(item, error.kind, error.message)
    return Failure(item, "failed", f"{type(error).__name__}: {error}")
