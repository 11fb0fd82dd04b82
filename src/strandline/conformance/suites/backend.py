"""The backend itself: the ten operations, the extended ones, and how a store is opened."""

import os
import threading
from time import monotonic
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import at_most, call, each_raises, equal, raises, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, seqs
from strandline.persist import (
    Backend,
    Compacted,
    Event,
    SequenceError,
    Store,
    UsageError,
    append,
    append_batch,
    kv_get,
    kv_keys,
    kv_put,
    mem_backend,
    open_store,
    read,
    streams,
    streams_all,
    truncate_through,
)
from strandline.persist.core.lift import atomic

BACKEND = Suite("backend", expected=26)


@BACKEND.case("P-BKD-2", "P-BKD-6")
def append_stores_the_event_under_the_seq_it_carries(b: Backend) -> None:
    given = [Event("s", seq, "t", 10 - seq, {"n": seq}) for seq in (1, 2, 3)]
    for event in given:
        b.append("s", event)

    equal((b.read("s"), b.last_seq("s")), (given, 3))


@BACKEND.case("P-BKD-3")
def a_seq_that_is_not_the_next_is_refused(b: Backend) -> None:
    b.append("s", Event("s", 1, "t", 1, {}))
    b.append("s", Event("s", 2, "t", 1, {}))

    for seq in (4, 2, 1, 0, -1):
        with raises(SequenceError) as caught:
            b.append("s", Event("s", seq, "t", 1, {"odd": seq}))
        equal((caught.error.stream, caught.error.seq, caught.error.last_seq), ("s", seq, 2))
    with raises(SequenceError):
        b.append("new", Event("new", 2, "t", 1, {}))
    equal((seqs(b.read("s")), b.last_seq("s"), b.streams()), ([1, 2], 2, ["s"]))


@BACKEND.case("P-BKD-3", "P-BKD-1")
def after_truncation_the_next_seq_follows_the_mark(b: Backend) -> None:
    for seq in (1, 2, 3):
        b.append("s", Event("s", seq, "t", 1, {}))
    b.truncate_through("s", 3)

    with raises(SequenceError):
        b.append("s", Event("s", 1, "t", 1, {}))
    b.append("s", Event("s", 4, "t", 1, {}))

    equal((seqs(b.read("s")), b.last_seq("s")), ([4], 4))


@BACKEND.case("P-BKD-1", "P-BKD-4", "P-DUR-13")
def marks_outlive_rows_and_make_the_catalogue(b: Backend) -> None:
    b.append("s", Event("s", 1, "t", 1, {}))
    b.truncate_through("s", 1)
    b.truncate_through("never", 5)
    b.read("read-only")

    equal((b.read("s"), b.last_seq("s"), b.streams()), ([], 1, ["s"]))


@BACKEND.case("P-BKD-5")
def streams_and_keys_of_one_name_do_not_meet(b: Backend) -> None:
    b.append("x", Event("x", 1, "t", 1, {}))
    b.kv_put("x", "value")
    b.kv_put("y", "value")

    equal((b.streams(), b.kv_keys(), b.kv_has("x"), b.last_seq("y")), (["x"], ["x", "y"], True, 0))
    b.kv_delete("x")
    equal((b.last_seq("x"), b.kv_keys()), (1, ["y"]))


@BACKEND.case("P-BKD-6")
def the_kv_operations_keep_their_contract(b: Backend) -> None:
    equal((b.kv_get("k"), b.kv_has("k"), b.kv_keys()), (None, False, []))
    b.kv_delete("k")
    b.kv_put("k", None)
    equal((b.kv_get("k"), b.kv_has("k"), b.kv_keys()), (None, True, ["k"]))
    b.kv_put("k", [1])
    equal(b.kv_get("k"), [1])


@BACKEND.case("P-BKD-8", "P-BKD-6")
def names_come_back_in_order_of_code_points(b: Backend) -> None:
    names = [
        "a",
        "B",
        "é",
        "z",
        "Z",
        "\uff5e",
        "\U0001f600",
        "a b",
        "a-b",
        "a_b",
        "ä",
        "1",
        "10",
        "2",
        "~",
        "e\u0301",
    ]
    for name in names:
        append(b, name, "t", 1, {})
        kv_put(b, name, 1)

    equal(
        (b.streams(), [key for key in b.kv_keys() if not key.startswith("$")]), (sorted(names), sorted(names))
    )
    equal((streams(b), kv_keys(b)), (sorted(names), sorted(names)))


