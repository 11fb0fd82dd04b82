"""Durable consumers: a cursor in the store that sees every commit, at least once, in order."""

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import at_most, call, different, each_raises, equal, raises, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, seqs, total
from strandline.persist import (
    Append,
    Backend,
    HistoryGap,
    Hub,
    LineageMismatch,
    MoveCursor,
    UsageError,
    ack,
    append,
    append_batch,
    append_once,
    backup,
    commit,
    compact,
    consumer,
    consumer_drop,
    consumers,
    count,
    gappend,
    global_trim,
    holds,
    is_conflict,
    poll,
    publish,
    read,
    restore,
    truncate_through,
)

CONSUMER = Suite("consumer", expected=22)


@CONSUMER.case("P-SUB-12")
def a_new_consumer_starts_at_the_beginning(b: Backend) -> None:
    stored = counted(b, "s", 3)

    c = consumer(b, "mailer", "s")

    equal((c.seq, poll(c)), (0, stored))


@CONSUMER.case("P-SUB-12")
def start_says_where_to_begin(b: Backend) -> None:
    counted(b, "s", 5)

    equal(seqs(poll(consumer(b, "mailer", "s", start=3))), [4, 5])


@CONSUMER.case("P-SUB-12")
def what_was_not_acknowledged_comes_again(b: Backend) -> None:
    counted(b, "s", 3)
    c = consumer(b, "mailer", "s")

    equal((seqs(poll(c, limit=2)), seqs(poll(c, limit=2))), ([1, 2], [1, 2]))
    equal(ack(c, 2), 2)
    equal(seqs(poll(c)), [3])


@CONSUMER.case("P-SUB-12")
def a_cursor_is_resumed_by_its_name(b: Backend) -> None:
    counted(b, "s", 4)
    ack(consumer(b, "mailer", "s"), 3)

    equal(seqs(poll(consumer(b, "mailer", "s"))), [4])
    equal(seqs(poll(consumer(b, "mailer", "s", start=1))), [2, 3, 4])
    equal(seqs(poll(consumer(b, "other", "s"))), [1, 2, 3, 4])


@CONSUMER.case("P-SUB-12")
def every_commit_is_seen_whoever_made_it(b: Backend) -> None:
    c, hub = consumer(b, "mailer", "s"), Hub(b)

    append(b, "s", "plain", 1, {})
    publish(hub, "s", "published", 2, {})
    append_batch(b, "s", [("batched", 3, {})])
    append_once(b, "s", "k", "once", 4, {})
    commit(b, [], [Append("s", "committed", 5, {})])

    equal([event.type for event in poll(c)], ["plain", "published", "batched", "once", "committed"])


@CONSUMER.case("P-SUB-12")
def with_nothing_new_a_poll_is_empty(b: Backend) -> None:
    c = consumer(b, "mailer", "s")

    equal((poll(c), poll(c, timeout_s=0.05), poll(c, limit=0)), ([], [], []))


@CONSUMER.case("P-SUB-12", level="atomic")
def a_poll_waits_for_a_commit(b: Backend) -> None:
    c = consumer(b, "mailer", "s")
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.extend(poll(c, timeout_s=30)))
    before = monotonic()
    waiter.start()

    append(b, "s", "t", 1, {})
    waiter.join(40)

    equal(seqs(found), [1])
    at_most(monotonic() - before, 15, "seconds until the poll returned")


@CONSUMER.case("P-SUB-12")
def of_two_holders_the_slower_gets_a_conflict(b: Backend) -> None:
    counted(b, "s", 5)
    quick, slow = consumer(b, "mailer", "s"), consumer(b, "mailer", "s")
    equal(seqs(poll(quick)), seqs(poll(slow)))

    equal(ack(quick, 4), 4)
    outcome = ack(slow, 3)

    truthy(is_conflict(outcome), "a conflict")
    equal(consumer(b, "mailer", "s").seq, 4)


@CONSUMER.case("P-SUB-12")
def a_cursor_does_not_go_back_by_acknowledging(b: Backend) -> None:
    counted(b, "s", 5)
    c = consumer(b, "mailer", "s")
    ack(c, 4)

    truthy(is_conflict(ack(c, 2)), "a conflict")
    equal(ack(c, 4), 4)


@CONSUMER.case("P-SUB-12")
def what_was_never_given_out_cannot_be_acknowledged(b: Backend) -> None:
    counted(b, "s", 2)
    c = consumer(b, "mailer", "s")

    each_raises(UsageError, {"past": call(ack, c, 3), "start": call(consumer, b, "other", "s", start=9)})
    equal(consumer(b, "mailer", "s").seq, 0)


@CONSUMER.case("P-SUB-12", "P-BKD-12")
def the_cursor_moves_with_the_result_exactly_once(b: Backend) -> None:
    counted(b, "in", 4)
    c = consumer(b, "worker", "in")

    for event in poll(c):
        commit(
            b, [], [Append("out", "made", event.at, {"n": event.data["n"] * 10}), MoveCursor(c, event.seq)]
        )

    equal([event.data["n"] for event in read(b, "out")], [10, 20, 30, 40])
    equal((c.seq, poll(c), consumer(b, "worker", "in").seq), (4, [], 4))


