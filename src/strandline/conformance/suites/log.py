"""The log: seqs that count up and never come back, reads in order, truncation from the front."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.suites.given import counted, seqs, total
from strandline.persist import (
    Append,
    Backend,
    Event,
    HistoryGap,
    NotStorable,
    ReservedName,
    Truncate,
    UsageError,
    append,
    append_batch,
    append_batch_expect,
    append_expect,
    append_multi,
    append_once,
    commit,
    compact,
    count,
    erase_stream,
    events,
    gappend,
    kv_put,
    last_seq,
    read,
    read_from,
    streams_all,
    truncate_through,
)

LOG = Suite("log", expected=25, floor=9)


@LOG.case("P-LOG-1")
def the_first_event_of_a_stream_has_seq_1(b: Backend) -> None:
    event = append(b, "cart-1", "opened", 10, {"who": "ann"})

    equal(event, Event("cart-1", 1, "opened", 10, {"who": "ann"}))


@LOG.case("P-LOG-2", "P-LOG-9")
def seqs_count_up_in_each_stream_on_its_own(b: Backend) -> None:
    given = [append(b, stream, "added", 0, {}) for stream in ("a", "b", "a", "a", "b")]

    equal([(event.stream, event.seq) for event in given], [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)])


@LOG.case("P-LOG-3")
def last_seq_is_the_highest_ever_given_out_and_0_for_a_stream_never_written(b: Backend) -> None:
    equal(last_seq(b, "cart-1"), 0)

    counted(b, "cart-1", 3)

    equal(last_seq(b, "cart-1"), 3)


@LOG.case("P-LOG-4")
def read_gives_the_stored_events_in_order(b: Backend) -> None:
    stored = [append(b, "cart-1", kind, 0, {"kind": kind}) for kind in ("opened", "added", "closed")]

    equal(read(b, "cart-1"), stored)


@LOG.case("P-LOG-4")
def an_unknown_stream_reads_as_empty(b: Backend) -> None:
    equal(read(b, "nowhere"), [])
    equal(count(b, "nowhere"), 0)


@LOG.case("P-LOG-5")
def read_from_starts_at_a_seq(b: Backend) -> None:
    counted(b, "cart-1", 4)

    equal(seqs(read_from(b, "cart-1", 3)), [3, 4])
    equal(seqs(read_from(b, "cart-1", 1)), [1, 2, 3, 4])
    equal(seqs(read_from(b, "cart-1", 0)), [1, 2, 3, 4])
    equal(seqs(read_from(b, "cart-1", -5)), [1, 2, 3, 4])
    equal(read_from(b, "cart-1", 5), [])


@LOG.case("P-LOG-5")
def read_from_inside_a_truncated_prefix_gives_the_tail_that_is_left(b: Backend) -> None:
    counted(b, "cart-1", 5)
    truncate_through(b, "cart-1", 3)

    equal(seqs(read_from(b, "cart-1", 2)), [4, 5])


@LOG.case("P-LOG-6")
def count_is_what_is_stored_and_last_seq_what_was_given_out(b: Backend) -> None:
    counted(b, "cart-1", 5)
    equal(count(b, "cart-1"), 5)

    truncate_through(b, "cart-1", 2)

    equal((count(b, "cart-1"), last_seq(b, "cart-1")), (3, 5))


@LOG.case("P-LOG-7", "P-BKD-1")
def truncation_removes_a_prefix_and_no_seq_is_reused(b: Backend) -> None:
    stored = counted(b, "cart-1", 5)

    truncate_through(b, "cart-1", 3)

    equal(read(b, "cart-1"), stored[3:])
    equal(append(b, "cart-1", "added", 6, {}).seq, 6)


@LOG.case("P-LOG-8")
def truncating_below_the_first_stored_seq_removes_nothing(b: Backend) -> None:
    counted(b, "cart-1", 4)
    truncate_through(b, "cart-1", 2)

    for n in (2, 1, 0, -7):
        truncate_through(b, "cart-1", n)

    equal(seqs(read(b, "cart-1")), [3, 4])


@LOG.case("P-LOG-8", "P-BKD-1", "P-DUR-10")
def truncating_above_the_last_seq_empties_the_stream_and_leaves_its_mark(b: Backend) -> None:
    counted(b, "cart-1", 3)

    truncate_through(b, "cart-1", 99)

    equal((read(b, "cart-1"), count(b, "cart-1"), last_seq(b, "cart-1")), ([], 0, 3))
    equal(append(b, "cart-1", "added", 4, {}).seq, 4)


@LOG.case("P-LOG-8", "P-BKD-4")
def truncating_an_unknown_stream_does_nothing(b: Backend) -> None:
    truncate_through(b, "nowhere", 5)

    equal((last_seq(b, "nowhere"), streams_all(b)), (0, []))
    equal(append(b, "nowhere", "opened", 1, {}).seq, 1)


@LOG.case("P-LOG-9")
def truncating_one_stream_leaves_the_others(b: Backend) -> None:
    counted(b, "a", 3)
    kept = counted(b, "ab", 3)

    truncate_through(b, "a", 3)

    equal((read(b, "ab"), count(b, "ab"), last_seq(b, "ab")), (kept, 3, 3))


@LOG.case("P-LOG-10")
def what_was_read_once_reads_the_same_for_ever(b: Backend) -> None:
    before = counted(b, "cart-1", 3)

    counted(b, "cart-1", 3, start=4)
    kv_put(b, "cart-1", "a key of that name")

    equal(read(b, "cart-1")[:3], before)


@LOG.case("P-LOG-7")
def a_long_truncation_shows_at_once_and_appends_go_on(b: Backend) -> None:
    counted(b, "cart-1", 2_500)

    truncate_through(b, "cart-1", 2_400)

    equal((count(b, "cart-1"), read(b, "cart-1")[0].seq), (100, 2_401))
    equal(append(b, "cart-1", "added", 0, {}).seq, 2_501)


@LOG.case("P-LOG-7")
def truncating_again_further_on_keeps_the_rest(b: Backend) -> None:
    counted(b, "cart-1", 6)

    truncate_through(b, "cart-1", 2)
    truncate_through(b, "cart-1", 5)
    counted(b, "cart-1", 2, start=7)

    equal(seqs(read(b, "cart-1")), [6, 7, 8])


@LOG.case("P-LOG-12", "P-CAT-1")
def applications_may_not_write_to_reserved_streams(b: Backend) -> None:
    append(b, "cart-1", "opened", 1, {}, globally=True)
    specs: list[Any] = [("added", 1, {})]

    each_raises(
        ReservedName,
        {
            "append": call(append, b, "$mine", "added", 1, {}),
            "append to $global": call(append, b, "$global", "pointer", 1, {"stream": "x", "seq": 1}),
            "truncate": call(truncate_through, b, "$global", 1),
            "expect": call(append_expect, b, "$mine", 0, "added", 1, {}),
            "batch": call(append_batch, b, "$mine", specs),
            "batch expect": call(append_batch_expect, b, "$mine", 0, specs),
            "multi": call(append_multi, b, {"$mine": specs}),
            "once": call(append_once, b, "$mine", "k", "added", 1, {}),
            "global": call(gappend, b, "$mine", "added", 1, {}),
            "commit": call(commit, b, [], [Append("$mine", "added", 1, {})]),
            "commit truncate": call(commit, b, [], [Truncate("$global", 1)]),
            "compact": call(compact, b, "$global", "s", total, 0),
            "erase": call(erase_stream, b, "$global", 1, reason="no"),
        },
    )
    equal(last_seq(b, "$mine"), 0)


@LOG.case("P-LOG-12")
def reserved_streams_may_be_read(b: Backend) -> None:
    append(b, "cart-1", "opened", 1, {}, globally=True)

    equal((last_seq(b, "$global"), len(read(b, "$global")), read(b, "$other")), (1, 1, []))


@LOG.case("P-LOG-13")
def events_is_lazy_and_cut_by_seq_and_limit(b: Backend) -> None:
    counted(b, "cart-1", 10)

    found = events(b, "cart-1", first=3, last=8, limit=4)

    truthy(iter(found) is found, "an iterator")
    equal(seqs(found), [3, 4, 5, 6])
    equal(events(b, "cart-1", limit=0), [])


@LOG.case("P-LOG-13")
def events_filters_by_type_time_and_predicate_together(b: Backend) -> None:
    for i in range(1, 11):
        append(b, "cart-1", "even" if i % 2 == 0 else "odd", i * 10, {"n": i})

    found = events(b, "cart-1", type="even", start=30, end=90, where=lambda event: event.data["n"] != 6)

    equal(seqs(found), [4, 8])


@LOG.case("P-LOG-13", "P-OPS-4")
def reads_go_over_many_pages_without_a_seam(b: Backend) -> None:
    counted(b, "cart-1", 1_203)

    equal(seqs(events(b, "cart-1")), list(range(1, 1_204)))
    equal(len(list(events(b, "cart-1", where=lambda event: event.seq % 400 == 0))), 3)
    equal(len(list(events(b, "cart-1", limit=1_001))), 1_001)


@LOG.case("P-LOG-13")
def a_truncation_that_overtakes_a_reader_raises_and_never_skips(b: Backend) -> None:
    counted(b, "cart-1", 1_500)
    reader = events(b, "cart-1")
    equal(next(reader).seq, 1)

    truncate_through(b, "cart-1", 1_400)

    with raises(HistoryGap) as caught:
        list(reader)
    equal((caught.error.stream, caught.error.truncated_through), ("cart-1", 1_400))


@LOG.case("P-LOG-13")
def a_reader_that_started_sees_what_was_appended_behind_its_page(b: Backend) -> None:
    counted(b, "cart-1", 600)
    reader = events(b, "cart-1")
    equal(next(reader).seq, 1)

    append(b, "cart-1", "late", 0, {})

    equal(seqs(reader), list(range(2, 602)))


@LOG.case("P-LOG-13")
def a_negative_limit_is_refused(b: Backend) -> None:
    each_raises(UsageError, {"limit": lambda: list(events(b, "cart-1", limit=-1))})


@LOG.case("P-LOG-11")
def an_event_that_cannot_be_stored_takes_no_seq(b: Backend) -> None:
    append(b, "cart-1", "opened", 1, {})

    with raises(NotStorable):
        append(b, "cart-1", "added", 2, {"bytes": b"x"})

    equal(append(b, "cart-1", "added", 3, {}).seq, 2)
    equal(count(b, "cart-1"), 2)
