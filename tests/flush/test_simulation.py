"""The protocol under every fault that a seed can think of, without Spark (L-ACC-4, invariants 1 to 3, 6)."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.flush import flush as flush_module
from strandline.flush import recover
from strandline.ingest import append as append_module
from strandline.persist.backend import ExpectSeq
from strandline.state.flush_plan import FlushPlan
from strandline.state.lease import Lease
from strandline.state.strand_state import StrandState
from tests.simulation import Plant, World, simulate

QUICK = 50  # seeds of a share: 350 runs without an identity, 150 with one
SLOW, FIRST_SLOW = 1_000, 500  # so many again, with and without, for the slow suite


def run(seeds: range, *, has_identity: bool = False) -> Counter[str]:
    """What happened in all those runs. A failure names its seed: simulate(seed) repeats it."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = simulate(seed, has_identity=has_identity)
        except BaseException as error:
            error.add_note(f"tests.simulation.simulate({seed}, {has_identity=}) repeats this run")
            raise
        happened += events_of(world)
    return happened


def events_of(world: World) -> Counter[str]:
    seen = Counter(
        {"kills": world.kills, "power cuts": world.power_cuts, "picks refused": world.table.refused}
    )
    position = 1
    while page := list(world.b.global_range(position, limit=500)):
        seen.update(f"{event.stream.partition('/')[0]} {event.type}" for _, event in page)
        position = page[-1][0] + 1
    return seen


@pytest.mark.parametrize("share", range(7))
def test_each_row_lands_once_whatever_is_killed_lost_late_or_doubled(share: int) -> None:
    """L-FLUSH-2, L-FLUSH-4, L-SEQ-1 to L-SEQ-8, L-SPOOL-3 to L-SPOOL-5, L-SPOOL-13, L-FLUSH-13."""
    happened = run(range(share * QUICK, (share + 1) * QUICK))

    # A simulation that never comes by a step proves nothing about it.
    for step in (
        "strand spooled",
        "flush planned",
        "flush committed",
        "flush loading",
        "flush landed",
        "kills",
    ):
        assert happened[step] > 10, f"{step}: {happened}"


@pytest.mark.parametrize("share", range(3))
def test_each_key_lands_once_a_strand_where_the_dataset_has_an_identity(share: int) -> None:
    """L-FLUSH-9, L-STAMP-7: whatever is left open by a flush or a load that died."""
    happened = run(range(share * QUICK, (share + 1) * QUICK), has_identity=True)

    for step in ("flush planned", "flush committed", "flush loading", "flush landed", "kills"):
        assert happened[step] > 10, f"{step}: {happened}"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("has_identity", [False, True], ids=["plain", "identity"])
@pytest.mark.parametrize("share", range(5))
def test_ten_thousand_runs(share: int, has_identity: bool) -> None:
    first = FIRST_SLOW + share * SLOW
    happened = run(range(first, first + SLOW), has_identity=has_identity)

    for step in ("flush amended", "flush released", "strand held", "picks refused", "power cuts"):
        assert happened[step] > 10, f"{step}: {happened}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(7), simulate(7)

    assert first.table.rows == second.table.rows
    assert first.counts == second.counts


def caught(plant: Plant, seeds: int = 200, *, has_identity: bool = False) -> str | None:
    for seed in range(seeds):
        try:
            simulate(seed, plant, has_identity=has_identity)
        except AssertionError as error:
            return str(error)
    return None


@pytest.mark.parametrize(
    "plant",
    [
        Plant(accepts_ids_twice=True),
        Plant(skips_sync=True),
        Plant(restages_under_new_seqs=True),
        Plant(skips_burn=True),
    ],
    ids=["ids twice", "no sync", "numbers anew", "no burn"],
)
def test_the_simulation_finds_a_planted_bug(plant: Plant) -> None:
    """L-ACC-5, F-45, F-8, L-CTL-3: what it stands on is broken on purpose."""
    assert caught(plant) is not None


def test_it_finds_a_reader_that_passes_an_open_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-9: V as the highest landed seq, whatever is open below it."""
    highest = property(
        lambda strand_state: strand_state.settled.ranges[-1].hi if strand_state.settled.ranges else 0
    )
    monkeypatch.setattr(StrandState, "visible_through", highest)

    assert caught(Plant()) is not None


def test_it_finds_an_append_that_expects_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-6: two writers that read the same last seq."""
    real = append_module._Attempt._writes

    def without_expectation(self: object, *args: object) -> object:
        expected, writes = real(self, *args)  # type: ignore[arg-type]
        return [each for each in expected if not isinstance(each, ExpectSeq)], writes

    monkeypatch.setattr(append_module._Attempt, "_writes", without_expectation)

    assert caught(Plant()) is not None


def test_it_finds_a_holder_that_does_not_settle_what_is_open_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-FLUSH-9: the flushes that died are finished first, the loads only afterwards."""

    def flushes_alone(
        job: recover.LandingJob, lease: Lease, *, timeout_s: float
    ) -> Iterator[recover.FlushResult]:
        for _, plan in recover._open_plans(job):
            if isinstance(plan, FlushPlan):
                yield recover.land_flush(job, plan, lease, job.look(plan.id), is_resumed=True)

    def then_the_loads(job: recover.LandingJob, lease: Lease, *args: Any) -> Iterator[Any]:
        yield from real(job, lease, *args)
        yield from recover.settle_loads(job)

    real = flush_module._land_all
    monkeypatch.setattr(flush_module, "settle_open", flushes_alone)
    monkeypatch.setattr(flush_module, "_land_all", then_the_loads)

    assert caught(Plant(), has_identity=True) == "a key is there twice"
