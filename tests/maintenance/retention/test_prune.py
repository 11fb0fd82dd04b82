"""Retention with real Spark and real Iceberg: which rows go, when, and what is recorded of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import StrandlineError
from strandline.ingest.append import append
from strandline.lake.jobs import prune
from strandline.lake.jobs.prune import Pruner
from strandline.lake.metadata.file_bounds import file_bounds
from strandline.node.status import status_of
from strandline.persist import read
from strandline.rows.dataset import Strand
from strandline.state.lease import LeaseHeld, take_lease
from strandline.state.retention_events import retention_stream
from strandline.state.strand_entries import Reserved, append_of
from tests.maintenance.house import DAY_US, START_US, Crash, House, at_point, crash

POINTS = (
    "retention.intend",
    "retention.intended",
    "retention.delete",
    "retention.deleted",
    "retention.record",
    "retention.recorded",
)


def test_rows_go_when_they_are_too_old_by_metadata_alone_where_files_go_whole(each_house: House) -> None:
    """L-RET-2, L-RET-7, on classic Spark and on Connect: the age is that of ingest where no column says
    another, and a file that goes whole is not opened."""
    house = each_house
    house.land(30)
    house.land(5, "a/b")
    house.clock.forward(days=50)
    house.land(10)
    house.clock.forward(days=41)

    result = house.prune()

    assert (result.rows, result.evicted) == (35, 0)
    assert house.seqs() == list(range(31, 41))
    assert house.seqs("a/b") == []
    assert house.operations()[-1] == "delete"
    strand_state = house.strand_state()
    assert (strand_state.hi, strand_state.visible_through, strand_state.front) == (40, 40, 30)
    assert (strand_state.bare, strand_state.removed_rows) == (30, 30)
    assert house.strand_state("a/b").bare == 5
    pruning = house.site.standing.prunings().of(house.dataset)
    assert (pruning.open, pruning.rows, pruning.front) == (0, 35, 2)
    assert [each.status for each in house.proof(house.config())] == ["ok", "ok"]


def test_the_age_is_that_of_the_declared_column_then_of_its_fallbacks(each_house: House) -> None:
    """L-RET-2: exact to the row, by timestamp, date or number in its declared unit."""
    house = each_house
    config = house.config(
        f"[datasets.{house.dataset}]\n"
        'columns = {n = "bigint", ts = "timestamp", ms = "double", day = "date"}\n'
        'timestamp = "ts"\ntimestamp_fallbacks = ["ms", "day"]\ntimestamp_unit = "ms"\n'
    )
    house.site.declared = config.declared
    now = datetime.fromtimestamp(START_US / 1e6, UTC)
    old, new = now - timedelta(days=89), now - timedelta(days=80)
    rows: list[dict[str, Any]] = [
        {"n": 1, "ts": old, "ms": new.timestamp() * 1000},
        {"n": 2, "ts": new, "ms": old.timestamp() * 1000},
        {"n": 3, "ms": old.timestamp() * 1000},
        {"n": 4, "ms": new.timestamp() * 1000, "day": old.date()},
        {"n": 5, "ms": float("nan"), "day": old.date()},
        {"n": 6, "day": new.date()},
        {"n": 7},
    ]
    append(house.site, house.dataset, rows, source="web-1")
    house.flush()
    house.clock.forward(days=2.5)

    result = house.prune(config)

    assert (result.rows, house.seqs()) == (3, [2, 4, 6, 7])
    assert house.operations()[-1] == "overwrite"
    assert house.strand_state().bare == 1
    house.clock.forward(days=80)
    assert house.prune(config).rows == 3
    assert house.seqs() == [7]


def test_no_row_goes_before_it_was_here_for_a_while(house: House) -> None:
    """L-RET-3, F-20: a year-old row that came in today stays until min_residence_h is over."""
    config = house.config(f'[datasets.{house.dataset}]\ncolumns = {{ts = "timestamp"}}\ntimestamp = "ts"\n')
    house.site.declared = config.declared
    year_old = datetime.fromtimestamp(START_US / 1e6, UTC) - timedelta(days=365)
    append(house.site, house.dataset, [{"ts": year_old}] * 5, source="web-1")
    house.flush()
    house.clock.forward(hours=23.9)
    assert house.prune(config).rows == 0
    assert len(house.seqs()) == 5

    house.clock.forward(hours=0.2)
    assert house.prune(config).rows == 5


def test_too_many_rows_go_oldest_ingest_first_and_those_of_one_instant_by_seq(each_house: House) -> None:
    """L-RET-2: max_rows, over all strands."""
    house = each_house
    append(house.site, house.dataset, [{"n": n} for n in range(30)], source="b")
    append(house.site, house.dataset, [{"n": n} for n in range(10)], source="a")
    house.flush()
    house.clock.forward(hours=1)
    house.land(40, "a")
    house.clock.forward(days=2)
    config = house.config(f"[retention]\ndatasets = {{{house.dataset} = {{days = 0, max_rows = 55}}}}\n")

    result = house.prune(config)

    assert (result.cutoff, result.rows) == (None, 25)
    assert house.seqs("a") == list(range(11, 51))
    assert house.seqs("b") == list(range(16, 31))
    assert house.prune(config).rows == 0
    assert {each.status for each in house.proof(config)} == {"ok"}


def test_too_many_bytes_go_too(house: House) -> None:
    """L-RET-2: max_bytes, by what a row takes on average."""
    for _ in range(4):
        house.land(100)
        house.clock.forward(hours=1)
    house.clock.forward(days=2)
    files = file_bounds(house.lake, house.dataset)
    config = house.config(
        f"[retention]\ndatasets = {{{house.dataset} = {{days = 0, max_bytes = {files.bytes * 3 // 4}}}}}\n"
    )

    result = house.prune(config)

    assert 95 <= result.rows <= 105
    assert house.seqs()[0] == result.rows + 1


def test_rows_above_v_stay(house: House) -> None:
    """L-SEQ-7, L-RET-4: behind a reservation that is open nothing is visible, and nothing goes."""
    house.land(5)
    ledger = Strand(house.dataset, "web-1").ledger
    entry = Reserved("load-1", 99, "id", 1, 5, 10)
    house.site.b.commit([], [append_of(ledger, entry, house.clock.now)])
    house.append(5)
    house.flush()
    house.clock.forward(days=100)

    assert house.prune().rows == 5
    assert house.seqs() == [11, 12, 13, 14, 15]
    assert (house.strand_state().visible_through, house.strand_state().bare) == (5, 5)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_was_cut_short_is_finished_with_the_bounds_and_counts_that_it_had(
    house: House, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """L-RET-7, L-CTL-2: a crash at any step, also one after which the rows cannot be counted any more."""
    house.land(20)
    house.clock.forward(days=95)
    house.land(7)
    at_point(monkeypatch, point, crash)
    with pytest.raises(Crash):
        house.prune()
    statuses = {each.status for each in house.proof(house.config())}  # also while it is open
    monkeypatch.undo()
    house.site = house.another_site()
    house.clock.forward(hours=2)

    result = house.prune()

    assert statuses == {"ok"}
    assert house.seqs() == list(range(21, 28))
    assert (house.strand_state().removed_rows, house.strand_state().bare) == (20, 20)
    pruning = house.site.standing.prunings().of(house.dataset)
    assert (pruning.open, pruning.rows) == (0, 20)
    assert result.rows == (0 if point == "retention.recorded" else 20)
    assert result.is_resumed == (point not in ("retention.intend", "retention.recorded"))
    types = [event.type for event in read(house.site.b, retention_stream(house.dataset))]
    assert types == ["intended", "pruned"]
    assert {each.status for each in house.proof(house.config())} == {"ok"}


@pytest.mark.parametrize("point", ["retention.delete", "retention.deleted"])
def test_flushes_and_compactions_beside_a_run_lose_and_revive_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """L-RET-7: what lands meanwhile stays, what is rewritten meanwhile goes all the same."""
    house.land(20)
    house.land(10)
    house.clock.forward(days=95)
    house.land(5)

    def beside() -> None:
        house.compact()
        house.land(4)

    at_point(monkeypatch, point, beside)
    assert house.prune().rows == 30
    assert house.seqs() == list(range(31, 40))
    assert {each.status for each in house.proof(house.config())} == {"ok"}


def test_only_one_keeps_house_at_a_time(house: House) -> None:
    """L-CTL-5, L-RET-7."""
    house.land(5)
    house.clock.forward(days=100)
    lease = take_lease(house.site.b, house.clock, f"maintain/{house.dataset}")
    with pytest.raises(LeaseHeld):
        house.prune(timeout_s=0)
    lease.release()
    assert house.prune(timeout_s=0).rows == 5


def test_what_cannot_go_needs_no_spark_and_a_second_look_not_even_the_metadata(house: House) -> None:
    """L-RET-8: files whose bounds rule them out are not opened, and the next look reads one key."""
    house.land(20)
    house.clock.forward(days=60)
    house.land(20, "web-2")

    def never() -> Any:
        raise AssertionError("Spark was asked for")

    class Looking(Pruner):
        looks = 0

        def files(self, *args: Any) -> Any:
            Looking.looks += 1
            return super().files(*args)

    upkeep = Looking(never, house.lake)
    assert house.prune(upkeep=upkeep).rows == 0
    assert house.prune(upkeep=upkeep).rows == 0
    looks = Looking.looks
    house.clock.forward(days=29)
    assert house.prune(upkeep=upkeep).rows == 0
    assert Looking.looks == looks
    house.clock.forward(days=2)
    assert house.prune().rows == 20
    assert house.seqs("web-2") == list(range(1, 21))


def test_a_dry_run_counts_and_changes_nothing(house: House) -> None:
    """L-RET-1, L-CLI-3."""
    house.land(20)
    house.clock.forward(days=95)
    position, snapshots = house.site.b.last_seq("$global"), len(house.operations())

    result = house.prune(is_dry=True)

    assert (result.rows, result.strands["web-1"].rows, result.is_dry) == (20, 20, True)
    assert (house.site.b.last_seq("$global"), len(house.operations())) == (position, snapshots)
    assert len(house.seqs()) == 20


def test_a_file_that_cannot_be_read_is_reported_and_the_run_stays_open(house: House) -> None:
    """L-RET-8, G-3: nothing is skipped in silence; put back, the same run comes to its end."""
    config = house.config(f'[datasets.{house.dataset}]\ncolumns = {{ts = "timestamp"}}\ntimestamp = "ts"\n')
    house.site.declared = config.declared
    now = datetime.fromtimestamp(START_US / 1e6, UTC)
    append(house.site, house.dataset, [{"ts": now - timedelta(days=n)} for n in (1, 200)], source="web-1")
    house.flush()
    house.clock.forward(days=2)
    (file,) = (Path(each.removeprefix("file:")) for each in house.files())

    class Failing(Pruner):
        def delete(self, *args: Any) -> None:
            hidden = file.rename(file.with_suffix(".hidden"))
            try:
                super().delete(*args)
            finally:
                hidden.rename(file)

    with pytest.raises(StrandlineError):
        house.prune(config, upkeep=Failing(lambda: house.spark, house.lake))
    assert "retention_open" in [each.kind for each in status_of(config, house.site).causes]
    assert house.prune(config).is_resumed
    assert house.seqs() == [1]


def test_a_prune_of_rows_whose_column_the_table_does_not_have_yet(house: House) -> None:
    """L-RET-2, L-SCH-5: a declared time that no flush has brought to the table dates no row of it."""
    house.land(5)
    config = house.config(
        f'[datasets.{house.dataset}]\ncolumns = {{n = "bigint", ts = "timestamp"}}\ntimestamp = "ts"\n'
    )
    house.site.declared = config.declared
    house.clock.forward(days=91)
    assert house.prune(config).rows == 5


def test_the_time_of_a_run_is_what_counts(house: House) -> None:
    """L-RET-2: at the very end of its time a row stays, and a moment later it goes."""
    house.land(1)
    house.clock.now += 90 * DAY_US
    assert house.prune().rows == 0
    house.clock.now += 1
    assert house.prune().rows == 1


def test_many_strands_go_by_their_names_and_what_lands_meanwhile_stays(
    each_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-RET-7: with no time of residence either, on classic Spark and on Connect."""
    house = each_house
    monkeypatch.setattr(prune, "_FEW", 1)
    for source in ("a", "b", "it's"):
        house.append(3, source)
    house.flush()
    house.append(1, "c")
    house.flush()
    house.clock.forward(days=95)
    house.land(2, "a")
    config = house.config(min_residence_h=0.0)

    def beside() -> None:
        house.clock.now -= 95 * DAY_US  # a clock that is wrong: these rows look old
        house.land(2, "b")
        house.clock.now += 95 * DAY_US

    at_point(monkeypatch, "retention.delete", beside)
    result = house.prune(config)

    assert {source: gone.rows for source, gone in result.strands.items()} == {
        "a": 3,
        "b": 3,
        "c": 1,
        "it's": 3,
    }
    assert (house.seqs("a"), house.seqs("b"), house.seqs("c")) == ([4, 5], [4, 5], [])
    assert house.strand_state("b").bare == 3
    assert {each.status for each in house.proof(config)} == {"ok"}
