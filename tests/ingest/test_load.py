"""Loads over a table that obeys Iceberg's rules: what they reserve, whom they wait for, what they leave
(L-SEQ-2 to L-SEQ-6, L-FLUSH-9, L-CTL-2, L-CTL-4)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strandline.base.ranges import Range
from strandline.errors import OutcomeUnknown
from strandline.flush.flush import due, flush, has_work
from strandline.flush.scratch_tables import AGAIN_S, announce_scratch, sweep_scratch
from strandline.ingest import load as load_module
from strandline.ingest.append import Busy, ExpectationUnmet, RequestIdReused, append
from strandline.ingest.load import LoadResult, TooManySources, load
from strandline.persist import Conflict, ExpectKey, Put, kv_keys, kv_put
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld, LeaseLost, take_lease
from strandline.state.strand_entries import ControlUnreadable, Held, append_of
from tests.simulation import DATASET, IDENTIFIED, SimStore, World


class Died(Exception):
    pass


def made_world(*, has_identity: bool) -> World:
    """One in which nothing goes wrong by itself."""
    made = World(0, has_identity=has_identity)
    made.is_calm = True
    return made


@pytest.fixture
def world() -> World:
    return made_world(has_identity=False)


@pytest.fixture
def identified() -> World:
    return made_world(has_identity=True)


def rows(*keys: int) -> list[dict[str, Any]]:
    return [{"key": str(key)} for key in keys]


def loaded(site: Site, world: World, *keys: int, **options: Any) -> LoadResult:
    return load(site, world.table, DATASET, rows(*keys), source="a", **options)  # type: ignore[arg-type]


def table_keys(world: World) -> list[str]:
    return sorted(row.key for row in world.table.rows)


def dies_at(world: World, call: str, act: Callable[[], object]) -> None:
    """`act` as a process that dies when it comes to this call of the table."""
    real = getattr(world.table, call)

    def die(*_: Any, **__: Any) -> None:
        raise Died

    setattr(world.table, call, die)
    with pytest.raises(Died):
        act()
    setattr(world.table, call, real)


def scratch_keys(world: World) -> list[str]:
    return [key for key in kv_keys(world.b) if key.startswith("scratch/")]


# Duplicates


@pytest.mark.parametrize("call", ["stage", "publish"])
def test_a_load_finishes_a_flush_that_died_before_it_looks_for_duplicates(
    identified: World, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-FLUSH-9
    site = identified.site()
    append(site, DATASET, rows(1, 2), source="a")
    with monkeypatch.context() as broken:
        # A publish that fails is told from one that is refused by a look at the table: so that dies as well.
        if call == "publish":
            broken.setattr(identified.table, "publish", lambda *_: (_ for _ in ()).throw(Died))
            with pytest.raises(Exception, match="not published"):
                flush(site, identified.table, DATASET)
        else:
            dies_at(identified, call, lambda: flush(site, identified.table, DATASET))

    result = loaded(site, identified, 2, 3)

    assert table_keys(identified) == ["1", "2", "3"]
    assert (result.number, result.rows, result.duplicates) == (2, 1, 1)
    flush(site, identified.table, DATASET)
    assert table_keys(identified) == ["1", "2", "3"]


def test_a_flush_finishes_a_load_that_died_before_it_looks_for_duplicates(identified: World) -> None:
    """L-FLUSH-9: the load was staged, and is older."""
    site = identified.site()
    dies_at(identified, "look", lambda: loaded(site, identified, 1, 2))
    append(site, DATASET, rows(2, 3), source="a")

    report = flush(site, identified.table, DATASET)

    assert table_keys(identified) == ["1", "2", "3"]
    assert [(each.number, each.rows, each.duplicates) for each in report.flushes] == [(2, 1, 1)]
    assert len(report.landed_loads) == 1


def test_a_copy_that_was_staged_before_another_number_came_in_is_staged_again(world: World) -> None:
    """L-FLUSH-9: two numbers were left open when the dataset got its identity."""
    site = world.site()
    append(site, DATASET, rows(1, 2), source="a")
    dies_at(world, "look", lambda: flush(site, world.table, DATASET))
    dies_at(world, "look", lambda: loaded(site, world, 2, 3))
    assert len(world.table.staged) == 2
    site.declared = lambda _: IDENTIFIED

    flush(site, world.table, DATASET)

    assert table_keys(world) == ["1", "2", "3"]
    assert not site.standing.numbers(DATASET).open


def test_an_old_copy_whose_id_is_published_is_recorded_and_not_staged_again(identified: World) -> None:
    """L-FLUSH-2, L-FLUSH-9: a resumed flush never removes itself."""
    site = identified.site()
    append(site, DATASET, rows(1, 2), source="a")
    real = identified.table.publish

    def publish(dataset: str, snapshot: int) -> None:
        real(dataset, snapshot)
        identified.table.publish = real  # type: ignore[method-assign]
        identified.table.look = dead  # type: ignore[method-assign]
        raise Died

    look = identified.table.look

    def dead(dataset: str, id: str) -> Any:
        raise Died

    identified.table.publish = publish  # type: ignore[method-assign]
    with pytest.raises(Died):
        flush(site, identified.table, DATASET)
    identified.table.look = look  # type: ignore[method-assign]
    staged = len(identified.table.staged)

    (result,) = flush(site, identified.table, DATASET).flushes

    assert (result.rows, result.duplicates, result.is_resumed) == (2, 0, True)
    assert len(identified.table.staged) == staged
    assert table_keys(identified) == ["1", "2"]


def test_a_load_that_lost_the_flush_lease_reserves_nothing(
    identified: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CTL-5, L-FLUSH-9
    site = identified.site()
    real = load_module._Reservation._decide

    def slowly(self: Any, *args: Any) -> Any:
        decided = real(self, *args)
        identified.now_us += 61_000_000  # asleep for longer than a lease lasts
        take_lease(identified.b, site.clock, f"flush/{DATASET}")
        return decided

    monkeypatch.setattr(load_module._Reservation, "_decide", slowly)

    with pytest.raises(LeaseLost):
        loaded(site, identified, 1)

    assert site.standing.numbers(DATASET).last == 0
    assert not identified.table.inputs


def test_a_flush_does_not_pass_a_load_that_someone_still_holds(identified: World) -> None:
    """L-FLUSH-9: its rows may come in at any moment."""
    site = identified.site()
    dies_at(identified, "look", lambda: loaded(site, identified, 1))
    (load_id,) = (key.rpartition("/")[2] for key in scratch_keys(identified))
    take_lease(identified.b, site.clock, f"load/{load_id}")
    append(site, DATASET, rows(1), source="a")

    with pytest.raises(LeaseHeld):
        flush(site, identified.table, DATASET, timeout_s=5)

    identified.now_us += 61_000_000
    flush(site, identified.table, DATASET)
    assert table_keys(identified) == ["1"]


# The reservation


class MovingStore(SimStore):
    """One in which something always comes before the reservation: `act` tells what it does instead."""

    def __init__(
        self, world: World, act: Callable[["MovingStore", list[Expectation], list[Write]], Any]
    ) -> None:
        super().__init__(world)
        self._b, self._act = world.b._b, act

    def commit(self, preconditions: Sequence[Expectation], writes: Sequence[Write], **options: Any) -> Any:
        if any(getattr(each, "type", "") == "loading" for each in writes):
            return self._act(self, list(preconditions), list(writes))
        return super().commit(preconditions, writes, **options)


def test_a_reservation_that_others_are_always_before_is_busy(world: World) -> None:  # L-SPOOL-4, L-CTL-2
    stream = f"flush/{DATASET}"
    site = world.site()
    site.b = MovingStore(world, lambda *_: Conflict(expected=0, actual=1, reason="STALE", name=stream))
    began = world.now_us

    with pytest.raises(Busy):
        loaded(site, world, 1)

    assert 30 <= (world.now_us - began) / 1e6 < 60
    assert not world.table.inputs
    assert not scratch_keys(world)


def test_a_reservation_whose_answers_are_lost_is_told_in_bounded_time(world: World) -> None:  # L-CTL-2
    def lose(*_: Any) -> Any:
        raise OutcomeUnknown("no answer", once=None)

    site = world.site()
    site.b = MovingStore(world, lose)

    with pytest.raises(OutcomeUnknown, match="request_id='r'"):
        loaded(site, world, 1, request_id="r")

    assert world.table.inputs  # it may be reserved: its input stays
    site.b = world.b
    assert loaded(site, world, 1, request_id="r").rows == 1
    assert table_keys(world) == ["1"]
    assert not world.table.inputs


def test_a_reservation_that_was_made_and_whose_answer_was_lost_is_taken_up(world: World) -> None:  # L-CTL-2
    lost: list[str] = []

    def lose_first(store: MovingStore, expected: list[Expectation], writes: list[Write]) -> Any:
        outcome = SimStore.commit(store, expected, writes)
        if not lost:
            lost.append("answer")
            raise OutcomeUnknown("done, but the answer is lost", once=None)
        return outcome

    site = world.site()
    site.b = MovingStore(world, lose_first)

    assert loaded(site, world, 1, 2).ranges == {"a": Range(0, 2)}

    assert table_keys(world) == ["1", "2"]
    assert site.standing.numbers(DATASET).last == 1


def test_what_goes_with_the_reservation_is_expected_where_it_was(world: World) -> None:
    site = world.site()
    expected = ExpectKey("mark", "old")

    with pytest.raises(ExpectationUnmet):
        loaded(site, world, 1, expected=[expected], also=[Put("mark", "new")])
    assert not world.table.inputs
    kv_put(world.b, "mark", "old")
    loaded(site, world, 1, expected=[expected], also=[Put("mark", "new")])

    assert world.b.kv_get("mark") == "new"


def test_a_load_of_too_many_sources_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "MAX_SOURCES", 2)
    many = [{"key": "1", "source": name} for name in "abc"]

    with pytest.raises(TooManySources):
        load(world.site(), world.table, DATASET, many)  # type: ignore[arg-type]

    assert not world.table.inputs


# What is left behind


def test_an_error_before_the_reservation_leaves_no_scratch_table(world: World) -> None:  # L-SEQ-2
    site = world.site()
    real = site.standing.numbers

    def fail(dataset: str) -> Any:
        if world.table.inputs:
            raise Died
        return real(dataset)

    site.standing.numbers = fail  # type: ignore[method-assign]
    with pytest.raises(Died):
        loaded(site, world, 1)

    assert not world.table.inputs
    assert not scratch_keys(world)


@pytest.mark.parametrize("by", ["load", "flush"])
def test_the_scratch_table_of_a_load_that_died_early_is_dropped_by_the_next(world: World, by: str) -> None:
    """L-SEQ-2: one under way and one that is open keep theirs."""
    site = world.site()
    dead = take_lease(world.b, site.clock, "load/dead")
    announce_scratch(site, DATASET, "dead", dead)
    world.table.inputs["dead"] = []
    world.now_us += 61_000_000
    live = take_lease(world.b, site.clock, "load/live")
    announce_scratch(site, DATASET, "live", live)
    world.table.inputs["live"] = []
    append(site, DATASET, rows(1), source="a")

    if by == "load":
        loaded(site, world, 2)
    else:
        flush(site, world.table, DATASET)

    assert set(world.table.inputs) == {"live"}
    world.table.inputs["dead"] = []  # its holder had only slept
    world.now_us += AGAIN_S * 1_000_000
    sweep_scratch(site, world.table, DATASET)
    assert not world.table.inputs
    world.now_us += AGAIN_S * 1_000_000
    sweep_scratch(site, world.table, DATASET)
    assert not scratch_keys(world)


def test_a_sweep_leaves_an_open_load_its_input(world: World) -> None:  # L-SEQ-6
    site = world.site()
    dies_at(world, "stage", lambda: loaded(site, world, 1))

    assert sweep_scratch(site, world.table, DATASET) == 0

    assert len(world.table.inputs) == 1
    flush(site, world.table, DATASET)
    assert table_keys(world) == ["1"]
    assert not scratch_keys(world)


# Repeats


@pytest.mark.parametrize(
    ("other", "source"),
    [(rows(1, 2, 3), "a"), ([{"key": "1", "more": 1}, {"key": "2"}], "a"), (rows(1, 2), "b")],
    ids=["more rows", "other columns", "another source"],
)
def test_a_request_id_with_other_rows_is_refused(
    world: World, other: list[dict[str, Any]], source: str
) -> None:  # L-SPOOL-5
    site = world.site()
    loaded(site, world, 1, 2, request_id="r")

    with pytest.raises(RequestIdReused):
        load(site, world.table, DATASET, other, source=source, request_id="r")  # type: ignore[arg-type]

    assert loaded(site, world, 1, 2, request_id="r").is_repeat
    assert table_keys(world) == ["1", "2"]


@pytest.mark.parametrize(
    "value", [7, "load", {}, {"load": 1, "number": 1, "event": 1, "rows": 1, "columns": ""}]
)
def test_a_marker_that_cannot_be_read_stops_the_load(world: World, value: Any) -> None:  # L-CTL-4
    kv_put(world.b, f"loaded/{DATASET}/r", value)

    with pytest.raises(ControlUnreadable, match="loaded/logs/r"):
        loaded(world.site(), world, 1, request_id="r")


# When a flush has work


def test_a_flush_knows_why_it_was_begun(world: World) -> None:  # L-FLUSH-12, L-SPOOL-11
    site = world.site()
    append(site, DATASET, rows(1), source="a")
    assert due(site, DATASET) is None
    world.now_us += 120_000_000
    reason = due(site, DATASET)
    assert reason == "age"

    (result,) = flush(site, world.table, DATASET, reason=reason).flushes

    assert result.reason == "age"
    assert world.b.read(f"flush/{DATASET}")[0].data["reason"] == "age"


def test_held_rows_alone_are_no_work_until_their_segment_is_back(world: World) -> None:  # L-SPOOL-13
    site = world.site()
    receipt = append(site, DATASET, rows(1), source="a")
    assert receipt.segment is not None
    name = next(each.name for each in world.disk.scan())
    data = world.disk.read(name)
    world.disk.delete(name)
    hold = Held(receipt.segment, 0, 1, "gone")
    site.b.commit([], [append_of(Strand(DATASET, "a").ledger, hold, world.now_us)])

    assert not has_work(site, DATASET)
    report = flush(site, None, DATASET)  # type: ignore[arg-type]  # no table is asked
    assert report.held == {"a": (Range(0, 1),)}

    world.content.put(data, "any/mime")
    assert has_work(site, DATASET)
    assert flush(site, world.table, DATASET).rows == 1
