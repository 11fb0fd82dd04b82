"""`strandline.open(home)`: a node, and every verb of the pipeline as a method.

Nothing is started that is not needed: Spark with the first verb that lands or reads rows, never for an
append.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from strandline.base.clock import Clock
from strandline.base.predicate import without_quoted
from strandline.config.config import FILE_NAME, Config, default_config, load_config
from strandline.config.lake_settings import CATALOG
from strandline.errors import StrandlineError, UsageError
from strandline.flush.flush import WAIT_S, FlushReport, FlushResult, flush, has_work, idle
from strandline.ingest import quarantine
from strandline.ingest.append import OnBad, Receipt, Rows, append, drop_quarantined, retry_quarantined
from strandline.ingest.buffered_writer import BufferedWriter, OnFull
from strandline.maintenance.snapshot_expiry import expire_snapshots
from strandline.observe.span import send_traces, span
from strandline.persist import Conflict, ExpectSeq
from strandline.read.token import ReadToken
from strandline.read.visible import Bounds, DataAge, OnPruned, age, bounds, visible
from strandline.state.context import open_site
from strandline.state.dataset_versions import dataset_stream, declared
from strandline.state.flush_plan import Reason
from strandline.state.lease import LeaseHeld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.backfill.api import Backfills
    from strandline.delivery.api import Deliveries, SyncReport
    from strandline.delivery.result import SyncResult
    from strandline.ingest.legacy_import import Kind
    from strandline.ingest.load import LoadResult
    from strandline.lake.jobs.deliver import SparkCourier
    from strandline.lake.jobs.scan import LakeReader
    from strandline.lake.jobs.stage import IcebergTables
    from strandline.lake.metadata.explain import ScanPlan
    from strandline.lake.ports.stage import Settle
    from strandline.maintenance.api import Keeping
    from strandline.read.read import Scan

Refresh = Literal["never", "auto", "always"]

_importing = threading.Lock()
_READS: Final = ("select", "with", "from", "values", "table", "show", "describe", "desc", "explain")


class Node:
    """One process's hold on a node. Threads may share it. Close it, or use it as a context manager."""

    def __init__(
        self, config: Config, *, clock: Clock | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.config = config
        self._tell = tell
        self._settle: dict[str, Settle] = {}
        self._is_compared = False
        self._session: SparkSession | None = None
        self._tables: tuple[SparkSession, IcebergTables] | None = None
        self._couriers: tuple[SparkSession, SparkCourier] | None = None
        self._deliveries: Deliveries | None = None
        self._keeping: Keeping | None = None
        send_traces(config.observe.traces, node=config.node.name)
        self.site = open_site(config, clock=clock)
        self.origin = self.site.origin

    # Spark, when it is needed

    @property
    def spark(self) -> "SparkSession":
        """The session; it is started by the first who asks, and again by the first who finds it dead."""
        _import_spark()
        from strandline.lake.spark.session import is_alive, start_spark

        if self._session is None or not is_alive(self._session):
            lake, spark = self.config.lake_settings(), self.config.spark_settings()
            self._session = start_spark(lake, spark, tell=self._tell)
        return self._session

    def _spark_for_writes(self) -> "SparkSession":
        """The session. Raise CatalogUnfit if the catalog does not keep what writes into tables rely on."""
        session = self.spark
        from strandline.flush.catalog_check import check_catalog
        from strandline.lake.jobs.probe_catalog import CatalogProbe

        lake = self.config.lake_settings()
        check_catalog(self.site, lake, CatalogProbe(session, format=lake.format))
        return session

    @property
    def tables(self) -> "IcebergTables":
        session = self._spark_for_writes()
        from strandline.lake.jobs.stage import IcebergTables

        if self._tables is None or self._tables[0] is not session:
            tables = IcebergTables(
                session,
                self.site.content,
                self.config.lake_settings(),
                content_options=self.config.content_options(),
                max_row_bytes=self.site.spool.max_row_bytes,
            )
            self._tables = (session, tables)
        return self._tables[1]

    @property
    def reader(self) -> "LakeReader":
        return self._reader(self.spark)

    def _reader(self, session: "SparkSession") -> "LakeReader":
        from strandline.lake.jobs.scan import LakeReader

        return LakeReader(session, self.config.lake_settings())

    @contextmanager
    def _on_spark(self, dataset: str | None = None) -> Iterator[None]:
        """What makes the work inside fail is named: a Spark that died, a warehouse that was moved."""
        _import_spark()
        from strandline.lake.jobs.table_schema import TableUnavailable
        from strandline.lake.metadata.iceberg import check_warehouse
        from strandline.lake.spark.session import named_if_gone

        try:
            with named_if_gone(self.spark):
                yield
        except TableUnavailable:
            if dataset is not None:
                check_warehouse(self.config.lake_settings(), dataset)
            raise

    def _open_for_write(self) -> None:
        """Before the first write of this process the store is compared with its tables."""
        if not self._is_compared:
            from strandline.flush.reconcile import reconcile

            reconcile(self.site, self.config.lake_settings())
            self._is_compared = True

    # Rows in

    def append(
        self,
        dataset: str,
        rows: Rows,
        *,
        source: str | None = None,
        request_id: str | None = None,
        on_bad: OnBad = "refuse",
    ) -> Receipt:
        """Store and number rows; returns when they survive a power cut. See strandline.ingest.append."""
        self._open_for_write()
        return append(self.site, dataset, rows, source=source, request_id=request_id, on_bad=on_bad)

    def writer(
        self,
        dataset: str,
        *,
        source: str | None = None,
        linger_ms: float | None = None,
        group_rows: int | None = None,
        group_bytes: int | None = None,
        on_full: OnFull = "block",
    ) -> BufferedWriter:
        """For producers of single rows: they are grouped, and each is acknowledged when its group is
        durable."""
        self._open_for_write()
        return BufferedWriter(
            self.site,
            dataset,
            source=source,
            linger_ms=linger_ms,
            group_rows=group_rows,
            group_bytes=group_bytes,
            on_full=on_full,
        )

    def load(
        self, dataset: str, df: "DataFrame", *, source: str | None = None, request_id: str | None = None
    ) -> "LoadResult":
        """Land a DataFrame of any size, from any Spark source. See strandline.ingest.load."""
        _import_spark()
        from strandline.ingest.load import load

        self._open_for_write()
        with span("load", dataset=dataset), self._on_spark(dataset):
            return load(
                self.site,
                self.tables,
                dataset,
                df,
                source=source,
                request_id=request_id,
                settle=self._settle.get(dataset),
            )

    def import_rows(
        self, dataset: str, place: str, *, kind: "Kind", source: str | None = None
    ) -> "LoadResult":
        """Bring in an Iceberg table, or a Parquet folder, of rows that have no numbers: once, resumably."""
        _import_spark()
        from strandline.ingest.legacy_import import import_rows

        self._open_for_write()
        with span("load", dataset=dataset), self._on_spark(dataset):
            return import_rows(
                self.site,
                self.tables,
                self.spark,
                dataset,
                place,
                kind=kind,
                source=source,
                settle=self._settle.get(dataset),
            )

    @property
    def backfills(self) -> "Backfills":
        """The providers of history, and running them. See strandline.backfill.api."""
        from strandline.backfill.api import Backfills

        return Backfills(self, self._open_for_write)

    def settle(self, dataset: str, hook: "Settle | None") -> None:
        """Have `hook`, a pure function of DataFrames, see the rows of each flush before they get row ids."""
        if hook is None:
            self._settle.pop(dataset, None)
        else:
            self._settle[dataset] = hook

    # Rows into tables

    def flush(
        self,
        dataset: str,
        *,
        reason: Reason = "command",
        timeout_s: float = WAIT_S,
        tell: Callable[[FlushResult], None] | None = None,
    ) -> FlushReport:
        """Land everything that is pending now. Where nothing is, no Spark is started."""
        self._open_for_write()
        if not self._has_work(dataset):
            return idle(self.site, dataset)
        settle = self._settle.get(dataset)
        with self._on_spark(dataset):
            tables = self.tables
            report = flush(
                self.site, tables, dataset, reason=reason, settle=settle, timeout_s=timeout_s, tell=tell
            )
            if tables.snapshot_count(dataset) > self.config.compaction.max_snapshots:
                self.expire_snapshots(dataset)
        return report

    def expire_snapshots(self, dataset: str) -> int:
        """Let go of snapshots that [compaction] does not keep; how many went. Nothing that is under way needs
        any of them."""
        from strandline.lake.jobs.expire_snapshots import expire, snapshots

        return expire_snapshots(
            self.site,
            dataset,
            self.config.compaction,
            lambda: snapshots(lambda: self.spark, self.config.lake_settings(), dataset),
            lambda ids: expire(self.spark, dataset, ids),
        )

    def flush_all(self) -> Mapping[str, FlushReport | StrandlineError]:
        """Every dataset on its own: one that fails stops no other, and its error is its report."""
        reports: dict[str, FlushReport | StrandlineError] = {}
        for dataset in self.site.standing.datasets():
            try:
                reports[dataset] = self.flush(dataset)
            except StrandlineError as error:
                reports[dataset] = error
        return reports

    def _has_work(self, dataset: str) -> bool:
        self.site.known(dataset)
        return has_work(self.site, dataset)

    # Rows onward

    @property
    def deliveries(self) -> "Deliveries":
        """The sinks, and every verb on them. See strandline.delivery.api."""
        from strandline.delivery.api import Deliveries

        if self._deliveries is None:
            self._deliveries = Deliveries(self.config, self.site, self._courier)
        return self._deliveries

    def _courier(self) -> "SparkCourier":
        from strandline.lake.jobs.deliver import SparkCourier

        session = self.spark
        if self._couriers is None or self._couriers[0] is not session:
            self._couriers = (session, SparkCourier(session, self.config.lake_settings()))
        return self._couriers[1]

    def cancel_jobs(self) -> None:
        """Before the process ends: the Spark jobs that deliver rows end now, and no other is begun."""
        if self._couriers is not None:
            self._couriers[1].cancel()

    def sync(
        self,
        name: str | None = None,
        *,
        tell: "Callable[[SyncResult], None] | None" = None,
        stop: threading.Event | None = None,
    ) -> "SyncReport":
        """Deliver everything that a sink, or each of them, is owed; what is pending is flushed first. Where
        nothing is new no Spark is started, and nothing is asked or sent."""
        from strandline.delivery.api import SyncReport

        self._open_for_write()
        names = self.deliveries.names() if name is None else [name]
        terms = [self.deliveries.terms(each) for each in names]
        flushes: dict[str, FlushReport | StrandlineError] = {}
        for dataset in self.datasets():
            if any(each.covers(dataset) for each in terms) and self._has_work(dataset):
                try:
                    flushes[dataset] = self.flush(dataset)
                except StrandlineError as error:  # what is visible is delivered all the same
                    flushes[dataset] = error
        return SyncReport(flushes, self.deliveries.sync_all(names, tell=tell, stop=stop))

    @property
    def keeping(self) -> "Keeping":
        """What keeps the node small, as verbs. See strandline.maintenance.api."""
        from strandline.maintenance.api import Keeping

        self._open_for_write()
        if self._keeping is None:
            self._keeping = Keeping(self.config, self.site, self._spark_for_writes)
        return self._keeping

    # Rows out

    def read(
        self,
        dataset: str,
        *,
        source: str | None = None,
        columns: Sequence[str] | None = None,
        since: str | None = None,
        until: str | None = None,
        refresh: Refresh = "auto",
        on_pruned: OnPruned = "error",
    ) -> "DataFrame":
        """The visible rows after the token `since` up to `until`, as a DataFrame of public columns.

        `end` gives the token to read up to, and to go on from. BehindFront where retention has pruned rows
        after `since`, unless `on_pruned` is "continue".
        """
        self.refresh(dataset, refresh)
        asked = bounds(self.site, self.origin, dataset, source, since, until, on_pruned)
        return self._read(dataset, asked, columns=columns)

    def _read(
        self,
        dataset: str,
        asked: Bounds,
        *,
        columns: Sequence[str] | None = None,
        session: "SparkSession | None" = None,
    ) -> "DataFrame":
        _import_spark()
        from strandline.read.read import read

        known = self.site.known(dataset).dataset
        with self._on_spark():
            reader = self._reader(session or self.spark)
            if not self._has_table(dataset):
                return reader.no_rows(known, columns=columns)
            return read(reader, known, asked, columns=columns)

    def scan(
        self,
        dataset: str,
        *,
        source: str | None = None,
        columns: Sequence[str] | None = None,
        since: str | None = None,
        until: str | None = None,
        max_rows: int = 1_000,
        max_bytes: int | None = None,
        refresh: Refresh = "auto",
        on_pruned: OnPruned = "error",
    ) -> "Scan":
        """The visible rows in order, by pages, each with the token to go on from."""
        _import_spark()
        from strandline.read.read import PAGE_BYTES, Scan

        self.refresh(dataset, refresh)
        asked = bounds(self.site, self.origin, dataset, source, since, until, on_pruned)
        return Scan(
            self.site,
            lambda: self.reader,
            self.origin,
            self.site.known(dataset).dataset,
            asked,
            columns=columns,
            max_rows=max_rows,
            max_bytes=PAGE_BYTES if max_bytes is None else max_bytes,
            age=self.age(dataset),
        )

    def end(self, dataset: str, *, source: str | None = None) -> str:
        """The token of now: everything that is visible. It needs no Spark."""
        self.site.known(dataset)
        return ReadToken(self.origin, dataset, source, visible(self.site, dataset, source)).text()

    def explain(
        self,
        dataset: str,
        *,
        source: str | None = None,
        since: str | None = None,
        until: str | None = None,
        on_pruned: OnPruned = "error",
    ) -> "ScanPlan":
        """Which files a read would open, how many it passes by, without running it and without Spark."""
        from strandline.lake.metadata.explain import ScanPlan, explain

        asked = bounds(self.site, self.origin, dataset, source, since, until, on_pruned)
        if not self._has_table(dataset):
            return ScanPlan(None)
        lake = self.config.lake_settings()
        if source is not None:
            return explain(lake, dataset, source=source, seqs=asked.range)
        return explain(lake, dataset, flushes=asked.range)

    def sql(
        self, query: str, *, refresh: Refresh = "auto", session: "SparkSession | None" = None
    ) -> "DataFrame":
        """Run a query in which each dataset is a view of its visible rows, public columns only.

        It reads: tables are written by flush and load alone, which stamp their rows. `age` tells how old the
        rows of each dataset that it names are (`named_in`). The views are made in the node's session, or in
        one of its Spark that is given.
        """
        _refuse_writes(query)
        for dataset in self.named_in(query):
            self.refresh(dataset, refresh)
            asked = bounds(self.site, self.origin, dataset, None, None, None)
            rows = self._read(dataset, asked, session=session)
            with self._on_spark():
                rows.createOrReplaceTempView(f"`{dataset}`")
        with self._on_spark():
            return (session or self.spark).sql(query)

    def age(self, dataset: str) -> DataAge:
        """What a read without a flush lacks, and how old what it shows is. It needs no Spark."""
        self.site.known(dataset)
        return age(self.site, dataset)

    def refresh(self, dataset: str, mode: Refresh = "auto") -> FlushReport | None:
        """`always` flushes first; `auto` does if rows are pending and the last flush is older than
        `[spool] max_age_s`; `never` leaves it. None where nothing was flushed: then `age` tells how old the
        data is."""
        if mode not in ("never", "auto", "always"):
            raise UsageError(f"refresh is {mode!r:.80}", hint="'never', 'auto' or 'always'")
        self.site.known(dataset)
        if mode == "never" or not self.site.standing.pending(dataset):
            return None
        age_us = self.site.clock.now_us() - self.site.standing.numbers(dataset).flushed_at
        if mode == "auto" and age_us < self.site.spool.max_age_s * 1_000_000:
            return None
        try:
            return self.flush(dataset, reason="refresh", timeout_s=WAIT_S if mode == "always" else 0)
        except LeaseHeld:
            if mode == "always":
                raise
            return None  # another lands these rows right now; what has landed is read meanwhile

    def _has_table(self, dataset: str) -> bool:
        """Something was planned: before that there may be no table, and nothing is visible."""
        return self.site.standing.numbers(dataset).visible > 0

    def named_in(self, query: str) -> list[str]:
        """The datasets that a query may mean: those whose name stands in it, rows or none."""
        return [
            dataset
            for dataset in sorted({*self.datasets(), *self.config.datasets})
            if re.search(rf"(?<![\w.]){re.escape(dataset)}(?![\w])", query, re.IGNORECASE)
        ]

    # What there is

    def datasets(self) -> list[str]:
        """Those that have rows, or had."""
        return self.site.standing.datasets()

    def declare(self, dataset: str) -> None:
        """Record what is configured of a dataset, so that it is there before its first row."""
        while True:
            schema = self.site.schema(dataset)
            if schema.event and schema.dataset.version == schema.event:
                return
            expected = [ExpectSeq(dataset_stream(dataset), schema.event)]
            write = declared(replace(schema.dataset, version=schema.event + 1), self.site.clock.now_us())
            if not isinstance(self.site.b.commit(expected, [write]), Conflict):
                return

    # Quarantine

    def quarantined(self, dataset: str) -> list[quarantine.QuarantineEntry]:
        return quarantine.entries(self.site.b, dataset)

    def retry_quarantined(self, dataset: str, entry: int) -> Receipt:
        self._open_for_write()
        return retry_quarantined(self.site, dataset, entry)

    def drop_quarantined(self, dataset: str, entry: int, *, reason: str) -> int:
        return drop_quarantined(self.site, dataset, entry, reason=reason)

    # Another configuration, and closing

    def reconfigure(self, config: Config) -> None:
        """Go by this from now on. Store, content, lake and Spark stay those that are open."""
        self.config = config
        self.site.spool, self.site.flush = config.spool, config.flush
        self.site.declared, self.site.is_strict = config.declared, bool(config.node.strict_datasets)
        self._deliveries = self._keeping = None

    def close(self) -> None:
        """Let go of the store. Spark goes on for other nodes of the process until stop_spark."""
        self.site.b.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _import_spark() -> None:
    """In one thread at a time: pyspark's modules import each other in circles, and a second thread would see
    some of them half made."""
    with _importing, suppress(ImportError):  # where it is not installed, whoever needs it says so
        import pyspark.sql  # noqa: F401


def open_node(
    home: str | Path, *, clock: Clock | None = None, tell: Callable[[str], None] | None = None
) -> Node:
    """The node whose folder is `home`; a folder without a strandline.toml is one with every default."""
    folder = Path(home)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    return Node(load_config(path) if path.exists() else default_config(folder), clock=clock, tell=tell)


def _refuse_writes(query: str) -> None:
    """A statement that is no query, or that goes past the datasets; what stands in quotes does not count."""
    bare = without_quoted(query)
    first = re.match(r"[\s(]*(\w*)", bare)
    word = first[1].lower() if first else ""
    written = re.search(r"\b(insert|merge|update|delete|overwrite)\b", bare, re.IGNORECASE)
    if word not in _READS or written:
        raise UsageError(
            f"{written[1] if written else word or query!r:.40} is no query",
            hint=f"it begins with one of {', '.join(_READS)}; rows come in by append and load",
        )
    if re.search(rf"\b{CATALOG}\s*\.", bare, re.IGNORECASE):
        raise UsageError(
            "a query over the tables themselves would see rows and columns that are not public",
            hint="name the dataset alone",
        )
