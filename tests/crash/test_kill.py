"""SIGKILL at every named step: what was acknowledged is there, the rest is wholly there or wholly absent."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from strandline import persist
from strandline.errors import OutcomeUnknown, StoreUnavailable
from strandline.persist import (
    AtomicBackend,
    Event,
    ProjectionState,
    backup,
    compact,
    count,
    global_events,
    global_pos,
    kv_get,
    last_seq,
    mem_backend,
    read,
    replay,
    restore,
    verify,
)
from strandline.persist.backend import Inspectable
from strandline.persist.backends.sqlite.file import connect
from tests.conftest import DURABLE_KINDS, Host, Place, host_of, place_of, postgres
from tests.crash.child import BLOCK, COMPACTED, WRITES, total, write_plain
from tests.crash.killing import WAIT_S, Child

# Every step that a process which writes comes by, and which acts come by it.
COMMIT_STEPS: Final = ("commit.prepared", "commit.before", "commit.after", "commit.acknowledged")
COMPACT_STEPS: Final = ("compact.checkpointed", "truncate.swept")
BACKUP_STEPS: Final = ("backup.filled", "backup.sealed", "backup.named")

# A client of Postgres or of a host has the first and the last step of a commit; those between are in another
# process: see the tests of killed hosts, of kills in mid-flight and of kills at random.
CLIENT_STEPS: Final = ("commit.prepared", "commit.acknowledged")
FACET_STEPS: Final = {
    "sqlite": (*COMMIT_STEPS, *COMPACT_STEPS),
    "postgres": COMPACT_STEPS[:1],
    "remote": COMPACT_STEPS[:1],
}


def test_every_named_step_of_the_store_is_killed_at_here() -> None:
    folder = Path(persist.__file__).parent
    sources = "\n".join(source.read_text() for source in folder.rglob("*.py"))
    named = set(re.findall(r'\breach\("([^"]+)"\)', sources))

    assert named == {*COMMIT_STEPS, *COMPACT_STEPS, *BACKUP_STEPS}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where only clients are killed; a host that is has a folder of its own, see `host_of`."""
    return place_of(request.param, tmp_path)


def written(b: AtomicBackend, kind: str) -> int:
    """How many of the numbered writes are there, having looked whether each is there whole and once."""
    if kind == "append":
        found = [event.data["n"] for event in read(b, "s")]
        assert found == [*range(1, len(found) + 1)]
    elif kind == "batch":
        blocks = [(event.data["n"], event.data["i"]) for event in read(b, "s")]
        found = [n for n, i in blocks if i == 0]
        assert blocks == [(n, i) for n in range(1, len(found) + 1) for i in range(BLOCK)]
    else:
        found = [event.data["n"] for event in read(b, "left")]
        assert found == [*range(1, len(found) + 1)] == [event.data["n"] for event in read(b, "right")]
        assert (kv_get(b, "n") or 0) == len(found)
        assert global_pos(b) == 2 * len(found)
        lined_up = [(event.stream, event.seq) for _, event in global_events(b) if isinstance(event, Event)]
        assert lined_up == [(stream, n) for n in found for stream in ("left", "right")]
    for stream in ("s", "left", "right"):
        assert [event.seq for event in read(b, stream)] == [*range(1, last_seq(b, stream) + 1)]
    assert sound(b)
    return len(found)


def sound(b: AtomicBackend) -> bool:
    return isinstance(b, Inspectable) and b.verify() == []


def check(place: Place, kind: str, acknowledged: int, *, in_flight: int = 1) -> None:
    """Nothing that was acknowledged is lost, nothing is there in part, and a repeat has one effect."""
    with closing(place.open()) as b:
        there = written(b, kind)  # P-REC-1, P-REC-9
        assert acknowledged <= there <= acknowledged + in_flight
        for n in range(1, there + 3):  # the last ones are new
            WRITES[kind](b, n)
        assert written(b, kind) == there + 2  # P-REC-2, P-REC-7, P-IDM-4
    with closing(place.open()) as b:
        assert written(b, kind) == there + 2  # P-REC-8


