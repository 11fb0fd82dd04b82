"""What is open comes to its end: a flush is committed, a load landed or released.

Where repeats of committed rows are left out (`dedupe_on_flush`), two numbers that are open at once could each
miss a row of the other. So in such a dataset a number is opened only under the flush lease, by a holder that
has settled whatever was open: no two are. A load whose holder lives cannot be met there, as that holder has
the flush lease.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from strandline.base.failpoint import reach
from strandline.base.ranges import Range
from strandline.flush.choose_rows import without
from strandline.flush.publish import look, publish, record, stale
from strandline.flush.scratch_tables import drop_scratch
from strandline.lake.ports.stage import BURNED, LandingSnapshots, Published, Settle, Tables
from strandline.persist import Conflict
from strandline.rows.dataset import Dataset, Strand
from strandline.state.context import Site
from strandline.state.flush_plan import FlushPlan, LoadPlan, Plan, Share, amended, closing, open_plan
from strandline.state.lease import Lease, LeaseHeld, LeaseLost, held
from strandline.state.strand_entries import Flushed, Held, Landed, Released, append_of
from strandline.storage.segment import SegmentUnreadable


@dataclass(frozen=True, slots=True)
class LandingJob:
    """A dataset that rows land in, its tables, and the hook that sees the rows of a flush."""

    site: Site
    tables: Tables
    dataset: str
    settle: Settle | None = None

    def schema(self) -> Dataset:
        return self.site.known(self.dataset).dataset

    def ensure(self, schema: Dataset) -> None:
        self.tables.ensure(schema, has_landed=self.site.standing.numbers(self.dataset).has_landed)

    def look(self, id_: str) -> LandingSnapshots:
        return look(self.tables, self.dataset, id_)


@dataclass(frozen=True, slots=True)
class FlushResult:
    """One flush that landed. `ranges` are the seqs that each strand landed."""

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
class LoadResult:
    """A load that landed, and the seqs that the rows of each source got."""

    dataset: str
    load: str
    number: int
    rows: int
    bytes: int = 0
    files: int = 0
    ranges: Mapping[str, Range] = field(default_factory=dict)
    duplicates: int = 0
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """A dead holder's load was ended: landed, or released."""

    load: str
    is_landed: bool


def settle_open(job: LandingJob, lease: Lease, *, timeout_s: float) -> Iterator[FlushResult | LoadEnd]:
    """Under the flush lease: bring everything that a crash left open to its end, in the order of the numbers.

    Loads are left to `settle_loads` where rows are not compared; where they are, one that is held for longer
    than `timeout_s` is LeaseHeld.
    """
    for number, plan in _open_plans(job):
        if isinstance(plan, FlushPlan):
            yield land_flush(job, plan, lease, job.look(plan.id), is_resumed=True)
        elif job.schema().dedupe_on_flush and (ended := _end_load(job, number, plan, timeout_s)):
            yield ended


def settle_loads(job: LandingJob) -> Iterator[LoadEnd]:
    """Finish the loads whose holder has died; those under way stay with theirs."""
    for number, plan in _open_plans(job):
        if isinstance(plan, LoadPlan):
            try:
                ended = _end_load(job, number, plan, 0)
            except LeaseHeld:
                continue
            if ended is not None:
                yield ended


def _open_plans(job: LandingJob) -> Iterator[tuple[int, Plan]]:
    for number, event in sorted(job.site.standing.numbers(job.dataset).open.items()):
        yield number, open_plan(job.site.b, job.dataset, number, event)


def _end_load(job: LandingJob, number: int, plan: LoadPlan, timeout_s: float) -> LoadEnd | None:
    """None where its holder has just ended it."""
    with held(job.site.b, job.site.clock, f"load/{plan.load}", timeout_s=timeout_s) as lease:
        if number not in job.site.standing.numbers(job.dataset).open:
            return None
        return LoadEnd(plan.load, settle_load(job, plan, lease) is not None)


# A flush


def land_flush(
    job: LandingJob, plan: FlushPlan, lease: Lease, found: LandingSnapshots, *, is_resumed: bool
) -> FlushResult:
    """From its plan to its record. `found` is what the table knows of it already."""
    site, began, schema = job.site, job.site.clock.now_us(), job.schema()
    while True:
        try:
            published = publish(job.tables, schema, plan, lease, _flush_stage(job, schema, plan), found=found)
            break
        except SegmentUnreadable as error:
            plan, found = _amend(job, plan, lease, error), job.look(plan.id)
    if published.version not in (plan.version, *plan.versions):
        raise LeaseLost(lease.scope)  # only a later holder can have amended the plan
    strands = plan.of_version(published.version)
    result = FlushResult(
        job.dataset,
        plan.number,
        plan.reason,
        published.rows,
        published.bytes,
        published.files,
        {source: each.ranges for source, each in strands.items()},
        duplicates=sum(each.rows for each in strands.values()) - published.rows - published.settled_drop,
        dropped=published.settled_drop,
        settle_failure=published.settle_failure,
        is_resumed=is_resumed,
        ms=(site.clock.now_us() - began) // 1000,
    )
    _record_flush(job, plan, lease, result, published.version, strands)
    return result


