"""Expiry beside compaction: what a rewrite leaves behind goes, and what someone needs stays (L-CMP-6)."""

import os
from pathlib import Path

import pytest

from strandline.config.keys import CompactionSection
from strandline.flush.flush import flush
from strandline.lake.ports.stage import LandingSnapshots
from strandline.maintenance.table_upkeep import UpkeepAsked, look, maintain
from tests.maintenance.compacting import (
    COMPACT,
    Crash,
    at_point,
    branches,
    compact,
    crash,
    no_spark,
    paths,
    rewriter,
    rows,
)
from tests.maintenance.house import House

EXPIRE = UpkeepAsked(compact=False)
SHORT = CompactionSection(file_count=3, min_snapshots=1, max_snapshot_age_h=24, max_tick_s=600)


def on_disk(house: House) -> set[Path]:
    folder = paths(house)[0].parent
    while folder.name != "data":
        folder = folder.parent
    return set(folder.rglob("*.parquet"))


def snapshots(house: House) -> int:
    found: int = house.sql("SELECT count(1) FROM {table}.snapshots")[0][0]
    return found


def test_disk_use_returns_to_what_is_live(house: House) -> None:  # F-43, L-CMP-6
    for _ in range(3):
        house.land(5)
    compact(house, settings=SHORT)
    assert len(on_disk(house)) == 4
    house.clock.forward(hours=25)

    planned = look(house.site, no_spark(house), SHORT, house.dataset, EXPIRE)
    done = maintain(house.site, rewriter(house), SHORT, house.dataset, EXPIRE)

    assert planned.expired == done.expired == 3
    assert on_disk(house) == set(paths(house))
    assert snapshots(house) == 1
    assert len(rows(house)) == 15


def test_what_a_rewrite_that_was_cut_short_has_left_goes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CMP-7: between the branch and its snapshots, where only expiry finds them
    for _ in range(3):
        house.land(5)
    at_point(monkeypatch, "compaction.checked", crash)
    with pytest.raises(Crash):
        compact(house)
    at_point(monkeypatch, "compaction.unnamed", crash)
    with pytest.raises(Crash):
        compact(house)
    assert len(on_disk(house)) == 4
    assert branches(house) == []

    compact(house)  # abandons it, and makes the file again
    house.clock.forward(hours=25)
    maintain(house.site, rewriter(house), SHORT, house.dataset, EXPIRE)

    assert on_disk(house) == set(paths(house))
    assert snapshots(house) == 1


def test_the_snapshots_of_a_rewrite_under_way_stay(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-CMP-2: whether it landed is told by its head, whoever expires before that is looked at."""
    for _ in range(3):
        house.land(5)
    at_point(monkeypatch, "compaction.landed", crash)
    with pytest.raises(Crash):
        compact(house)
    landed = paths(house)
    for _ in range(3):
        house.land(1)

    maintain(house.site, rewriter(house), SHORT, house.dataset, EXPIRE)
    done = compact(house)

    assert done.walk.runs[0].is_resumed
    assert set(landed) <= set(paths(house))


def test_neither_expiry_nor_the_sweep_touches_what_an_open_plan_has_staged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-FLUSH-5, L-CMP-6: however old its files are
    house.land(5)
    house.append(5)
    publish = house.tables.publish

    def late(dataset: str, snapshot: int) -> None:
        monkeypatch.setattr(house.tables, "publish", publish)
        for path in on_disk(house):
            os.utime(path, (1e9, 1e9))
        house.clock.forward(days=3)
        done = maintain(house.site, rewriter(house), SHORT, house.dataset, UpkeepAsked())
        assert (done.expired, done.orphans) == (0, 0)
        publish(dataset, snapshot)

    monkeypatch.setattr(house.tables, "publish", late)

    flush(house.site, house.tables, house.dataset)

    assert house.seqs() == list(range(1, 11))
    assert house.tables.look(house.dataset, "none") == LandingSnapshots(None, ())


def test_a_tag_of_somebody_else_keeps_its_snapshot(house: House) -> None:
    house.land(5)
    house.sql("ALTER TABLE {table} CREATE TAG mine")
    for _ in range(3):
        house.land(5)
    house.clock.forward(hours=25)

    done = maintain(house.site, rewriter(house), SHORT, house.dataset, EXPIRE)

    assert done.expired == 2
    assert len(house.sql("SELECT * FROM {table} VERSION AS OF 'mine'")) == 5


def test_what_is_asked_is_done_and_nothing_else(house: House) -> None:
    for _ in range(3):
        house.land(5)
    house.clock.forward(hours=25)

    compacted = maintain(house.site, rewriter(house), SHORT, house.dataset, COMPACT)

    assert (len(compacted.walk.runs), compacted.expired, compacted.orphans) == (1, 0, None)
    expired = maintain(house.site, rewriter(house), SHORT, house.dataset, EXPIRE)
    assert (expired.walk.runs, expired.expired, expired.orphans) == ((), 3, 0)
    assert maintain(house.site, no_spark(house), SHORT, house.dataset, UpkeepAsked()).walk.runs == ()
    assert maintain(house.site, no_spark(house), SHORT, house.dataset, UpkeepAsked()).walk.is_idle
