"""Races between facets, made certain: a rival acts just before one commit; and arguments at the edges."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import HistoryGap, LineageMismatch, SnapshotMismatch, SubscriberErrors, UsageError
from strandline.persist import (
    Append,
    Conflict,
    Event,
    ExpectKey,
    Hub,
    MoveCursor,
    ProjectionState,
    Put,
    SaveSnapshot,
    Truncate,
    ack,
    append,
    append_batch,
    append_batch_once,
    append_once,
    backup,
    checkpoint,
    commit,
    compact,
    consumer,
    count,
    erase_stream,
    events,
    global_events,
    hold,
    holds,
    kv_keys,
    last_seq,
    maybe_reclaim,
    mem_backend,
    mock_durable,
    open_store,
    poll,
    project,
    publish_batch,
    publish_once,
    read,
    read_by_type,
    read_from,
    read_since,
    restore,
    snapshot_drop,
    snapshot_exists,
    snapshot_load,
    snapshot_save,
    snapshots,
    subscribe,
    view,
    view_attach,
    view_lag,
)
from strandline.persist.backend import AtomicBackend, Expectation, Once, Outcome, Write
from strandline.persist.durable import IoBackend, serve

NOTHING: Any = None
NO: Any = "no"
HALF: Any = 2.5
FIVE: Any = 5


def names(seen: list[str], event: Event) -> list[str]:
    return [*seen, event.data]


@pytest.fixture(params=["memory", "sqlite"])
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    opened = mem_backend() if request.param == "memory" else open_store(tmp_path / "s.db")
    yield opened
    opened.close()


class Rivalled(IoBackend):
    """A client before whose n-th commit a rival acts."""

    def __init__(
        self, disk: AtomicBackend, rival: Callable[[], object], *, before: Callable[[Sequence[Write]], bool]
    ) -> None:
        super().__init__(lambda request: serve(disk, request))
        self._rival: Callable[[], object] | None = rival
        self._before = before

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        if self._rival is not None and self._before(writes):
            rival, self._rival = self._rival, None
            rival()
        return super().commit(preconditions, writes, once=once)


def truncates(writes: Sequence[Write]) -> bool:
    return any(isinstance(write, Truncate) for write in writes)


def filled(b: AtomicBackend, stream: str = "a", n: int = 5) -> None:
    append_batch(b, stream, [("x", i, f"{stream}{i}") for i in range(1, n + 1)])


def test_a_snapshot_of_another_stream_stands_for_nothing(b: AtomicBackend) -> None:  # P-CMP-12, P-SNP-8
    filled(b, "a")
    filled(b, "b", 9)
    checkpoint(b, "b", "vb", names, [])

    with pytest.raises(SnapshotMismatch):
        maybe_reclaim(b, "a", "vb", every=1)
    with pytest.raises(SnapshotMismatch):
        snapshot_save(b, "vb", ProjectionState([], 9), stream="a")

    assert count(b, "a") == 5
    assert snapshots(b, "a") == []


def test_what_is_erased_under_a_checkpoint_does_not_come_back(b: AtomicBackend) -> None:  # P-ERA-1
    filled(b)
    checkpoint(b, "a", "v", names, [])
    append(b, "a", "x", 6, "a6")
    slow = Rivalled(b, lambda: erase_stream(b, "a", 9, reason="asked"), before=lambda _: True)

    with pytest.raises(HistoryGap):
        checkpoint(slow, "a", "v", names, [])

    assert not snapshot_exists(b, "v")


def test_a_dropped_snapshot_stops_the_truncation_that_rests_on_it(b: AtomicBackend) -> None:  # P-CMP-8
    filled(b)
    slow = Rivalled(b, lambda: snapshot_drop(b, "v"), before=truncates)

    compact(slow, "a", "v", names, [])

    assert count(b, "a") == 5
    assert project(b, "a", names, []).value == ["a1", "a2", "a3", "a4", "a5"]


def test_a_hold_that_comes_before_the_truncation_is_kept(b: AtomicBackend) -> None:  # P-CMP-10
    filled(b)
    slow = Rivalled(b, lambda: hold(b, "a", "exporter", 2), before=truncates)

    compact(slow, "a", "v", names, [])

    assert [event.seq for event in read(b, "a")] == [3, 4, 5]
    assert [(each.name, each.lag) for each in holds(b, "a")] == [("exporter", 3)]


def test_a_consumer_that_comes_before_the_truncation_sees_all(b: AtomicBackend) -> None:  # P-CMP-10, P-SUB-13
    filled(b)
    slow = Rivalled(b, lambda: consumer(b, "c", "a"), before=truncates)

    compact(slow, "a", "v", names, [])

    assert len(poll(consumer(b, "c", "a"))) == 5


def test_a_global_reader_that_comes_before_the_truncation_is_kept(b: AtomicBackend) -> None:  # P-GLB-9
    append(b, "a", "x", 1, "a1")
    append(b, "a", "x", 2, "a2", globally=True)
    slow = Rivalled(b, lambda: hold(b, "$global", "reader", 0), before=truncates)

    compact(slow, "a", "v", names, [])

    assert [event.seq for event in read(b, "a")] == [2]


def test_a_restore_behind_an_open_connection_is_noticed(tmp_path: Path) -> None:  # P-OPS-1, P-SUB-13
    first = mem_backend()
    filled(first)
    c = consumer(first, "c", "a")
    backup(first, tmp_path / "copy.db")
    other = mem_backend()
    restore(other, tmp_path / "copy.db")
    c.backend = mock_durable(other)

    with pytest.raises(LineageMismatch):
        poll(c)
    with pytest.raises(LineageMismatch):
        ack(c, 3)


def test_a_published_key_is_told_once_however_many_publish_it(b: AtomicBackend) -> None:  # P-SUB-11
    hub, told = Hub(b), []
    subscribe(hub, "a", lambda _b, _s, event: told.append(event.data))

    def publish_all() -> None:
        for i in range(30):
            publish_once(hub, "a", f"k{i}", "x", 1, i)

    threads = [threading.Thread(target=publish_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(told) == list(range(30))


def test_a_generator_of_writes_is_written(b: AtomicBackend) -> None:  # P-BKD-9
    made = commit(b, iter(list[ExpectKey]()), (Append("s", "t", 1, i) for i in range(3)))

    assert isinstance(made, list)
    assert [event.seq for event in made] == [1, 2, 3]
    assert len(b.commit([], (Append("s", "t", 1, i) for i in range(2)))) == 2  # type: ignore[arg-type]


def test_an_expectation_of_the_callers_own_ends_in_its_conflict(b: AtomicBackend) -> None:  # P-BKD-12
    snapshot_save(b, "n", ProjectionState(1, 1))

    outcome = commit(b, [ExpectKey("$snapshot/n", "other")], [SaveSnapshot("n", ProjectionState(2, 2))])

    assert isinstance(outcome, Conflict)
    assert snapshot_load(b, "n", 0) == ProjectionState(1, 1)


def test_a_repeat_is_one_whatever_was_recorded_beside_its_snapshot_since(
    b: AtomicBackend,
) -> None:  # P-BKD-10
    writes: list[Any] = [SaveSnapshot("n", ProjectionState(1, 1)), Append("s", "t", 1, 0)]
    first = commit(b, [], writes, once=("s", "k"))
    snapshot_save(b, "n", ProjectionState(2, 2), stream="s", version="v")

    again = commit(b, [], writes, once=("s", "k"))

    assert again == first
    assert snapshot_load(b, "n", 0) == ProjectionState(2, 2)


def test_one_thing_is_moved_once_in_a_commit(b: AtomicBackend) -> None:  # P-BKD-12
    filled(b)
    c = consumer(b, "c", "a")

    cases: list[list[Any]] = [
        [MoveCursor(c, 5), MoveCursor(c, 3)],
        [SaveSnapshot("n", ProjectionState(0, 5)), SaveSnapshot("n", ProjectionState(0, 2))],
    ]
    for twice in cases:
        with pytest.raises(UsageError, match="twice"):
            commit(b, [], twice)


def test_a_handler_that_fails_stops_no_delivery(b: AtomicBackend) -> None:  # P-SUB-10
    ran: list[int] = []

    def fail(*_: Any) -> None:
        raise RuntimeError("handler")

    hub = Hub(b, on_error=fail)
    subscribe(hub, "a", lambda _b, _s, event: 1 / (event.data - 1))
    subscribe(hub, "a", lambda _b, _s, event: ran.append(event.seq))

    with pytest.raises(SubscriberErrors) as caught:
        publish_batch(hub, "a", [("x", 1, 1), ("x", 1, 2)])

    assert ran == [1, 2]
    assert caught.value.event.seq == 1


def test_an_attached_view_misses_no_publish_beside_it(b: AtomicBackend) -> None:  # P-VIEW-7
    v = view("v", "a", names, [])
    hub = Hub(Rivalled(b, lambda: publish_once(hub, "a", "k", "x", 1, "late"), before=lambda _: True))

    view_attach(hub, v)

    assert view_lag(b, v) == 0


def test_an_empty_block_under_a_used_key_is_a_reuse(b: AtomicBackend) -> None:  # P-IDM-7
    first = append_once(b, "s", "k", "x", 1, 1)

    assert append_batch_once(b, "s", "free", []) == []
    assert append_batch_once(b, "s", "k", []) == Conflict("k", first, "KEY_REUSED")


def test_keys_of_the_application_are_found_past_those_of_the_store(b: AtomicBackend) -> None:  # P-KV-4
    commit(b, [], [Put("#before", 1), Put("after", 1), Put("%just", 1)])
    for i in range(3):
        append_once(b, "s", f"k{i}", "x", 1, 1)

    assert kv_keys(b) == ["#before", "%just", "after"]


def test_a_fold_with_gaps_allowed_goes_on_behind_a_truncation(b: AtomicBackend) -> None:  # P-PRJ-9
    filled(b, "a", 1200)
    seen: list[int] = []

    def step(total: int, event: Event) -> int:
        if event.seq == 400:
            b.truncate_through("a", 1100)
        seen.append(event.seq)
        return total + 1

    state = project(b, "a", step, 0, allow_gap=True)

    assert state.seq == 1200
    assert seen[:500] == list(range(1, 501))
    assert seen[-100:] == list(range(1101, 1201))


@pytest.mark.parametrize(
    "call",
    [
        lambda b: append(b, "s", "t", 1, {}, globally=NOTHING),
        lambda b: append(b, "s", "t", 1, {}, globally=NO),
        lambda b: append(b, "s", "t", 10**5000, {}),
        lambda b: read_by_type(b, "s", NOTHING),
        lambda b: read_since(b, "s", NOTHING),
        lambda b: read_from(b, "s", HALF),
        lambda b: list(events(b, "s", last=True)),
        lambda b: poll(consumer(b, "c", "s"), timeout_s=float("nan")),
        lambda b: b.append("a", Event("zzz", 1, "t", 1, {})),
        lambda _: open_store(FIVE),
    ],
)
def test_a_malformed_argument_is_refused_before_anything_is_written(
    b: AtomicBackend, call: Callable[[Any], object]
) -> None:
    with pytest.raises(UsageError):
        call(b)

    assert last_seq(b, "s") == last_seq(b, "a") == 0


def test_a_position_beyond_all_numbers_is_the_end(b: AtomicBackend) -> None:
    append(b, "s", "t", 1, {}, globally=True)

    assert list(global_events(b, first=10**30)) == []
    assert read_from(b, "s", 10**30) == []


def test_a_closed_store_in_memory_is_closed() -> None:
    b = mem_backend()
    b.close()

    with pytest.raises(UsageError, match="closed"):
        last_seq(b, "s")
