"""Several processes over one store, each with a backend of its own. Level shared."""

import threading
from time import monotonic

from strandline.conformance.case import Suite
from strandline.conformance.check import at_most, equal
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import seqs
from strandline.conformance.suites.workers import (
    append_blocks,
    append_many,
    append_once_each,
    await_event,
    claim_marks,
    gappend_many,
    in_processes,
    increment_many,
    put_new_each,
)
from strandline.persist import (
    Backend,
    append,
    append_expect,
    count,
    global_events,
    kv_get,
    kv_put,
    last_seq,
    read,
    truncate_through,
)
from strandline.persist.core.lift import atomic

PROCESSES = Suite("processes", expected=9)


@PROCESSES.case("P-LOG-11", level="shared")
def appends_of_several_processes_get_consecutive_seqs(b: Backend, f: BackendFixture) -> None:
    given = in_processes(f, append_many, 3, "s", 40)

    equal(sorted(seq for each in given for seq in each), list(range(1, 121)))
    stored = read(b, "s")
    equal(seqs(stored), list(range(1, 121)))
    for index in range(3):
        equal([event.data["i"] for event in stored if event.data["by"] == index], list(range(40)))


@PROCESSES.case("P-KV-7", "P-CAS-5", level="shared")
def no_increment_of_several_processes_is_lost(b: Backend, f: BackendFixture) -> None:
    in_processes(f, increment_many, 3, "n", 30)

    equal(kv_get(b, "n"), 90)


@PROCESSES.case("P-CON-6", level="shared")
def one_process_wins_each_mark(b: Backend, f: BackendFixture) -> None:
    won = in_processes(f, claim_marks, 3, "s", 25)

    claimed = [mark for each in won for mark in each]
    equal(len(claimed), len(set(claimed)), "no mark is won twice")
    equal(seqs(read(b, "s")), list(range(1, last_seq(b, "s") + 1)))


@PROCESSES.case("P-IDM-5", level="shared")
def first_calls_of_several_processes_yield_one_event(b: Backend, f: BackendFixture) -> None:
    keys = [f"k-{i}" for i in range(25)]

    given = in_processes(f, append_once_each, 3, "s", keys)

    equal(count(b, "s"), 25)
    equal(given[1:], [given[0]] * 2)


@PROCESSES.case("P-BAT-5", level="shared")
def blocks_of_several_processes_stay_whole(b: Backend, f: BackendFixture) -> None:
    in_processes(f, append_blocks, 3, "s", 12, 5)

    stored = read(b, "s")
    equal(len(stored), 180)
    for start in range(0, 180, 5):
        block = {(event.data["by"], event.data["block"]) for event in stored[start : start + 5]}
        equal(len(block), 1, f"one block from seq {start + 1} on")


@PROCESSES.case("P-GLB-4", "P-GLB-8", level="shared")
def the_global_order_of_several_processes_is_dense(b: Backend, f: BackendFixture) -> None:
    in_processes(f, gappend_many, 3, 30)

    found = list(global_events(b))
    equal([position for position, _ in found], list(range(1, 91)))
    for index in range(3):
        equal([event.seq for _, event in found if event.stream == f"s-{index}"], list(range(1, 31)))


@PROCESSES.case("P-CAS-3", "P-CAS-5", level="shared")
def one_process_creates_each_key(f: BackendFixture) -> None:
    keys = [f"k-{i}" for i in range(25)]

    made = in_processes(f, put_new_each, 3, keys)

    equal(sorted(key for each in made for key in each), sorted(keys))


@PROCESSES.case("P-SUB-12", "P-BKD-7", level="shared")
def a_commit_wakes_a_consumer_in_another_process(b: Backend, f: BackendFixture) -> None:
    appender = threading.Timer(1.0, lambda: append(b, "s", "t", 1, {}))
    appender.start()
    before = monotonic()
    try:
        equal(in_processes(f, await_event, 1, "s"), [[1]])
    finally:
        appender.join()
    at_most(monotonic() - before, 30, "seconds until the other process saw it")


@PROCESSES.case("P-API-4", "P-BKD-9", level="shared")
def a_second_backend_sees_each_write_at_once(b: Backend, f: BackendFixture) -> None:
    other = f.opener()()
    try:
        for i in range(1, 11):
            append(b, "s", "t", i, {})
            kv_put(other, "n", i)
            equal((last_seq(other, "s"), kv_get(b, "n")), (i, i))
        truncate_through(other, "s", 5)
        equal((seqs(read(b, "s")), count(b, "s")), ([6, 7, 8, 9, 10], 5))
        equal(append_expect(other, "s", 10, "t", 1, {}).seq, 11)  # type: ignore[union-attr]  # an Event
    finally:
        atomic(other).close()