@BACKEND.case("P-BKD-7", level="atomic")
def read_range_takes_bounds_and_a_limit(b: Backend) -> None:
    store = atomic(b)
    counted(b, "s", 9)
    truncate_through(b, "s", 2)

    equal(seqs(store.read_range("s", 1, 9, limit=3)), [3, 4, 5])
    equal(seqs(store.read_range("s", 5, 6, limit=100)), [5, 6])
    equal(store.read_range("s", 6, 5, limit=100), [])
    equal(store.read_range("s", 10, 99, limit=100), [])
    equal(store.read_range("nowhere", 1, 99, limit=100), [])
    equal(store.read_range("s", 1, 99, limit=0), [])


@BACKEND.case("P-BKD-7", "P-QRY-8", level="atomic")
def read_range_filters_by_type_and_time(b: Backend) -> None:
    store = atomic(b)
    for i in range(1, 9):
        append(b, "s", "even" if i % 2 == 0 else "odd", i * 10, {})

    equal(seqs(store.read_range("s", 1, 99, limit=2, type="even")), [2, 4])
    equal(seqs(store.read_range("s", 3, 99, limit=9, type="odd", start=30, end=60)), [3, 5])
    equal(seqs(store.read_range("s", 1, 99, limit=9, end=20)), [1, 2])
    equal(store.read_range("s", 1, 99, limit=9, start="text"), [])


@BACKEND.case("P-BKD-7", level="atomic")
def a_page_is_empty_only_at_the_end(b: Backend) -> None:
    store, found = atomic(b), []
    append_batch(b, "s", [("t", 1, "x" * 200_000)] * 40)
    after = 0
    while page := list(store.read_range("s", after + 1, 2**63 - 1, limit=500)):
        found += seqs(page)
        after = page[-1].seq

    equal(found, list(range(1, 41)))


@BACKEND.case("P-BKD-7", level="atomic")
def event_at_gives_that_very_event_or_none(b: Backend) -> None:
    store = atomic(b)
    stored = counted(b, "s", 3)
    truncate_through(b, "s", 1)

    equal([store.event_at("s", seq) for seq in (0, 1, 2, 3, 4)], [None, None, stored[1], stored[2], None])
    equal(store.event_at("nowhere", 1), None)


@BACKEND.case("P-BKD-7", "P-LOG-7", level="atomic")
def truncated_through_never_exceeds_the_mark_nor_goes_back(b: Backend) -> None:
    store = atomic(b)
    equal(store.truncated_through("s"), 0)
    counted(b, "s", 4)
    equal(store.truncated_through("s"), 0)
    for n, wanted in ((2, 2), (1, 2), (99, 4), (0, 4)):
        store.truncate_through("s", n)
        equal(store.truncated_through("s"), wanted)
    counted(b, "s", 2)
    equal(store.truncated_through("s"), 4)


@BACKEND.case("P-BKD-7", level="atomic")
def global_range_gives_positions_with_their_events(b: Backend) -> None:
    store = atomic(b)
    stored = counted(b, "a", 2, globally=True) + counted(b, "b", 2, globally=True)
    truncate_through(b, "a", 1)

    found = list(store.global_range(1, limit=3))

    equal(found, [(1, Compacted("a", 1)), (2, stored[1]), (3, stored[2])])
    equal(store.global_range(4, limit=9), [(4, stored[3])])
    equal(store.global_range(5, limit=9), [])


@BACKEND.case("P-BKD-7", level="atomic")
def stream_scan_pages_by_name(b: Backend) -> None:
    store = atomic(b)
    for name in ("a", "ab", "abc", "b", "ab\U0001f600"):
        counted(b, name, 2)
    truncate_through(b, "ab", 1)

    equal(store.stream_scan("", after="", limit=2), [("a", 2, 0), ("ab", 2, 1)])
    equal([head.name for head in store.stream_scan("ab", after="ab", limit=9)], ["abc", "ab\U0001f600"])
    equal(store.stream_scan("zz", after="", limit=9), [])
    equal(store.stream_scan("", after="b", limit=9), [])


@BACKEND.case("P-BKD-7", level="atomic")
def kv_scan_pages_by_key(b: Backend) -> None:
    store = atomic(b)
    for index, key in enumerate(("a", "ab", "abc", "b", "ab\U0001f600")):
        kv_put(b, key, [index])

    equal(store.kv_scan("a", after="", limit=2), [("a", [0]), ("ab", [1])])
    equal(store.kv_scan("", after="abc", limit=1), [("ab\U0001f600", [4])])
    equal(store.kv_scan("ab", after="ab", limit=9), [("abc", [2]), ("ab\U0001f600", [4])])
    equal(store.kv_scan("", after="b", limit=9), [])


