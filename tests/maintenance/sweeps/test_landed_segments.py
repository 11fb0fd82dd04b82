"""Segments go once their rows have landed for a while; nothing that anybody needs does (L-SPOOL-6,
L-SPOOL-14, F-43)."""

from typing import Any

import pytest

from strandline.base.ranges import Range
from strandline.ingest.append import append, segment_key
from strandline.ingest.spool import declare_lost
from strandline.maintenance.sweeps.age_index import AgeMark, note, reached, thinned
from strandline.maintenance.sweeps.landed_segments import SCOPE, sweep_dataset, sweep_segments
from strandline.persist import Append, Conflict
from strandline.rows.dataset import Strand
from strandline.state.flush_plan import FlushPlan, Share, planned
from strandline.state.landing import SegmentPiece
from strandline.state.lease import held
from strandline.state.pending_rows import pending
from strandline.state.strand_entries import ControlUnreadable, Flushed, append_of
from tests.maintenance.calm import Calm, Crash, crash_at
from tests.simulation import DATASET


@pytest.fixture
def calm() -> Calm:
    return Calm()


def test_a_segment_goes_when_its_rows_have_landed_for_the_grace_period(calm: Calm) -> None:  # L-SPOOL-6, F-43
    landed, pending = calm.land(3), calm.append(2).segment

    early = calm.tidy()
    calm.forward(hours=23)
    before = calm.tidy()
    calm.forward(hours=2)
    after = calm.tidy()

    assert (early.segments.segments, before.segments.segments, after.segments.segments) == (0, 0, 1)
    assert calm.blobs() == {pending}
    assert calm.keys("segment/") == [segment_key(str(pending))]
    assert landed not in calm.blobs()


def test_the_disk_returns_to_the_size_of_what_is_pending(calm: Calm) -> None:  # F-43
    for _ in range(20):
        calm.append(5)
        calm.append(2, "web-2")
    calm.flush()
    before = len(calm.blobs())

    done = calm.after_grace()

    assert (before, calm.blobs(), calm.keys("segment/")) == (40, set(), [])
    assert done.segments.segments == 40
    assert done.segments.bytes > 0
    calm.append(1)
    calm.flush()
    assert len(calm.world.table.rows) == 20 * 7 + 1


def test_a_segment_of_which_one_strand_has_not_landed_waits_and_stops_no_other(
    calm: Calm,
) -> None:  # L-SPOOL-6
    rows = [{"key": "a", "source": "web-1"}, {"key": "b", "source": "web-2"}]
    shared = append(calm.site, DATASET, rows).segment
    ledger = Strand(DATASET, "web-1").ledger
    calm.site.b.commit([], [append_of(ledger, Flushed(1, (Range(0, 1),), 1, 10, 2), calm.world.now_us)])
    single = append(calm.site, DATASET, [{"key": "c"}], source="a/b").segment
    entry = Flushed(1, (Range(0, 1),), 1, 10, 2)
    calm.site.b.commit([], [append_of(Strand(DATASET, "a/b").ledger, entry, calm.world.now_us)])

    first = calm.after_grace()

    assert (first.segments.segments, first.segments.waiting) == (1, 1)
    assert calm.blobs() == {shared}
    assert single not in calm.blobs()

    calm.flush()
    assert calm.after_grace().segments.segments == 1
    assert shared not in calm.blobs()


def test_rows_that_are_recorded_as_landed_twice_do_not_stand_for_others(calm: Calm) -> None:  # L-SPOOL-6
    rows = [{"key": "a", "source": "web-1"}, {"key": "b", "source": "web-2"}]
    shared = append(calm.site, DATASET, rows).segment
    ledger = Strand(DATASET, "web-1").ledger
    for number in (1, 2):
        entry = Flushed(number, (Range(0, 1),), 1 if number == 1 else 0, 0, 2)
        calm.site.b.commit([], [append_of(ledger, entry, calm.world.now_us)])

    calm.after_grace()

    assert shared in calm.blobs()


def test_a_held_segment_stays_until_it_is_given_up(calm: Calm) -> None:  # L-SPOOL-6, L-SPOOL-13
    held_one = calm.append(2).segment
    assert held_one is not None
    digest = held_one.removeprefix("sha256-")
    calm.world.disk.replace(f"sha256/{digest[:2]}/{digest}", b"damaged")
    calm.flush()
    landed = calm.land(1, "web-2")

    calm.after_grace()
    assert calm.blobs() == {held_one}
    assert landed not in calm.blobs()

    declare_lost(calm.site, DATASET, held_one, reason="gone")
    calm.after_grace()
    assert calm.blobs() == set()


def test_a_segment_that_an_open_plan_names_stays_though_the_table_has_its_rows(
    calm: Calm,
) -> None:  # L-SPOOL-6
    receipt = calm.append(1)
    ledger = Strand(DATASET, "web-1").ledger
    piece = _piece(calm)
    share = Share((Range(0, 1),), 2, 1, 10, (piece,))
    plan = FlushPlan(1, f"{DATASET}-1-a", 1, "command", 1, calm.world.now_us, {"web-1": share})
    calm.site.b.commit([], [planned(DATASET, plan)])
    # As a restored store does that finds the rows in its table.
    calm.site.b.commit([], [append_of(ledger, Flushed(1, (Range(0, 1),), 1, 0, 0), calm.world.now_us)])

    calm.after_grace()
    assert receipt.segment in calm.blobs()

    closed = {"number": 1, "id": plan.id}
    calm.site.b.commit([], [Append(f"flush/{DATASET}", "released", 1, closed, globally=True)])
    calm.tidy()
    assert receipt.segment not in calm.blobs()


