"""All that keeps the table of a dataset small and quick, in one go: files are merged, snapshots expire, files
that nothing names go once a day. One process does it at a time, by the lease `maintain/<dataset>`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from strandline.base.failpoint import reach
from strandline.config.keys import CompactionSection
from strandline.flush.reconcile import paused
from strandline.lake.ports.rewrite import Rewriter
from strandline.maintenance.compaction.files_to_merge import Work
from strandline.maintenance.compaction.merge import LandedRewrite
from strandline.maintenance.compaction.walk import WalkReport, is_idle, plan, walk
from strandline.maintenance.snapshot_expiry import expirable
from strandline.observe.span import span
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Expectation
from strandline.state.compaction_events import maintain_event, maintain_stream
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseLost, held

WAIT_S: Final = 120
_SWEEP_US: Final = 24 * 3_600_000_000


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done, or with `is_dry` would be. `orphans` is None where they were not looked for."""

    dataset: str
    walk: WalkReport
    expired: int = 0
    orphans: int | None = None
    planned: tuple[Work, ...] = ()
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class UpkeepAsked:
    """What of it is wanted."""

    compact: bool = True
    expire: bool = True
    force: bool = False


def maintain(
    site: Site,
    rewriter: Rewriter,
    settings: CompactionSection,
    dataset: str,
    asked: UpkeepAsked,
    *,
    timeout_s: float = WAIT_S,
    tell: Callable[[LandedRewrite], None] | None = None,
) -> Maintained:
    """LeaseHeld if another keeps house there for longer than `timeout_s`. Where nothing is to be done no
    lease is taken and no Spark asked."""
    nothing = WalkReport(dataset, is_idle=True)
    if rewriter.pointer(dataset) is None:
        return Maintained(dataset, nothing)
    is_due = asked.compact and (asked.force or not is_idle(site, rewriter, settings, dataset))
    if not is_due and not (asked.expire and _has_old(site, rewriter, settings, dataset, asked)):
        return Maintained(dataset, nothing)
    with (
        span("maintain", dataset=dataset) as told,
        held(site.b, site.clock, f"maintain/{dataset}", timeout_s=timeout_s) as lease,
    ):
        walked, expired, orphans = nothing, 0, None
        if asked.expire:
            expired = _expire(site, rewriter, settings, dataset)
            if _is_sweep_due(site, dataset, asked):
                orphans = _sweep(site, rewriter, dataset, lease)
        if is_due:  # at the end, as it notes at which commit nothing was due
            walked = walk(site, rewriter, settings, dataset, lease=lease, force=asked.force, tell=tell)
        told.set(compactions=len(walked.runs), expired=expired, orphans=orphans)
    site.standing.keep_if_due()
    return Maintained(dataset, walked, expired, orphans)


def look(
    site: Site, rewriter: Rewriter, settings: CompactionSection, dataset: str, asked: UpkeepAsked
) -> Maintained:
    """What `maintain` would do; nothing is changed, and no Spark asked. Orphans are not looked for."""
    nothing = WalkReport(dataset, is_idle=True)
    if rewriter.pointer(dataset) is None:
        return Maintained(dataset, nothing, is_dry=True)
    works = plan(site, rewriter, settings, dataset, force=asked.force) if asked.compact else []
    expired = 0
    if asked.expire:
        expired = len(expirable(site, dataset, settings, lambda: rewriter.snapshots(dataset)))
    report = WalkReport(dataset, due=len(works), is_idle=not works)
    return Maintained(dataset, report, expired, planned=tuple(works), is_dry=True)


def _has_old(
    site: Site, rewriter: Rewriter, settings: CompactionSection, dataset: str, asked: UpkeepAsked
) -> bool:
    doomed = expirable(site, dataset, settings, lambda: rewriter.snapshots(dataset))
    return bool(len(doomed)) or _is_sweep_due(site, dataset, asked)


def _expire(site: Site, rewriter: Rewriter, settings: CompactionSection, dataset: str) -> int:
    doomed = expirable(site, dataset, settings, lambda: rewriter.snapshots(dataset))
    # In this order: Iceberg forgets a published id with its snapshot, and a staged copy could land again.
    for ids in (doomed.staged, doomed.published):
        if ids:
            rewriter.expire(dataset, ids)
        reach("maintain.expired")
    return len(doomed)


def _is_sweep_due(site: Site, dataset: str, asked: UpkeepAsked) -> bool:
    """Once a day. Not while a restore is unconfirmed: what the restored store does not know looks like an
    orphan."""
    last = site.standing.rewrites().of(dataset).swept_at
    return (asked.force or site.clock.now_us() - last >= _SWEEP_US) and paused(site) is None


def _sweep(site: Site, rewriter: Rewriter, dataset: str, lease: Lease) -> int:
    """A crash before the record has it done again, which finds nothing."""
    files = rewriter.remove_orphans(dataset)
    reach("maintain.swept")
    stream, at = maintain_stream(dataset), site.clock.now_us()
    expected: list[Expectation] = [lease.guard, ExpectSeq(stream, site.standing.rewrites().of(dataset).event)]
    if isinstance(
        site.b.commit(expected, [maintain_event(dataset, "swept", at, {"files": files})]), Conflict
    ):
        raise LeaseLost(lease.scope)
    return files
