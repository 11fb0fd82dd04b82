"""The global order: dense positions across streams, in commit order, that name exact events."""

from collections.abc import Iterable
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import each_raises, equal, raises
from strandline.conformance.suites.given import counted, kinds, seqs, total
from strandline.persist import (
    Append,
    Backend,
    Compacted,
    Event,
    HistoryGap,
    NotStorable,
    append,
    append_batch,
    append_batch_once,
    append_expect,
    append_multi,
    append_once,
    commit,
    gappend,
    global_events,
    global_from,
    global_log,
    global_pos,
    global_trim,
    hold,
    hold_drop,
    io_backend,
    last_seq,
    project_global,
    read,
    read_global,
    resolve_ref,
    serve,
    stream_count,
    stream_exists,
    streams,
    streams_all,
    total_events,
    truncate_through,
)

GLOBAL = Suite("global", expected=22, floor=11)


def places(found: Iterable[Any]) -> list[tuple[str, int]]:
    return [(event.stream, event.seq) for event in found]


@GLOBAL.case("P-GLB-1")
def gappend_gives_the_event_with_its_local_seq(b: Backend) -> None:
    counted(b, "cart-1", 2)

    equal(gappend(b, "cart-1", "added", 5, {"n": 1}), Event("cart-1", 3, "added", 5, {"n": 1}))


@GLOBAL.case("P-GLB-1")
def a_pointer_names_stream_and_seq_with_the_same_time(b: Backend) -> None:
    gappend(b, "cart-1", "added", 5.5, {"n": 1})

    equal(global_log(b), [Event("$global", 1, "pointer", 5.5, {"stream": "cart-1", "seq": 1})])


@GLOBAL.case("P-GLB-2")
def the_position_counts_up_whatever_the_stream(b: Backend) -> None:
    equal(global_pos(b), 0)
    for position, stream in enumerate(("a", "b", "a"), 1):
        gappend(b, stream, "added", 1, {})
        equal(global_pos(b), position)


@GLOBAL.case("P-GLB-3")
def the_log_lists_the_pointers_in_order(b: Backend) -> None:
    for stream in ("a", "b", "a"):
        gappend(b, stream, "added", 1, {})

    equal(
        [(p.seq, p.data["stream"], p.data["seq"]) for p in global_log(b)],
        [(1, "a", 1), (2, "b", 1), (3, "a", 2)],
    )


@GLOBAL.case("P-GLB-3")
def global_from_starts_at_a_position(b: Backend) -> None:
    for stream in ("a", "b", "c"):
        gappend(b, stream, "added", 1, {})

    equal(seqs(global_from(b, 2)), [2, 3])
    equal(global_from(b, 4), [])
    equal(seqs(global_from(b, 0)), [1, 2, 3])


@GLOBAL.case("P-GLB-4")
def a_pointer_resolves_to_its_event(b: Backend) -> None:
    gappend(b, "a", "added", 1, {"n": 1})
    stored = gappend(b, "b", "added", 2, {"n": 2})

    equal(resolve_ref(b, global_log(b)[1]), stored)


@GLOBAL.case("P-GLB-4")
def read_global_gives_all_in_commit_order(b: Backend) -> None:
    stored = [gappend(b, stream, "added", 9 - i, {"n": i}) for i, stream in enumerate("abacb")]

    equal(read_global(b), stored)


@GLOBAL.case("P-GLB-5")
def project_global_folds_in_commit_order(b: Backend) -> None:
    for stream in "abc":
        gappend(b, stream, "added", 1, {})

    equal(project_global(b, lambda value, event: value + event.stream, ""), "abc")
    equal(project_global(b, kinds, ["seed"]), ["seed", "added", "added", "added"])


@GLOBAL.case("P-GLB-6")
def a_plain_append_stays_out_of_the_order(b: Backend) -> None:
    gappend(b, "a", "added", 1, {})
    append(b, "a", "added", 2, {})
    append_batch(b, "b", [("added", 1, {})])

    equal((global_pos(b), places(read_global(b))), (1, [("a", 1)]))


@GLOBAL.case("P-GLB-6")
def the_index_is_no_public_stream(b: Backend) -> None:
    gappend(b, "a", "added", 1, {})

    equal((streams(b), stream_count(b), stream_exists(b, "$global"), total_events(b)), (["a"], 1, False, 1))
    equal(streams_all(b), ["$global", "a"])


@GLOBAL.case("P-GLB-7")
def the_order_is_the_same_on_every_read(b: Backend) -> None:
    for i, stream in enumerate("cabbac"):
        gappend(b, stream, "added", i, {})

    equal(read_global(b), read_global(b))


@GLOBAL.case("P-GLB-2")
def an_empty_order_reads_as_empty(b: Backend) -> None:
    append(b, "a", "added", 1, {})

    equal((global_log(b), read_global(b), project_global(b, total, 7)), ([], [], 7))


