"""A node in parts for tests of keeping it small, with real Spark: a store, a lake of the run, a clock that a
test moves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace as with_fields

from strandline.config.config import Config, default_config, load_config
from strandline.config.keys import FlushSection, SpoolSection
from strandline.delivery.api import Deliveries
from strandline.delivery.audit.prove import Proof
from strandline.delivery.audit.prove import prove as prove_all
from strandline.delivery.result import SyncResult
from strandline.lake.jobs.count_rows import census
from strandline.lake.jobs.prune import Pruner
from strandline.lake.jobs.purge import SparkPurger
from strandline.lake.jobs.scan import LakeReader
from strandline.maintenance.retention import prune as retention
from strandline.maintenance.retention.prune import PruneResult, prune
from strandline.maintenance.retention.rules import rules_of
from strandline.persist import open_store
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.node_state import Standing
from strandline.state.strand_state import StrandState
from strandline.storage import open_content
from tests.delivery.rig import Rig

START_US: Final = 1_800_000_000_000_000
HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US


class Crash(BaseException):
    """The process ends here."""


def at_point(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Any]) -> None:
    """Once, when a run comes by a place."""
    left = [act]

    def reach(found: str) -> None:
        if found == name and left:
            left.pop()()

    monkeypatch.setattr(retention, "reach", reach)


def crash() -> None:
    raise Crash


@dataclass
class HandClock:
    """Stands still until it is moved."""

    now: int = START_US

    def now_us(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e6)

    def forward(self, *, days: float = 0, hours: float = 0) -> None:
        self.now += int(days * DAY_US + hours * HOUR_US)


@dataclass
class House(Rig):
    """A Rig with such a clock and a configuration; each has a dataset of its own, so that tests may share a
    lake."""

    clock: HandClock = field(default_factory=HandClock)

    def another_site(self) -> Site:
        """As another process would have it."""
        b = open_store(str(self.folder / "strandline.db"))
        content = open_content(self.folder / "content")
        return Site(b, content, self.clock, Standing(b), SpoolSection(), FlushSection())

    def prune(self, config: Config | None = None, **options: Any) -> PruneResult:
        """A run of retention, as the node of this configuration would do it."""
        chosen, upkeep = config or self.config(), Pruner(lambda: self.spark, self.lake)
        return prune(
            self.site,
            options.pop("upkeep", upkeep),
            self.dataset,
            rules_of(chosen, self.site, self.dataset),
            pointer=upkeep.pointers().get(self.dataset),
            purger=lambda: SparkPurger(lambda: self.spark, self.lake),
            **options,
        )

    def deliver(self, config: Config, name: str = "archive") -> SyncResult:
        """A run of a sink, as the node of this configuration would do it."""
        return Deliveries(config, self.site, lambda: self.courier).sync(name)

    def proof(self, config: Config) -> list[Proof]:
        deliveries = Deliveries(config, self.site, lambda: self.courier)
        sinks = [(deliveries.sink(name), deliveries.terms(name)) for name in sorted(config.sinks)]
        reader = LakeReader(self.spark, self.lake)
        return list(prove_all(self.site, partial(census, reader), sinks, deliveries.sender))

    def strand_state(self, source: str = "web-1") -> StrandState:
        return self.site.standing.strand_state(Strand(self.dataset, source))

    def config(self, text: str = "", **retention: Any) -> Config:
        """What `strandline.toml` says: `text` after the version, and keys of [retention]."""
        path = self.folder / "strandline.toml"
        path.write_text(f"version = 1\n{text}")
        config = load_config(path) if text else default_config(self.folder)
        return with_fields(config, retention=with_fields(config.retention, **retention))

    def seqs(self, source: str = "web-1") -> list[int]:
        """What the table has of a strand."""
        found = self.sql(f"SELECT _sl_seq FROM {{table}} WHERE source = '{source}' ORDER BY _sl_seq")
        return [row[0] for row in found]

    def operations(self) -> list[str]:
        """What each snapshot of the table did, oldest first."""
        return [row[0] for row in self.sql("SELECT operation FROM {table}.snapshots ORDER BY committed_at")]


def blob_sink(folder: Path, name: str = "archive", **keys: Any) -> str:
    """A blob sink in the words of strandline.toml."""
    more = "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
    return (
        f'[sinks.{name}]\ntype = "blob"\ndestination = "local"\ndir = "{folder / name}"\nencoder = "jsonl"\n'
        f"{more}"
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | list) else f'"{value}"'
