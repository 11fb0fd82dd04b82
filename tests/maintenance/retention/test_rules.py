"""What retention decides without a table: from the configuration, from bounds of files, from what the last
look has kept."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.base.ranges import Range, RangeSet
from strandline.config.config import ConfigError, load_config
from strandline.delivery.audit.explain_missing import StrandRows, Took, unexplained
from strandline.ingest.append import append
from strandline.lake.jobs.prune import doomed_sql
from strandline.lake.metadata.file_bounds import NOTHING, UNKNOWN
from strandline.lake.ports.prune import (
    Condition,
    FileBounds,
    PrunePart,
    RowPlace,
    RowsToDelete,
    TableFiles,
    TimeBounds,
    TimeColumn,
    doomed_data,
    doomed_of,
)
from strandline.maintenance.chores import Chore, Chores, Done
from strandline.maintenance.dataset_status import retention_status
from strandline.maintenance.retention.last_look import LastLook, keeping, kept_of
from strandline.maintenance.retention.prune_candidates import Ripe, may_hold, oldest, ripe, ripens_at
from strandline.maintenance.retention.rules import RetentionRules, rules_of
from strandline.maintenance.retention.sink_marks import Marks
from strandline.persist import open_store
from tests.maintenance.house import DAY_US, HOUR_US, HandClock
from tests.sites import make_site

SINK = '[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "archive"\n'


def file(
    lo: int = 0,
    hi: int = 10,
    *,
    at: tuple[int, int] = (100, 200),
    times: tuple[TimeBounds, ...] = (),
    sources: tuple[str, str] = ("a", "a"),
) -> FileBounds:
    return FileBounds(sources, Range(lo, hi), at, times, hi - lo, 10 * (hi - lo))


# Configuration


def written(folder: Path, text: str) -> Path:
    path = folder / "strandline.toml"
    path.write_text(f"version = 1\n{text}")
    return path


def test_names_in_retention_are_checked(tmp_path: Path) -> None:
    """L-CFG-2: a sink that is not there is a fault; a dataset that nobody declared is odd, and a fault where
    none may come that is not."""
    with pytest.raises(ConfigError, match="'centre' is no sink; there are archive"):
        load_config(written(tmp_path, f'{SINK}[retention]\nwait_for_sinks = ["archive", "centre"]\n'))
    odd = "[retention]\ndatasets = {orders = {days = 3}, logs = {days = 4}}\n"
    (warning,) = load_config(written(tmp_path, odd)).warnings
    assert warning.startswith("retention.datasets.orders: 'orders' is no dataset that is declared")
    with pytest.raises(ConfigError, match=r"retention\.datasets\.orders"):
        load_config(written(tmp_path, f"[node]\nstrict_datasets = true\n{odd}"))


def test_what_is_said_of_a_dataset_goes_before_what_is_said_of_all(tmp_path: Path) -> None:
    """L-RET-2: and 0 days are for ever."""
    config = load_config(
        written(
            tmp_path,
            f"{SINK}[retention]\ndefault_days = 30\nmin_residence_h = 1\n"
            "datasets = {logs = {days = 7, max_rows = 5}, traces = {days = 0}}\n",
        )
    )
    site = make_site(open_store("memory:"), tmp_path)
    site.declared = config.declared
    logs, traces, metrics = (rules_of(config, site, name) for name in ("logs", "traces", "metrics"))
    assert (logs.keep_us, logs.max_rows, logs.residence_us) == (7 * DAY_US, 5, HOUR_US)
    assert logs.times == (TimeColumn("ts", "timestamp"),)
    assert [each.instance for each in logs.sinks] == ["archive"]
    assert (traces.is_limited, traces.cutoff(5)) == (False, None)
    assert metrics.keep_us == 30 * DAY_US


# Bounds


def test_a_file_is_as_old_as_the_first_column_that_may_date_its_rows() -> None:
    """L-RET-2, L-RET-8: a column without nulls decides alone; with them the next one counts as well."""
    dated = TimeBounds(50, 60, has_null=False)
    assert oldest(file(times=(dated, TimeBounds(1, 2, has_null=False)))) == 50
    assert oldest(file(times=(dated._replace(has_null=True), TimeBounds(7, 8, has_null=False)))) == 7
    assert oldest(file(times=(dated._replace(has_null=True), NOTHING))) == 50
    assert oldest(file(times=(NOTHING,))) == 100
    assert oldest(file(times=(UNKNOWN,))) < -(2**60)
    assert oldest(file()) == 100


def test_files_are_ruled_out_by_their_bounds() -> None:
    """L-RET-8."""
    old = file(times=(TimeBounds(50, 60, has_null=False),))
    assert may_hold(old, Condition(101, older_than=51))
    assert not may_hold(old, Condition(100, older_than=51))  # it came in later
    assert not may_hold(old, Condition(101, older_than=50))
    assert may_hold(old, Condition(101, first=RowPlace(100, "a", 1)))
    assert not may_hold(old, Condition(101, first=RowPlace(99, "z", 9)))
    assert not may_hold(old, Condition(101, older_than=51, within=RowPlace(99, "z", 9)))


def test_strands_of_a_file_that_several_share_are_those_between_its_bounds() -> None:
    """L-SCH-1: under source_buckets; more may be named than have rows, never fewer."""
    files = TableFiles("p", (file(0, 10, sources=("b", "d")), file(20, 30, sources=("c", "c"))))
    found = ripe(files, Condition(1000, older_than=1000), ["a", "b", "c", "d", "e"])
    assert found == {
        "b": Ripe(Range(0, 10), 10),
        "c": Ripe(Range(0, 30), 20),
        "d": Ripe(Range(0, 10), 10),
    }


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(0, 30),
    st.integers(0, 20),
    st.integers(0, 120),
)
def test_nothing_becomes_ripe_before_the_instant_that_is_told(
    dated: list[tuple[int, int]], keep: int, residence: int, now: int
) -> None:
    """L-RET-8: up to then no file can have another row to lose, and at that instant one may."""
    rules = RetentionRules(keep_us=keep, residence_us=residence)
    files = TableFiles(
        "p", tuple(file(at=(at, at), times=(TimeBounds(time, time, has_null=False),)) for at, time in dated)
    )

    def ripe_at(instant: int) -> list[bool]:
        cutoff = rules.cutoff(instant)
        if cutoff is None:
            return []
        condition = Condition(instant - residence, older_than=cutoff)
        return [may_hold(each, condition) for each in files.files]

    told = ripens_at(files, rules, None, now)
    changes = [instant for instant in range(now + 1, 200) if ripe_at(instant) != ripe_at(instant - 1)]
    assert told == (changes[0] if changes else None)


# What is kept, and what is said


def test_what_is_kept_comes_back_and_what_cannot_be_read_is_looked_for_again() -> None:
    """L-RET-10: it is a cache."""
    b = open_store("memory:")
    assert kept_of(b, "logs") is None
    kept = LastLook(
        1, 2, "p", "r", 5, RowPlace(1, "a", 2), {"web/1": Ripe(Range(0, 5), 5)}, is_over_limit=True
    )
    b.commit([], [keeping("logs", kept)])
    assert kept_of(b, "logs") == kept
    b.kv_put("retention/logs", {"at": "soon"})
    assert kept_of(b, "logs") is None


def test_bounds_come_back_from_an_event_as_they_were() -> None:
    """L-RET-7: the same bounds are deleted again."""
    doomed = RowsToDelete(
        (TimeColumn("ts", "bigint", "ms"), TimeColumn("day", "date")),
        (
            PrunePart(Condition(5, 4), {"a": Range(0, 7), "b/c": Range(1, 2)}, 6),
            PrunePart(Condition(5, None, RowPlace(1, "a'b", 3), RowPlace(2, "z", 4)), {"a": Range(7, 9)}),
        ),
    )
    assert doomed_of(doomed_data(doomed)) == doomed
    assert doomed_sql(doomed_of(doomed_data(doomed))) == doomed_sql(doomed)
    assert doomed_sql(RowsToDelete((), ())) == "false"


def test_retention_of_a_node_without_a_table_is_told_from_the_store(tmp_path: Path) -> None:
    """L-RET-10, L-OBS-1."""
    config = load_config(written(tmp_path, SINK))
    site = make_site(open_store("memory:"), tmp_path)
    append(site, "rows", [{"n": 1}], source="a")
    found = retention_status(config, site, "rows", 100 * DAY_US, is_past=False)
    assert Marks(site, rules_of(config, site, "rows"), "rows").through("a") == 0
    assert (found.cutoff, found.looked_at, found.rows, dict(found.held)) == (10 * DAY_US, None, 0, {})


# The account of rows that are gone


def landed(there: list[Range], took: tuple[Took, ...] = (), **flushes: list[Range]) -> StrandRows:
    by_flush = {int(name.removeprefix("f")): ranges for name, ranges in flushes.items()}
    return StrandRows(by_flush, RangeSet.of(there), took)


def kinds(strand: StrandRows, left_out: dict[int, int] | None = None) -> list[tuple[str, list[Range]]]:
    return [(each.kind, list(each.ranges)) for each in unexplained({"a": strand}, left_out or {})]


def test_rows_that_were_removed_by_a_record_are_no_fault_and_others_are() -> None:
    """G-2, G-3: as many as are recorded, where they are recorded."""
    took = (Took(Range(0, 10), 8),)
    whole = [Range(0, 20)]
    assert kinds(landed([Range(3, 4), Range(8, 9), Range(10, 20)], took, f1=whole)) == []
    assert kinds(landed([Range(3, 4), Range(10, 20)], took, f1=whole)) == [("row_missing", [Range(0, 10)])]
    assert kinds(landed([Range(0, 3), Range(10, 20)], took, f1=whole)) == [("row_unexpected", [Range(0, 10)])]
    assert kinds(landed([Range(3, 4), Range(8, 9), Range(10, 15)], took, f1=whole)) == [
        ("row_missing", [Range(15, 20)])
    ]


def test_what_a_flush_left_out_is_told_apart_from_what_was_removed() -> None:
    """L-STAMP-7, G-2: the two together are all that may be absent."""
    took = (Took(Range(0, 10), 8),)
    whole = [Range(0, 20)]
    assert kinds(landed([Range(3, 4), Range(10, 20)], took, f1=whole), {1: 1}) == []
    assert kinds(landed([Range(3, 4), Range(8, 9), Range(11, 20)], took, f1=whole), {1: 1}) == []
    assert kinds(landed([Range(3, 4), Range(11, 20)], took, f1=whole), {1: 1}) == [
        ("row_missing", [Range(0, 10)])
    ]
    assert kinds(landed([Range(3, 4), Range(8, 9), Range(10, 20)], took, f1=whole), {1: 1}) == [
        ("row_unexpected", [Range(0, 10)])
    ]


def test_a_run_that_is_under_way_may_have_removed_its_rows_or_not() -> None:
    """G-3: and no more than those."""
    took = (Took(Range(0, 10), 8, is_open=True),)
    whole = [Range(0, 20)]
    assert kinds(landed(whole, took, f1=whole)) == []
    assert kinds(landed([Range(8, 20)], took, f1=whole)) == []
    assert kinds(landed([Range(9, 20)], took, f1=whole)) == [("row_missing", [Range(0, 10)])]


# Chores


def chores(clock: HandClock, b: Any, done: list[Done], acts: list[str]) -> Chores:
    def act() -> str:
        acts.append("prune")
        return "done"

    def fail() -> None:
        raise ValueError("no")

    return Chores(
        b, clock, [Chore("retention", HOUR_US, act), Chore("other", 2 * HOUR_US, fail)], done.append
    )


def test_chores_are_done_at_their_interval_also_after_a_restart() -> None:
    """L-RET-1: what is due is begun, what fails is told, and neither is begun again before its time."""
    clock, b, told, acts = HandClock(), open_store("memory:"), list[Done](), list[str]()
    first = chores(clock, b, told, acts)
    assert first.tick() == ["retention", "other"]
    assert first.wait(30) == []
    assert first.tick() == []
    assert {each.name: str(each.result) for each in told} == {"retention": "done", "other": "no"}

    again = chores(clock, b, told, acts)
    clock.forward(hours=0.9)
    assert again.due() == []
    clock.forward(hours=0.1)
    assert again.tick() == ["retention"]
    assert again.wait(30) == []
    assert again.next_at("retention") == clock.now + HOUR_US
    clock.forward(hours=-5)  # a clock that goes back puts nothing off for long
    assert again.due() == []
    clock.forward(hours=1)
    assert again.due() == ["retention"]
    assert again.stop() == []
    assert again.tick() == []
    assert len(acts) == 2
