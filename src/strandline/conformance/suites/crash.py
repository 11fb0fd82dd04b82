"""Crashes: a process is killed while it writes, and its host too. No acknowledged write is lost or in parts.

Each case is run several times, and each time the kill comes after another number of writes. Level durable.
"""

from collections.abc import Callable, Iterator
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import seqs, total
from strandline.conformance.suites.workers import (
    append_blocks_for_ever,
    append_for_ever,
    append_once_for_ever,
    commit_for_ever,
    compact_for_ever,
    consume_for_ever,
    increment_for_ever,
    writing,
)
from strandline.persist import (
    Backend,
    ProjectionState,
    append,
    append_once,
    consumer,
    count,
    global_pos,
    kv_get,
    kv_get_or,
    last_seq,
    poll,
    read,
    read_global,
    replay,
    seen,
    verify,
)

CRASH = Suite("crash", expected=9, timeout_s=600)

ROUNDS = (1, 6, 29)


def killed_while(
    f: BackendFixture, job: Callable[[Backend], Iterator[Any]], after: int
) -> tuple[Backend, list[Any]]:
    """The store, opened again after its writer was killed, and what that had acknowledged."""
    with writing(f, job) as writer:
        writer.wait_for(after)
        acknowledged = writer.kill()
    return f.crash(), acknowledged


def host_killed_while(
    f: BackendFixture, job: Callable[[Backend], Iterator[Any]], after: int
) -> tuple[Backend, list[Any]]:
    """The same, but that the host goes first, under a writer that is at work.

    It goes once more at the end: what the writer asked for last may still be under way in it, and would move
    the store between two looks of a case.
    """
    with writing(f, job) as writer:
        writer.wait_for(after)
        f.crash()
        acknowledged = writer.kill()
    return f.crash(), acknowledged


def either_killed_while(
    f: BackendFixture, job: Callable[[Backend], Iterator[Any]]
) -> Iterator[tuple[Backend, list[Any]]]:
    for round_, after in enumerate(ROUNDS):
        f.fresh()
        yield (killed_while if round_ % 2 else host_killed_while)(f, job, after)


@CRASH.case("P-REC-9", "P-REC-1", "P-REC-2", level="durable")
def every_acknowledged_append_is_there_and_seqs_are_dense(f: BackendFixture) -> None:
    for again, acknowledged in either_killed_while(f, append_for_ever):
        stored = read(again, "s")
        equal(seqs(stored), list(range(1, len(stored) + 1)))
        truthy(
            len(stored) >= len(acknowledged),
            f"{len(acknowledged)} acknowledged events, of which {len(stored)} are",
        )
        equal([event.data["n"] for event in stored], list(range(1, len(stored) + 1)))
        equal((last_seq(again, "s"), count(again, "s")), (len(stored), len(stored)))
        equal(append(again, "s", "after", 1, {}).seq, len(stored) + 1)


@CRASH.case("P-REC-9", "P-BAT-5", level="durable")
def no_batch_is_there_in_parts(f: BackendFixture) -> None:
    for again, acknowledged in either_killed_while(f, append_blocks_for_ever):
        stored = read(again, "s")
        equal(len(stored) % 7, 0, "whole blocks of seven")
        truthy(len(stored) // 7 >= len(acknowledged), f"{len(acknowledged)} acknowledged blocks")
        equal([event.data["block"] for event in stored], [i // 7 for i in range(len(stored))])


@CRASH.case("P-REC-9", "P-BKD-9", "P-GLB-8", level="durable")
def what_is_committed_together_is_there_together(f: BackendFixture) -> None:
    for again, acknowledged in either_killed_while(f, commit_for_ever):
        n = kv_get_or(again, "n", 0)
        truthy(n >= len(acknowledged), f"{len(acknowledged)} acknowledged commits, not {n}")
        equal((last_seq(again, "left"), last_seq(again, "right"), global_pos(again)), (n, n, n))
        equal([event.seq for event in read_global(again)], list(range(1, n + 1)))


@CRASH.case("P-REC-9", "P-IDM-5", "P-REC-7", level="durable")
def an_event_and_its_marker_are_there_together(f: BackendFixture) -> None:
    for again, acknowledged in either_killed_while(f, append_once_for_ever):
        stored = last_seq(again, "s")
        truthy(stored >= len(acknowledged), f"{len(acknowledged)} acknowledged events, not {stored}")
        for i in range(1, stored + 2):
            equal(seen(again, "s", f"key-{i}"), i <= stored, f"the marker of event {i}")
            equal(append_once(again, "s", f"key-{i}", "added", 0, {"n": i}).seq, i)  # type: ignore[union-attr]  # an Event


@CRASH.case("P-REC-9", "P-REC-3", "P-KV-7", level="durable")
def no_acknowledged_value_is_lost(f: BackendFixture) -> None:
    for again, acknowledged in either_killed_while(f, increment_for_ever):
        truthy(
            kv_get(again, "n") >= acknowledged[-1], f"{acknowledged[-1]} at least, not {kv_get(again, 'n')}"
        )


@CRASH.case("P-REC-9", "P-REC-5", "P-CMP-8", level="durable")
def compaction_loses_nothing_wherever_it_stops(f: BackendFixture) -> None:
    for again, acknowledged in either_killed_while(f, compact_for_ever):
        last = last_seq(again, "s")
        truthy(last >= len(acknowledged), f"{len(acknowledged)} acknowledged events, not {last}")
        equal(replay(again, "s", "total", total, 0), ProjectionState(last * (last + 1) // 2, last))


@CRASH.case("P-REC-9", "P-SUB-12", level="durable")
def a_cursor_and_its_result_move_together(f: BackendFixture) -> None:
    for again, _ in either_killed_while(f, consume_for_ever):
        c = consumer(again, "worker", "in")
        made = [event.data["n"] for event in read(again, "out")]
        equal(made, list(range(1, c.seq + 1)), "each event once, up to the cursor")
        equal(seqs(poll(c)), list(range(c.seq + 1, last_seq(again, "in") + 1)))


@CRASH.case("P-REC-8", "P-REC-9", level="durable")
def many_crashes_in_a_row_lose_nothing(f: BackendFixture) -> None:
    acknowledged = 0
    for _ in range(4):
        again, acks = killed_while(f, append_for_ever, 5)
        acknowledged = max(acknowledged, acks[-1])
        equal(seqs(read(again, "s")), list(range(1, last_seq(again, "s") + 1)))
        truthy(last_seq(again, "s") >= acknowledged, f"{acknowledged} at least")


@CRASH.case("P-INT-3", "P-REC-9", level="durable", needs=["verify"])
def a_store_verifies_clean_after_a_crash(f: BackendFixture) -> None:
    for again, _ in either_killed_while(f, commit_for_ever):
        equal(verify(again), [])