# A killed writer


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize(
    ("place", "step"),
    [
        *(("sqlite", step) for step in COMMIT_STEPS),
        *((kind, step) for kind in ("postgres", "remote") for step in CLIENT_STEPS),
    ],
    indirect=["place"],
)
@pytest.mark.parametrize("kind", WRITES)
def test_a_writer_killed_at_a_step_of_its_commit(
    place: Place, kind: str, step: str, nth: int
) -> None:  # P-REC-9, P-BAT-5, P-IDM-5, P-GLB-8
    with Child(place, failpoint=f"{step}:{nth}") as child:
        child.tell("writes", kind=kind, first=1, last=9)
        acknowledged = child.listen()
        assert child.ended_by_kill(), f"{kind} does not come by {step}"

    assert acknowledged == nth - 1
    with closing(place.open()) as b:
        is_durable = step in ("commit.after", "commit.acknowledged")
        assert written(b, kind) == (nth if is_durable else nth - 1)
    check(place, kind, acknowledged)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("kind", WRITES)
def test_a_client_of_postgres_killed_while_the_server_works_on_its_commit(place: Place, kind: str) -> None:
    with Child(place) as child:  # P-REC-9
        child.tell("writes", kind=kind, first=1, last=3)
        assert child.listen() == 3
        with held_up_in_postgres(place.options["schema"]):
            child.tell("writes", kind=kind, first=4, last=9)
            until(lambda: waiting_in_postgres() > 0)
            acknowledged = child.kill()

    assert acknowledged == 3
    until(lambda: waiting_in_postgres() == 0)
    check(place, kind, acknowledged)


@contextmanager
def held_up_in_postgres(schema: str) -> Iterator[None]:
    """No commit goes on in that schema, since somebody holds its tables."""
    import psycopg

    with psycopg.connect(postgres().url) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchall()
        for (table,) in tables:
            connection.execute(f'LOCK TABLE "{schema}"."{table}" IN EXCLUSIVE MODE'.encode())
        yield
        connection.rollback()


def waiting_in_postgres() -> int:
    """How many wait for a lock."""
    import psycopg

    with psycopg.connect(postgres().url) as connection:
        row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    assert row is not None
    return int(row[0])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", WRITES)
def test_a_client_of_a_host_killed_while_the_host_works_on_its_commit(tmp_path: Path, kind: str) -> None:
    host = host_of(tmp_path)  # P-REC-9
    place = Place(host.url)
    with Child(place) as child:
        child.tell("writes", kind=kind, first=1, last=3)
        assert child.listen() == 3
        with held_up_in_sqlite(host.store):
            child.tell("writes", kind=kind, first=4, last=9)
            other = Child(place)
            other.tell("writes", kind=kind, first=4, last=4)  # the same, behind it in line
            assert child.kill() == 3
        with other:
            assert other.listen() == 4

    check(place, kind, 4, in_flight=0)


@contextmanager
def held_up_in_sqlite(path: Path) -> Iterator[None]:
    connection = connect(path, synchronous="FULL", busy_timeout_s=WAIT_S)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


# A killed host


@pytest.mark.parametrize("kind", [*WRITES, "plain"])
def test_a_host_killed_at_each_step_of_a_commit_and_restarted_is_not_noticed(
    tmp_path: Path, kind: str
) -> None:  # P-DUR-9, P-DUR-15: the client repeats under the same key, which has one effect
    first, *others = [f"{step}:5" for step in COMMIT_STEPS]  # what comes after a restart in a round is less
    host = host_of(tmp_path, failpoint=first)
    write = WRITES.get(kind, write_plain)  # for the plain ones, without a key, the client draws one

    with closing(Place(host.url).open(retries=8)) as b:
        for done, then in enumerate([*others, ""]):
            restarting = Thread(target=restart, args=(host, then), daemon=True)
            restarting.start()
            for n in range(5 * done + 1, 5 * done + 6):
                write(b, n)
            restarting.join(WAIT_S)
            assert not restarting.is_alive(), f"the host never came by {COMMIT_STEPS[done]}"
            assert written(b, "append" if kind == "plain" else kind) == 5 * done + 5