def _flush_stage(job: LandingJob, schema: Dataset, plan: FlushPlan) -> Callable[[], None]:
    def stage() -> None:
        job.ensure(schema)
        reach("flush.ensured")
        job.tables.stage(plan.landing(schema), settle=job.settle)

    return stage


def _amend(job: LandingJob, plan: FlushPlan, lease: Lease, error: SegmentUnreadable) -> FlushPlan:
    """Cut the plan in front of a segment that turned bad. Number and id stay: of the two versions Iceberg
    publishes one, and the record follows that."""
    site, at = job.site, job.site.clock.now_us()
    strands, bad = without(plan.strands, error.segment)
    if not bad:
        raise error
    versions = {**plan.versions, plan.version: plan.strands}
    cut = replace(plan, strands=strands, version=plan.version + 1, versions=versions)
    held_ = [
        append_of(Strand(job.dataset, source).ledger, Held(error.segment, each.lo, each.hi, error.reason), at)
        for source, each in bad.items()
    ]
    outcome = site.b.commit([lease.guard], [amended(job.dataset, cut, at), *held_])
    reach("flush.amended")
    if isinstance(outcome, Conflict):
        raise LeaseLost(lease.scope)
    return cut


def _record_flush(
    job: LandingJob,
    plan: FlushPlan,
    lease: Lease,
    result: FlushResult,
    version: int,
    strands: Mapping[str, Share],
) -> None:
    at = job.site.clock.now_us()
    data = {
        "number": plan.number,
        "id": plan.id,
        "version": version,
        "rows": result.rows,
        "bytes": result.bytes,
        "files": result.files,
        "duplicates": result.duplicates,
        "dropped": result.dropped,
        "settle_failure": result.settle_failure,
        "ms": result.ms,
    }
    flushed = [
        append_of(
            Strand(job.dataset, source).ledger,
            Flushed(plan.number, each.ranges, each.rows, each.bytes, each.next),
            at,
        )
        for source, each in strands.items()
    ]
    committed = closing(job.dataset, "committed", at, data)
    record(job.site, job.dataset, plan.number, lease, [committed, *flushed])


# A load


def settle_load(
    job: LandingJob, plan: LoadPlan, lease: Lease, *, is_fresh: bool = False
) -> LoadResult | None:
    """Bring an open load to its end: landed, or, where its input is gone, released; then None.

    A crash after the record leaves the scratch table, which the next sweep of them removes.
    """
    schema = job.schema()
    found = LandingSnapshots(None, ()) if is_fresh else job.look(plan.id)
    if not is_fresh and not _is_begun(schema, found) and not job.tables.has_input(plan.input):
        job.ensure(schema)
        reach("load.burn")
        job.tables.burn(job.dataset, plan.id)
        reach("load.burned")
        found = job.look(plan.id)

    def stage() -> None:
        job.ensure(schema)
        reach("load.ensured")
        job.tables.stage(plan.landing(schema))

    published = publish(job.tables, schema, plan, lease, stage, found=found)
    result = None if published.version == BURNED else _record_landed(job, plan, lease, published)
    if result is None:
        _record_released(job, plan, lease)
    reach("load.landed")
    drop_scratch(job.site, job.tables, job.dataset, plan.load, lease)
    reach("load.dropped")
    return result


def _is_begun(schema: Dataset, found: LandingSnapshots) -> bool:
    """Whether it can be landed without its input. The empty commit of a burn that was cut short is staged
    too, and is no beginning."""
    old = stale(schema, found)
    is_staged = any(each.version != BURNED and each.snapshot not in old for each in found.staged)
    return found.published is not None or is_staged


def _record_landed(job: LandingJob, plan: LoadPlan, lease: Lease, published: Published) -> LoadResult:
    result = LoadResult(
        job.dataset,
        plan.load,
        plan.number,
        published.rows,
        published.bytes,
        published.files,
        plan.ranges,
        duplicates=sum(map(len, plan.ranges.values())) - published.rows,
    )
    at = job.site.clock.now_us()
    data = {
        "number": plan.number,
        "id": plan.id,
        "load": plan.load,
        "rows": result.rows,
        "bytes": result.bytes,
        "files": result.files,
        "duplicates": result.duplicates,
        "ranges": {source: [each.lo, each.hi] for source, each in plan.ranges.items()},
    }
    entries = [
        append_of(Strand(job.dataset, source).ledger, Landed(plan.load, plan.number, each.lo, each.hi), at)
        for source, each in plan.ranges.items()
    ]
    landed = closing(job.dataset, "landed", at, data)
    record(job.site, job.dataset, plan.number, lease, [landed, *entries])
    return result


def _record_released(job: LandingJob, plan: LoadPlan, lease: Lease) -> None:
    """Give the numbers up. The id is burned by now: a late publish by the old holder is refused."""
    at = job.site.clock.now_us()
    data = {"number": plan.number, "id": plan.id, "load": plan.load, "reason": "its fixed input is gone"}
    entries = [
        append_of(Strand(job.dataset, source).ledger, Released(plan.load, plan.number, each.lo, each.hi), at)
        for source, each in plan.ranges.items()
    ]
    released = closing(job.dataset, "released", at, data)
    record(job.site, job.dataset, plan.number, lease, [released, *entries])
