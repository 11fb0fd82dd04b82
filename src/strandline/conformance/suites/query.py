"""Queries over one stream: by range, time, type, predicate; stored events only, in order of seq."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal
from strandline.conformance.suites.given import counted, seqs
from strandline.persist import (
    Backend,
    append,
    append_batch,
    count_where,
    events,
    read_between,
    read_by_type,
    read_from,
    read_since,
    read_where,
    read_window,
    register_upcaster,
    streams,
    truncate_through,
    upcast_data,
    upcasters,
)

QUERY = Suite("query", expected=16, floor=9)


@QUERY.case("P-QRY-1")
def between_includes_both_ends(b: Backend) -> None:
    counted(b, "cart-1", 6)

    equal(seqs(read_between(b, "cart-1", 2, 4)), [2, 3, 4])
    equal(seqs(read_between(b, "cart-1", 3, 3)), [3])


@QUERY.case("P-QRY-1")
def an_inverted_range_is_empty(b: Backend) -> None:
    counted(b, "cart-1", 6)

    equal(read_between(b, "cart-1", 4, 2), [])


@QUERY.case("P-QRY-1")
def a_range_past_the_stored_events_gives_what_is_there(b: Backend) -> None:
    counted(b, "cart-1", 6)
    truncate_through(b, "cart-1", 2)

    equal(seqs(read_between(b, "cart-1", -3, 99)), [3, 4, 5, 6])
    equal(read_between(b, "cart-1", 1, 2), [])


@QUERY.case("P-QRY-2")
def since_includes_its_time(b: Backend) -> None:
    for at in (10, 20, 30):
        append(b, "cart-1", "added", at, {})

    equal(seqs(read_since(b, "cart-1", 20)), [2, 3])
    equal(read_since(b, "cart-1", 31), [])


@QUERY.case("P-QRY-3")
def a_window_includes_both_ends(b: Backend) -> None:
    for at in (10, 20, 30, 40):
        append(b, "cart-1", "added", at, {})

    equal(seqs(read_window(b, "cart-1", 20, 30)), [2, 3])
    equal(read_window(b, "cart-1", 30, 20), [])


@QUERY.case("P-QRY-4")
def a_type_is_matched_exactly(b: Backend) -> None:
    for kind in ("added", "Added", "added ", "add", "added"):
        append(b, "cart-1", kind, 1, {})

    equal(seqs(read_by_type(b, "cart-1", "added")), [1, 5])
    equal(read_by_type(b, "cart-1", "none"), [])


@QUERY.case("P-QRY-5")
def a_predicate_chooses_by_truth(b: Backend) -> None:
    counted(b, "cart-1", 6)

    equal(seqs(read_where(b, "cart-1", lambda event: event.data["n"] % 2)), [1, 3, 5])


@QUERY.case("P-QRY-6")
def count_where_counts_those(b: Backend) -> None:
    counted(b, "cart-1", 6)

    equal(count_where(b, "cart-1", lambda event: event.data["n"] > 2), 4)
    equal(count_where(b, "nowhere", lambda _: True), 0)


@QUERY.case("P-QRY-1", "P-QRY-2", "P-QRY-3", "P-QRY-4", "P-QRY-5")
def a_missing_or_emptied_stream_gives_nothing(b: Backend) -> None:
    counted(b, "gone", 3)
    truncate_through(b, "gone", 3)

    for stream in ("nowhere", "gone"):
        equal(read_between(b, stream, 1, 9), [])
        equal(read_since(b, stream, 0), [])
        equal(read_window(b, stream, 0, 9), [])
        equal(read_by_type(b, stream, "added"), [])
        equal(read_where(b, stream, lambda _: True), [])
    equal(streams(b), ["gone"])


@QUERY.case("P-QRY-2", "P-EVT-4")
def times_out_of_order_are_all_found_in_order_of_seq(b: Backend) -> None:
    for at in (30, 10, 20, 5, 40):
        append(b, "cart-1", "added", at, {})

    equal(seqs(read_since(b, "cart-1", 20)), [1, 3, 5])
    equal(seqs(read_window(b, "cart-1", 5, 20)), [2, 3, 4])


@QUERY.case("P-QRY-7")
def a_late_event_with_an_older_time_is_found_by_seq(b: Backend) -> None:
    append(b, "cart-1", "added", 100, {})
    append(b, "cart-1", "late", 50, {})

    equal([event.type for event in read_from(b, "cart-1", 2)], ["late"])
    equal(seqs(read_since(b, "cart-1", 100)), [1])


@QUERY.case("P-QRY-2", "P-QRY-3")
def numbers_compare_with_numbers_and_text_with_text(b: Backend) -> None:
    ats: list[Any] = [1, 1.5, "1", "2024-05-01", 2, -3.5, "a", 10**18]
    for at in ats:
        append(b, "mixed", "added", at, {})

    equal([event.at for event in read_since(b, "mixed", 1)], [1, 1.5, 2, 10**18])
    equal([event.at for event in read_since(b, "mixed", "1")], ["1", "2024-05-01", "a"])
    equal([event.at for event in read_window(b, "mixed", -10, 1.5)], [1, 1.5, -3.5])
    equal([event.at for event in read_window(b, "mixed", "2", "3")], ["2024-05-01"])
    equal(read_window(b, "mixed", 1, "z"), [])


@QUERY.case("P-QRY-3")
def large_whole_numbers_compare_exactly(b: Backend) -> None:
    for at in (2**53, 2**53 + 1, 2**62, 2**62 + 1, float(2**53)):
        append(b, "exact", "added", at, {})

    equal(seqs(read_window(b, "exact", 2**53 + 1, 2**62)), [2, 3])
    equal(seqs(read_since(b, "exact", 2**62 + 1)), [4])
    equal(seqs(read_window(b, "exact", 2**53, 2**53)), [1, 5])


@QUERY.case("P-QRY-3")
def text_times_compare_by_code_point(b: Backend) -> None:
    for at in ("B", "a", "Z", "é", "b", "\uff5e", "\U0001f600"):
        append(b, "text", "added", at, {})

    equal([event.at for event in read_window(b, "text", "Z", "b")], ["a", "Z", "b"])
    equal([event.at for event in read_since(b, "text", "\uff5e")], ["\uff5e", "\U0001f600"])


@QUERY.case("P-QRY-8")
def queries_page_through_long_streams(b: Backend) -> None:
    append_batch(b, "long", [("even" if i % 2 == 0 else "odd", i, {}) for i in range(1, 2_401)])

    equal(seqs(read_by_type(b, "long", "even")), list(range(2, 2_401, 2)))
    equal(len(read_window(b, "long", 100, 1_999)), 1_900)
    equal(seqs(events(b, "long", type="odd", start=2_000, limit=3)), [2_001, 2_003, 2_005])


@QUERY.case("P-UPC-8", "P-QRY-5")
def queries_take_upcasters(b: Backend) -> None:
    append(b, "cart-1", "added", 1, {"qty": 2})
    append(b, "cart-1", "added", 2, {"n": 5})
    reg = register_upcaster(
        upcasters(), "added", lambda e: upcast_data(e, {"n": e.data.get("n", e.data.get("qty"))})
    )

    equal(seqs(read_where(b, "cart-1", lambda event: event.data["n"] == 2, upcasters=reg)), [1])
    equal(count_where(b, "cart-1", lambda event: event.data["n"] > 0, upcasters=reg), 2)
    equal([event.data["n"] for event in read_between(b, "cart-1", 1, 2, upcasters=reg)], [2, 5])
