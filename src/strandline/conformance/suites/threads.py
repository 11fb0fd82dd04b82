"""Many threads over one backend: no seq twice, no update lost, one winner each time. Level atomic."""

import threading
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, raises
from strandline.conformance.suites.given import counted, seqs, total
from strandline.conformance.suites.workers import (
    append_blocks,
    append_many,
    append_once_each,
    gappend_many,
    in_threads,
    increment_many,
    put_new_each,
)
from strandline.persist import (
    Append,
    Backend,
    Event,
    MoveCursor,
    ProjectionState,
    Put,
    SequenceError,
    append,
    append_expect,
    checkpoint,
    commit,
    consumer,
    count,
    global_events,
    is_conflict,
    kv_cas,
    kv_get,
    kv_get_or,
    kv_put,
    last_seq,
    poll,
    read,
    replay,
    truncate_through,
)
from strandline.persist.core.lift import atomic

THREADS = Suite("threads", expected=16)


@THREADS.case("P-LOG-11", "P-API-5", "P-BKD-11", level="atomic")
def appends_of_many_threads_get_consecutive_seqs(b: Backend) -> None:
    given = in_threads(8, lambda index: append_many(b, index, "s", 25))

    equal(sorted(seq for each in given for seq in each), list(range(1, 201)))
    stored = read(b, "s")
    equal(seqs(stored), list(range(1, 201)))
    for index in range(8):
        equal([event.data["i"] for event in stored if event.data["by"] == index], list(range(25)))


@THREADS.case("P-LOG-11", level="atomic")
def appends_to_many_streams_do_not_mix(b: Backend) -> None:
    in_threads(6, lambda index: [append(b, f"s-{index}", "t", i, {"i": i}) for i in range(20)])

    for index in range(6):
        equal([event.data["i"] for event in read(b, f"s-{index}")], list(range(20)))


@THREADS.case("P-KV-7", "P-CAS-5", level="atomic")
def no_increment_is_lost(b: Backend) -> None:
    in_threads(6, lambda index: increment_many(b, index, "n", 20))

    equal(kv_get(b, "n"), 120)


@THREADS.case("P-CON-6", "P-CON-5", level="atomic")
def one_writer_wins_each_mark(b: Backend) -> None:
    won = in_threads(6, lambda index: [m for m in range(20) if _claims(b, "s", m, index)])

    claimed = sorted(mark for each in won for mark in each)
    equal(len(claimed), len(set(claimed)), "no mark is won twice")
    equal(seqs(read(b, "s")), list(range(1, len(claimed) + 1)))


def _claims(b: Backend, stream: str, mark: int, index: int) -> bool:
    return not is_conflict(append_expect(b, stream, mark, "claimed", 0, {"by": index}))


@THREADS.case("P-CAS-4", "P-CAS-5", level="atomic")
def one_racer_wins_each_swap(b: Backend) -> None:
    kv_put(b, "k", "start")

    outcomes = in_threads(8, lambda index: kv_cas(b, "k", "start", index))

    winners = [outcome for outcome in outcomes if not is_conflict(outcome)]
    equal(len(winners), 1)
    equal({outcome.actual for outcome in outcomes if is_conflict(outcome)} <= {winners[0]}, True)
    equal(kv_get(b, "k"), winners[0])


@THREADS.case("P-CAS-3", "P-CAS-5", level="atomic")
def one_creator_wins_each_key(b: Backend) -> None:
    keys = [f"k-{i}" for i in range(15)]

    made = in_threads(6, lambda index: put_new_each(b, index, keys))

    equal(sorted(key for each in made for key in each), sorted(keys))


@THREADS.case("P-IDM-5", level="atomic")
def concurrent_first_calls_yield_one_event_and_all_get_it(b: Backend) -> None:
    keys = [f"k-{i}" for i in range(15)]

    given = in_threads(6, lambda index: append_once_each(b, index, "s", keys))

    equal(count(b, "s"), 15)
    for each in given[1:]:
        equal(each, given[0])


@THREADS.case("P-BAT-5", level="atomic")
def no_foreign_event_sits_inside_a_block(b: Backend) -> None:
    in_threads(5, lambda index: append_blocks(b, index, "s", 10, 4))

    stored = read(b, "s")
    equal(len(stored), 200)
    for start in range(0, 200, 4):
        block = [(event.data["by"], event.data["block"]) for event in stored[start : start + 4]]
        equal(len(set(block)), 1, f"one block from seq {start + 1} on")


@THREADS.case("P-GLB-8", "P-GLB-4", level="atomic")
def positions_are_dense_and_in_each_streams_order(b: Backend) -> None:
    in_threads(6, lambda index: gappend_many(b, index, 20))

    found = list(global_events(b))
    equal([position for position, _ in found], list(range(1, 121)))
    for index in range(6):
        equal([event.seq for _, event in found if event.stream == f"s-{index}"], list(range(1, 21)))


