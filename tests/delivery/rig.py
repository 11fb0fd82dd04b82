"""A node in parts for tests of delivery with real Spark: a store, a lake of the run, and any sink."""

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from strandline.base.clock import SystemClock
from strandline.config.keys import FlushSection, SpoolSection
from strandline.config.lake_settings import LakeSettings
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.delivery.result import SyncResult
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.lake.jobs.deliver import SparkCourier
from strandline.lake.jobs.stage import IcebergTables
from strandline.lake.jobs.table_schema import table_name
from strandline.persist import open_store
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Sink
from strandline.state.context import Site
from strandline.state.node_state import Standing
from strandline.state.sink_progress import SinkProgress
from strandline.storage import open_content


@dataclass
class Rig:
    """One dataset of its own, so that tests may share a lake."""

    spark: SparkSession
    lake: LakeSettings
    folder: Path
    dataset: str = field(default_factory=lambda: f"d{uuid.uuid4().hex[:10]}")
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        self.site = self.another_site()
        self.tables = IcebergTables(self.spark, self.site.content, self.lake)
        self.courier = SparkCourier(self.spark, self.lake)
        self.next = 1

    def another_site(self) -> Site:
        """As another process would have it."""
        b = open_store(str(self.folder / "strandline.db"))
        content = open_content(self.folder / "content")
        return Site(b, content, SystemClock(), Standing(b), SpoolSection(), FlushSection())

    def append(self, count: int, source: str = "web-1", **more: Any) -> list[int]:
        """Rows whose `n` no other row has; what they are."""
        values = list(range(self.next, self.next + count))
        self.next += count
        append(self.site, self.dataset, [{"n": value, **more} for value in values], source=source)
        return values

    def land(self, count: int, source: str = "web-1", **more: Any) -> list[int]:
        values = self.append(count, source, **more)
        self.flush()
        return values

    def flush(self) -> None:
        flush(self.site, self.tables, self.dataset)

    def sync(self, sink: Sink, terms: Terms | None = None, **options: Any) -> SyncResult:
        asked = terms or Terms("centre", include=(self.dataset,))
        sender = Sender(self.site.origin, "edge", lambda name: name, self.rules)
        return sync(self.site, lambda: self.courier, sink, asked, sender, **options)

    def line(self, source: str = "web-1", instance: str = "centre") -> SinkProgress:
        return self.site.standing.lines().line(instance, Strand(self.dataset, source))

    def sql(self, text: str) -> list[Any]:
        """`{table}` stands for the dataset's."""
        return self.spark.sql(text.format(table=table_name(self.dataset))).collect()

    def delete(self, where: str) -> None:
        self.sql(f"DELETE FROM {{table}} WHERE {where}")

    def compact(self) -> None:
        """All files of the table rewritten, sorted by seq."""
        name = table_name(self.dataset)
        catalog = name.split(".", 1)[0]
        before = self.files()
        self.spark.sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{name}', strategy => 'sort', "
            "sort_order => 'source, _sl_seq', options => map('rewrite-all', 'true'))"
        ).collect()
        assert not before & self.files()

    def files(self) -> set[str]:
        return {row[0] for row in self.sql("SELECT file_path FROM {table}.files")}


def blob_rows(folder: Path) -> Counter[int]:
    """`n` of every row in every JSONL object under a folder."""
    return Counter(
        json.loads(each)["n"]
        for path in sorted(folder.rglob("*.jsonl"))
        for each in path.read_text().splitlines()
    )


def once(values: Sequence[int]) -> Counter[int]:
    return Counter(values)
