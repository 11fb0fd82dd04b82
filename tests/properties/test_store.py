"""Every backend agrees with a model of lists and dicts, whatever is done to it and whatever crashes."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strandline.errors import HistoryGap, LineageMismatch, NotFoundError, OutcomeUnknown, StoreUnavailable
from strandline.persist import (
    ABSENT,
    Append,
    AtomicBackend,
    Conflict,
    Delete,
    Event,
    ExpectKey,
    ExpectSeq,
    MoveCursor,
    ProjectionState,
    Put,
    ack,
    append,
    append_batch,
    append_expect,
    append_once,
    backup,
    commit,
    compact,
    consumer,
    consumers,
    count,
    erase_stream,
    global_events,
    global_log,
    global_pos,
    global_trim,
    hold,
    hold_drop,
    holds,
    kv_cas,
    kv_delete,
    kv_get,
    kv_items,
    kv_put,
    kv_put_new,
    kv_update,
    last_seq,
    open_store,
    poll,
    project,
    read,
    redact,
    replay,
    restore,
    seen,
    snapshots,
    streams,
    total_events,
    truncate_through,
    verify,
)
from strandline.persist.backend import Expectation, Write
from tests.conftest import KINDS, Host, Place, open_backend, place_of, postgres, require
from tests.crash.killing import Child
from tests.properties.model import GLOBAL, Model

STREAMS: Final = ("a", "b")
KEYS: Final = ("x", "y")
MAX_CRASHES: Final = 2  # in one run: starting processes is what takes the time
MAX_MOVES: Final = 1  # likewise: it makes a store or two
DAY_US: Final = 86_400_000_000

streams_ = st.sampled_from(STREAMS)
followed = st.sampled_from((*STREAMS, GLOBAL))
types = st.sampled_from("uv")
ats = st.integers(-2, 9) | st.sampled_from([0.5, "noon"])
datas = st.builds(
    lambda n, p: {"n": n, "p": p}, st.integers(-3, 99), st.sampled_from(["", "p", [1, None], 2**70])
)
values = st.none() | st.integers(-2, 2) | st.booleans() | st.just([{"$x": 1.5}]) | st.just("text")
seqs = st.integers(0, 12)


def total(value: Any, event: Event) -> Any:
    return value + event.data["n"]


def outcome_of(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of the gap that it meets."""
    try:
        return call()
    except HistoryGap:
        return HistoryGap


