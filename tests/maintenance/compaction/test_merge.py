"""Compaction with real Spark and Iceberg: what is merged, what stays as it was, what may come in between."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.config.keys import CompactionSection
from strandline.flush.flush import flush
from strandline.ingest.load import load
from strandline.lake.jobs import compare_files
from strandline.lake.jobs.rewrite import SparkRewriter
from strandline.lake.jobs.scan import LakeReader
from strandline.lake.ports.rewrite import RewriteDiffers
from strandline.maintenance.compaction.files_to_merge import FULL
from strandline.maintenance.table_upkeep import look, maintain
from strandline.persist import read
from strandline.rows.dataset import Strand
from strandline.state.lease import LeaseHeld, take_lease
from tests.maintenance.compacting import (
    COMPACT,
    FORCE,
    SETTINGS,
    Crash,
    at_point,
    branches,
    compact,
    crash,
    declare,
    events,
    files,
    keyed,
    no_spark,
    paths,
    put,
    rewriter,
    rows,
    seqs_of,
)
from tests.maintenance.house import House
from tests.shares import some


def test_small_files_become_one_and_every_row_stays_as_it_was(each_house: House) -> None:
    """L-CMP-1, L-CMP-2, L-STAMP-5, on classic Spark and on Connect: a quote in a source is only a name."""
    house = each_house
    for _ in range(3):
        house.append(10, "it's")
        house.land(10)
    before = rows(house)

    done = compact(house)

    assert [(each.files_in, each.files_out, each.rows) for each in done.walk.runs] == [(6, 2, 60)]
    assert len(files(house)) == 2
    assert rows(house) == before
    assert events(house) == ["begun", "staged", "compacted"]
    assert branches(house) == []


def test_a_second_walk_finds_nothing_to_do_and_asks_no_spark(house: House) -> None:  # L-CMP-8, F-42
    for _ in range(3):
        house.land(5)
    compact(house)

    again = maintain(house.site, no_spark(house), SETTINGS, house.dataset, COMPACT)

    assert again.walk.is_idle
    house.land(5)
    later = maintain(house.site, no_spark(house), SETTINGS, house.dataset, COMPACT)
    assert (later.walk.is_idle, later.walk.runs, later.walk.due) == (False, (), 0)
    other = CompactionSection(file_count=2, max_tick_s=600)
    assert [
        work.files for work in look(house.site, no_spark(house), other, house.dataset, COMPACT).planned
    ] == []


def test_a_tier_goes_on_where_the_one_below_it_ends(house: House) -> None:  # L-CMP-1
    for _ in range(9):
        house.land(2)
        compact(house)

    assert [(each.lo, each.hi) for each in files(house)] == [(0, 18)]
    levels = [
        each.data["level"]
        for each in read(house.site.b, f"maintain/{house.dataset}")
        if each.type == "compacted"
    ]
    assert levels == [1, 1, 1, 2]
    assert house.seqs() == list(range(1, 19))


def test_a_full_bin_is_rewritten_once_sorted_and_apart_from_its_neighbours(house: House) -> None:
    """L-CMP-1, L-CMP-5, L-COST-3: small target files, so that one bin becomes several."""
    declare(house, seq_bucket=2_000)
    for _ in range(4):
        house.land(500)
    small = CompactionSection(file_count=30, target_file_bytes=60_000, max_tick_s=600)

    done = compact(house, settings=small)

    assert done.walk.runs[0].level == FULL
    firsts = [each.bin.first for each in files(house)]
    assert 1 < firsts.count(0) < 4
    assert firsts.count(2_000) == 1
    found = [seqs_of(path) for path in paths(house)]
    assert all(seqs == sorted(seqs) for seqs in found)
    apart = sorted((min(seqs), max(seqs)) for seqs in found)
    assert all(one[1] < two[0] for one, two in pairwise(apart))
    assert house.seqs() == list(range(1, 2_001))
    assert compact(house, settings=small).walk.runs == ()


def test_compaction_of_one_bin_leaves_files_of_others_untouched(house: House) -> None:  # L-CMP-1
    declare(house, seq_bucket=20)
    house.land(10)
    house.land(9)
    house.land(4)
    before = house.files()

    compact(house, settings=CompactionSection(file_count=9, max_tick_s=600))

    assert len(before & house.files()) == 1
    assert [(each.bin.first, each.lo, each.hi) for each in files(house)] == [(0, 0, 19), (20, 19, 23)]


def test_sources_that_share_a_bin_are_merged_in_the_order_of_their_flushes(house: House) -> None:
    """L-SCH-1, L-CMP-1, L-CMP-5: each source stays sorted by seq in the file."""
    declare(house, source_buckets=2, seq_bucket=100)
    for _ in range(3):
        for source in ("a", "b", "c"):
            house.append(4, source)
        house.flush()
    before = rows(house)

    done = compact(house)

    assert sum(each.files_in for each in done.walk.runs) > sum(each.files_out for each in done.walk.runs)
    assert len(files(house)) == len({each.bin for each in files(house)})
    assert rows(house) == before
    assert compact(house).walk.is_idle


def test_what_tables_promise_of_files_holds_for_rewritten_ones(house: House) -> None:  # L-SCH-3
    keyed(house)
    for number in range(3):
        put(house, *range(number * 10, number * 10 + 10))

    compact(house)

    (row,) = house.sql("SELECT readable_metrics FROM {table}.files")
    bounds = {name: row[0][name] for name in ("source", "_sl_seq", "_sl_flush", "_sl_at")}
    assert (bounds["_sl_seq"]["lower_bound"], bounds["_sl_seq"]["upper_bound"]) == (1, 30)
    assert (bounds["_sl_flush"]["lower_bound"], bounds["_sl_flush"]["upper_bound"]) == (1, 3)
    assert all(each["lower_bound"] is not None for each in bounds.values())
    (path,) = paths(house)
    assert path.stat().st_size > 262_144  # the filter over row ids


# Duplicates


def test_repeats_go_and_the_lowest_seq_stays(house: House) -> None:  # F-4, L-CMP-3, L-STAMP-4
    keyed(house)
    put(house, 1, 2, None, v="first")
    put(house, 2, 3, None, v="second")
    put(house, 1, 3, 4, v="third")
    put(house, 1, source="other")  # another strand is another row

    done = compact(house, FORCE)

    found = [(row["source"], row["_sl_seq"], row["id"], row["v"], row["_sl_flush"]) for row in rows(house)]
    assert found == [
        ("other", 1, 1, "x", 4),
        ("web-1", 1, 1, "first", 1),
        ("web-1", 2, 2, "first", 1),
        ("web-1", 3, None, "first", 1),
        ("web-1", 5, 3, "second", 2),
        ("web-1", 6, None, "second", 2),
        ("web-1", 9, 4, "third", 3),
    ]
    assert sum(each.duplicates for each in done.walk.runs) == 3
    strand_state = house.site.standing.strand_state(Strand(house.dataset, "web-1"))
    assert (
        strand_state.removed_rows,
        strand_state.bare,
        strand_state.front,
        strand_state.visible_through,
    ) == (3, 0, 0, 9)
    removed = [
        each.data
        for each in read(house.site.b, Strand(house.dataset, "web-1").ledger)
        if each.type == "removed"
    ]
    assert [(each["by"], each["lo"], each["hi"], each["rows"]) for each in removed] == [
        ("compaction", 3, 8, 3)
    ]


def test_a_repeat_of_a_row_in_an_earlier_bin_goes_when_its_own_is_full(house: House) -> None:  # L-CMP-3
    keyed(house, seq_bucket=10)
    put(house, *range(1, 10))
    put(house, *range(5, 15))

    compact(house)

    assert [row["id"] for row in rows(house)] == list(range(1, 15))
    assert house.seqs() == [*range(1, 10), *range(15, 20)]
    assert compact(house).walk.is_idle


def test_equal_rows_of_a_keep_dataset_stay(house: House) -> None:  # L-CMP-3, L-STAMP-4
    declare(house, seq_bucket=4)
    for _ in range(3):
        put(house, 7, 7)

    compact(house)

    assert [row["id"] for row in rows(house)] == [7] * 6


def test_a_single_full_file_without_repeats_is_judged_once_and_stays(
    house: House,
) -> None:  # L-CMP-1, L-CMP-8
    keyed(house, seq_bucket=10)
    put(house, *range(1, 20))
    before = house.files()

    compact(house)

    assert house.files() == before
    assert events(house) == ["left"]
    assert maintain(house.site, no_spark(house), SETTINGS, house.dataset, COMPACT).walk.is_idle


# Beside others


def load_four(house: House) -> None:
    frame = house.spark.range(13, 17).selectExpr("id as n").coalesce(1)
    assert load(house.site, house.tables, house.dataset, frame, source="web-1").rows == 4


@pytest.mark.parametrize("come", [lambda house: house.land(4), load_four], ids=["flush", "load"])
def test_rows_that_land_during_a_rewrite_are_not_lost(
    house: House, monkeypatch: pytest.MonkeyPatch, come: Callable[[House], Any]
) -> None:
    """F-21, L-CMP-4: the rewrite is refused, and done again while no flush can come."""
    for _ in range(3):
        house.land(4)
    at_point(monkeypatch, "compaction.checked", lambda: come(house))

    done = compact(house)

    assert house.seqs() == list(range(1, 17))
    assert sorted(row["n"] for row in rows(house)) == list(range(1, 17))
    assert [(each.files_in, each.files_out) for each in done.walk.runs] == [(3, 1)]
    assert events(house) == ["begun", "staged", "abandoned", "begun", "staged", "compacted"]
    assert branches(house) == []
    assert len(files(house)) == 2


def test_rows_deleted_during_a_rewrite_are_not_revived(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-CMP-4, F-21: whoever deletes holds the same lease, but for someone from outside."""
    for _ in range(3):
        house.land(4)
    at_point(monkeypatch, "compaction.rewritten", lambda: house.delete("_sl_seq IN (2, 7)"))

    compact(house)

    assert house.seqs() == [1, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert branches(house) == []


def test_a_flush_staged_before_and_published_after_a_compaction_lands_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:  # F-21
    for _ in range(3):
        house.land(4)
    house.append(4)
    publish = house.tables.publish

    def late(dataset: str, snapshot: int) -> None:
        monkeypatch.setattr(house.tables, "publish", publish)
        assert len(compact(house).walk.runs) == 1
        publish(dataset, snapshot)

    monkeypatch.setattr(house.tables, "publish", late)

    flush(house.site, house.tables, house.dataset)

    assert house.seqs() == list(range(1, 17))
    assert len(files(house)) == 2


def test_readers_of_an_older_snapshot_go_on(house: House) -> None:  # L-CMP-6
    for _ in range(3):
        house.land(4)
    schema, reader = house.site.known(house.dataset).dataset, LakeReader(house.spark, house.lake)
    pinned = reader.current_snapshot(schema)
    assert pinned is not None

    compact(house)

    old = reader.rows(schema, snapshot=pinned, internal=True)
    assert sorted(row["_sl_seq"] for row in old.collect()) == list(range(1, 13))
    assert reader.current_snapshot(schema) != pinned


def test_another_who_keeps_house_is_waited_for_and_then_named(house: House) -> None:
    for _ in range(3):
        house.land(2)
    lease = take_lease(house.site.b, house.clock, f"maintain/{house.dataset}")

    with pytest.raises(LeaseHeld):
        maintain(house.site, rewriter(house), SETTINGS, house.dataset, COMPACT, timeout_s=1)

    lease.release()
    assert len(compact(house).walk.runs) == 1


# What goes wrong


POINTS = (
    "compaction.begun",
    "compaction.branched",
    "compaction.rewritten",
    "compaction.checked",
    "compaction.staged",
    "compaction.landed",
    "compaction.recorded",
)


@pytest.mark.parametrize("point", some(POINTS, "compaction.rewritten", "compaction.landed"))
def test_a_crash_at_any_step_leaves_each_row_once_and_the_next_walk_ends_it(
    house: House, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:  # L-CMP-2, L-CMP-7, G-2: never recorded twice, and no branch is left
    keyed(house)
    put(house, 1, 2)
    put(house, 2, 3)
    put(house, 3, 4)
    at_point(monkeypatch, point, crash)
    with pytest.raises(Crash):
        compact(house, FORCE)
    assert {row["id"] for row in rows(house)} == {1, 2, 3, 4}

    site = house.another_site()
    site.declared = house.site.declared
    done = maintain(site, rewriter(house), SETTINGS, house.dataset, FORCE)
    site.b.close()

    assert [row["id"] for row in rows(house)] == [1, 2, 3, 4]
    assert branches(house) == []
    assert events(house).count("compacted") == 1
    assert house.site.standing.strand_state(Strand(house.dataset, "web-1")).removed_rows == 2
    assert not house.site.standing.rewrites().of(house.dataset).begun
    landed = point in ("compaction.landed", "compaction.recorded")
    assert events(house).count("abandoned") == (not landed)
    if point == "compaction.landed":
        assert done.walk.runs[0].is_resumed


class Forger(SparkRewriter):
    """Loses a row on the branch."""

    def rewrite(self, dataset: Any, branch: str, asked: Any, *, target_bytes: int) -> None:
        super().rewrite(dataset, branch, asked, target_bytes=target_bytes)
        table = f"strandline.datasets.`{dataset.name}`.`branch_{branch}`"
        self._session().sql(f"DELETE FROM {table} WHERE _sl_seq = 2")


@pytest.mark.parametrize("is_here", [True, False], ids=["compared here", "compared by Spark"])
def test_a_rewrite_that_does_not_hold_the_rows_that_were_read_is_thrown_away(
    house: House, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    """L-CMP-2, L-CMP-7: the table is as it was, and so is the disk."""
    monkeypatch.setattr(compare_files, "is_worth", lambda _: is_here)
    for _ in range(3):
        house.land(4)
    before, on_disk = house.files(), _on_disk(house)
    forger = Forger(lambda: house.spark, house.lake)

    done = maintain(house.site, forger, SETTINGS, house.dataset, COMPACT)

    assert done.walk.is_degraded
    assert "rows" in next(iter(done.walk.failed.values()))
    assert house.files() == before
    assert _on_disk(house) == on_disk
    assert house.seqs() == list(range(1, 13))


def test_the_error_of_a_rewrite_that_differs_names_both_counts() -> None:
    error = RewriteDiffers("logs", 3, 4)

    assert (error.found, error.wanted) == (3, 4)
    assert "3 rows, not 4" in error.message


def _on_disk(house: House) -> set[Path]:
    folder = paths(house)[0].parent
    while folder.name != "data":
        folder = folder.parent
    return set(folder.rglob("*.parquet"))


@pytest.mark.parametrize("strands", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_one_strand_that_cannot_be_read_stops_no_other(house: House, strands: int) -> None:
    """F-42, L-CMP-7, L-CMP-8: one of them corrupt, no time: all others are compacted, the next walk is idle,
    and the one is told."""
    declare(house, seq_bucket=4)
    for _ in range(2):
        for number in range(strands):
            house.append(2, f"s{number:03}")
        house.flush()
    (bad,) = [path for path in paths(house) if "source=s007" in str(path) and seqs_of(path)[0] == 1]
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    hurried = CompactionSection(max_tick_s=0.001)

    first = compact(house, settings=hurried)

    assert [each.bins for each in first.walk.runs] == [strands - 1]
    assert [bin_.place for bin_ in first.walk.failed] == ["s007"]
    assert first.walk.is_degraded
    assert maintain(house.site, no_spark(house), hurried, house.dataset, COMPACT).walk.is_idle
    bad.write_bytes(whole)
    assert len(rows(house)) == 4 * strands
    assert [each.bins for each in compact(house, FORCE).walk.runs] == [1]