def _piece(calm: Calm) -> SegmentPiece:
    strand = Strand(DATASET, "web-1")
    first = next(pending(calm.site.b, strand, calm.site.standing.strand_state(strand)))
    return SegmentPiece("web-1", first.entry.segment, 0, 1, 0, first.at)


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_crash_anywhere_in_a_sweep_leaves_its_work_to_the_next(
    calm: Calm, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:  # L-SPOOL-6, L-SPOOL-14
    for _ in range(3):
        calm.land(2)
    pending = calm.append(1).segment
    calm.tidy()
    calm.forward(hours=25)

    with crash_at(monkeypatch, "strandline.maintenance.sweeps.landed_segments", nth) as passed:
        try:
            calm.tidy()
        except Crash:
            pass
        else:
            assert nth > len(passed())

    calm.restarted()
    calm.tidy()
    assert calm.blobs() == {pending}
    assert calm.keys("segment/") == [segment_key(str(pending))]
    calm.flush()
    assert len(calm.world.table.rows) == 7


def test_the_walk_reads_what_is_new_and_not_what_it_has_seen(calm: Calm) -> None:  # L-COST
    for _ in range(30):
        calm.land(1)
    calm.after_grace()
    calm.land(1)
    calm.forward(hours=1)
    calm.tidy()
    calm.forward(hours=25)
    calm.world.counts.clear()

    calm.tidy()

    assert calm.world.counts["read"] < 60
    assert calm.blobs() == set()


def test_a_sweep_beside_another_does_nothing(calm: Calm) -> None:  # L-CTL-5
    calm.land(1)
    calm.tidy()
    calm.forward(hours=25)

    with held(calm.site.b, calm.site.clock, SCOPE):
        assert calm.tidy().is_held

    assert len(calm.blobs()) == 1


def test_one_dataset_can_be_swept_without_grace(calm: Calm) -> None:  # L-POL-3
    gone, pending = calm.land(2), calm.append(1, "web-2").segment
    other = append(calm.site, "others", [{"key": "x"}], source="s").segment

    with held(calm.site.b, calm.site.clock, SCOPE) as lease:
        swept = sweep_dataset(calm.site, lease, DATASET)

    assert swept.segments == 1
    assert calm.blobs() == {pending, other}
    assert gone not in calm.blobs()
    calm.flush()
    assert calm.after_grace().segments.segments == 1
    assert calm.blobs() == {other}


def test_a_state_that_cannot_be_read_removes_nothing(calm: Calm) -> None:  # L-CTL-4
    calm.land(1)
    calm.site.b.kv_put("sweep/segments", {"position": "far"})

    with held(calm.site.b, calm.site.clock, SCOPE) as lease, pytest.raises(ControlUnreadable):
        sweep_segments(calm.site, lease, grace_s=0)

    assert len(calm.blobs()) == 1


def test_an_append_that_repeats_itself_cannot_name_a_swept_segment(
    calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-14, F-44
    calm.land(1, "web-2")
    commits: list[tuple[Any, Any]] = []
    commit = calm.site.b.commit
    with monkeypatch.context() as patched:

        def noted(*given: Any) -> Any:
            commits.append((given[0], given[1]))
            return commit(*given)

        patched.setattr(calm.site.b, "commit", noted)
        calm.append(1)
    calm.flush()
    calm.after_grace()
    for key in calm.keys("request/"):
        calm.site.b.kv_delete(key)
    (expected, writes) = commits[-1]

    outcome = calm.site.b.commit(expected, writes)

    assert isinstance(outcome, Conflict)
    assert outcome.name == Strand(DATASET, "web-1").ledger


# Ages


def test_an_age_is_a_place_that_the_order_had_reached_by_then(calm: Calm) -> None:  # P-IDM-8
    calm.append(1)
    note(calm.site)
    first = reached(calm.site, 0)
    calm.forward(hours=10)
    calm.append(1)
    note(calm.site)

    assert reached(calm.site, 9 * 3_600) == first
    assert reached(calm.site, 11 * 3_600) == 0
    assert reached(calm.site, 0) > first


def test_marks_of_two_months_are_few_and_near_enough() -> None:  # P-IDM-8
    marks: list[AgeMark] = []
    hour = 3_600_000_000
    for each in range(24 * 200):
        marks = thinned([*marks, AgeMark(each * hour, each)], each * hour)

    now = 24 * 200 * hour
    assert len(marks) < 150
    for age_h in (1, 24, 24 * 30):
        nearest = max(mark.at for mark in marks if mark.at <= now - age_h * hour)
        assert now - age_h * hour - nearest <= max(age_h * hour // 10, 2 * hour)


def test_a_mark_of_a_clock_that_was_ahead_is_dropped() -> None:  # P-IDM-8
    assert thinned([AgeMark(900, 5), AgeMark(10, 6)], now=20) == [AgeMark(10, 6)]
