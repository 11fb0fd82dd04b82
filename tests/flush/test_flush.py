"""Flush and load, step by step, over a table that obeys Iceberg's rules (L-FLUSH, L-SEQ, L-SPOOL-11, -13).

The same over real Spark and Iceberg is in tests/node/test_node.py, under kills in tests/crash.
"""

from typing import Any

import pytest

from strandline.base.ranges import Range
from strandline.config.keys import FlushSection, SpoolSection
from strandline.errors import NotFoundError
from strandline.flush.flush import FlushReport, flush, is_due, oldest_pending
from strandline.ingest.append import append
from strandline.ingest.load import load
from strandline.ingest.spool import declare_lost, spool_lines
from strandline.persist import read
from strandline.rows.dataset import Strand
from strandline.state import node_state as standing_module
from strandline.state.context import Site
from strandline.state.dataset_versions import DatasetUnknown
from strandline.state.lease import LeaseHeld, LeaseLost, take_lease
from strandline.state.node_state import Standing
from strandline.state.strand_entries import Held, append_of
from strandline.state.strand_state import StrandState
from strandline.storage.objects import MemoryObjects
from tests.simulation import DATASET, World, calm_world, simulate


@pytest.fixture
def world() -> World:
    return calm_world()


@pytest.fixture
def site(world: World) -> Site:
    made = world.site()
    made.flush = FlushSection()
    return made


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"key": str(number)} for number in numbers]


def run(site: Site, world: World) -> FlushReport:
    return flush(site, world.table, DATASET)


def landed(world: World, source: str) -> list[tuple[int, str]]:
    return sorted((row.seq, row.key) for row in world.table.rows if row.source == source)


def strand_state(site: Site, source: str) -> StrandState:
    return site.standing.strand_state(Strand(DATASET, source))


def damage(world: World, cid: str | None) -> bytes:
    """Spoil a segment; what it was."""
    assert cid is not None
    digest = cid.removeprefix("sha256-")
    name = f"sha256/{digest[:2]}/{digest}"
    data = world.disk.read(name)
    MemoryObjects.replace(world.disk, name, data[:-1])
    return data


def put_back(world: World, data: bytes) -> None:
    world.content.put(data, "any/mime")


def test_all_that_is_pending_lands_in_one_flush(world: World, site: Site) -> None:  # L-FLUSH-1, L-FLUSH-3
    append(site, DATASET, rows(1, 2), source="a")
    append(site, DATASET, rows(3), source="b")

    report = run(site, world)

    (result,) = report.flushes
    assert (result.number, result.rows, result.reason) == (1, 3, "command")
    assert result.ranges == {"a": (Range(0, 2),), "b": (Range(0, 1),)}
    assert landed(world, "a") == [(1, "1"), (2, "2")]
    assert len(world.table.published) == 1
    assert strand_state(site, "a").visible_through == 2
    assert site.standing.numbers(DATASET).visible == 1


def test_a_flush_of_nothing_takes_no_lease_and_writes_nothing(world: World, site: Site) -> None:
    append(site, DATASET, rows(1), source="a")
    run(site, world)
    keys, streams = world.b.kv_keys(), world.b.streams()
    commits = world.counts["commit"]

    assert run(site, world).flushes == ()

    assert world.counts["commit"] == commits
    assert (world.b.kv_keys(), world.b.streams()) == (keys, streams)


def test_a_flush_of_an_unknown_dataset_is_an_error(world: World, site: Site) -> None:
    with pytest.raises(DatasetUnknown):
        run(site, world)


def test_the_cut_falls_inside_a_segment_and_the_rest_lands_next(world: World, site: Site) -> None:
    """L-FLUSH-6, F-17: the oldest first, each strand in order, until all that was pending has landed."""
    site.flush = FlushSection(max_rows=4)
    append(site, DATASET, rows(1, 2, 3), source="a")
    world.now_us += 1
    append(site, DATASET, [{"key": str(n), "source": "ab"[n % 2]} for n in range(4, 12)])

    report = run(site, world)

    assert [result.rows for result in report.flushes] == [4, 4, 3]
    assert [key for _, key in landed(world, "a")] == ["1", "2", "3", "4", "6", "8", "10"]
    assert [key for _, key in landed(world, "b")] == ["5", "7", "9", "11"]
    assert not site.standing.pending(DATASET)


