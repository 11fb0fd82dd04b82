"""The walk over a table: what is due is rewritten, neediest first, until its time is up.

Where the last walk (last_walk.py) left nothing to do and neither the table nor V nor the settings have
changed since, the next one does not even list files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from strandline.config.keys import CompactionSection
from strandline.errors import StrandlineError
from strandline.lake.ports.rewrite import Bin, Listing, MainMoved, Rewriter
from strandline.lake.spark.session import SparkGone
from strandline.maintenance.compaction.files_to_merge import (
    RETRY_US,
    CompactionRules,
    Known,
    Work,
    batches,
    choose,
)
from strandline.maintenance.compaction.last_walk import walked, walked_key
from strandline.maintenance.compaction.merge import (
    CompactionJob,
    LandedRewrite,
    drop_dead,
    leave,
    merge,
    places,
    settle_open,
)
from strandline.persist import Conflict, Put
from strandline.rows.dataset import Dataset
from strandline.state.compaction_events import FAILED
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseHeld, LeaseLost, held

_FLUSH_WAIT_S: Final = 60  # for a flush to end, where a rewrite has lost against one already


@dataclass(frozen=True, slots=True)
class WalkReport:
    """What a walk did. `due` are left for the next one; `failed` are the bins that could not be rewritten,
    each with the reason; `conflicts` counts what lost against other commits twice."""

    dataset: str
    runs: tuple[LandedRewrite, ...] = ()
    due: int = 0
    conflicts: int = 0
    failed: Mapping[Bin, str] = field(default_factory=dict)
    is_idle: bool = False  # nothing has changed since the last walk: nothing was listed

    @property
    def is_degraded(self) -> bool:
        return bool(self.failed)


def walk(
    site: Site,
    rewriter: Rewriter,
    settings: CompactionSection,
    dataset: str,
    *,
    lease: Lease,
    force: bool = False,
    tell: Callable[[LandedRewrite], None] | None = None,
) -> WalkReport:
    """Rewrite what is due, under the lease `maintain/<dataset>`."""
    until = site.clock.now_us() + int(settings.max_tick_s * 1e6)
    job = CompactionJob(site, rewriter, settings, site.known(dataset).dataset, lease)
    if rewriter.pointer(dataset) is None:
        return WalkReport(dataset, is_idle=True)
    resumed = settle_open(job)
    drop_dead(job)
    report = WalkReport(dataset, runs=resumed)
    is_forced = force
    # What a round makes may make the next tier due.
    while not _is_barred(job) and (
        works := _due(site, settings, job.dataset, rewriter.files(job.dataset), force=is_forced)
    ):
        more = _work_off(job, works, until, tell or _tell_nobody)
        report = _joined(report, more)
        is_forced = False
        if not more.runs or more.conflicts or site.clock.now_us() >= until:
            break
    return replace(report, due=_note(job))


def _is_barred(job: CompactionJob) -> bool:
    """A removal of rows was cut short, and has counted them: were they found to be repeats, they would be
    counted twice. Whoever ends it is followed by the next walk."""
    return job.dataset.collapse and bool(job.site.standing.prunings().of(job.name).open)


def _joined(one: WalkReport, two: WalkReport) -> WalkReport:
    return WalkReport(
        one.dataset,
        (*one.runs, *two.runs),
        conflicts=one.conflicts + two.conflicts,
        failed={**one.failed, **two.failed},
    )


def plan(
    site: Site, rewriter: Rewriter, settings: CompactionSection, dataset: str, *, force: bool
) -> list[Work]:
    """What a walk would rewrite, if it had the time. Nothing is changed, and no Spark is asked."""
    if rewriter.pointer(dataset) is None:
        return []
    schema = site.known(dataset).dataset
    return _due(site, settings, schema, rewriter.files(schema), force=force)


def is_idle(site: Site, rewriter: Rewriter, settings: CompactionSection, dataset: str) -> bool:
    """Whether nothing has changed since a walk that left nothing to do. A few reads of the store, one of the
    catalog."""
    kept = walked(site, dataset)
    if kept is None or not kept["is_done"] or site.clock.now_us() >= kept["at"] + RETRY_US:
        return False
    if site.standing.rewrites().of(dataset).begun or kept["rests_on"] != _rests_on(site, settings, dataset):
        return False
    return bool(kept["pointer"] == rewriter.pointer(dataset))


def _tell_nobody(_: LandedRewrite) -> None: ...


# What decides


def _due(
    site: Site, settings: CompactionSection, schema: Dataset, listing: Listing, *, force: bool = False
) -> list[Work]:
    recorded = site.standing.rewrites().of(schema.name)
    rules = CompactionRules(
        settings, _fullness(site, schema), schema.collapse, bool(schema.source_buckets), force
    )
    return choose(listing.files, rules, Known(recorded.made, recorded.left, site.clock.now_us()))


def _fullness(site: Site, schema: Dataset) -> Callable[[Bin], bool]:
    """Whether V of every strand of a bin has passed its last seq."""
    lowest: dict[str | int, int] = {}
    place_of = places(schema)
    for source, strand_state in site.standing.strand_states(schema.name).items():
        place = place_of(source)
        lowest[place] = min(lowest.get(place, strand_state.visible_through), strand_state.visible_through)
    return lambda bin_: lowest.get(bin_.place, 0) >= bin_.first + schema.seq_bucket - 1


# What the last walk found


def _rests_on(site: Site, settings: CompactionSection, dataset: str) -> str:
    """What decides beside the table: V of each strand, and the settings."""
    seen = sorted(
        (source, each.visible_through) for source, each in site.standing.strand_states(dataset).items()
    )
    return sha256(f"{settings} {seen}".encode()).hexdigest()[:16]


def _note(job: CompactionJob) -> int:
    """Keep what is there at the end, files that came meanwhile among it; how much of it is due."""
    rests_on = _rests_on(job.site, job.settings, job.name)
    listing = job.rewriter.files(job.dataset)
    due = _due(job.site, job.settings, job.dataset, listing)
    value = {
        "pointer": listing.pointer,
        "rests_on": rests_on,
        "is_done": not due,
        "at": job.site.clock.now_us(),
        "files": len(listing.files),
        "rows": sum(file.rows for file in listing.files),
        "bytes": sum(file.bytes for file in listing.files),
        "snapshots": listing.snapshots,
    }
    if isinstance(job.site.b.commit([job.lease.guard], [Put(walked_key(job.name), value)]), Conflict):
        raise LeaseLost(job.lease.scope)
    return len(due)


# Work


def _work_off(
    job: CompactionJob, works: Sequence[Work], until: int, tell: Callable[[LandedRewrite], None]
) -> WalkReport:
    """In batches. What fails is cut in halves until it is known which bin it is; others go on."""
    runs: list[LandedRewrite] = []
    failed: dict[Bin, str] = {}
    conflicts = 0
    waiting = list(batches(works))
    while waiting and (not runs or job.site.clock.now_us() < until):
        batch = waiting.pop(0)
        try:
            done, bad = _merge_twice(job, batch)
        except (MainMoved, LeaseHeld):
            conflicts += len(batch)
            continue
        except (LeaseLost, SparkGone):
            raise
        except StrandlineError as error:
            if job.recorded().begun:  # it could not even be given up: it is no matter of files
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                waiting[:0] = [batch[:middle], batch[middle:]]
                continue
            done, bad = None, {batch[0].bin: f"{FAILED}: {error}"}
            leave(job, batch, bad)
        failed |= bad
        if done is not None:
            runs.append(done)
            tell(done)
    return WalkReport(job.name, tuple(runs), conflicts=conflicts, failed=failed)


def _merge_twice(job: CompactionJob, works: Sequence[Work]) -> tuple[LandedRewrite | None, dict[Bin, str]]:
    """A flush may come in between: then once more, while none can."""
    try:
        return merge(job, works)
    except MainMoved:
        with held(job.site.b, job.site.clock, f"flush/{job.name}", timeout_s=_FLUSH_WAIT_S):
            return merge(job, works)