def restart(host: Host, failpoint: str = "") -> None:
    """Start it anew once it has died; `failpoint` is where it will die next."""
    if host.died(WAIT_S):
        host.kill()
        host.start(failpoint=failpoint)


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_a_host_that_stays_dead_leaves_an_outcome_that_a_repeat_settles(tmp_path: Path, step: str) -> None:
    host = host_of(tmp_path, failpoint=f"{step}:3")  # P-DUR-9
    place = Place(host.url)

    with closing(place.open(retries=0)) as b:
        for n in (1, 2):
            WRITES["append"](b, n)
        with pytest.raises(OutcomeUnknown) as lost:
            WRITES["append"](b, 3)
        assert lost.value.once == ("s", "key 3")
        assert host.died()
        with pytest.raises(StoreUnavailable):
            WRITES["append"](b, 4)  # nobody listens, so nothing was sent

    host.kill()
    host.start()
    check(Place(host.url), "append", 2)


# Compaction


def check_compaction(place: Place, acknowledged: int) -> None:
    rounds = (acknowledged + 1) // 2
    with closing(place.open()) as b:
        there = last_seq(b, "s") // COMPACTED
        assert last_seq(b, "s") % COMPACTED == 0
        assert rounds <= there <= rounds + 1
        whole = ProjectionState(COMPACTED * sum(range(1, there + 1)), last_seq(b, "s"))

        assert replay(b, "s", "snap", total, 0) == whole  # P-CMP-8, P-REC-4, P-REC-5
        assert count(b, "s") == len(read(b, "s"))
        assert sound(b)
        assert compact(b, "s", "snap", total, 0) == whole
        assert (count(b, "s"), b.truncated_through("s")) == (0, last_seq(b, "s"))
        assert persist.append(b, "s", "t", 1, {"n": 0}).seq == there * COMPACTED + 1
        assert sound(b)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    ("place", "step"),
    [(kind, step) for kind, steps in FACET_STEPS.items() for step in steps],
    indirect=["place"],
)
def test_a_compaction_killed_at_any_of_its_steps(place: Place, step: str, nth: int) -> None:  # P-CMP-8
    with Child(place, failpoint=f"{step}:{nth}") as child:
        child.tell("compactions", rounds=4)
        acknowledged = child.listen()
        assert child.ended_by_kill(), f"compaction does not come by {step}"

    check_compaction(place, acknowledged)


@pytest.mark.parametrize(
    "nth", [*range(1, 8), *(pytest.param(nth, marks=pytest.mark.slow) for nth in range(8, 14))]
)
def test_a_compaction_killed_between_snapshot_truncation_and_each_step_of_its_sweep(
    tmp_path: Path, nth: int
) -> None:  # P-CMP-8, P-LOG-7: three commits and three steps of the sweep make a round
    place = place_of("sqlite", tmp_path)
    for step in ("commit.before", "commit.after"):
        with Child(place, failpoint=f"{step}:{nth}") as child:
            child.tell("compactions", rounds=4)
            acknowledged = child.listen()
            assert child.ended_by_kill()
        check_after_some_rounds(place, acknowledged)


def check_after_some_rounds(place: Place, acknowledged: int) -> None:
    """As check_compaction, in a store that others have compacted before: the child starts to count anew."""
    with closing(place.open()) as b:
        state = replay(b, "s", "snap", total, 0)
        assert state.seq == last_seq(b, "s")
        assert last_seq(b, "s") >= (acknowledged + 1) // 2 * COMPACTED
        assert count(b, "s") == len(read(b, "s"))
        assert compact(b, "s", "snap", total, 0) == state
        assert count(b, "s") == 0
        assert sound(b)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_host_killed_inside_a_sweep(tmp_path: Path, nth: int) -> None:  # P-CMP-8
    host = host_of(tmp_path, failpoint=f"truncate.swept:{nth}")
    restarting = Thread(target=restart, args=(host,), daemon=True)
    restarting.start()

    with Child(Place(host.url, {"retries": 8})) as child:
        child.tell("compactions", rounds=4)
        assert child.listen() == 8
        child.end()
    restarting.join(WAIT_S)

    assert not restarting.is_alive()
    check_compaction(Place(host.url), 8)


# Backup


@pytest.mark.parametrize("step", [*BACKUP_STEPS, "commit.before", "commit.after"])
@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_backup_killed_at_any_of_its_steps_is_whole_or_not_there(
    place: Place, step: str, tmp_path: Path
) -> None:  # P-OPS-2
    target = tmp_path / "backups" / "backup.db"
    target.parent.mkdir()
    with closing(place.open()) as b:
        for n in range(1, 30):
            WRITES["commit"](b, n)
    with Child(place, failpoint=step) as child:
        child.tell("backup", to=str(target))
        assert child.listen() == 0
        assert child.ended_by_kill(), f"a backup does not come by {step}"

    with closing(place.open()) as b:
        assert written(b, "commit") == 29
        assert target.exists() is (step == "backup.named")
        if not target.exists():
            backup(b, target)
    with closing(mem_backend()) as restored:
        restore(restored, target)
        assert written(restored, "commit") == 29
        assert verify(restored) == []