def test_a_plan_names_a_bounded_number_of_segments(
    world: World, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.flush.choose_rows.MAX_PIECES", 3)
    for number in range(7):
        append(site, DATASET, rows(number), source="a")

    assert [result.rows for result in run(site, world).flushes] == [3, 3, 1]


def test_a_plan_names_a_bounded_number_of_strands(
    world: World, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-FLUSH-6
    monkeypatch.setattr("strandline.flush.choose_rows.MAX_PIECES", 3)
    append(site, DATASET, [{"key": name, "source": name} for name in "abcdefgh"])

    assert [len(result.ranges) for result in run(site, world).flushes] == [3, 3, 2]
    assert not site.standing.pending(DATASET)


def test_rows_that_arrive_during_a_flush_wait_for_the_next(world: World, site: Site) -> None:  # L-FLUSH-6
    append(site, DATASET, rows(1), source="a")
    real = world.table.ensure

    def ensure(dataset: Any, *, has_landed: bool = False) -> None:
        append(site, DATASET, rows(2), source="a")
        world.table.ensure = real  # type: ignore[method-assign]
        real(dataset)

    world.table.ensure = ensure  # type: ignore[method-assign]

    assert run(site, world).rows == 1
    assert run(site, world).rows == 1
    assert landed(world, "a") == [(1, "1"), (2, "2")]


def test_the_record_carries_counts_of_what_was_published(world: World, site: Site) -> None:  # L-FLUSH-12
    append(site, DATASET, rows(1, 2), source="a")
    run(site, world)

    committed = read(world.b, f"flush/{DATASET}")[-1]

    assert committed.type == "committed"
    assert {"number", "id", "rows", "bytes", "files", "duplicates", "dropped", "ms"} <= set(committed.data)
    assert committed.data["rows"] == 2


# Damage


def test_a_strand_waits_in_front_of_a_damaged_segment_and_others_go_on(world: World, site: Site) -> None:
    """L-SPOOL-13, F-22."""
    append(site, DATASET, rows(1), source="a")
    bad = append(site, DATASET, rows(2, 3), source="a")
    append(site, DATASET, rows(4), source="a")
    append(site, DATASET, rows(5), source="b")
    data = damage(world, bad.segment)

    report = run(site, world)

    assert report.held == {"a": (Range(1, 3),)}
    assert landed(world, "a") == [(1, "1")]
    assert landed(world, "b") == [(1, "5")]
    assert strand_state(site, "a").visible_through == 1
    commits = world.counts["commit"]
    assert run(site, world).held == report.held
    assert len([e for e in read(world.b, Strand(DATASET, "a").ledger) if e.type == "held"]) == 1
    assert world.counts["commit"] == commits  # neither a lease nor a second record of the same hold

    put_back(world, data)
    assert run(site, world).held == {}
    assert landed(world, "a") == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
    assert strand_state(site, "a").visible_through == 4


def test_only_an_operator_gives_rows_up_and_v_passes_then(world: World, site: Site) -> None:  # L-SPOOL-13
    bad = append(site, DATASET, [{"key": "1", "source": "a"}, {"key": "2", "source": "b"}])
    append(site, DATASET, rows(3), source="a")
    damage(world, bad.segment)
    run(site, world)
    assert bad.segment is not None

    with pytest.raises(NotFoundError):
        declare_lost(site, DATASET, "sha256-" + "0" * 64, reason="a mistake")
    assert declare_lost(site, DATASET, bad.segment, reason="the disk died") == {"a": (0, 1), "b": (0, 1)}
    run(site, world)

    assert landed(world, "a") == [(2, "3")]
    assert strand_state(site, "a").visible_through == 2
    assert strand_state(site, "b").visible_through == 1
    assert not site.standing.pending(DATASET)
    lost = [e.data for e in read(world.b, Strand(DATASET, "b").ledger) if e.type == "lost"]
    assert [(each["lo"], each["hi"], each["reason"]) for each in lost] == [(0, 1, "the disk died")]


def test_a_segment_that_turns_bad_after_the_plan_cuts_it_under_the_same_number(
    world: World, site: Site
) -> None:
    """L-FLUSH-13."""
    append(site, DATASET, rows(1), source="a")
    bad = append(site, DATASET, rows(2), source="a")
    append(site, DATASET, rows(3), source="b")
    saved: list[bytes] = []
    real = world.table.ensure

    def ensure(dataset: Any, *, has_landed: bool = False) -> None:
        if not saved:
            saved.append(damage(world, bad.segment))
        real(dataset)

    world.table.ensure = ensure  # type: ignore[method-assign]

    report = run(site, world)

    assert [result.number for result in report.flushes] == [1]
    assert report.held == {"a": (Range(1, 2),)}
    assert landed(world, "a") == [(1, "1")]
    assert landed(world, "b") == [(1, "3")]
    put_back(world, saved[0])
    run(site, world)
    assert landed(world, "a") == [(1, "1"), (2, "2")]
    assert world.table.published[0].version == 1


def test_the_record_follows_the_version_that_was_published(world: World, site: Site) -> None:
    """L-FLUSH-13: the whole plan was staged before the segment went bad, and a stale writer publishes
    that."""
    append(site, DATASET, rows(1), source="a")
    bad = append(site, DATASET, rows(2), source="a")
    real_stage, real_publish = world.table.stage, world.table.publish
    calls: list[str] = []

    def stage(landing: Any, *, settle: Any = None) -> None:
        calls.append(f"stage {landing.version}")
        if len(calls) == 1:
            real_stage(landing)
            damage(world, bad.segment)
            world.table._late.append(lambda: world.table._pick(1))
        if len(calls) == 2:
            world.table.deliver_late()
        real_stage(landing)

    def publish(dataset: str, snapshot: int) -> None:
        calls.append(f"publish {snapshot}")
        real_publish(dataset, snapshot)

    world.table.stage, world.table.publish = stage, publish  # type: ignore[method-assign]

    report = run(site, world)

    assert landed(world, "a") == [(1, "1"), (2, "2")]
    assert report.held == {}
    assert strand_state(site, "a").visible_through == 2


def test_a_holder_whose_plan_another_amended_and_landed_learns_that_it_lost_its_lease(
    world: World, site: Site
) -> None:  # L-FLUSH-13, L-SEQ-8
    append(site, DATASET, rows(1), source="a")
    bad = append(site, DATASET, rows(2), source="a")
    real = world.table.ensure

    def sleep_long(dataset: Any, *, has_landed: bool = False) -> None:
        world.table.ensure = real  # type: ignore[method-assign]
        world.now_us += 61_000_000
        data = damage(world, bad.segment)
        flush(world.site(), world.table, DATASET)
        put_back(world, data)
        real(dataset, has_landed=has_landed)

    world.table.ensure = sleep_long  # type: ignore[method-assign]

    with pytest.raises(LeaseLost):
        run(site, world)

    assert landed(world, "a") == [(1, "1")]
    run(site, world)
    assert landed(world, "a") == [(1, "1"), (2, "2")]


def test_the_spool_shows_what_waits_and_why(world: World, site: Site) -> None:  # L-SPOOL-10
    good = append(site, DATASET, rows(1), source="a")
    bad = append(site, DATASET, rows(2), source="b")
    damage(world, bad.segment)

    lines = list(spool_lines(site, DATASET, check=True))

    assert [(line.source, line.segment, line.fault is None) for line in lines] == [
        ("a", good.segment, True),
        ("b", bad.segment, False),
    ]
    run(site, world)
    (held,) = spool_lines(site, DATASET)
    assert (held.source, held.hold is not None) == ("b", True)


def test_a_damaged_backlog_takes_no_room_from_other_strands(world: World, site: Site) -> None:  # L-SPOOL-13
    """However much waits behind the damage, and however little one flush takes."""
    site.flush = FlushSection(max_rows=2)
    bad = append(site, DATASET, rows(1, 2, 3, 4, 5), source="a")
    append(site, DATASET, rows(6, 7, 8), source="a")
    world.now_us += 1
    append(site, DATASET, rows(9, 10, 11), source="b")
    damage(world, bad.segment)

    report = run(site, world)

    assert report.held == {"a": (Range(0, 5),)}
    assert [key for _, key in landed(world, "b")] == ["9", "10", "11"]
    assert run(site, world).held == {"a": (Range(0, 5),)}
    assert len([e for e in read(world.b, Strand(DATASET, "a").ledger) if e.type == "held"]) == 1


def test_giving_up_a_later_hold_leaves_the_earlier_one_waiting(
    world: World, site: Site
) -> None:  # L-SPOOL-13
    first = append(site, DATASET, rows(1), source="a")
    second = append(site, DATASET, rows(2), source="a")
    data = damage(world, first.segment)
    run(site, world)
    assert second.segment is not None
    damage(world, second.segment)
    hold = Held(second.segment, 1, 2, "found by another")
    site.b.commit([], [append_of(Strand(DATASET, "a").ledger, hold, world.now_us)])

    declare_lost(site, DATASET, second.segment, reason="gone")
    put_back(world, data)
    run(site, world)

    assert landed(world, "a") == [(1, "1")]
    assert strand_state(site, "a").visible_through == 2
    assert not site.standing.pending(DATASET)


# Loads beside flushes


def test_no_reader_passes_an_open_load(world: World, site: Site) -> None:  # L-SEQ-7, F-9
    append(site, DATASET, rows(1), source="a")
    run(site, world)
    seen: list[tuple[int, int]] = []
    real = world.table.stage

    def stage(landing: Any, *, settle: Any = None) -> None:
        world.table.stage = real  # type: ignore[method-assign]
        append(site, DATASET, rows(9), source="a")
        flush(site, world.table, DATASET)
        seen.append((strand_state(site, "a").visible_through, site.standing.numbers(DATASET).visible))
        real(landing)

    world.table.stage = stage  # type: ignore[method-assign]

    result = load(site, world.table, DATASET, rows(2, 3), source="a")  # type: ignore[arg-type]

    assert seen == [(1, 1)]  # row 9 has landed as seq 4, flush 3; nobody sees it before rows 2 and 3
    assert result.ranges == {"a": Range(1, 3)}
    assert landed(world, "a") == [(1, "1"), (2, "2"), (3, "3"), (4, "9")]
    assert strand_state(site, "a").visible_through == 4
    assert site.standing.numbers(DATASET).visible == 3


def test_a_load_is_repeated_by_its_request_id(world: World, site: Site) -> None:
    first = load(site, world.table, DATASET, rows(1, 2), source="a", request_id="r")  # type: ignore[arg-type]
    again = load(site, world.table, DATASET, rows(1, 2), source="a", request_id="r")  # type: ignore[arg-type]

    assert again.is_repeat
    assert (again.number, again.rows, again.ranges) == (first.number, first.rows, first.ranges)
    assert len(world.table.rows) == 2


def test_a_load_of_nothing_reserves_nothing(world: World, site: Site) -> None:
    result = load(site, world.table, DATASET, [], source="a")  # type: ignore[arg-type]

    assert result.rows == 0
    assert not world.table.inputs
    assert site.standing.numbers(DATASET).last == 0


def test_a_dead_load_is_finished_by_the_next_flush(world: World, site: Site) -> None:  # L-SEQ-6
    class Died(Exception):
        pass

    real = world.table.stage

    def stage(landing: Any, *, settle: Any = None) -> None:
        raise Died

    world.table.stage = stage  # type: ignore[method-assign]
    with pytest.raises(Died):
        load(site, world.table, DATASET, rows(1, 2), source="a")  # type: ignore[arg-type]
    world.table.stage = real  # type: ignore[method-assign]

    report = run(site, world)

    assert len(report.landed_loads) == 1
    assert landed(world, "a") == [(1, "1"), (2, "2")]
    assert not world.table.inputs


def test_a_load_whose_input_is_gone_is_released_and_its_numbers_are_a_gap(world: World, site: Site) -> None:
    """L-SEQ-6: burned first, so that a late publish of it is refused."""

    class Died(Exception):
        pass

    real = world.table.look

    def look(dataset: str, id: str) -> Any:
        raise Died

    world.table.look = look  # type: ignore[method-assign]
    with pytest.raises(Died):
        load(site, world.table, DATASET, rows(1, 2), source="a")  # type: ignore[arg-type]
    world.table.look = real  # type: ignore[method-assign]
    staged = list(world.table.staged.values())
    world.table.staged.clear()  # as if it was staged by a writer that is still on its way
    world.table.inputs.clear()
    append(site, DATASET, rows(3), source="a")

    report = run(site, world)

    assert len(report.released_loads) == 1
    assert landed(world, "a") == [(3, "3")]
    assert strand_state(site, "a").visible_through == 3
    world.table.staged[staged[0].id] = staged[0]
    with pytest.raises(Exception, match="duplicate WAP"):
        world.table.publish(DATASET, staged[0].id)
    assert landed(world, "a") == [(3, "3")]


# When, and by whom


def test_a_flush_is_due_by_bytes_by_age_and_by_an_open_plan(world: World, site: Site) -> None:  # L-SPOOL-11
    append(site, DATASET, rows(1), source="a")
    assert not is_due(site, DATASET)
    assert oldest_pending(site, DATASET) == world.now_us

    site.spool = SpoolSection(flush_bytes=1)
    assert is_due(site, DATASET)

    site.spool = SpoolSection()
    world.now_us += 119_000_000
    assert not is_due(site, DATASET)
    world.now_us += 1_000_000
    assert is_due(site, DATASET)
    run(site, world)
    assert not is_due(site, DATASET)


def test_one_flush_of_a_dataset_at_a_time(world: World, site: Site) -> None:  # L-FLUSH-10
    append(site, DATASET, rows(1), source="a")
    take_lease(world.b, site.clock, f"flush/{DATASET}")

    with pytest.raises(LeaseHeld):
        flush(site, world.table, DATASET, timeout_s=5)
    assert landed(world, "a") == []


# How it stands


def test_a_fresh_process_knows_from_the_kept_snapshot_what_the_whole_order_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing_module, "_LEAST_EVENTS", 20)
    world = simulate(5)
    assert world.b.kv_has("$snapshot/standing")

    kept, anew = Standing(world.b), Standing(world.b)
    anew._is_loaded = True  # as if nothing was kept

    assert kept.strand_states(DATASET) == anew.strand_states(DATASET)
    assert kept.numbers(DATASET) == anew.numbers(DATASET)
    assert kept.datasets() == anew.datasets()
    assert kept.pending_bytes() == anew.pending_bytes() == 0
    assert kept.position() == anew.position()
