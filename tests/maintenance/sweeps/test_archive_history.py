"""Closed history leaves the store, and no answer changes (L-CTL-6, P-CMP-10)."""

from contextlib import suppress
from typing import Any

import pytest

from strandline.delivery.audit.account import account_of
from strandline.delivery.owed import Terms, numbered_at
from strandline.delivery.run import sync
from strandline.delivery.sink_history import HistoryFolded, history, standing_at
from strandline.errors import HistoryGap
from strandline.ingest.load import load
from strandline.ingest.spool import declare_lost
from strandline.maintenance.sweeps import archive_history
from strandline.persist import global_pos, hold
from strandline.rows.dataset import Strand
from strandline.state.archive import past_events
from strandline.state.next_number import head_of
from strandline.state.node_state import Standing
from strandline.state.strand_entries import Removed, append_of
from tests.delivery.destinations import Bucket, BucketSink, TableCourier
from tests.delivery.simulated import sender
from tests.maintenance.calm import Calm, Crash, crash_at
from tests.shares import some
from tests.simulation import DATASET, SOURCES

STRAND = Strand(DATASET, "web-1")
TERMS = Terms("bucket", max_intent_rows=50)


class Busy(Calm):
    """A node with a sink, that appends, flushes, delivers and tidies, day after day."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bucket = Bucket(self.world)

    def cycle(self, *, hours: float, tidies: bool = True) -> None:
        self.append(1, SOURCES[self.next % 2])
        self.flush()
        self.tick()
        self.forward(hours=hours)
        if tidies:
            self.tidy()

    def tick(self) -> None:
        sync(self.site, lambda: TableCourier(self.world), BucketSink(self.bucket, 10), TERMS, sender())

    def cycles(self, count: int, *, days: float, tidy_every: int = 20) -> None:
        for each in range(count):
            self.cycle(hours=days * 24 / count, tidies=each % tidy_every == 0)

    def events(self) -> int:
        streams = self.site.b.stream_scan("", after="", limit=10_000)
        return sum(each.last_seq - each.truncated_through for each in streams)


@pytest.fixture
def busy() -> Busy:
    return Busy()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, busy: Busy) -> Busy:
    """One that finds a few events worth folding."""
    monkeypatch.setattr(archive_history, "FEWEST", 8)
    monkeypatch.setattr(archive_history, "STAY", 4)
    return busy


def answers(calm: Calm) -> dict[str, Any]:
    """What is asked of old history, in all the ways there are."""
    site = calm.site
    lines = site.standing.lines()
    found: dict[str, Any] = {}
    for source in SOURCES[:2]:
        strand = Strand(DATASET, source)
        line = lines.line(TERMS.name, strand)
        found[source] = [
            site.standing.strand_state(strand),
            head_of(site.b, strand),
            account_of(site, TERMS.name, strand, line).epochs,
            list(past_events(site, strand.ledger)),
            numbered_at(site.b, strand, site.standing.strand_state(strand).hi),
        ]
    found["numbers"] = site.standing.numbers(DATASET)
    found["history"] = list(history(site, TERMS.name))
    found["flushes"] = list(past_events(site, f"flush/{DATASET}"))
    return found


@pytest.mark.parametrize("times", some([500, 1_000], 500))
def test_a_store_stays_bounded_over_sixty_days_of_flushes_and_ticks(
    busy: Busy, times: int
) -> None:  # L-CTL-6, F-43
    busy.cycles(times, days=30)
    month = busy.events()
    busy.cycles(times, days=30)
    busy.tidy()

    # A month of events stays, and of each stream a few more than are worth an archive.
    assert busy.events() < month * 1.3
    assert busy.site.b.truncated_through("$global") > 0.4 * global_pos(busy.site.b)
    assert len(busy.keys("request/")) < 2 * 24 * 3  # those of a day and a bit
    assert len(busy.keys("segment/")) < 2 * 24 * 3
    assert len(busy.world.table.rows) == 2 * times
    assert sorted(busy.bucket.rows().elements()) == sorted(f"k{each}" for each in range(2 * times))


def test_no_answer_changes(eager: Busy) -> None:  # L-CTL-6
    eager.cycles(60, days=40, tidy_every=10)
    before = answers(eager)

    folded = eager.tidy(fold_age_s=86_400).folded

    assert folded.events >= 8
    assert answers(eager) == before
    eager.restarted()
    assert answers(eager) == before


def test_a_fresh_process_and_one_that_slept_stand_where_the_others_do(eager: Busy) -> None:  # L-CTL-6
    eager.cycles(10, days=1)
    asleep = eager.world.site()
    asleep.standing.catch_up()
    eager.cycles(60, days=60, tidy_every=2)
    eager.tidy()

    assert eager.site.b.truncated_through("$global") > asleep.standing.position()
    fresh = Standing(eager.site.b)
    for standing in (asleep.standing, fresh):
        assert standing.strand_state(STRAND) == eager.site.standing.strand_state(STRAND)
        assert standing.numbers(DATASET) == eager.site.standing.numbers(DATASET)
        assert standing.lines().line("bucket", STRAND) == eager.site.standing.lines().line("bucket", STRAND)


def test_a_damaged_snapshot_costs_nothing_as_the_base_is_there(eager: Busy) -> None:  # L-CTL-4, L-CTL-6
    eager.cycles(60, days=60, tidy_every=2)
    eager.tidy()
    before = eager.site.standing.strand_state(STRAND)
    eager.site.b.kv_delete("$snapshot/standing")

    assert Standing(eager.site.b).strand_state(STRAND) == before


def test_an_idle_strand_keeps_the_number_it_is_at(eager: Busy) -> None:  # L-SEQ-1, L-CTL-6
    for _ in range(30):
        eager.append(1)
        eager.flush()
    hi = head_of(eager.site.b, STRAND).hi
    for _ in range(3):
        eager.forward(hours=24 * 40)
        eager.tidy()
    assert eager.site.b.truncated_through(STRAND.ledger) >= 8

    receipt = eager.append(1)

    assert receipt.ranges["web-1"].lo == hi == 30


def test_a_strand_that_only_loses_rows_keeps_the_number_it_is_at(eager: Busy) -> None:  # L-SEQ-1, L-CTL-6
    for _ in range(20):
        eager.append(1)
        eager.flush()
    for each in range(20):
        entry = Removed(f"r{each}", "retention", 0, 1, 0, 0)
        eager.site.b.commit([], [append_of(STRAND.ledger, entry, eager.world.now_us)])
    for _ in range(3):
        eager.forward(hours=24 * 40)
        eager.tidy()
    assert eager.site.b.truncated_through(STRAND.ledger) >= 8

    assert head_of(eager.site.b, STRAND).hi == 20


def test_what_is_pending_held_or_lost_is_told_as_before(eager: Busy) -> None:  # L-SPOOL-13, L-CTL-6
    for _ in range(30):
        eager.append(1)
        eager.flush()
    kept = eager.append(2).segment
    assert kept is not None
    digest = kept.removeprefix("sha256-")
    eager.world.disk.replace(f"sha256/{digest[:2]}/{digest}", b"damaged")
    eager.flush()
    for _ in range(20):
        eager.append(1)
    for _ in range(3):
        eager.forward(hours=24 * 40)
        eager.tidy()
    held = eager.site.standing.strand_state(STRAND)
    assert held.pending_rows == 22

    lost = declare_lost(eager.site, DATASET, kept, reason="gone")
    eager.flush()

    assert lost == {"web-1": (30, 32)}
    assert len(eager.world.table.rows) == 50


def test_a_sink_that_is_behind_keeps_the_entries_that_tell_how_late_it_is(eager: Busy) -> None:  # L-OBS-5
    eager.append(1)
    eager.flush()
    eager.tick()
    numbered = eager.world.now_us
    for _ in range(40):
        eager.append(1)
        eager.flush()
    for _ in range(3):
        eager.forward(hours=24 * 40)
        eager.tidy()

    assert numbered_at(eager.site.b, STRAND, 2) == numbered
    eager.tick()
    eager.tick()
    assert sorted(eager.bucket.rows().elements()) == sorted(f"k{each}" for each in range(41))


def test_an_open_load_and_an_import_of_long_ago_are_found(eager: Busy) -> None:  # L-SEQ-6, L-SPOOL-5
    rows = [{"key": "old"}]
    first = load(eager.site, eager.world.table, DATASET, rows, source="s", request_id="import-1")  # type: ignore[arg-type]
    eager.cycles(60, days=70, tidy_every=2)
    eager.tidy()
    assert eager.site.b.truncated_through(f"flush/{DATASET}") > 2

    again = load(eager.site, eager.world.table, DATASET, rows, source="s", request_id="import-1")  # type: ignore[arg-type]

    assert again.is_repeat
    assert again.number == first.number
    assert again.ranges == first.ranges


def test_a_hold_on_the_order_keeps_what_its_reader_needs(eager: Busy) -> None:  # P-CMP-10
    hold(eager.site.b, "$global", "reader", 50)
    eager.cycles(60, days=70, tidy_every=2)
    eager.tidy()

    assert eager.site.b.truncated_through("$global") <= 50
    for _, event in eager.site.b.global_range(51, limit=500):
        assert eager.site.b.event_at(event.stream, event.seq) is not None


@pytest.mark.parametrize("nth", range(1, 14))
@pytest.mark.parametrize(
    "module", ["strandline.maintenance.sweeps.archive_history", "strandline.state.archive"]
)
def test_a_crash_anywhere_in_a_fold_changes_no_answer(
    eager: Busy, monkeypatch: pytest.MonkeyPatch, module: str, nth: int
) -> None:  # L-CTL-6, P-CMP-8
    eager.cycles(40, days=40, tidy_every=10)
    before = answers(eager)

    with crash_at(monkeypatch, module, nth), suppress(Crash):
        eager.tidy(fold_age_s=86_400)

    eager.restarted()
    assert answers(eager) == before
    eager.tidy(fold_age_s=86_400)
    assert answers(eager) == before
    assert eager.site.b.truncated_through("$global") > 0


def test_how_it_stood_can_be_told_back_to_the_fold_and_before_it_says_so(eager: Busy) -> None:  # L-CTL-6
    eager.cycles(20, days=20, tidy_every=2)
    long_ago = eager.world.now_us
    eager.cycles(60, days=60, tidy_every=2)
    lately, then = eager.world.now_us - 1, eager.site.standing.strand_state(STRAND)
    eager.cycles(10, days=10, tidy_every=2)
    assert eager.site.b.truncated_through("$global")

    assert standing_at(eager.site, lately).strand_state(STRAND) == then
    with pytest.raises(HistoryFolded, match="is folded"):
        standing_at(eager.site, long_ago)


def test_a_stream_that_was_cut_by_hand_is_told(eager: Busy) -> None:  # P-CMP-11
    eager.cycles(5, days=1)
    eager.site.b.truncate_through(STRAND.ledger, 1)

    with pytest.raises(HistoryGap):
        list(past_events(eager.site, STRAND.ledger))