@CONSUMER.case("P-SUB-12")
def the_global_order_is_consumed_by_position(b: Backend) -> None:
    for stream in "abca":
        gappend(b, stream, "t", 1, {})
    c = consumer(b, "exporter", "$global")

    found = poll(c, limit=3)
    equal(
        [(position, event.stream, event.seq) for position, event in found],
        [(1, "a", 1), (2, "b", 1), (3, "c", 1)],
    )
    ack(c, found[-1][0])

    equal([(position, event.stream, event.seq) for position, event in poll(c)], [(4, "a", 2)])


@CONSUMER.case("P-SUB-12")
def consumers_are_listed_with_their_lags(b: Backend) -> None:
    counted(b, "s", 5)
    ack(consumer(b, "mailer", "s"), 2)
    consumer(b, "auditor", "s", start=5)

    equal(consumers(b), [("auditor", "s", 5, 0), ("mailer", "s", 2, 3)])


@CONSUMER.case("P-SUB-12")
def a_dropped_consumer_is_gone_and_starts_anew(b: Backend) -> None:
    counted(b, "s", 3)
    ack(consumer(b, "mailer", "s"), 2)

    consumer_drop(b, "mailer")

    equal((consumers(b), [each.name for each in holds(b, "s")]), ([], []))
    equal(consumer(b, "mailer", "s").seq, 0)


@CONSUMER.case("P-SUB-12")
def a_name_follows_one_stream(b: Backend) -> None:
    consumer(b, "mailer", "s")

    each_raises(UsageError, {"other stream": call(consumer, b, "mailer", "t")})


@CONSUMER.case("P-SUB-12")
def a_dropped_consumers_holder_cannot_acknowledge(b: Backend) -> None:
    counted(b, "s", 3)
    c = consumer(b, "mailer", "s")
    consumer_drop(b, "mailer")

    truthy(is_conflict(ack(c, 2)), "a conflict")
    equal(consumers(b), [])


@CONSUMER.case("P-SUB-13", "P-CMP-10")
def a_cursor_holds_compaction_back(b: Backend) -> None:
    counted(b, "s", 6)
    c = consumer(b, "mailer", "s")
    ack(c, 2)

    compact(b, "s", "total", total, 0)
    equal(seqs(poll(c)), [3, 4, 5, 6])
    ack(c, 6)
    compact(b, "s", "total", total, 0)

    equal(count(b, "s"), 0)


@CONSUMER.case("P-SUB-13")
def a_poll_over_what_was_removed_raises_until_start_says_where(b: Backend) -> None:
    counted(b, "s", 6)
    c = consumer(b, "mailer", "s")
    truncate_through(b, "s", 4)

    with raises(HistoryGap):
        poll(c)
    with raises(HistoryGap):
        poll(consumer(b, "mailer", "s"))
    equal(seqs(poll(consumer(b, "mailer", "s", start=4))), [5, 6])


@CONSUMER.case("P-SUB-13")
def a_poll_of_an_emptied_stream_raises(b: Backend) -> None:
    counted(b, "s", 3)
    c = consumer(b, "mailer", "s")
    truncate_through(b, "s", 3)

    with raises(HistoryGap):
        poll(c)


@CONSUMER.case("P-SUB-13", "P-GLB-11")
def a_global_cursor_holds_trimming_back(b: Backend) -> None:
    counted(b, "s", 5, globally=True)
    c = consumer(b, "exporter", "$global")
    ack(c, 2)

    equal(global_trim(b, 9), 2)
    equal([position for position, _ in poll(c)], [3, 4, 5])


@CONSUMER.case("P-SUB-13", "P-GLB-9")
def a_global_poll_over_what_was_removed_raises(b: Backend) -> None:
    counted(b, "s", 3, globally=True)
    c = consumer(b, "exporter", "$global")
    truncate_through(b, "s", 1)

    with raises(HistoryGap):
        poll(c)
    equal([position for position, _ in poll(consumer(b, "exporter", "$global", start=1))], [2, 3])


@CONSUMER.case("P-SUB-13", "P-OPS-1", "P-OPS-2", needs=["backup"])
def after_a_restore_a_cursor_is_a_lineage_mismatch(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 4)
    ack(consumer(b, "mailer", "s"), 2)

    with TemporaryDirectory() as folder:
        backup(b, Path(folder) / "copy.db")
        restored = f.fresh()
        restore(restored, Path(folder) / "copy.db")

    with raises(LineageMismatch) as caught:
        consumer(restored, "mailer", "s")
    different(caught.error.cursor, caught.error.store)
    equal(seqs(poll(consumer(restored, "mailer", "s", start=2))), [3, 4])
    equal(consumer(restored, "mailer", "s").seq, 2)
