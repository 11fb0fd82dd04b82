"""Retention, purges, compaction, expiry, tidying and backfills beside everything else, by seed; and proof
that the simulation can fail (L-RET-7, L-POL-3, L-CMP-4, L-CMP-7, L-BF-4, L-BF-6, L-BF-10, L-ACC-4, invariants
1 to 6)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from strandline.backfill import frame
from strandline.backfill.check_known import Check
from strandline.ingest.load import Guarded
from strandline.lake.ports.purge import PurgeAsked, Purger
from strandline.maintenance import purge
from strandline.maintenance.compaction import merge
from strandline.maintenance.purge_intent import PurgeRun
from strandline.maintenance.retention import prune
from strandline.maintenance.retention.sink_marks import Marks
from strandline.maintenance.sweeps import archive_history
from strandline.state.context import Site
from strandline.state.lease import Lease
from tests.flush.test_simulation import events_of
from tests.maintenance.simulated import HISTORY, simulate, table_of
from tests.maintenance.simulated_frame import FRAMES
from tests.simulation import DATASET, World

GROUPS, GROUP = 2, 4
SLOW = 4_000
SHARES = 40
BACKFILLS = ("rows of history", "rows of frames")
PURGES = ("purges", "purges ended by retention", "rows purged out of quarantine")


@pytest.fixture(autouse=True)
def folds_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of this world is short: what is worth an archive of its own elsewhere never comes together."""
    monkeypatch.setattr(archive_history, "FEWEST", 8)
    monkeypatch.setattr(archive_history, "STAY", 4)


def run(seeds: range) -> Counter[str]:
    """What happened in all those runs. A failure names its seed."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = simulate(seed)
        except BaseException as error:
            error.add_note(f"tests.maintenance.simulated.simulate({seed}) repeats this run")
            raise
        happened += happened_in(world)
    return happened


def happened_in(world: World) -> Counter[str]:
    table, site = table_of(world), world.site()
    seen = Counter(
        {
            "kills": world.kills,
            "rows pruned": len(table.deleted - table.purged),
            "rows purged": len(table.purged),
            **{name: world.counts[name] for name in PURGES},
            "repeats gone": len(table.repeated),
            "rows of history": sum(row.by == HISTORY for row in table.landed),
            "rows of frames": sum(row.by == FRAMES for row in table.landed),
            "frames that met a gain": world.counts["frame meets"],
            "rewritten": world.counts["table.rewrite done"],
            "expired": world.counts["table.expire done"],
            "runs of retention": site.standing.prunings().of(DATASET).event // 2,
        }
    )
    return seen + events_of(world)


@pytest.mark.parametrize("first", range(0, GROUPS * GROUP, GROUP))
def test_what_goes_is_on_record_and_what_stays_arrives_once(first: int) -> None:
    happened = run(range(first, first + GROUP))

    # A simulation that never comes by a step proves nothing about it.
    steps = ("kills", "rows pruned", "rows purged", "repeats gone", *BACKFILLS, "rewritten", "expired")
    for step in steps:
        assert happened[step] > 3, f"{step}: {happened}"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("share", range(SHARES))
def test_thousands_of_runs(share: int) -> None:
    first = GROUPS * GROUP
    happened = run(range(first + share * SLOW // SHARES, first + (share + 1) * SLOW // SHARES))

    steps = ("sink evicted", "maintain abandoned", "maintain left", "retention intended", "power cuts")
    for step in (*steps, *PURGES, *BACKFILLS, "frames that met a gain"):
        assert happened[step] > 10, f"{step}: {happened}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(3), simulate(3)

    assert table_of(first).landed == table_of(second).landed
    assert first.counts == second.counts


def caught(seeds: range) -> str | None:
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as error:
            return str(error)
    return None


def test_rows_that_go_before_that_is_on_record_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-RET-7: a crash in between leaves a hole that nobody can tell the reason of."""
    real = prune._Pruning._intend

    def too_late(self: prune._Pruning, *args: object) -> object:
        self._upkeep.delete(self._dataset, args[1].doomed)  # type: ignore[attr-defined]
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(prune._Pruning, "_intend", too_late)

    assert caught(range(60)) is not None


def test_a_purge_that_is_on_record_before_its_rows_go_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-POL-3: a crash in between leaves rows that nobody looks for any more."""
    real = purge._delete_and_record

    def too_early(site: Site, purger: Purger, dataset: str, lease: Lease, run: PurgeRun) -> None:
        real(site, Idle(), dataset, lease, run)  # type: ignore[arg-type]
        purger.delete(dataset, run.asked)

    monkeypatch.setattr(purge, "_delete_and_record", too_early)

    assert caught(range(5, 65)) is not None


class Idle:
    """A purger that deletes nothing."""

    def delete(self, dataset: str, asked: PurgeAsked) -> None: ...


def test_a_purge_that_takes_what_came_since_it_was_decided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-POL-3: what has landed since was not counted. Most of all where it goes on after a crash."""
    real = purge._delete_and_record

    def wider(site: Site, purger: Purger, dataset: str, lease: Lease, run: PurgeRun) -> None:
        asked = replace(run.asked, flush=site.standing.numbers(dataset).last, rows=None)
        real(site, purger, dataset, lease, replace(run, asked=asked))

    monkeypatch.setattr(purge, "_delete_and_record", wider)

    assert caught(range(60)) is not None


def test_a_resumed_purge_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-POL-3: a purge that was cut short and is finished removes its rows once, and records them once."""
    real = purge.finish_purge

    def twice(site: Site, purger: Purger, dataset: str, lease: Lease) -> PurgeRun | None:
        return real(site, Idle(), dataset, lease)  # type: ignore[arg-type]  # what is left is found anew

    monkeypatch.setattr(purge, "finish_purge", twice)

    assert caught(range(4, 64)) is not None


def test_an_open_rewrite_that_is_taken_for_landed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-CMP-7: whether it is part of the table, its ancestry alone can tell."""
    monkeypatch.setattr(merge, "_is_landed", lambda *_: True)

    assert caught(range(11, 131, 2)) is not None  # repeats tell it, by their count


def test_a_backfill_that_expects_no_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-4, F-25: what was appended after it looked is written a second time."""
    monkeypatch.setattr(Check, "expected", property(lambda _: []))

    found = caught(range(14, 132, 2))
    assert found is not None
    assert "the backfill wrote" in found


def test_a_frame_whose_reservation_expects_no_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-4: what was appended after it looked is written a second time."""
    real = frame._Frame._guard

    def careless(self: frame._Frame, *args: Any, **options: Any) -> Guarded:
        self.events = self._strands.events(self.events)
        found = real(self, *args, **options)
        return found._replace(expected=found.expected[:1])

    monkeypatch.setattr(frame._Frame, "_guard", careless)

    found = caught(range(268, 300))
    assert found is not None
    assert "the backfill wrote" in found


def test_a_mark_of_a_frame_that_outlives_its_load_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-10: the load was released, and its rows never come."""
    monkeypatch.setattr(frame, "_end_load", lambda *_: None)

    found = caught(range(731, 760))
    assert found is not None
    assert "a backfill never brought" in found


def test_a_sink_that_passes_what_is_gone_before_that_is_told_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-RET-5, G-2: where it stood when that was decided is forgotten."""
    monkeypatch.setattr(prune, "stood", lambda *_: ())

    assert caught(range(7, 67)) is not None


@pytest.mark.slow
def test_rows_that_landed_above_what_is_visible_and_go_by_their_flush_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-RET-4: a load lands beside rows that still wait."""
    monkeypatch.setattr(Marks, "landed", Marks.visible)

    assert caught(range(29, 89)) is not None