@GLOBAL.case("P-GLB-8")
def an_append_that_fails_takes_no_position(b: Backend) -> None:
    gappend(b, "a", "added", 1, {})
    with raises(NotStorable):
        gappend(b, "a", "added", 1, b"x")
    append_expect(b, "a", 0, "added", 1, {}, globally=True)

    equal((global_pos(b), last_seq(b, "a")), (1, 1))


@GLOBAL.case("P-GLB-9")
def a_pointer_to_a_truncated_event_says_so(b: Backend) -> None:
    counted(b, "a", 3, globally=True)
    truncate_through(b, "a", 2)

    equal(read_global(b)[:2], [Compacted("a", 1), Compacted("a", 2)])
    equal(resolve_ref(b, global_log(b)[0]), Compacted("a", 1))
    equal(resolve_ref(b, global_log(b)[2]), read(b, "a")[0])


@GLOBAL.case("P-GLB-9")
def a_global_fold_over_what_is_gone_raises_unless_it_may_skip(b: Backend) -> None:
    counted(b, "a", 2, globally=True)
    counted(b, "b", 1, start=100, globally=True)
    truncate_through(b, "a", 1)

    with raises(HistoryGap):
        project_global(b, total, 0)
    equal(project_global(b, total, 0, skip_compacted=True), 102)


@GLOBAL.case("P-GLB-10")
def every_append_form_takes_positions(b: Backend) -> None:
    append(b, "a", "x", 1, {}, globally=True)
    append_expect(b, "a", 1, "x", 1, {}, globally=True)
    append_batch(b, "b", [("x", 1, {}), ("x", 1, {})], globally=True)
    append_once(b, "c", "k", "x", 1, {}, globally=True)
    append_batch_once(b, "c", "k2", [("x", 1, {})], globally=True)
    append_multi(b, {"d": [("x", 1, {})]}, globally=True)
    commit(b, [], [Append("e", "x", 1, {}, globally=True), Append("e", "x", 1, {})])

    wanted = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2), ("d", 1), ("e", 1)]
    equal(places(read_global(b)), wanted)


@GLOBAL.case("P-GLB-10", "P-LOG-13")
def global_events_pages_through_a_long_order(b: Backend) -> None:
    for start in range(0, 1_200, 300):
        counted(b, f"s-{start % 2}-{start}", 300, globally=True)

    found = list(global_events(b))

    equal([position for position, _ in found], list(range(1, 1_201)))
    equal([position for position, _ in global_events(b, first=1_195)], list(range(1_195, 1_201)))


@GLOBAL.case("P-GLB-10", level="atomic")
def a_page_of_the_order_is_one_request(b: Backend) -> None:
    counted(b, "a", 5, globally=True)
    asked: list[str] = []

    def watch(request: dict[str, Any]) -> Any:
        asked.append(request["op"])
        return serve(b, request)

    equal(len(list(io_backend(watch).global_range(1, limit=5))), 5)
    equal(asked, ["persist/global-range"])


@GLOBAL.case("P-GLB-11")
def trimming_removes_pointers_and_keeps_the_position(b: Backend) -> None:
    counted(b, "a", 4, globally=True)

    equal(global_trim(b, 2), 2)

    equal((global_pos(b), seqs(global_from(b, 3)), seqs(read(b, "a"))), (4, [3, 4], [1, 2, 3, 4]))
    gappend(b, "a", "added", 1, {})
    equal(global_pos(b), 5)


@GLOBAL.case("P-GLB-11")
def reading_from_below_a_trim_raises_history_gap(b: Backend) -> None:
    counted(b, "a", 4, globally=True)
    global_trim(b, 2)

    each_raises(
        HistoryGap,
        {
            "log": lambda: global_log(b),
            "from": lambda: global_from(b, 2),
            "read": lambda: read_global(b),
            "events": lambda: list(global_events(b, first=1)),
            "project": lambda: project_global(b, total, 0),
        },
    )


@GLOBAL.case("P-GLB-11")
def a_trim_never_goes_past_a_hold(b: Backend) -> None:
    counted(b, "a", 6, globally=True)
    hold(b, "$global", "exporter", 2)

    equal(global_trim(b, 5), 2)
    equal(seqs(global_from(b, 3)), [3, 4, 5, 6])
    hold_drop(b, "$global", "exporter")
    equal(global_trim(b, 5), 5)


@GLOBAL.case("P-GLB-11")
def trimming_everything_leaves_an_order_that_goes_on(b: Backend) -> None:
    counted(b, "a", 3, globally=True)
    equal(global_trim(b, 99), 3)

    gappend(b, "b", "added", 1, {})

    equal((global_pos(b), places(event for _, event in global_events(b, first=4))), (4, [("b", 1)]))
