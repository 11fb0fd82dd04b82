"""The two places at which a landing looks at its fence: before it publishes, and when it records. Each is
tested by itself, because in a whole flush the other one would hide that it is gone."""

from typing import Any

import pytest

from strandline.base.ranges import Range
from strandline.flush.publish import publish, record
from strandline.flush.recover import LandingJob
from strandline.ingest.append import append
from strandline.persist import last_seq
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.flush_plan import FlushPlan, closing, flush_stream, open_plan
from strandline.state.lease import TTL_S, Lease, LeaseLost, take_lease
from strandline.state.strand_entries import Flushed, append_of
from tests.simulation import DATASET, World, calm_world

SCOPE = f"flush/{DATASET}"


class Died(Exception):
    """The holder of the lease is gone, with its plan open."""


@pytest.fixture
def world() -> World:
    return calm_world()


@pytest.fixture
def site(world: World) -> Site:
    return world.site()


@pytest.fixture
def plan(world: World, site: Site, monkeypatch: pytest.MonkeyPatch) -> FlushPlan:
    """A flush of one row that was planned, and no more."""
    from strandline.flush.flush import flush

    def dies(*_: Any, **__: Any) -> None:
        raise Died

    append(site, DATASET, [{"key": "1"}], source="a")
    with monkeypatch.context() as patched:
        patched.setattr(world.table, "stage", dies)
        with pytest.raises(Died):
            flush(site, world.table, DATASET)
    ((number, event),) = site.standing.numbers(DATASET).open.items()
    found = open_plan(site.b, DATASET, number, event)
    assert isinstance(found, FlushPlan)
    return found


def overtaken(world: World, site: Site) -> Lease:
    """A lease whose holder slept for longer than it lasts; another holds the scope now."""
    old = take_lease(site.b, site.clock, SCOPE)
    world.now_us += (TTL_S + 1) * 1_000_000
    take_lease(site.b, site.clock, SCOPE)
    return old


def test_a_holder_that_was_overtaken_publishes_nothing_that_it_staged(
    world: World, site: Site, plan: FlushPlan
) -> None:  # L-FLUSH-1, L-SEQ-8
    job = LandingJob(site, world.table, DATASET)
    world.table.ensure(job.schema())
    world.table.stage(plan.landing(job.schema()))
    lease = overtaken(world, site)

    with pytest.raises(LeaseLost, match=SCOPE):
        publish(world.table, job.schema(), plan, lease, lambda: None, found=job.look(plan.id))

    assert world.table.published == []
    assert world.counts["table.publish"] == 0


def test_a_holder_that_was_overtaken_records_nothing(world: World, site: Site, plan: FlushPlan) -> None:
    """L-CTL-5, L-SEQ-8: also if the stream has not moved since, so that the fence alone can refuse it."""
    lease = overtaken(world, site)
    before = last_seq(site.b, flush_stream(DATASET))
    flushed = append_of(Strand(DATASET, "a").ledger, Flushed(plan.number, (Range(0, 1),), 1, 1, 1), 1)
    writes = [closing(DATASET, "committed", 1, {"number": plan.number}), flushed]

    with pytest.raises(LeaseLost, match=SCOPE):
        record(site, DATASET, plan.number, lease, list(writes))

    assert last_seq(site.b, flush_stream(DATASET)) == before
    assert plan.number in site.standing.numbers(DATASET).open
    assert site.standing.strand_state(Strand(DATASET, "a")).visible_through == 0
