"""`strandline.open(home)`: a node, and every verb of the pipeline as a method.

Nothing is started that is not needed: Spark with the first verb that lands or reads rows, never for an
append.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from strandline.clock import Clock
from strandline.errors import StrandlineError, UsageError
from strandline.lake.settings import CATALOG
from strandline.persist import Conflict, ExpectSeq
from strandline.pipeline import quarantine
from strandline.pipeline.append import OnBad, Receipt, Rows, append, drop_quarantined, retry_quarantined
from strandline.pipeline.buffer import BufferedWriter, OnFull
from strandline.pipeline.config import FILE_NAME, Config, default_config, load_config
from strandline.pipeline.flush import WAIT_S, FlushReport, FlushResult, flush
from strandline.pipeline.housekeeping import expire_snapshots
from strandline.pipeline.lease import LeaseHeld
from strandline.pipeline.registry import dataset_stream, declared
from strandline.pipeline.site import open_site
from strandline.pipeline.token import Token
from strandline.pipeline.visible import bounds, visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.lake.explain import ScanPlan
    from strandline.lake.landing import Settle
    from strandline.lake.reader import LakeReader
    from strandline.lake.writer import IcebergTables
    from strandline.pipeline.legacy import Kind
    from strandline.pipeline.load import LoadResult
    from strandline.pipeline.read import Scan

Refresh = Literal["never", "auto", "always"]

_READS: Final = ("select", "with", "from", "values", "table", "show", "describe", "desc", "explain")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)


class Node:
    """One process's hold on a node. Threads may share it. Close it, or use it as a context manager."""

    def __init__(
        self, config: Config, *, clock: Clock | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.config = config
        self._tell = tell
        self._settle: dict[str, Settle] = {}
        self._is_compared = False
        self.site = open_site(config, clock=clock)
        self.origin = self.site.origin

    # Spark, when it is needed

    @cached_property
    def spark(self) -> "SparkSession":
        """The session; it is started by the first who asks."""
        from strandline.lake.spark import start_spark

        return start_spark(self.config.lake_settings(), self.config.spark_settings(), tell=self._tell)

    @cached_property
    def tables(self) -> "IcebergTables":
        from strandline.lake.writer import IcebergTables

        return IcebergTables(
            self.spark,
            self.site.content,
            self.config.lake_settings(),
            content_options=self.config.content_options(),
        )

    @cached_property
    def reader(self) -> "LakeReader":
        from strandline.lake.reader import LakeReader

        return LakeReader(self.spark, self.config.lake_settings())

    def _open_for_write(self) -> None:
        """Before the first write of this process the store is compared with its tables."""
        if not self._is_compared:
            from strandline.pipeline.reconcile import reconcile

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
        """Store and number rows; returns when they survive a power cut. See strandline.pipeline.append."""
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
        """Land a DataFrame of any size, from any Spark source. See strandline.pipeline.load."""
        from strandline.pipeline.load import load

        self._open_for_write()
        return load(self.site, self.tables, dataset, df, source=source, request_id=request_id)

    def import_rows(
        self, dataset: str, place: str, *, kind: "Kind", source: str | None = None
    ) -> "LoadResult":
        """Bring in an Iceberg table, or a Parquet folder, of rows that have no numbers: once, resumably."""
        from strandline.pipeline.legacy import import_rows

        self._open_for_write()
        return import_rows(self.site, self.tables, self.spark, dataset, place, kind=kind, source=source)

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
        timeout_s: float = WAIT_S,
        tell: Callable[[FlushResult], None] | None = None,
    ) -> FlushReport:
        """Land everything that is pending now. Where nothing is, no Spark is started."""
        self._open_for_write()
        if not self._has_work(dataset):
            return FlushReport(dataset)
        report = flush(
            self.site, self.tables, dataset, settle=self._settle.get(dataset), timeout_s=timeout_s, tell=tell
        )
        if self.tables.snapshot_count(dataset) > self.config.compaction.max_snapshots:
            self.expire_snapshots(dataset)
        return report

    def expire_snapshots(self, dataset: str) -> int:
        """Let go of snapshots that [compaction] does not keep; how many went. Nothing that is under way needs
        any of them."""
        from strandline.lake.maintenance import expire, snapshots

        return expire_snapshots(
            self.site,
            dataset,
            self.config.compaction,
            lambda: snapshots(self.spark, dataset),
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
        standing = self.site.standing
        return bool(standing.pending(dataset) or standing.numbers(dataset).open)

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
    ) -> "DataFrame":
        """The visible rows after the token `since` up to `until`, as a DataFrame of public columns.

        `end` gives the token to read up to, and to go on from.
        """
        from strandline.pipeline.read import read

        self.refresh(dataset, refresh)
        asked = bounds(self.site, self.origin, dataset, source, since, until)
        if not self._has_table(dataset):
            return self._nothing(dataset, columns)
        return read(self.reader, self.site.known(dataset).dataset, asked, columns=columns)

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
    ) -> "Scan":
        """The visible rows in order, by pages, each with the token to go on from."""
        from strandline.pipeline.read import PAGE_BYTES, Scan

        self.refresh(dataset, refresh)
        asked = bounds(self.site, self.origin, dataset, source, since, until)
        return Scan(
            self.site,
            lambda: self.reader,
            self.origin,
            self.site.known(dataset).dataset,
            asked,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes or PAGE_BYTES,
        )

    def end(self, dataset: str, *, source: str | None = None) -> str:
        """The token of now: everything that is visible. It needs no Spark."""
        self.site.known(dataset)
        return Token(self.origin, dataset, source, visible(self.site, dataset, source)).text()

    def explain(
        self, dataset: str, *, source: str | None = None, since: str | None = None, until: str | None = None
    ) -> "ScanPlan":
        """Which files a read would open, how many it passes by, without running it and without Spark."""
        from strandline.lake.explain import ScanPlan, explain

        asked = bounds(self.site, self.origin, dataset, source, since, until)
        if not self._has_table(dataset):
            return ScanPlan(None)
        lake = self.config.lake_settings()
        if source is not None:
            return explain(lake, dataset, source=source, seqs=asked.range)
        return explain(lake, dataset, flushes=asked.range)

    def sql(self, query: str, *, refresh: Refresh = "auto") -> "DataFrame":
        """Run a query in which each dataset is a view of its visible rows, public columns only.

        It reads: tables are written by flush and load alone, which stamp their rows.
        """
        _refuse_writes(query)
        for dataset in self._named_in(query):
            self.read(dataset, refresh=refresh).createOrReplaceTempView(f"`{dataset}`")
        return self.spark.sql(query)

    def refresh(self, dataset: str, mode: Refresh = "auto") -> FlushReport | None:
        """`always` flushes first; `auto` does if rows are pending and the last flush is older than
        `[spool] max_age_s`; `never` leaves it."""
        if mode not in ("never", "auto", "always"):
            raise UsageError(f"refresh is {mode!r:.80}", hint="'never', 'auto' or 'always'")
        self.site.known(dataset)
        if mode == "never" or not self.site.standing.pending(dataset):
            return None
        age_us = self.site.clock.now_us() - self.site.standing.numbers(dataset).flushed_at
        if mode == "auto" and age_us < self.site.spool.max_age_s * 1_000_000:
            return None
        try:
            return self.flush(dataset, timeout_s=WAIT_S if mode == "always" else 0)
        except LeaseHeld:
            if mode == "always":
                raise
            return None  # another lands these rows right now; what has landed is read meanwhile

    def _has_table(self, dataset: str) -> bool:
        """Something was planned: before that there may be no table, and nothing is visible."""
        return self.site.standing.numbers(dataset).visible > 0

    def _nothing(self, dataset: str, columns: Sequence[str] | None) -> "DataFrame":
        return self.reader.no_rows(self.site.known(dataset).dataset, columns=columns)

    def _named_in(self, query: str) -> list[str]:
        """The datasets that a query may mean: those whose name stands in it."""
        return [
            dataset
            for dataset in self.datasets()
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

    # Closing

    def close(self) -> None:
        """Let go of the store. Spark goes on for other nodes of the process until stop_spark."""
        self.site.b.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    bare = _QUOTED.sub(" ", query)
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
