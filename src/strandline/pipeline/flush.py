"""Flush: the spool of a dataset lands in its table, each row once. One at a time a dataset, by lease.

Whoever holds the lease settles what is open before anything else. A flush takes at most so many rows and
bytes; on command it goes on until all that was pending at its start has landed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from strandline.content.segment import SegmentUnreadable
from strandline.dataset import Strand
from strandline.failpoint import reach
from strandline.lake.landing import Found, Published, Settle, Tables
from strandline.ledger.entry import Flushed, Held, append_of
from strandline.ledger.spool import pending
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.pipeline.land import look, publish, record
from strandline.pipeline.lease import Lease, LeaseHeld, LeaseLost, held
from strandline.pipeline.load import settle_load
from strandline.pipeline.plan import (
    FlushPlan,
    LoadPlan,
    Share,
    amended,
    closing,
    flush_stream,
    open_plan,
    planned,
)
from strandline.pipeline.planner import choose, without
from strandline.pipeline.site import Site
from strandline.ranges import Range

WAIT_S: Final = 120


@dataclass(frozen=True, slots=True)
class FlushResult:
    """One flush that landed. `ranges` are the seqs that each strand landed, `held` what damage kept back."""

    dataset: str
    number: int
    reason: str
    rows: int
    bytes: int
    files: int
    ranges: Mapping[str, tuple[Range, ...]]
    duplicates: int = 0
    dropped: int = 0
    settle_failure: str | None = None
    is_resumed: bool = False
    ms: int = 0


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


def is_due(site: Site, dataset: str) -> bool:
    """Whether enough is pending, or something for long enough, or a plan was left open."""
    if site.standing.numbers(dataset).open:
        return True
    tallies = site.standing.pending(dataset)
    if sum(each.pending_bytes for each in tallies.values()) >= site.spool.flush_bytes:
        return True
    oldest = oldest_pending(site, dataset)
    return oldest is not None and site.clock.now_us() - oldest >= site.spool.max_age_s * 1_000_000


def oldest_pending(site: Site, dataset: str) -> int | None:
    """When the oldest pending row was numbered; one small read a strand that has some."""
    found = [
        first.at
        for source, tally in site.standing.pending(dataset).items()
        if (first := next(pending(site.b, Strand(dataset, source), tally), None)) is not None
    ]
    return min(found, default=None)


def flush(
    site: Site,
    tables: Tables,
    dataset: str,
    *,
    reason: str = "command",
    settle: Settle | None = None,
    timeout_s: float = WAIT_S,
    tell: Callable[[FlushResult], None] | None = None,
) -> FlushReport:
    """Land everything that is pending now. LeaseHeld if another flushes the dataset for longer than
    `timeout_s`."""
    site.known(dataset)
    until = {source: tally.hi for source, tally in site.standing.pending(dataset).items()}
    if not until and not site.standing.numbers(dataset).open:
        return FlushReport(dataset)
    results: list[FlushResult] = []
    with held(site.b, site.clock, f"flush/{dataset}", timeout_s=timeout_s) as lease:
        run = _Run(site, tables, dataset, lease, settle)
        for result in run.land_all(until, reason):
            results.append(result)
            if tell is not None:
                tell(result)
    loads = settle_loads(site, tables, dataset)
    site.standing.keep_if_due()
    return FlushReport(
        dataset,
        tuple(results),
        _held(site, dataset),
        tuple(load for load, is_landed in loads.items() if is_landed),
        tuple(load for load, is_landed in loads.items() if not is_landed),
    )


def settle_loads(site: Site, tables: Tables, dataset: str) -> dict[str, bool]:
    """Finish the loads whose holder has died, and tell which landed; those under way stay with theirs."""
    settled: dict[str, bool] = {}
    for number, event in site.standing.numbers(dataset).open.items():
        plan = open_plan(site.b, dataset, number, event)
        if isinstance(plan, LoadPlan):
            try:
                with held(site.b, site.clock, f"load/{plan.load}") as lease:
                    if number in site.standing.numbers(dataset).open:  # else its holder has just ended it
                        settled[plan.load] = settle_load(site, tables, dataset, plan, lease) is not None
            except LeaseHeld:
                continue
    return settled


def _held(site: Site, dataset: str) -> dict[str, tuple[Range, ...]]:
    return {
        source: tuple(Range(hold.lo, hold.hi) for hold in tally.holds)
        for source, tally in site.standing.pending(dataset).items()
        if tally.holds
    }


class _Run:
    """What one holder of the lease does."""

    def __init__(self, site: Site, tables: Tables, dataset: str, lease: Lease, settle: Settle | None) -> None:
        self._site, self._tables, self._dataset = site, tables, dataset
        self._lease, self._settle = lease, settle
        self._stream = flush_stream(dataset)

    def land_all(self, until: Mapping[str, int], reason: str) -> Iterator[FlushResult]:
        for number, event in sorted(self._site.standing.numbers(self._dataset).open.items()):
            left = open_plan(self._site.b, self._dataset, number, event)
            if isinstance(left, FlushPlan):
                yield self._land(left, look(self._tables, self._dataset, left.id), is_resumed=True)
        while (plan := self._plan(until, reason)) is not None:
            yield self._land(plan, Found(None, ()), is_resumed=False)

    def _plan(self, until: Mapping[str, int], reason: str) -> FlushPlan | None:
        site = self._site
        while True:
            event = site.b.last_seq(self._stream)
            choice = choose(site, self._dataset, until)
            writes: list[Write] = list(choice.holds)
            plan = None
            if choice.strands:
                number = site.standing.numbers(self._dataset).last + 1
                plan = FlushPlan(
                    number,
                    f"{self._dataset}-{number}-{site.random_hex()}",
                    self._lease.fence,
                    reason,
                    site.known(self._dataset).dataset.version,
                    site.clock.now_us(),
                    choice.strands,
                )
                writes.append(planned(self._dataset, plan))
            if not writes:
                return None
            reach("flush.plan")
            outcome = site.b.commit([self._lease.guard, ExpectSeq(self._stream, event)], writes)
            reach("flush.planned")
            if not isinstance(outcome, Conflict):
                return plan
            if outcome.name != self._stream:
                raise LeaseLost(self._lease.scope)

    def _land(self, plan: FlushPlan, found: Found, *, is_resumed: bool) -> FlushResult:
        site, began = self._site, self._site.clock.now_us()
        dataset = site.known(self._dataset).dataset
        while True:

            def stage(plan: FlushPlan = plan) -> None:
                has_landed = self._site.standing.numbers(self._dataset).has_landed
                self._tables.ensure(dataset, has_landed=has_landed)
                reach("flush.ensured")
                self._tables.stage(plan.landing(dataset), settle=self._settle)

            try:
                published = publish(self._tables, self._dataset, plan, self._lease, stage, found=found)
                break
            except SegmentUnreadable as error:
                plan, found = self._amend(plan, error), look(self._tables, self._dataset, plan.id)
        strands = plan.of_version(published.version)
        ms = (site.clock.now_us() - began) // 1000
        result = self._result(plan, published, strands, is_resumed=is_resumed, ms=ms)
        self._record(result, plan, published, strands)
        return result

    def _amend(self, plan: FlushPlan, error: SegmentUnreadable) -> FlushPlan:
        """Cut the plan in front of a segment that turned bad. Number and id stay: of the two versions Iceberg
        publishes one, and the record follows that."""
        site, at = self._site, self._site.clock.now_us()
        strands, bad = without(plan.strands, error.segment)
        if not bad:
            raise error
        versions = {**plan.versions, plan.version: plan.strands}
        cut = replace(plan, strands=strands, version=plan.version + 1, versions=versions)
        held_ = [
            append_of(
                Strand(self._dataset, source).ledger, Held(error.segment, each.lo, each.hi, error.reason), at
            )
            for source, each in bad.items()
        ]
        outcome = site.b.commit([self._lease.guard], [amended(self._dataset, cut, at), *held_])
        reach("flush.amended")
        if isinstance(outcome, Conflict):
            raise LeaseLost(self._lease.scope)
        return cut

    def _result(
        self,
        plan: FlushPlan,
        published: Published,
        strands: Mapping[str, Share],
        *,
        is_resumed: bool,
        ms: int,
    ) -> FlushResult:
        planned_rows = sum(each.rows for each in strands.values())
        return FlushResult(
            self._dataset,
            plan.number,
            plan.reason,
            published.rows,
            published.bytes,
            published.files,
            {source: each.ranges for source, each in strands.items()},
            duplicates=planned_rows - published.rows - published.settled_drop,
            dropped=published.settled_drop,
            settle_failure=published.settle_failure,
            is_resumed=is_resumed,
            ms=ms,
        )

    def _record(
        self, result: FlushResult, plan: FlushPlan, published: Published, strands: Mapping[str, Share]
    ) -> None:
        at = self._site.clock.now_us()
        committed = closing(
            self._dataset,
            "committed",
            at,
            {
                "number": plan.number,
                "id": plan.id,
                "version": published.version,
                "rows": result.rows,
                "bytes": result.bytes,
                "files": result.files,
                "duplicates": result.duplicates,
                "dropped": result.dropped,
                "settle_failure": result.settle_failure,
                "ms": result.ms,
            },
        )
        flushed = [
            append_of(
                Strand(self._dataset, source).ledger,
                Flushed(plan.number, each.ranges, each.rows, each.bytes, each.next),
                at,
            )
            for source, each in strands.items()
        ]
        record(self._site, self._dataset, plan.number, self._lease, [committed, *flushed])
