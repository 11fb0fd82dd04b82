"""When a look at a table need not be taken: pure, over what the last one found."""

from pathlib import Path
from typing import Any

import pytest

from strandline.base.ranges import Range
from strandline.maintenance.retention.last_look import LastLook
from strandline.maintenance.retention.prune_candidates import Ripe
from strandline.maintenance.sweeps import age_index
from strandline.persist import kv_put, mem_backend
from strandline.state.strand_entries import ControlUnreadable
from tests.sites import make_site

NOBODY: Any = None  # the marks of sinks, where no rows wait for one


@pytest.mark.parametrize(
    ("ripens_at", "now", "is_idle"), [(None, 9, True), (10, 9, True), (10, 10, False), (10, 11, False)]
)
def test_a_table_is_idle_until_its_next_rows_are_old_enough(
    ripens_at: int | None, now: int, is_idle: bool
) -> None:  # L-COST-1, L-RET-1
    look = LastLook(1, 5, "pointer", "rules", ripens_at)

    assert look.is_idle("pointer", "rules", NOBODY, now) is is_idle
    assert not look.is_idle("another", "rules", NOBODY, now)
    assert not look.is_idle("pointer", "others", NOBODY, now)


def test_no_row_is_above_the_last_one() -> None:
    ripe = Ripe(Range(10, 20), 7)

    assert [ripe.above(seq, 100) for seq in (0, 13, 17, 20, 30)] == [7, 7, 3, 0, 0]
    assert [ripe.above(0, most) for most in (5, 10, 14)] == [0, 0, 4]


@pytest.mark.parametrize("kept", [7, [[1]], [["a", 2]]])
def test_marks_of_age_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path, kept: Any) -> None:
    """L-CTL-4."""
    site = make_site(mem_backend(), tmp_path / "content")
    kv_put(site.b, age_index._KEY, kept)

    with pytest.raises(ControlUnreadable):
        age_index.reached(site, 1)
