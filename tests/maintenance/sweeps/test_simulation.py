"""Tidying beside everything else: producers, loads, flushes and readers that a seed interleaves, stalls and
kills, over a disk that loses power; whatever happens no row is lost, and in the end the disk is empty
(L-SPOOL-6, L-SPOOL-14, L-CTL-6, F-43, F-44)."""

from datetime import UTC, datetime

import pytest

from strandline.maintenance.store_upkeep import tidy
from strandline.maintenance.sweeps import archive_history
from strandline.maintenance.sweeps.landed_segments import swept_through
from strandline.persist import BlobRef, refs_in
from tests.simulation import (
    FAILURES,
    Process,
    World,
    check,
    flushes,
    follows,
    produce,
    settle_everything,
)

GRACE_S = 400  # longer than any process of this world stalls
FOLD_S = 500
STEPS = 6_000


def tidies(process: Process) -> None:
    world, site = process.world, process.world.site()
    while True:
        try:
            tidy(site, grace_s=GRACE_S, fold_age_s=FOLD_S)
        except FAILURES:
            world.counts["tidy failed"] += 1
        site.clock.sleep(20)


def empties(world: World) -> None:
    """Days later nothing is on the disk but the archive."""

    def body(process: Process) -> None:
        site = world.site()
        for _ in range(6):
            world.now_us += 2 * GRACE_S * 1_000_000
            done = tidy(site, grace_s=GRACE_S, fold_age_s=FOLD_S)
            assert not done.errors, done.errors

    world.calmly(body)
    kept = world.b.kv_scan("archived/", after="", limit=1_000)
    archived = {ref.cid for _, value in kept for ref in refs_in(value) if isinstance(ref, BlobRef)}
    assert {cid for cid, _ in world.content.stored()} == archived
    assert not world.b.kv_scan("segment/", after="", limit=1)


@pytest.mark.parametrize("seed", range(4))
def test_tidying_beside_all_else_loses_nothing_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(archive_history, "FEWEST", 8)
    monkeypatch.setattr(archive_history, "STAY", 4)
    world = World(seed)
    world.now_us = int(datetime.now(UTC).timestamp()) * 1_000_000  # as the disk has it

    world.run(
        {
            "producer 1": produce,
            "producer 2": produce,
            "flusher 1": flushes,
            "flusher 2": flushes,
            "reader": follows,
            "tidier 1": tidies,
            "tidier 2": tidies,
        },
        STEPS,
    )

    is_begun = swept_through(world.site()) > 0
    settle_everything(world)
    check(world)
    empties(world)
    assert world.kills
    assert is_begun
