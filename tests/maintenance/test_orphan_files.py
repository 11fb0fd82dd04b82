"""Files in the folder of a table that no snapshot names (L-CMP-6)."""

import os
from pathlib import Path

from strandline.config.keys import CompactionSection
from strandline.flush.reconcile import SWEEP_PAUSED
from strandline.maintenance.table_upkeep import UpkeepAsked, maintain
from strandline.persist import Put, read
from tests.maintenance.compacting import no_spark, paths, rewriter
from tests.maintenance.house import House

EXPIRE = UpkeepAsked(compact=False)
SETTINGS = CompactionSection(max_tick_s=600)


def stray(house: House, name: str, *, is_old: bool) -> Path:
    path = paths(house)[0].with_name(name)
    path.write_bytes(b"left by a job that was killed")
    if is_old:
        os.utime(path, (1e9, 1e9))
    return path


def test_old_files_without_a_name_go_once_a_day_and_young_ones_stay(each_house: House) -> None:
    """L-CMP-6, on classic Spark and on Connect; and it is recorded."""
    house = each_house
    house.land(5)
    old, young = stray(house, "old.parquet", is_old=True), stray(house, "young.parquet", is_old=False)

    done = maintain(house.site, rewriter(house), SETTINGS, house.dataset, EXPIRE)

    assert done.orphans == 1
    assert not old.exists()
    assert young.exists()
    assert house.seqs() == [1, 2, 3, 4, 5]
    assert [each.data for each in read(house.site.b, f"maintain/{house.dataset}")] == [{"files": 1}]
    stray(house, "old.parquet", is_old=True)
    again = maintain(house.site, no_spark(house), SETTINGS, house.dataset, EXPIRE)
    assert again.orphans is None
    house.clock.forward(hours=24)
    assert maintain(house.site, rewriter(house), SETTINGS, house.dataset, EXPIRE).orphans == 1


def test_nothing_is_swept_while_a_restore_is_unconfirmed(house: House) -> None:  # L-SEQ-9
    house.land(5)
    old = stray(house, "old.parquet", is_old=True)
    why = {"dataset": house.dataset, "at": 0, "reason": "the store was put back"}
    house.site.b.commit([], [Put(SWEEP_PAUSED, why)])

    done = maintain(house.site, rewriter(house), SETTINGS, house.dataset, EXPIRE)

    assert done.orphans is None
    assert old.exists()