def test_what_a_killed_backup_leaves_does_not_stop_the_next(tmp_path: Path) -> None:
    place, target = place_of("sqlite", tmp_path), tmp_path / "backup.db"
    with closing(place.open()) as b:
        WRITES["append"](b, 1)
    with Child(place, failpoint="backup.filled") as child:
        child.tell("backup", to=str(target))
        child.listen()
        assert child.ended_by_kill()
    assert list(tmp_path.glob(".strandline-backup-*"))
    assert not target.exists()

    with closing(place.open()) as b:
        backup(b, target)
    assert target.exists()


# At random


@pytest.mark.parametrize("place", DURABLE_KINDS, indirect=True)
@pytest.mark.parametrize("kind", WRITES)
def test_a_writer_killed_at_random_again_and_again(place: Place, kind: str) -> None:  # P-REC-9
    kill_at_random(place, kind, times=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", DURABLE_KINDS, indirect=True)
@pytest.mark.parametrize("kind", WRITES)
def test_a_writer_killed_at_random_a_hundred_times(place: Place, kind: str) -> None:  # P-REC-9
    kill_at_random(place, kind, times=100)


def kill_at_random(place: Place, kind: str, *, times: int) -> None:
    chance, done = random.Random(f"{kind} {times}"), 0
    for _ in range(times):
        with Child(place) as child:
            child.tell("writes", kind=kind, first=done + 1, last=done + 10**6)
            child.listen(until=done + chance.randint(1, 30))
            time.sleep(chance.random() * 0.005)  # anywhere between two acknowledgements
            acknowledged = child.kill_at_work()
        with closing(place.open()) as b:
            until(lambda b=b: nobody_writes(b))  # type: ignore[misc]  # bound
            done = written(b, kind)
        assert acknowledged <= done <= acknowledged + 1
    check(place, kind, done, in_flight=0)


def nobody_writes(b: AtomicBackend) -> bool:
    """A server may still be at work on the last commit of a client that is dead."""
    before = marks(b)
    time.sleep(0.1)
    return marks(b) == before


def marks(b: AtomicBackend) -> list[Any]:
    return b.stream_scan("", after="", limit=500)


@pytest.mark.parametrize("kind", WRITES)
def test_a_host_killed_at_random_again_and_again(tmp_path: Path, kind: str) -> None:  # P-DUR-15
    kill_host_at_random(host_of(tmp_path), kind, times=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", WRITES)
def test_a_host_killed_at_random_fifty_times(tmp_path: Path, kind: str) -> None:  # P-DUR-15
    kill_host_at_random(host_of(tmp_path), kind, times=50)


def kill_host_at_random(host: Host, kind: str, *, times: int) -> None:
    chance = random.Random(f"host {kind} {times}")
    with Child(Place(host.url, {"retries": 8})) as child:
        child.tell("writes", kind=kind, first=1, last=10**6)
        for _ in range(times):
            child.listen(until=child.acknowledged + chance.randint(1, 30))
            time.sleep(chance.random() * 0.005)  # anywhere between two acknowledgements
            host.kill()
            host.start()
        child.listen(until=child.acknowledged + 5)
        acknowledged = child.kill_at_work()
    with closing(Place(host.url).open()) as b, suppress(AssertionError):
        until(lambda: nobody_writes(b))
    check(Place(host.url), kind, acknowledged)


@pytest.mark.parametrize("kind", WRITES)
def test_a_postgres_killed_under_its_clients_loses_nothing(kind: str, tmp_path: Path) -> None:  # P-REC-9
    place = place_of("postgres", tmp_path)
    acknowledged = 0
    with closing(place.open()) as b:
        for n in range(1, 6):
            WRITES[kind](b, n)
            acknowledged = n
        postgres().kill()
        with suppress(OutcomeUnknown, StoreUnavailable):
            WRITES[kind](b, 6)
            acknowledged = 6
        postgres().start()
    check(place, kind, acknowledged)