@THREADS.case("P-GLB-4", level="atomic")
def no_position_appears_below_one_that_was_read(b: Backend) -> None:
    done = threading.Event()

    def follow() -> list[tuple[int, str, int]]:
        seen_so_far: list[tuple[int, str, int]] = []
        while True:
            was_done = done.is_set()
            page = list(atomic(b).global_range(len(seen_so_far) + 1, limit=50))
            seen_so_far += [(position, event.stream, event.seq) for position, event in page]
            if not page and was_done:
                return seen_so_far

    def work(index: int) -> Any:
        if index == 0:
            return follow()
        gappend_many(b, index, 25)
        writers.release()
        return None

    writers = threading.Semaphore(0)

    def finish() -> None:
        for _ in range(4):
            writers.acquire()
        done.set()

    finisher = threading.Thread(target=finish, daemon=True)
    finisher.start()
    followed = in_threads(5, work)[0]

    equal([position for position, _, _ in followed], list(range(1, 101)))
    equal(followed, [(position, event.stream, event.seq) for position, event in global_events(b)])


@THREADS.case("P-BKD-9", "P-BKD-11", level="atomic")
def a_reader_never_sees_half_a_commit(b: Backend) -> None:
    stop = threading.Event()

    def write() -> None:
        for i in range(1, 61):
            commit(b, [], [Append("left", "t", i, {}), Put("n", i), Append("right", "t", i, {})])
        stop.set()

    def watch() -> list[str]:
        wrong = []
        while not stop.is_set():
            # What is read first may not exceed what is read after it: all three move in one commit.
            right, n, left = last_seq(b, "right"), kv_get_or(b, "n", 0), last_seq(b, "left")
            if not right <= n <= left:
                wrong.append(f"{right} {n} {left}")
        return wrong

    _, *seen_wrong = in_threads(3, lambda index: write() if index == 0 else watch())

    equal(seen_wrong, [[], []])


@THREADS.case("P-BKD-11", level="atomic")
def a_conflict_of_one_does_not_touch_the_others(b: Backend) -> None:
    counted(b, "busy", 3)

    def work(index: int) -> list[bool]:
        if index % 2:
            return [is_conflict(append_expect(b, "busy", 0, "t", 1, {})) for _ in range(20)]
        return [is_conflict(append_expect(b, f"own-{index}", i, "t", 1, {})) for i in range(20)]

    outcomes = in_threads(6, work)

    equal(outcomes, [[False] * 20, [True] * 20] * 3)
    equal((last_seq(b, "busy"), last_seq(b, "own-0")), (3, 20))


@THREADS.case("P-BKD-11", level="atomic")
def an_error_of_one_does_not_touch_the_others(b: Backend) -> None:
    def work(index: int) -> int:
        if index % 2:
            for _ in range(20):
                with raises(SequenceError):
                    b.append("s", Event("s", 10_000, "t", 1, {}))
            return 0
        return len(append_many(b, index, f"own-{index}", 20))

    equal(in_threads(4, work), [20, 0, 20, 0])
    equal(last_seq(b, "s"), 0)


@THREADS.case("P-SNP-7", level="atomic")
def checkpoints_of_many_threads_never_go_back(b: Backend) -> None:
    def work(_index: int) -> list[int]:
        found = []
        for i in range(15):
            append(b, "s", "added", i, {"n": 1})
            found.append(checkpoint(b, "s", "total", total, 0).seq)
        return found

    for each in in_threads(4, work):
        equal(each, sorted(each))
    equal(replay(b, "s", "total", total, 0), ProjectionState(60, 60))


@THREADS.case("P-SUB-12", level="atomic")
def of_many_holders_of_one_cursor_each_event_is_acknowledged_once(b: Backend) -> None:
    counted(b, "in", 30)

    def work(_index: int) -> int:
        done = 0
        while True:
            c = consumer(b, "worker", "in")
            page = poll(c, limit=1)
            if not page:
                return done
            out = Append("out", "made", 1, {"n": page[0].data["n"]})
            done += not is_conflict(commit(b, [], [out, MoveCursor(c, page[0].seq)]))

    equal(sum(in_threads(4, work)), 30)
    equal([event.data["n"] for event in read(b, "out")], list(range(1, 31)))


@THREADS.case("P-LOG-7", "P-LOG-13", level="atomic")
def truncation_beside_appends_loses_and_reuses_nothing(b: Backend) -> None:
    def work(index: int) -> Any:
        if index == 0:
            for _ in range(30):
                truncate_through(b, "s", last_seq(b, "s") - 5)
            return []
        return append_many(b, index, "s", 40)

    _, *given = in_threads(4, work)

    equal(sorted(seq for each in given for seq in each), list(range(1, 121)))
    stored = seqs(read(b, "s"))
    equal(stored, list(range(121 - len(stored), 121)))
    equal(count(b, "s"), len(stored))
