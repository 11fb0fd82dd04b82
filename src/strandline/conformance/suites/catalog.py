"""The catalogue: which streams there are, from their first event on, for ever."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal, truthy
from strandline.conformance.suites.given import counted, total
from strandline.persist import (
    Backend,
    append,
    append_batch,
    append_expect,
    append_multi,
    gappend,
    io_backend,
    is_reserved_stream,
    kv_put,
    last_seq,
    project,
    read,
    serve,
    stream_count,
    stream_exists,
    stream_names,
    streams,
    streams_all,
    total_events,
    truncate_through,
)

CATALOG = Suite("catalog", expected=14, floor=10)


@CATALOG.case("P-CAT-1")
def names_with_a_dollar_are_reserved() -> None:
    equal(
        [is_reserved_stream(name) for name in ("$global", "$", "$x", "x$", "cart-1")],
        [True] * 3 + [False] * 2,
    )


@CATALOG.case("P-CAT-2")
def an_empty_store_lists_nothing(b: Backend) -> None:
    equal((streams(b), streams_all(b)), ([], []))


@CATALOG.case("P-CAT-2", "P-BKD-8")
def every_stream_is_listed_once_in_order(b: Backend) -> None:
    for stream in ("b", "a", "c", "a"):
        append(b, stream, "opened", 1, {})

    equal(streams(b), ["a", "b", "c"])


@CATALOG.case("P-CAT-2", "P-GLB-6")
def reserved_streams_show_only_in_streams_all(b: Backend) -> None:
    gappend(b, "cart-1", "opened", 1, {})

    equal((streams(b), streams_all(b)), (["cart-1"], ["$global", "cart-1"]))


@CATALOG.case("P-CAT-3")
def the_count_is_of_public_streams(b: Backend) -> None:
    equal(stream_count(b), 0)
    gappend(b, "cart-1", "opened", 1, {})
    append(b, "cart-2", "opened", 1, {})
    append(b, "cart-2", "added", 1, {})

    equal(stream_count(b), 2)


@CATALOG.case("P-CAT-3")
def keys_are_no_streams(b: Backend) -> None:
    kv_put(b, "cart-1", 1)

    equal((stream_count(b), streams(b), total_events(b)), (0, [], 0))


@CATALOG.case("P-CAT-4")
def a_stream_exists_from_its_first_event_on(b: Backend) -> None:
    equal(stream_exists(b, "cart-1"), False)

    append(b, "cart-1", "opened", 1, {})

    equal((stream_exists(b, "cart-1"), stream_exists(b, "cart-")), (True, False))


@CATALOG.case("P-CAT-4", "P-BKD-4")
def a_fully_truncated_stream_exists(b: Backend) -> None:
    counted(b, "cart-1", 3)
    truncate_through(b, "cart-1", 3)

    equal((stream_exists(b, "cart-1"), streams(b), stream_count(b)), (True, ["cart-1"], 1))


@CATALOG.case("P-CAT-4")
def a_reserved_stream_does_not_exist_even_if_it_does(b: Backend) -> None:
    gappend(b, "cart-1", "opened", 1, {})

    equal((stream_exists(b, "$global"), last_seq(b, "$global")), (False, 1))


@CATALOG.case("P-CAT-5")
def the_total_counts_compacted_events_too(b: Backend) -> None:
    counted(b, "cart-1", 5)
    counted(b, "cart-2", 3, globally=True)
    truncate_through(b, "cart-1", 4)

    equal(total_events(b), 8)


@CATALOG.case("P-BKD-4")
def reading_or_truncating_makes_no_stream(b: Backend) -> None:
    read(b, "cart-1")
    truncate_through(b, "cart-2", 5)
    project(b, "cart-3", total, 0)
    append_batch(b, "cart-4", [])
    append_expect(b, "cart-5", 3, "added", 1, {})

    equal(streams_all(b), [])


@CATALOG.case("P-CAT-6")
def existence_count_and_total_are_one_request_each(b: Backend) -> None:
    for i in range(20):
        append(b, f"cart-{i}", "opened", 1, {})
    asked: list[str] = []

    def watch(request: dict[str, Any]) -> Any:
        asked.append(request["op"])
        return serve(b, request)

    io = io_backend(watch)
    equal((stream_exists(io, "cart-3"), stream_count(io), total_events(io)), (True, 20, 20))

    equal(len(asked), 3)
    truthy("persist/streams" not in asked, "no listing of all streams")


@CATALOG.case("P-CAT-6", "P-LOG-13")
def listing_pages_through_more_streams_than_fit_one_page(b: Backend) -> None:
    wanted = [f"cart/{i:04}" for i in range(1_050)]
    append_multi(b, {stream: [("opened", 1, {})] for stream in wanted})
    append(b, "zebra", "opened", 1, {})

    equal(stream_names(b, prefix="cart/"), wanted)
    equal(len(streams(b)), 1_051)


@CATALOG.case("P-CAT-2")
def a_prefix_is_plain_text_and_no_pattern(b: Backend) -> None:
    for stream in ("a%b", "a_b", "axb", "A%b"):
        append(b, stream, "opened", 1, {})

    equal(stream_names(b, prefix="a%"), ["a%b"])
    equal(stream_names(b, prefix="a_"), ["a_b"])
    equal(stream_names(b, prefix="a"), ["a%b", "a_b", "axb"])
