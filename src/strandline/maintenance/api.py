"""Everything that keeps a node small, as verbs over all its datasets. One that fails stops no other.

Spark is asked for by the first who has something to do with it; a look that finds nothing needs none.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from strandline.config.config import Config
from strandline.errors import StrandlineError
from strandline.lake.ports.prune import Upkeep
from strandline.lake.ports.purge import Purger
from strandline.lake.ports.rewrite import Rewriter
from strandline.maintenance.chores import Chore
from strandline.maintenance.compaction.merge import LandedRewrite
from strandline.maintenance.purge import PurgeResult, purge
from strandline.maintenance.retention.prune import WAIT_S, PruneResult, prune
from strandline.maintenance.retention.rules import rules_of
from strandline.maintenance.store_upkeep import Tidied, tidy
from strandline.maintenance.table_upkeep import Maintained, UpkeepAsked, look, maintain
from strandline.state.context import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETENTION = "retention"
MAINTAIN = "maintain"
TIDY = "tidy"
_MINUTE_US = 60_000_000


class Keeping:
    """Safe for threads."""

    def __init__(self, config: Config, site: Site, spark: "Callable[[], SparkSession]") -> None:
        self._config, self._site, self._spark = config, site, spark
        self._pruner: Upkeep | None = None
        self._rewriter: Rewriter | None = None

    @property
    def upkeep(self) -> Upkeep:
        if self._pruner is None:
            from strandline.lake.jobs.prune import Pruner

            self._pruner = Pruner(self._spark, self._config.lake_settings())
        return self._pruner

    def prune(
        self, dataset: str | None = None, *, dry_run: bool = False, timeout_s: float = WAIT_S
    ) -> Mapping[str, PruneResult | StrandlineError]:
        """Take out the rows that [retention] does not keep, of one dataset or of each; an error stands where
        a result would. With `dry_run` they are only counted."""
        names = (
            self._site.standing.datasets() if dataset is None else [self._site.known(dataset).dataset.name]
        )
        pointers = self.upkeep.pointers()
        done: dict[str, PruneResult | StrandlineError] = {}
        for name in names:
            try:
                done[name] = prune(
                    self._site,
                    self.upkeep,
                    name,
                    rules_of(self._config, self._site, name),
                    pointer=pointers.get(name),
                    purger=self._purger,
                    is_dry=dry_run,
                    timeout_s=timeout_s,
                )
            except StrandlineError as error:
                done[name] = error
        return done

    @property
    def rewriter(self) -> Rewriter:
        if self._rewriter is None:
            from strandline.lake.jobs.rewrite import SparkRewriter

            self._rewriter = SparkRewriter(self._spark, self._config.lake_settings())
        return self._rewriter

    def maintain(
        self,
        dataset: str | None = None,
        asked: UpkeepAsked | None = None,
        *,
        dry_run: bool = False,
        timeout_s: float = WAIT_S,
        tell: Callable[[str, LandedRewrite], None] | None = None,
    ) -> Mapping[str, Maintained | StrandlineError]:
        """Merge small files, let old snapshots and files without a name go, of one dataset or of each; an
        error stands where a result would. With `dry_run` it is only told what is due."""
        names = (
            self._site.standing.datasets() if dataset is None else [self._site.known(dataset).dataset.name]
        )
        done: dict[str, Maintained | StrandlineError] = {}
        for name in names:
            try:
                done[name] = self._maintain(name, asked or UpkeepAsked(), dry_run, timeout_s, tell)
            except StrandlineError as error:
                done[name] = error
        return done

    def _maintain(
        self,
        name: str,
        asked: UpkeepAsked,
        dry_run: bool,
        timeout_s: float,
        tell: Callable[[str, LandedRewrite], None] | None,
    ) -> Maintained:
        rewriter, settings = self.rewriter, self._config.compaction
        if dry_run:
            return look(self._site, rewriter, settings, name, asked)
        told = None if tell is None else partial(tell, name)
        return maintain(self._site, rewriter, settings, name, asked, timeout_s=timeout_s, tell=told)

    def tidy(self) -> Tidied:
        """Sweep segments, blobs that nothing names and markers that have served, and fold closed history."""
        return tidy(
            self._site,
            grace_s=self._config.content.grace_h * 3_600,
            fold_age_s=self._config.store.fold_after_days * 86_400,
        )

    def purge(
        self,
        dataset: str,
        *,
        where: str | None = None,
        source: str | None = None,
        flush: Callable[[], object],
        dry_run: bool = False,
    ) -> PurgeResult:
        """Take rows out wherever this node has them; `flush` lands what is pending. See
        strandline.maintenance.purge."""
        return purge(
            self._site, self._purger(), dataset, where=where, source=source, flush=flush, is_dry=dry_run
        )

    def _purger(self) -> Purger:
        from strandline.lake.jobs.purge import SparkPurger

        return SparkPurger(self._spark, self._config.lake_settings())

    def chores(self) -> Sequence[Chore]:
        """What a daemon does by itself, and how often."""
        retention = int(self._config.retention.interval_min * _MINUTE_US)
        compaction = int(self._config.compaction.interval_min * _MINUTE_US)
        return [
            Chore(RETENTION, retention, lambda: self.prune(timeout_s=0)),
            Chore(MAINTAIN, compaction, lambda: self.maintain(timeout_s=0)),
            Chore(TIDY, compaction, self.tidy),
        ]