@BACKEND.case("P-BKD-7", level="atomic")
def wait_returns_the_mark_at_once_or_when_the_time_is_up(b: Backend) -> None:
    store = atomic(b)
    counted(b, "s", 3)

    before = monotonic()
    equal(store.wait("s", 2, timeout_s=30), 3)
    at_most(monotonic() - before, 10, "seconds to see what is there")
    equal(store.wait("s", 3, timeout_s=0.05), 3)
    equal(store.wait("nowhere", 0, timeout_s=0), 0)


@BACKEND.case("P-BKD-7", level="atomic")
def wait_wakes_on_a_commit(b: Backend) -> None:
    store = atomic(b)
    woken: list[int] = []
    waiter = threading.Thread(target=lambda: woken.append(store.wait("s", 0, timeout_s=30)))
    before = monotonic()
    waiter.start()

    append(b, "other", "t", 1, {})
    append(b, "s", "t", 1, {})
    waiter.join(40)

    equal(woken, [1])
    at_most(monotonic() - before, 15, "seconds until the waiter woke")


@BACKEND.case("P-BKD-7", "P-CAT-3", "P-CAT-5", level="atomic")
def info_has_lineage_format_counts_and_bytes(b: Backend) -> None:
    store = atomic(b)
    counted(b, "s", 3, globally=True)
    kv_put(b, "k", "x" * 100)
    truncate_through(b, "s", 2)

    info = store.info()

    equal((info["streams"], info["events"]), (1, 3))
    truthy(
        isinstance(info["lineage"], str) and len(bytes.fromhex(info["lineage"])) == 16,
        "128 bits as hexadecimal",
    )
    truthy(isinstance(info["format"], int) and info["format"] >= 1, "a format version")
    truthy(isinstance(info["backend"], str) and info["backend"], "the backend's name")
    truthy(info["bytes"] > 100, "more bytes than the value has")


@BACKEND.case("P-BKD-7", level="atomic")
def limits_are_checked(b: Backend) -> None:
    store = atomic(b)
    odd: Any = -1

    each_raises(
        UsageError,
        {
            "read_range": lambda: list(store.read_range("s", 1, 2, limit=odd)),
            "global_range": lambda: list(store.global_range(1, limit=odd)),
            "stream_scan": lambda: store.stream_scan("", after="", limit=odd),
            "kv_scan": lambda: store.kv_scan("", after="", limit=odd),
        },
    )


@BACKEND.case("P-BKD-7", level="atomic")
def a_closed_backend_can_be_closed_again(b: Backend) -> None:
    append(b, "s", "t", 1, {})

    atomic(b).close()
    atomic(b).close()


@BACKEND.case("P-API-1")
def opening_nothing_gives_a_fresh_store_in_memory() -> None:
    first, second = open_store(), open_store("memory:")

    append(first, "s", "t", 1, {})

    equal((streams(first), streams(second), streams(mem_backend())), (["s"], [], []))


@BACKEND.case("P-API-2", "P-API-3")
def opening_a_backend_gives_that_very_backend(b: Backend) -> None:
    truthy(open_store(b) is b, "the very backend")
    equal(append(open_store(b), "s", "t", 1, {}).seq, 1)


@BACKEND.case("P-API-4")
def an_unknown_place_or_option_is_refused(b: Backend) -> None:
    each_raises(
        UsageError,
        {
            "scheme": call(open_store, "gopher://x"),
            "empty": call(open_store, ""),
            "no file": call(open_store, "sqlite://"),
            "option": call(open_store, "memory:", frobnicate=1),
            "options for an open one": call(open_store, b, token="x"),
        },
    )


@BACKEND.case("P-API-2")
def a_store_object_has_the_same_functions_as_methods(b: Backend) -> None:
    store = Store(b)

    store.append("s", "t", 1, {"n": 1})
    store.kv_put("k", 2)

    equal((store.read("s"), store.kv_get("k"), store.last_seq("s")), (read(b, "s"), 2, 1))
    truthy("append_once" in dir(store), "every function in dir()")
    with raises(AttributeError):
        store.frobnicate()


@BACKEND.case("P-API-5", level="shared")
def after_a_fork_the_child_may_not_use_its_parents_backend(b: Backend) -> None:
    append(b, "s", "t", 1, {})
    child = os.fork()
    if child == 0:
        code = 1
        try:
            append(b, "s", "t", 1, {})
        except UsageError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    equal(os.waitstatus_to_exitcode(status), 0, "0: the child got a UsageError")
    equal(append(b, "s", "t", 2, {}).seq, 2)


@BACKEND.case("P-API-4", "P-BKD-7", needs=["reopen"])
def a_reopened_store_is_the_same_store(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 3)
    kv_put(b, "k", 1)

    again = f.reopen()

    equal((seqs(read(again, "s")), kv_get(again, "k")), ([1, 2, 3], 1))
    equal(streams_all(f.fresh()), [])
