"""From a plan to its record: stage, publish, record. What flush and load share, and how a crash is taken up.

A plan's id is what makes this safe. Iceberg publishes one snapshot of an id and refuses every other, so
whoever comes by may do any step again: look what is there, and go on from that.

    published?  record it.     staged?  publish it.     neither?  stage it, again.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from strandline.errors import NotFoundError, OutcomeUnknown, StrandlineError, UnavailableError
from strandline.failpoint import reach
from strandline.lake.landing import Found, Published, Staged, Tables
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.pipeline.lease import Lease, LeaseLost
from strandline.pipeline.plan import FlushPlan, Plan, flush_stream
from strandline.pipeline.site import Site

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


def look(tables: Tables, dataset: str, id_: str) -> Found:
    """What the table knows of an id; a table that is not there knows nothing."""
    try:
        return tables.look(dataset, id_)
    except NotFoundError:
        return Found(None, ())


def publish(
    tables: Tables, dataset: str, plan: Plan, lease: Lease, stage: Callable[[], Any], *, found: Found
) -> Published:
    """Bring `plan` into the table, once. `found` is what is there already; `stage` writes it where it is
    not."""
    version = plan.version if isinstance(plan, FlushPlan) else 0
    if found.published is None and _staged(found, version) is None:
        reach("land.stage")
        try:
            stage()
        except StrandlineError:
            # Whoever took over while this process slept may have landed it, and removed what it is made of.
            if look(tables, dataset, plan.id).published is None:
                raise
        reach("land.staged")
        found = look(tables, dataset, plan.id)
    if found.published is not None:
        return found.published
    staged = _staged(found, version)
    if staged is None:
        raise NotPublished(dataset, plan.number, "what was staged is gone")
    # Another may take over between this look at the fence and the pick. Then both pick, and Iceberg takes
    # one.
    lease.renew()
    reach("land.publish")
    try:
        tables.publish(dataset, staged.snapshot)
    except Exception as error:
        reach("land.refused")
        after = look(tables, dataset, plan.id).published
        if after is None:
            raise NotPublished(dataset, plan.number, str(error).partition("\n")[0][:200]) from error
        return after
    reach("land.published")
    return Published(**asdict(staged))


def _staged(found: Found, version: int) -> Staged | None:
    return next((each for each in found.staged if each.version == version), None)


def record(site: Site, dataset: str, number: int, lease: Lease, writes: list[Write]) -> None:
    """Close a number under the lease's fence: `writes` in one transaction, once."""
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