class StoreAgreesWithLists(RuleBasedStateMachine):
    """One store and its model. `kind` and `places` are set for each backend below."""

    kind: ClassVar[str]
    host: ClassVar[Host | None] = None
    child: ClassVar[Child | None] = None
    taken: ClassVar[set[str]]  # of the rare steps, those that a run came by

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.home = Path(tempfile.mkdtemp(prefix="strandline-model-"))
        self.model = Model()
        self.crashes = self.moves = 0
        self.now = 1_700_000_000_000_000
        self.clock = pytest.MonkeyPatch()

    @initialize()
    def open(self) -> None:
        self.set_clock()
        self.b: AtomicBackend = self.opened()

    def place(self) -> Place:
        if self.host is not None:
            return Place(self.host.url, {"scratch": self.scratch()})
        return place_of(self.kind, self.home)

    def scratch(self) -> str:
        return f"{self.folder.name.replace('_', '-')[-30:].strip('-')}-{self.moves}"

    def beside_the_host(self) -> AtomicBackend:
        """Our store in its file: what backup and restore need, and a client over HTTP is not given."""
        assert self.host is not None
        return open_store(Path(f"{self.host.store}.scratch") / f"{self.scratch()}.db")

    def opened(self) -> AtomicBackend:
        return open_backend("memory", self.folder) if self.kind == "memory" else self.place().open()

    def teardown(self) -> None:
        self.clock.undo()
        if hasattr(self, "b"):
            assert verify(self.b) == []  # P-INT-3
            self.b.close()
        shutil.rmtree(self.folder)

    # Appending

    @rule(stream=streams_, type=types, at=ats, data=datas, globally=st.booleans())
    def append(self, stream: str, type: str, at: Any, data: Any, globally: bool) -> None:  # P-LOG-1
        found = append(self.b, stream, type, at, data, globally=globally)

        assert found == self.model.append(stream, type, at, data, globally=globally)

    @rule(stream=streams_, specs=st.lists(st.tuples(types, ats, datas), max_size=4), globally=st.booleans())
    def append_batch(self, stream: str, specs: list[Any], globally: bool) -> None:  # P-BAT-1, P-BAT-3
        found = append_batch(self.b, stream, specs, globally=globally)

        assert found == [self.model.append(stream, *spec, globally=globally) for spec in specs]

    @rule(stream=streams_, off=st.sampled_from([0, 0, -1, 1]), data=datas)
    def append_expect(self, stream: str, off: int, data: Any) -> None:  # P-CON-1, P-CON-2
        mark = self.model.of(stream).mark
        expected = max(mark + off, 0)

        found = append_expect(self.b, stream, expected, "u", 1, data)

        if expected == mark:
            assert found == self.model.append(stream, "u", 1, data)
        else:
            assert found == Conflict(expected, mark, "STALE")

    @rule(
        stream=streams_,
        key=st.sampled_from(["k1", "k2"]),
        type=types,
        at=ats,
        n=st.integers(0, 1),
        globally=st.booleans(),
    )
    def append_once(self, stream: str, key: str, type: str, at: Any, n: int, globally: bool) -> None:
        known, data = (stream, key) in self.model.markers, {"n": n, "p": "once"}  # P-IDM-1, P-IDM-7
        assert seen(self.b, stream, key) is known

        found = append_once(self.b, stream, key, type, at, data, globally=globally)

        assert found == self.model.append_once(stream, key, type, at, data, globally=globally)

    @precondition(lambda self: self.model.markers)
    @rule(data=st.data(), at=ats)
    def repeat(self, data: st.DataObject, at: Any) -> None:  # P-IDM-1, P-IDM-4, P-ERA-1, P-ERA-2
        stream, key = data.draw(st.sampled_from(sorted(self.model.markers)))
        type_, first, globally = self.model.markers[stream, key].asked

        found = append_once(self.b, stream, key, type_, at, first, globally=globally)

        assert found == self.model.append_once(stream, key, type_, at, first, globally=globally)

    @rule(
        expected=st.lists(
            st.tuples(st.sampled_from((*STREAMS, *KEYS)), st.sampled_from([True, True, False])), max_size=3
        ),
        first=datas,
        second=datas,
        value=values,
        deletes=st.booleans(),
        globally=st.booleans(),
    )
    def commit_to_several(
        self,
        expected: list[tuple[str, bool]],
        first: Any,
        second: Any,
        value: Any,
        deletes: bool,
        globally: bool,
    ) -> None:  # P-BKD-9
        preconditions = [self.expectation(name, is_met) for name, is_met in expected]
        writes: list[Write] = [
            Append("b", "u", 1, first, globally=globally),
            Delete("x") if deletes else Put("x", value),
            Append("a", "v", 2, second, globally=True),
            Put("y", value),
            Append("b", "v", 3, second),
        ]

        found = commit(self.b, preconditions, writes)

        unmet = [
            self.conflict(expectation)
            for expectation, (_, is_met) in zip(preconditions, expected, strict=True)
            if not is_met
        ]
        if unmet:
            assert found == unmet[0]
            return
        assert found == [
            self.model.append("b", "u", 1, first, globally=globally),
            self.model.append("a", "v", 2, second, globally=True),
            self.model.append("b", "v", 3, second),
        ]
        self.model.keys |= {"x": value, "y": value}
        if deletes:
            del self.model.keys["x"]

    def expectation(self, name: str, is_met: bool) -> Expectation:
        if name in STREAMS:
            return ExpectSeq(name, self.model.of(name).mark + (0 if is_met else 1))
        current = self.model.keys.get(name, ABSENT)
        return ExpectKey(name, current if is_met else "another")

    def conflict(self, expectation: Expectation) -> Conflict:
        if isinstance(expectation, ExpectSeq):
            return Conflict(expectation.seq, self.model.of(expectation.stream).mark, "STALE")
        return Conflict(expectation.value, self.model.keys.get(expectation.key, ABSENT), "STALE")

    # Keys

    @rule(key=st.sampled_from(KEYS), value=values)
    def kv_put(self, key: str, value: Any) -> None:  # P-KV-2
        kv_put(self.b, key, value)
        self.model.keys[key] = value

    @rule(key=st.sampled_from(KEYS))
    def kv_delete(self, key: str) -> None:  # P-KV-3
        kv_delete(self.b, key)
        self.model.keys.pop(key, None)

    @rule(key=st.sampled_from(KEYS), expected=values | st.just(ABSENT), is_right=st.booleans(), new=values)
    def kv_cas(self, key: str, expected: Any, is_right: bool, new: Any) -> None:  # P-CAS-1, P-CAS-2
        current = self.model.keys.get(key, ABSENT)
        expected = current if is_right else expected
        is_met = repr(expected) == repr(current) or (expected is None and current is ABSENT)

        found = kv_cas(self.b, key, expected, new)

        if is_met:
            self.model.keys[key] = new
        wanted = new if is_met else Conflict(expected, None if current is ABSENT else current, "STALE")
        assert found == wanted

    @rule(key=st.sampled_from(KEYS), value=values)
    def kv_put_new(self, key: str, value: Any) -> None:  # P-CAS-3
        found = kv_put_new(self.b, key, value)

        if key in self.model.keys:
            assert found == Conflict(ABSENT, self.model.keys[key], "EXISTS")
        else:
            assert found == value
            self.model.keys[key] = value

    @rule(key=st.sampled_from(KEYS), default=values)
    def kv_update(self, key: str, default: Any) -> None:  # P-KV-6
        expected = [self.model.keys.get(key, default)]

        assert kv_update(self.b, key, default, lambda value: [value]) == expected
        self.model.keys[key] = expected

    # Removing

    @rule(stream=streams_, n=st.integers(-1, 15))
    def truncate(self, stream: str, n: int) -> None:  # P-LOG-7, P-LOG-8
        truncate_through(self.b, stream, n)
        self.model.truncate(stream, n)

    @rule(stream=streams_)
    def compact(self, stream: str) -> None:  # P-CMP-3, P-CMP-10
        found = outcome_of(lambda: compact(self.b, stream, f"of {stream}", total, 0))

        assert found == self.model.compact(stream)

    @rule(through=seqs)
    def trim(self, through: int) -> None:  # P-GLB-11
        assert global_trim(self.b, through) == self.model.trim(through)

    @rule(stream=streams_, name=st.sampled_from(["h1", "h2"]), seq=seqs)
    def hold(self, stream: str, name: str, seq: int) -> None:  # P-CMP-10
        hold(self.b, stream, name, seq)
        self.model.holds[stream, name] = seq

    @rule(stream=streams_, name=st.sampled_from(["h1", "h2"]))
    def hold_drop(self, stream: str, name: str) -> None:
        hold_drop(self.b, stream, name)
        self.model.holds.pop((stream, name), None)

    @rule(stream=streams_)
    def erase(self, stream: str) -> None:  # P-ERA-1
        through = self.model.of(stream).mark
        self.model.erase(stream)

        record = erase_stream(self.b, stream, 7, reason="asked to")

        said = {"stream": stream, "through": through, "reason": "asked to"}
        assert record == Event("$erased", self.model.erasures, "erased", 7, said)

    @rule(stream=streams_, seq=st.integers(1, 12))
    def redact(self, stream: str, seq: int) -> None:  # P-ERA-2
        if not self.model.redact(stream, seq, "p"):
            with pytest.raises(NotFoundError):
                redact(self.b, stream, seq, ["p"], 7, reason="asked to")
            return

        found = redact(self.b, stream, seq, ["p"], 7, reason="asked to")

        folded = self.model.snapshots.get(stream, ProjectionState(0, 0)).seq >= seq
        assert found.event.seq == self.model.erasures
        assert found.snapshots == ([f"of {stream}"] if folded else [])

    # Following

    @rule(stream=followed, start=st.none() | seqs)
    def consumer(self, stream: str, start: int | None) -> None:  # P-SUB-12
        start = None if start is None else min(start, self.model.last(stream))
        if start is not None or stream not in self.model.cursors:
            self.model.cursors[stream] = start or 0

        assert consumer(self.b, f"of {stream}", stream, start=start).seq == self.model.cursors[stream]

    @precondition(lambda self: self.model.cursors)
    @rule(data=st.data(), nth=st.integers(0, 29), in_commit=st.booleans())
    def poll_and_ack(self, data: st.DataObject, nth: int, in_commit: bool) -> None:  # P-SUB-12, P-SUB-13
        stream = data.draw(st.sampled_from(sorted(self.model.cursors)))
        c = consumer(self.b, f"of {stream}", stream)

        found = outcome_of(lambda: poll(c))

        assert found == self.model.poll(stream)
        if found is HistoryGap or not found:
            return
        # Not drawn from what was found: how much a killed process wrote is not the same in the next run, and
        # what is drawn must be.
        item = found[nth % len(found)]
        seq = item[0] if stream == GLOBAL else item.seq
        if in_commit:
            assert commit(self.b, [], [MoveCursor(c, seq), Put("x", seq)]) == []
            self.model.keys["x"] = seq
        else:
            assert ack(c, seq) == seq
        self.model.cursors[stream] = seq
        stale = consumer(self.b, f"of {stream}", stream)
        stale.seq -= 1
        assert isinstance(ack(stale, seq), Conflict)

    # Clocks

    @rule(by=st.sampled_from([-DAY_US, DAY_US, -1, 0, 1]), key=st.sampled_from(["k1", "k2"]))
    def the_clock_jumps(self, by: int, key: str) -> None:  # P-EVT-3, P-EVT-4, P-IDM-8
        """A day ahead or back, or not at all: it is that time until the next jump. What comes next is stamped
        by that clock, and a key that was used before it is known after it."""
        self.now += by
        self.set_clock()
        self.taken.add("the clock jumps")
        self.append("a", "u", self.now, {"n": 1, "p": ""}, globally=True)
        self.append_once("b", key, "u", self.now, 0, globally=True)

    def set_clock(self) -> None:
        """Our process believes that it is that time; others of the same store go on with theirs."""
        us = self.now
        self.clock.setattr(time, "time", lambda: us / 1_000_000)
        self.clock.setattr(time, "time_ns", lambda: us * 1_000)

    # Moving

    @precondition(lambda self: self.moves < MAX_MOVES)
    @rule(through=st.none() | st.sampled_from(["memory", "sqlite"]))
    def move(self, through: str | None) -> None:  # P-OPS-1, P-OPS-2
        """Back up and restore into a new store; or migrate to one of another kind, and from there to it."""
        self.taken.add("restored" if through is None else "migrated")
        copy = self.folder / f"before move {self.moves}"
        if self.host is None:
            backup(self.b, copy)
        else:
            with closing(self.beside_the_host()) as store:
                backup(store, copy)
        self.b.close()
        self.moves += 1
        if through is not None:
            by_way, copied = (
                self.folder / f"by way {self.moves}",
                self.folder / f"by way of move {self.moves}",
            )
            by_way.mkdir()
            with closing(open_backend(through, by_way)) as store:
                restore(store, copy)
                backup(store, copied)
            copy = copied
        if self.host is None:
            self.home = self.folder / f"moved {self.moves}"
            self.home.mkdir()
            self.b = open_backend(self.kind, self.home)
            restore(self.b, copy)
        else:
            with closing(self.beside_the_host()) as store:
                restore(store, copy)
            self.b = self.opened()
        for stream, seq in self.model.cursors.items():
            with pytest.raises(LineageMismatch):
                poll(consumer(self.b, f"of {stream}", stream))
            consumer(self.b, f"of {stream}", stream, start=seq)

    # Leaving and crashing

    @precondition(lambda self: self.kind != "memory")
    @rule(closes=st.booleans())
    def reopen(self, closes: bool) -> None:  # P-REC-8
        if closes:
            self.b.close()
        self.taken.add("reopened")
        left, self.b = self.b, self.opened()
        if not closes:
            left.close()

    @precondition(lambda self: self.kind != "memory")
    @rule(stream=streams_, times=st.integers(1, 3))
    def another_process_writes(self, stream: str, times: int) -> None:  # P-LOG-11
        self.taken.add("another process writes")
        child = self.another_process()
        child.tell("units", stream=stream, at=5, times=times)
        assert child.listen() == times
        self.take_units(stream, times)

    @precondition(lambda self: self.kind != "memory" and self.crashes < MAX_CRASHES)
    @rule(stream=streams_, times=st.integers(0, 5))
    def another_process_is_killed_while_it_writes(self, stream: str, times: int) -> None:  # P-REC-9
        self.crashes += 1
        self.taken.add("a process is killed")
        child, before = self.another_process(), self.model.of(stream).mark
        child.acknowledged = 0
        child.tell("units", stream=stream, at=5, times=10**6)
        child.listen(until=times)
        acknowledged = child.kill_at_work()
        child.__exit__(None, None, None)
        type(self).child = None
        self.wait_until_nobody_writes(stream)
        there = last_seq(self.b, stream) - before
        assert acknowledged <= there <= acknowledged + 1
        self.take_units(stream, there)

    def another_process(self) -> Child:
        cls, place = type(self), self.place()
        if cls.child is None:
            cls.child = Child(place)
        else:
            cls.child.open(place)
        return cls.child

    def take_units(self, stream: str, times: int) -> None:
        """What the other process has written, n times a unit of an event, its position and a key."""
        for n in range(1, times + 1):
            self.model.append(stream, "unit", 5, {"n": n, "p": "unit"}, globally=True)
            self.model.keys["units"] = n

    def wait_until_nobody_writes(self, stream: str) -> None:
        """A server may still be at work on the last commit of a client that is dead."""
        if self.kind == "sqlite":
            return
        found = -1
        while found != (now := last_seq(self.b, stream)):
            found = now
            time.sleep(0.05)

    @precondition(lambda self: self.kind in ("postgres", "remote") and self.crashes < MAX_CRASHES)
    @rule()
    def the_server_drops_us(self) -> None:  # P-REC-8, P-DUR-15
        self.crashes += 1
        self.taken.add("the server drops us")
        if self.host is not None:
            self.host.kill()
            self.host.start()
        else:
            end_connections()
        settle(lambda: last_seq(self.b, "a"))

    # What must always hold

    @invariant()
    def the_streams_are_the_models(self) -> None:  # P-LOG-4, P-LOG-6, P-DUR-10, P-BKD-4
        assert streams(self.b) == sorted(self.model.streams)
        assert total_events(self.b) == sum(stream.mark for stream in self.model.streams.values())
        for name in STREAMS:
            model = self.model.of(name)
            assert read(self.b, name) == self.model.read(name)
            assert (last_seq(self.b, name), self.b.truncated_through(name)) == (model.mark, model.truncated)
            assert count(self.b, name) == len(model.rows)
            for seq in (model.truncated, model.truncated + 1, model.mark, model.mark + 1):
                assert self.b.event_at(name, seq) == model.rows.get(seq)

    @invariant()
    def the_global_order_is_the_models(self) -> None:  # P-GLB-2, P-GLB-4, P-GLB-7
        assert global_pos(self.b) == len(self.model.positions)
        first = self.model.trimmed + 1
        assert list(global_events(self.b, first=first)) == self.model.global_order()
        if self.model.trimmed == 0:
            pointers = [(event.data["stream"], event.data["seq"]) for event in global_log(self.b)]
            assert pointers == self.model.positions

    @invariant()
    def the_keys_are_the_models(self) -> None:  # P-KV-1, P-KV-4
        assert repr(dict(kv_items(self.b))) == repr(dict(sorted(self.model.keys.items())))
        assert repr(kv_get(self.b, "x")) == repr(self.model.keys.get("x"))

    @invariant()
    def the_folds_are_the_models(self) -> None:  # P-SNP-6, P-CMP-5, P-PRJ-9
        for name in STREAMS:
            kept = partial(replay, self.b, name, f"of {name}", total, 0)
            assert outcome_of(kept) == self.model.replay(name)
            whole = self.model.fold(name, ProjectionState(0, 0))
            assert outcome_of(partial(project, self.b, name, total, 0)) == whole

    @invariant()
    def what_holds_back_is_the_models(self) -> None:  # P-CMP-10, P-SNP-8, P-SUB-12
        for name in STREAMS:
            kept = [(f"of {name}", self.model.snapshots[name].seq)] if name in self.model.snapshots else []
            assert snapshots(self.b, name) == kept
            registered = sorted(
                (key, seq) for (stream, key), seq in self.model.holds.items() if stream == name
            )
            assert [hold[:2] for hold in holds(self.b, name) if not hold.name.startswith("$")] == registered
        cursors = [(status.stream, status.seq) for status in consumers(self.b)]
        assert sorted(cursors) == sorted(self.model.cursors.items())


