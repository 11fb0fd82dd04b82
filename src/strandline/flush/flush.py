"""Flush: the spool of a dataset lands in its table, each row once. One at a time a dataset, by lease.

Whoever holds the lease settles what is open before anything else (recover.py). A flush takes at most so many
rows and bytes; on command it goes on until all that was pending at its start has landed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from strandline.base.failpoint import reach
from strandline.base.ranges import Range
from strandline.flush.choose_rows import choose
from strandline.flush.recover import FlushResult, LandingJob, LoadEnd, land_flush, settle_loads, settle_open
from strandline.flush.scratch_tables import sweep_scratch
from strandline.lake.ports.stage import LandingSnapshots, Settle, Tables
from strandline.observe.span import span
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.flush_plan import FlushPlan, Reason, flush_stream, planned
from strandline.state.lease import Lease, LeaseLost, held
from strandline.state.pending_rows import Pending, pending
from strandline.state.strand_state import StrandState
from strandline.storage.segment_fault import segment_fault

__all__ = [
    "WAIT_S",
    "FlushReport",
    "FlushResult",
    "due",
    "flush",
    "has_work",
    "idle",
    "is_due",
    "oldest_pending",
]

WAIT_S: Final = 120


@dataclass(frozen=True, slots=True)
class FlushReport:
    """All flushes of one call, the loads of dead holders that it landed or released, and the ranges that wait
    for a damaged segment."""

    dataset: str
    flushes: tuple[FlushResult, ...] = ()
    held: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    landed_loads: tuple[str, ...] = ()
    released_loads: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.flushes)


# When


def due(site: Site, dataset: str) -> Reason | None:
    """Why a flush is due now: a plan was left open, enough is pending, or something for long enough."""
    if site.standing.numbers(dataset).open:
        return "resume"
    strand_states = site.standing.pending(dataset)
    if sum(each.pending_bytes for each in strand_states.values()) >= site.spool.flush_bytes:
        return "size"
    oldest = oldest_pending(site, dataset)
    if oldest is not None and site.clock.now_us() - oldest >= site.spool.max_age_s * 1_000_000:
        return "age"
    return None


def is_due(site: Site, dataset: str) -> bool:
    return due(site, dataset) is not None


def oldest_pending(site: Site, dataset: str) -> int | None:
    """When the oldest pending row was numbered; one small read a strand that has some."""
    found = [
        first.at
        for source, strand_state in site.standing.pending(dataset).items()
        if (first := _first(site, dataset, source, strand_state)) is not None
    ]
    return min(found, default=None)


def has_work(site: Site, dataset: str) -> bool:
    """Whether a flush would land or settle anything: something is open, or some strand does not begin with
    rows whose segment is still damaged. It needs no Spark."""
    if site.standing.numbers(dataset).open:
        return True
    for source, strand_state in site.standing.pending(dataset).items():
        first = _first(site, dataset, source, strand_state)
        if first is not None and not _is_held(site, strand_state, first):
            return True
    return False


def _first(site: Site, dataset: str, source: str, strand_state: StrandState) -> Pending | None:
    return next(pending(site.b, Strand(dataset, source), strand_state), None)


def _is_held(site: Site, strand_state: StrandState, first: Pending) -> bool:
    """It was found damaged before, and is now: it may have been put back."""
    is_known = any(hold.lo <= first.lo < hold.hi for hold in strand_state.holds)
    return is_known and segment_fault(site.content, first.entry.segment, first.entry.of) is not None


# What


def flush(
    site: Site,
    tables: Tables,
    dataset: str,
    *,
    reason: Reason = "command",
    settle: Settle | None = None,
    timeout_s: float = WAIT_S,
    tell: Callable[[FlushResult], None] | None = None,
) -> FlushReport:
    """Land everything that is pending now. LeaseHeld if another flushes the dataset for longer than
    `timeout_s`."""
    site.known(dataset)
    until = {source: strand_state.hi for source, strand_state in site.standing.pending(dataset).items()}
    if not has_work(site, dataset):
        return idle(site, dataset)
    job = LandingJob(site, tables, dataset, settle)
    results: list[FlushResult] = []
    loads: list[LoadEnd] = []
    with (
        span("flush", dataset=dataset, reason=reason) as told,
        held(site.b, site.clock, f"flush/{dataset}", timeout_s=timeout_s) as lease,
    ):
        for result in _land_all(job, lease, until, reason, timeout_s):
            if isinstance(result, LoadEnd):
                loads.append(result)
                continue
            results.append(result)
            if tell is not None:
                tell(result)
        told.set(flushes=len(results), rows=sum(each.rows for each in results))
    if not job.schema().dedupe_on_flush:  # else that is done, and only under the lease
        loads += settle_loads(job)
    sweep_scratch(site, tables, dataset)
    site.standing.keep_if_due()
    return FlushReport(
        dataset,
        tuple(results),
        _held(site, dataset),
        tuple(each.load for each in loads if each.is_landed),
        tuple(each.load for each in loads if not each.is_landed),
    )


def idle(site: Site, dataset: str) -> FlushReport:
    """The report of a flush that finds no work: what damage keeps back."""
    return FlushReport(dataset, held=_held(site, dataset))


def _held(site: Site, dataset: str) -> dict[str, tuple[Range, ...]]:
    return {
        source: tuple(Range(hold.lo, hold.hi) for hold in strand_state.holds)
        for source, strand_state in site.standing.pending(dataset).items()
        if strand_state.holds
    }


def _land_all(
    job: LandingJob, lease: Lease, until: Mapping[str, int], reason: Reason, timeout_s: float
) -> Iterator[FlushResult | LoadEnd]:
    yield from settle_open(job, lease, timeout_s=timeout_s)
    while (plan := _plan(job, lease, until, reason)) is not None:
        yield land_flush(job, plan, lease, LandingSnapshots(None, ()), is_resumed=False)


def _plan(job: LandingJob, lease: Lease, until: Mapping[str, int], reason: Reason) -> FlushPlan | None:
    site, stream = job.site, flush_stream(job.dataset)
    with span("plan", dataset=job.dataset) as told:
        plan = _planned(site, stream, job, lease, until, reason)
        told.set(number=None if plan is None else plan.number)
        return plan


def _planned(
    site: Site, stream: str, job: LandingJob, lease: Lease, until: Mapping[str, int], reason: Reason
) -> FlushPlan | None:
    while True:
        event = site.b.last_seq(stream)
        choice = choose(site, job.dataset, until)
        writes: list[Write] = list(choice.holds)
        plan = None
        if choice.strands:
            number = site.standing.numbers(job.dataset).last + 1
            plan = FlushPlan(
                number,
                f"{job.dataset}-{number}-{site.random_hex()}",
                lease.fence,
                reason,
                job.schema().version,
                site.clock.now_us(),
                choice.strands,
            )
            writes.append(planned(job.dataset, plan))
        if not writes:
            return None
        reach("flush.plan")
        outcome = site.b.commit([lease.guard, ExpectSeq(stream, event)], writes)
        reach("flush.planned")
        if not isinstance(outcome, Conflict):
            return plan
        if outcome.name != stream:
            raise LeaseLost(lease.scope)
