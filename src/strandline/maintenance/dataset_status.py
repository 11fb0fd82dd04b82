"""How retention and compaction stand, dataset by dataset, from the store alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.config.config import Config
from strandline.maintenance.compaction.last_walk import walked
from strandline.maintenance.retention.last_look import kept_of
from strandline.maintenance.retention.rules import rules_of
from strandline.maintenance.retention.sink_marks import Marks
from strandline.state.context import Site


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """Times are UTC microseconds. `cutoff` is None where age does not count, `looked_at` where no run has
    looked yet. `held` are rows, at most, that could go and wait for a sink, by its name; `is_over_limit`
    where they have waited for longer, or are more, than [retention] says. `is_open`: a run was cut short."""

    cutoff: int | None
    looked_at: int | None = None
    pruned_at: int | None = None
    rows: int = 0  # that went, in all
    evicted: int = 0  # of them, those that some sink had not delivered
    held: Mapping[str, int] = field(default_factory=dict)
    is_over_limit: bool = False
    is_open: bool = False


def retention_status(config: Config, site: Site, dataset: str, now: int, *, is_past: bool) -> RetentionStatus:
    """With `is_past` the site is as it was then: what the last run saw is not kept for so long."""
    rules, pruning = rules_of(config, site, dataset), site.standing.prunings().of(dataset)
    kept = None if is_past else kept_of(site.b, dataset)
    held = {} if kept is None else kept.held(Marks(site, rules, dataset))
    return RetentionStatus(
        rules.cutoff(now),
        looked_at=None if kept is None else kept.at,
        pruned_at=pruning.at or None,
        rows=pruning.rows,
        evicted=pruning.evicted,
        held=held,
        is_over_limit=kept is not None and kept.is_over_limit and bool(held),
        is_open=bool(pruning.open),
    )


@dataclass(frozen=True, slots=True)
class LeftBin:
    """A part of a table that is left alone until its files change: of a source, or of a bucket of them, from
    a seq on; and why. `is_failed` where it could not be rewritten."""

    place: str | int
    first: int
    reason: str
    is_failed: bool


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """Times are UTC microseconds. Files, rows, bytes and snapshots are as of the last walk, None before the
    first; `is_done` tells whether it left nothing to do. `is_open`: a rewrite was cut short, or is under
    way."""

    walked_at: int | None = None
    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    snapshots: int | None = None
    is_done: bool = True
    compactions: int = 0
    ineffective: int = 0
    compacted_at: int | None = None
    rows_rewritten: int = 0
    duplicates: int = 0
    left: list[LeftBin] = field(default_factory=list)
    is_open: bool = False


def compaction_status(site: Site, dataset: str, *, is_past: bool) -> CompactionStatus:
    """With `is_past` the site is as it was then: what the last walk saw is not kept for so long."""
    recorded = site.standing.rewrites().of(dataset)
    last = None if is_past else walked(site, dataset)
    seen = {} if last is None else {name: last[name] for name in ("files", "rows", "bytes", "snapshots")}
    return CompactionStatus(
        **seen,
        walked_at=None if last is None else last["at"],
        is_done=last is None or bool(last["is_done"]),
        compactions=recorded.compactions,
        ineffective=recorded.ineffective,
        compacted_at=recorded.at or None,
        rows_rewritten=recorded.rows,
        duplicates=recorded.duplicates,
        left=[
            LeftBin(place, first, each.reason, (place, first) in recorded.failed)
            for (place, first), each in recorded.left.items()
        ],
        is_open=bool(recorded.begun),
    )