def end_connections() -> None:
    """The server ends every connection but the one that asks for it."""
    import psycopg

    with psycopg.connect(postgres().url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


def settle(call: Callable[[], object]) -> None:
    """Connections that broke are noticed by those who use them; the store itself is back at once."""
    for _ in range(20):
        try:
            call()
        except (StoreUnavailable, OutcomeUnknown):
            continue
        return
    call()


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[type[StoreAgreesWithLists]]:
    kind = request.param
    host = None
    if kind == "remote":
        require(kind)
        host = Host(tmp_path, scratch=True)
        host.start()
    elif kind == "postgres":
        place_of(kind, tmp_path)
    body = {"kind": kind, "host": host, "taken": set()}
    made: type[StoreAgreesWithLists] = type(f"{kind.title()}AgreesWithLists", (StoreAgreesWithLists,), body)
    yield made
    if made.child is not None:
        made.child.__exit__(None, None, None)
    if host is not None:
        host.kill()


QUICK: Final = settings(
    stateful_step_count=30,
    deadline=None,
    derandomize=True,  # the same run for everybody; the slow one looks further
    suppress_health_check=[*HealthCheck],
)
SLOW: Final = settings(QUICK, max_examples=400, stateful_step_count=60, derandomize=False)
EXAMPLES: Final = {"memory": 100, "sqlite": 50, "postgres": 25, "remote": 20}  # some seconds of each
RARE: Final = {"the clock jumps", "restored", "migrated"}
OF_PROCESSES: Final = {"reopened", "another process writes", "a process is killed"}
OF_SERVERS: Final = {"the server drops us"}
STEPS: Final = {
    "memory": RARE,
    "sqlite": RARE | OF_PROCESSES,
    "postgres": RARE | OF_PROCESSES | OF_SERVERS,
    "remote": RARE | OF_PROCESSES | OF_SERVERS,
}


@pytest.mark.parametrize("machine", KINDS, indirect=True)
def test_a_store_agrees_with_lists(machine: type[StoreAgreesWithLists]) -> None:  # P-API-3, C-15
    run_state_machine_as_test(machine, settings=settings(QUICK, max_examples=EXAMPLES[machine.kind]))

    assert machine.taken == STEPS[machine.kind]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", KINDS, indirect=True)
def test_a_store_agrees_with_lists_for_long(machine: type[StoreAgreesWithLists]) -> None:  # P-API-3, C-15
    run_state_machine_as_test(machine, settings=SLOW)


def test_two_stores_of_one_kind_share_nothing(tmp_path: Path) -> None:  # P-API-1
    with closing(open_backend("sqlite", tmp_path)) as one, closing(open_backend("memory", tmp_path)) as other:
        append(one, "s", "t", 1, 1)

        assert streams(other) == []
