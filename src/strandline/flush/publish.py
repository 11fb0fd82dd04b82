"""From a plan to its record: stage, publish, record. What flush and load share, and how a crash is taken up.

A plan's id is what makes this safe. Iceberg publishes one snapshot of an id and refuses every other, so
whoever comes by may do any step again: look what is there, and go on from that.

    published?  record it.     staged?  publish it.     neither?  stage it, again.
"""

from collections.abc import Callable
from typing import Any, Final

from strandline.base.failpoint import reach
from strandline.errors import NotFoundError, OutcomeUnknown, StrandlineError, UnavailableError
from strandline.lake.ports.stage import LandingSnapshots, Published, Staged, Tables
from strandline.observe.span import span
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.rows.dataset import Dataset
from strandline.state.context import Site
from strandline.state.flush_plan import FlushPlan, Plan, flush_stream
from strandline.state.lease import Lease, LeaseLost

_RECORD_TRIES: Final = 100
_LOST_ANSWERS: Final = 5


class NotPublished(UnavailableError):
    """A landing was staged and is not in the table. Its plan stays open and is taken up again."""

    def __init__(self, dataset: str, number: int, found: str) -> None:
        super().__init__(
            f"flush {number} of {dataset!r} is not published: {found}",
            hint="nothing is lost; the next flush takes it up",
        )
        self.dataset, self.number = dataset, number


def look(tables: Tables, dataset: str, id_: str) -> LandingSnapshots:
    """What the table knows of an id; a table that is not there knows nothing."""
    try:
        return tables.look(dataset, id_)
    except NotFoundError:
        return LandingSnapshots(None, ())


def publish(
    tables: Tables,
    dataset: Dataset,
    plan: Plan,
    lease: Lease,
    stage: Callable[[], Any],
    *,
    found: LandingSnapshots,
) -> Published:
    """Bring `plan` into the table, once. `found` is what is there already; `stage` writes it where it is
    not, and where it is too old (see `stale`)."""
    version, name = plan.version if isinstance(plan, FlushPlan) else 0, dataset.name
    old = stale(dataset, found)
    if found.published is None and _staged(found, version, old) is None:
        reach("land.stage")
        try:
            with span("stage", dataset=name, number=plan.number):
                stage()
        except StrandlineError:
            # Whoever took over while this process slept may have landed it, and removed what it is made of.
            if look(tables, name, plan.id).published is None:
                raise
        reach("land.staged")
        found = look(tables, name, plan.id)
    if found.published is not None:
        return found.published
    staged = _staged(found, version, old)
    if staged is None:
        raise NotPublished(name, plan.number, "what was staged is gone")
    if staged.rows < plan.rows:  # the table would not show the numbers of rows that are left out
        tables.keep_highest(name, plan.highest, plan.number)
    # Another may take over between this look at the fence and the pick. Then both pick, and Iceberg takes
    # one.
    lease.renew()
    reach("land.publish")
    try:
        with span("publish", dataset=name, number=plan.number):
            tables.publish(name, staged.snapshot)
    except Exception as error:
        reach("land.refused")
        after = look(tables, name, plan.id).published
        if after is None:
            raise NotPublished(name, plan.number, str(error).partition("\n")[0][:200]) from error
        return after
    reach("land.published")
    return Published(
        staged.snapshot,
        staged.version,
        staged.rows,
        staged.bytes,
        staged.files,
        staged.settled_drop,
        staged.settle_failure,
    )


def stale(dataset: Dataset, found: LandingSnapshots) -> frozenset[int]:
    """The staged copies that must not be published any more: where repeats of committed rows are left out
    (L-FLUSH-9), those from before the table's last commit, which may have brought a row that they hold."""
    if not dataset.dedupe_on_flush:
        return frozenset()
    return frozenset(each.snapshot for each in found.staged if each.is_behind)


def _staged(found: LandingSnapshots, version: int, old: frozenset[int]) -> Staged | None:
    return next((each for each in found.staged if each.version == version and each.snapshot not in old), None)


def record(site: Site, dataset: str, number: int, lease: Lease, writes: list[Write]) -> None:
    """Close a number under the lease's fence: `writes` in one transaction, once."""
    with span("record", dataset=dataset, number=number):
        _record(site, dataset, number, lease, writes)


def _record(site: Site, dataset: str, number: int, lease: Lease, writes: list[Write]) -> None:
    stream = flush_stream(dataset)
    lost = 0
    for _ in range(_RECORD_TRIES):
        event = site.b.last_seq(stream)
        if number not in site.standing.numbers(dataset).open:
            return  # the answer was lost and it is recorded, or another has done it
        reach("land.record")
        try:
            outcome = site.b.commit([lease.guard, ExpectSeq(stream, event)], writes)
        except OutcomeUnknown:
            lost += 1
            if lost == _LOST_ANSWERS:
                raise
            continue
        if not isinstance(outcome, Conflict):
            reach("land.recorded")
            return
        if outcome.name != stream:
            raise LeaseLost(lease.scope)
    raise UnavailableError(
        f"{stream!r} kept moving while flush {number} was to be recorded", hint="the next flush records it"
    )
