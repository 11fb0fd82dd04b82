"""Which files become one (L-CMP-1, L-CMP-5, L-CMP-8): the pure part, over long simulated histories."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.config.keys import CompactionSection
from strandline.lake.ports.rewrite import Bin, DataFile
from strandline.maintenance.compaction.files_to_merge import (
    FULL,
    RETRY_US,
    CompactionRules,
    Known,
    Work,
    batches,
    choose,
    signature,
)
from strandline.state.compaction_events import FAILED, BinLeftAlone

MIB = 1024 * 1024
A = Bin("a", 0)
SETTINGS = CompactionSection()


def file(lo: int, hi: int, *, bytes_: int = 1000, snapshot: int = 1, bin_: Bin = A) -> DataFile:
    return DataFile(bin_, lo, hi, hi - lo, bytes_, snapshot)


def row_of(count: int, **more: Any) -> list[DataFile]:
    return [file(i * 10, i * 10 + 10, **more) for i in range(count)]


def chosen(
    files: Iterable[DataFile], *, full: bool = False, known: Known | None = None, **rules: Any
) -> list[Work]:
    asked = CompactionRules(rules.pop("settings", SETTINGS), lambda _: full, **rules)
    return choose(files, asked, known or Known({}, {}))


def test_a_filling_bin_waits_until_enough_files_of_a_tier_have_gathered() -> None:  # L-CMP-1
    assert chosen(row_of(31)) == []

    (work,) = chosen(row_of(32))

    assert (work.lo, work.hi, work.files, work.level, work.is_whole) == (0, 320, 32, 1, False)


def test_only_the_files_of_the_tier_are_merged() -> None:  # L-CMP-1
    large = file(0, 1_000, bytes_=40 * MIB)
    small = [file(1_000 + i, 1_001 + i) for i in range(32)]

    (work,) = chosen([large, *small])

    assert (work.lo, work.hi) == (1_000, 1_032)


def test_files_that_do_not_follow_each_other_stay_apart() -> None:  # L-CMP-5: else ranges would overlap
    before, after = row_of(20), [file(1_000 + i, 1_001 + i) for i in range(20)]
    between = file(200, 1_000, bytes_=40 * MIB)

    assert chosen([*before, between, *after]) == []


def test_the_second_tier_takes_in_what_lies_between_its_files() -> None:  # L-CMP-1, L-CMP-5
    merged = [file(i * 100, i * 100 + 99, bytes_=2 * MIB) for i in range(32)]
    between = [file(i * 100 + 99, i * 100 + 100) for i in range(32)]

    (work,) = chosen([*merged, *between])

    assert (work.lo, work.hi, work.files, work.level) == (
        0,
        3_199,
        63,
        2,
    )  # the last small one is not between


def test_what_a_tier_made_is_of_the_next_one_however_small_it_is() -> None:  # L-CMP-1: thrice in its life
    made = Known({7: 1}, {})

    assert chosen([file(0, 320, snapshot=7), *(file(320 + i, 321 + i) for i in range(31))], known=made) == []
    (work,) = chosen([file(i, i + 1, snapshot=7) for i in range(32)], known=made)
    assert work.level == 2


def test_a_full_bin_is_rewritten_once_and_then_left_alone() -> None:  # L-CMP-1
    (work,) = chosen(row_of(2), full=True)

    assert (work.level, work.files, work.is_whole) == (FULL, 2, True)
    assert chosen(row_of(2, snapshot=9), full=True, known=Known({9: FULL}, {})) == []
    assert chosen(row_of(1), full=True) == []


def test_a_full_bin_of_which_rows_were_deleted_is_rewritten_again() -> None:  # L-CMP-1
    files = [file(0, 10, snapshot=9), file(10, 20, snapshot=12)]

    assert len(chosen(files, full=True, known=Known({9: FULL}, {}))) == 1


def test_a_full_bin_whose_files_could_not_be_fewer_is_left_alone() -> None:  # L-CMP-8
    files = [file(0, 10, bytes_=120 * MIB), file(10, 20, bytes_=120 * MIB)]

    assert chosen(files, full=True) == []
    overlapping = [file(0, 15, bytes_=120 * MIB), file(10, 20, bytes_=120 * MIB)]
    assert len(chosen(overlapping, full=True)) == 1  # L-CMP-5


def test_one_full_file_of_a_collapse_dataset_is_judged_once() -> None:  # L-CMP-1, L-CMP-3
    files = row_of(1)
    left = {(A.place, A.first): BinLeftAlone(signature(files), "no repeats", 0)}

    assert len(chosen(files, full=True, is_collapse=True)) == 1
    assert chosen(files, full=True, is_collapse=True, known=Known({}, left)) == []
    assert len(chosen(row_of(1, bytes_=1_001), full=True, is_collapse=True, known=Known({}, left))) == 1


def test_what_failed_is_tried_again_when_it_changes_or_after_a_day() -> None:  # L-CMP-8
    files = row_of(32)
    left = {(A.place, A.first): BinLeftAlone(signature(files), f"{FAILED}: no", 5)}

    assert chosen(files, known=Known({}, left, now=6)) == []
    assert len(chosen(files, known=Known({}, left, now=5 + RETRY_US))) == 1
    assert len(chosen([*files, file(320, 330)], known=Known({}, left, now=6))) == 1


def test_force_takes_what_is_not_due() -> None:  # L-CMP-1
    (work,) = chosen(row_of(2), force=True)

    assert (work.files, work.level, work.is_whole) == (2, 2, True)
    assert chosen(row_of(1), force=True) == []


def test_a_shared_bin_that_was_full_takes_late_sources_by_tiers() -> None:  # L-SCH-1: new sources begin at 1
    known = Known({9: FULL}, {})
    late = [file(100, 110, snapshot=9), *(file(110 + i, 111 + i) for i in range(31))]

    assert chosen(late, full=True, is_shared=True, known=known) == []
    (work,) = chosen([*late, file(150, 151)], full=True, is_shared=True, known=known)
    assert (work.lo, work.files) == (110, 32)


def test_the_neediest_comes_first() -> None:  # L-CMP-8
    few = [each._replace(bin=Bin("few", 0)) for each in row_of(32)]
    many = [each._replace(bin=Bin("many", 0)) for each in row_of(200)]

    assert [work.bin.place for work in chosen([*few, *many])] == ["many", "few"]


def test_a_batch_has_one_level_and_one_stretch_of_a_bin() -> None:  # L-CMP-5
    runs = [*row_of(32), file(320, 400, bytes_=40 * MIB), *(file(400 + i, 401 + i) for i in range(32))]
    other = [each._replace(bin=Bin("b", 0)) for each in row_of(32)]
    full = [each._replace(bin=Bin("c", 0)) for each in row_of(3)]
    works = choose(
        [*runs, *other, *full], CompactionRules(SETTINGS, lambda bin_: bin_.place == "c"), Known({}, {})
    )

    cut = list(batches(works))

    assert sorted(work.level for work in works) == [1, 1, 1, FULL]
    assert all(len({work.level for work in batch}) == 1 for batch in cut)
    assert all(len({work.bin for work in batch}) == len(batch) for batch in cut)
    assert sum(map(len, cut)) == 4


# Over a long life


@dataclass
class Table:
    """Files of one strand, appended to and compacted as the real one is; every rewrite is counted."""

    width: int
    settings: CompactionSection
    files: list[DataFile] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    hi: int = 0
    commits: int = 0
    rewritten: dict[int, int] = field(default_factory=dict)  # by seq

    def flush(self, rows: int, row_bytes: int) -> None:
        self.commits += 1
        lo, end = self.hi, self.hi + rows
        while lo < end:
            first = (lo + 1) - (lo + 1) % self.width
            hi = min(end, first + self.width - 1)
            self.files.append(DataFile(Bin("a", first), lo, hi, hi - lo, (hi - lo) * row_bytes, self.commits))
            lo = hi
        self.hi = end

    def due(self) -> list[Work]:
        rules = CompactionRules(self.settings, lambda bin_: self.hi >= bin_.first + self.width - 1)
        return choose(self.files, rules, Known(self.made, {}))

    def walk(self) -> int:
        works = self.due()
        for batch in batches(works):
            self.commits += 1
            for work in batch:
                self._merge(work)
            self.made[self.commits] = batch[0].level
        return len(works)

    def _merge(self, work: Work) -> None:
        taken = [f for f in self.files if f.bin == work.bin and work.lo <= f.lo and f.hi <= work.hi]
        assert len(taken) == work.files
        self.files = [f for f in self.files if f not in taken]
        total = sum(f.bytes for f in taken)
        pieces = max(-(-total // self.settings.target_file_bytes), 1)
        lo = work.lo
        for i in range(1, pieces + 1):
            hi = work.lo + (work.hi - work.lo) * i // pieces
            self.files.append(DataFile(work.bin, lo, hi, hi - lo, total // pieces, self.commits))
            lo = hi
        for seq in range(work.lo + 1, work.hi + 1):
            self.rewritten[seq] = self.rewritten.get(seq, 0) + 1


@settings(max_examples=40)
@given(
    flushes=st.lists(st.tuples(st.integers(1, 60), st.integers(10, 40_000)), min_size=1, max_size=250),
    every=st.integers(1, 40),
    count=st.integers(2, 8),
)
def test_no_row_is_rewritten_more_than_three_times_and_every_walk_converges(
    flushes: list[tuple[int, int]], every: int, count: int
) -> None:
    """L-CMP-1, L-CMP-5, L-CMP-8, F-42: any mix of sizes, any rhythm of walks."""
    sizes = CompactionSection(file_count=count, tier_bytes=(64_000, 1_000_000), target_file_bytes=4_000_000)
    table = Table(500, sizes)

    for number, (rows, row_bytes) in enumerate(flushes):
        table.flush(rows, row_bytes)
        if number % every == 0:
            walks = 0
            while table.walk():
                walks += 1
                assert walks <= 3  # a tier may make the next one due, and no more
    while table.walk():
        pass

    assert table.due() == []
    assert max(table.rewritten.values(), default=0) <= 3
    in_order = sorted(table.files, key=lambda each: each.lo)
    assert all(one.hi <= two.lo for one, two in pairwise(in_order))
    assert sum(each.rows for each in in_order) == table.hi
    full = [each for each in in_order if table.hi >= each.bin.first + 499]
    per_bin = {each.bin: [f for f in full if f.bin == each.bin] for each in full}
    assert all(
        len(files) <= max(-(-sum(f.bytes for f in files) // sizes.target_file_bytes), 1)
        for files in per_bin.values()
    )
