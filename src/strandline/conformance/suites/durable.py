"""The backend contract as requests: encoders, the reference host, and the whole stack over them."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, seqs, total
from strandline.persist import (
    ABSENT,
    Backend,
    BlobRef,
    Conflict,
    Event,
    ProjectionState,
    UnknownOp,
    UsageError,
    append,
    append_batch,
    append_once,
    compact,
    gappend,
    io_backend,
    kv_cas,
    kv_get,
    kv_keys,
    kv_put,
    kv_put_new,
    kv_update,
    last_seq,
    mock_durable,
    read,
    read_global,
    replay,
    req_append,
    req_kv_delete,
    req_kv_get,
    req_kv_has,
    req_kv_keys,
    req_kv_put,
    req_last_seq,
    req_read,
    req_streams,
    req_truncate,
    serve,
    stream_count,
    streams,
    total_events,
    truncate_through,
    view,
    view_value,
)
from strandline.persist.core.lift import atomic

DURABLE = Suite("durable", expected=22, floor=15)


@DURABLE.case("P-DUR-1", "P-DUR-2")
def a_request_has_exactly_op_and_args() -> None:
    event = Event("s", 1, "t", 1, {})
    made = [
        req_append("s", event),
        req_read("s"),
        req_last_seq("s"),
        req_streams(),
        req_truncate("s", 1),
        req_kv_get("k"),
        req_kv_put("k", 1),
        req_kv_delete("k"),
        req_kv_has("k"),
        req_kv_keys(),
    ]

    for request in made:
        equal(sorted(request), ["args", "op"])
        truthy(isinstance(request["args"], list), "a list of arguments")


@DURABLE.case("P-DUR-2")
def log_requests_carry_their_arguments_in_order() -> None:
    event = Event("cart-1", 1, "opened", 5, {"n": 1})

    equal(req_append("cart-1", event), {"op": "persist/append", "args": ["cart-1", event]})
    equal(req_read("cart-1"), {"op": "persist/read", "args": ["cart-1"]})
    equal(req_last_seq("cart-1"), {"op": "persist/last-seq", "args": ["cart-1"]})
    equal(req_truncate("cart-1", 3), {"op": "persist/truncate", "args": ["cart-1", 3]})


@DURABLE.case("P-DUR-2")
def kv_requests_carry_their_arguments_in_order() -> None:
    equal(req_kv_get("k"), {"op": "persist/kv-get", "args": ["k"]})
    equal(req_kv_put("k", [1]), {"op": "persist/kv-put", "args": ["k", [1]]})
    equal(req_kv_delete("k"), {"op": "persist/kv-delete", "args": ["k"]})
    equal(req_kv_has("k"), {"op": "persist/kv-has?", "args": ["k"]})


@DURABLE.case("P-DUR-2")
def requests_without_arguments_have_an_empty_list() -> None:
    equal(req_streams(), {"op": "persist/streams", "args": []})
    equal(req_kv_keys(), {"op": "persist/kv-keys", "args": []})


@DURABLE.case("P-DUR-2")
def encoders_do_not_look_at_what_they_carry() -> None:
    thing: Any = object()

    truthy(req_kv_put("", thing)["args"][1] is thing, "the very object")
    equal(req_truncate("", -1)["args"], ["", -1])


@DURABLE.case("P-DUR-3")
def every_method_of_an_io_backend_is_one_request(b: Backend) -> None:
    asked: list[str] = []

    def transport(request: dict[str, Any]) -> Any:
        asked.append(request["op"])
        return serve(b, request)

    io = io_backend(transport)
    io.append("s", Event("s", 1, "t", 1, {}))
    io.read("s")
    io.last_seq("s")
    io.streams()
    io.truncate_through("s", 0)
    io.kv_put("k", 1)
    io.kv_get("k")
    io.kv_has("k")
    io.kv_keys()
    io.kv_delete("k")

    names = "append read last-seq streams truncate kv-put kv-get kv-has? kv-keys kv-delete"
    equal(asked, [f"persist/{name}" for name in names.split()])


@DURABLE.case("P-DUR-4")
def append_then_read_goes_through_the_host(b: Backend) -> None:
    event = Event("cart-1", 1, "opened", 5, {"n": [1, None]})

    serve(b, req_append("cart-1", event))

    equal(serve(b, req_read("cart-1")), [event])
    equal(serve(b, req_last_seq("cart-1")), 1)


@DURABLE.case("P-DUR-4")
def put_then_get_goes_through_the_host(b: Backend) -> None:
    serve(b, req_kv_put("k", {"n": 1}))

    equal(serve(b, req_kv_get("k")), {"n": 1})
    equal((serve(b, req_kv_has("k")), serve(b, req_kv_keys())), (True, ["k"]))


@DURABLE.case("P-DUR-5")
def an_unknown_op_raises_and_is_named(b: Backend) -> None:
    for op in ("persist/kv-frobnicate", "blob/put", "", None):
        with raises(UnknownOp) as caught:
            serve(b, {"op": op, "args": []})
        truthy(repr(op) in str(caught.error), f"a message that names {op!r}")


@DURABLE.case("P-DUR-6")
def the_log_behaves_the_same_over_requests(b: Backend) -> None:
    io = mock_durable(b)

    counted(io, "cart-1", 4)
    truncate_through(io, "cart-1", 2)
    append(io, "cart-1", "closed", 9, {})

    equal(read(io, "cart-1"), read(b, "cart-1"))
    equal(seqs(read(io, "cart-1")), [3, 4, 5])


@DURABLE.case("P-DUR-6")
def kv_and_compare_and_swap_behave_the_same_over_requests(b: Backend) -> None:
    io = mock_durable(b)
    kv_put(io, "k", 1)

    equal(kv_cas(io, "k", 1, 2), 2)
    equal(kv_cas(io, "k", 1, 3), Conflict(1, 2, "STALE"))
    equal(kv_put_new(io, "k", 9), Conflict(ABSENT, 2, "EXISTS"))
    equal(kv_update(io, "n", 0, lambda n: n + 1), 1)
    equal((kv_get(b, "k"), kv_keys(b)), (2, ["k", "n"]))


@DURABLE.case("P-DUR-6")
def snapshots_and_compaction_behave_the_same_over_requests(b: Backend) -> None:
    io = mock_durable(b)
    counted(io, "cart-1", 4)

    compact(io, "cart-1", "total", total, 0)
    counted(io, "cart-1", 1, start=5)

    equal(replay(io, "cart-1", "total", total, 0), ProjectionState(15, 5))
    equal(view_value(io, view("total", "cart-1", total, 0)), 15)


@DURABLE.case("P-DUR-6")
def batches_once_and_the_global_order_behave_the_same_over_requests(b: Backend) -> None:
    io = mock_durable(b)

    append_batch(io, "cart-1", [("a", 1, {}), ("b", 2, {})])
    append_once(io, "cart-1", "k", "c", 3, {})
    repeat = append_once(io, "cart-1", "k", "c", 4, {})
    gappend(io, "cart-2", "d", 5, {})

    equal(repeat, Event("cart-1", 3, "c", 3, {}))
    equal([event.type for event in read_global(io)], ["d"])  # type: ignore[union-attr]  # events, none compacted
    equal((stream_count(io), total_events(io), streams(io)), (2, 4, ["cart-1", "cart-2"]))


@DURABLE.case("P-DUR-7")
def dropping_the_client_loses_nothing(b: Backend) -> None:
    first = mock_durable(b)
    counted(first, "cart-1", 3)
    kv_put(first, "k", "v")
    del first

    second = mock_durable(b)

    equal((seqs(read(second, "cart-1")), kv_get(second, "k")), ([1, 2, 3], "v"))
    equal(append(second, "cart-1", "added", 1, {}).seq, 4)


@DURABLE.case("P-DUR-10", "P-DUR-12")
def the_mark_survives_truncation_behind_requests(b: Backend) -> None:
    io = mock_durable(b)
    counted(io, "cart-1", 5)

    io.truncate_through("cart-1", 4)
    equal((io.last_seq("cart-1"), seqs(io.read("cart-1"))), (5, [5]))
    io.truncate_through("cart-1", 5)

    equal((io.last_seq("cart-1"), io.read("cart-1")), (5, []))


@DURABLE.case("P-DUR-11", "P-BKD-2")
def the_host_keeps_the_seq_that_an_event_carries(b: Backend) -> None:
    io = mock_durable(b)
    given = [Event("cart-1", seq, "added", 100 - seq, {"n": seq}) for seq in (1, 2, 3)]

    for event in given:
        equal(io.append("cart-1", event), event.seq)

    equal(io.read("cart-1"), given)


@DURABLE.case("P-DUR-13")
def every_stream_that_had_an_append_is_listed(b: Backend) -> None:
    io = mock_durable(b)
    counted(io, "b", 2)
    counted(io, "a", 1)
    io.truncate_through("b", 2)

    equal(io.streams(), ["a", "b"])


@DURABLE.case("P-DUR-14")
def values_survive_requests_with_their_types(b: Backend) -> None:
    io = mock_durable(b)
    value = {"int": 1, "float": 1.0, "bool": True, "text": "1", "none": None, "list": [], "map": {}}
    special = [Event("s", 1, "t", 1, {}), ProjectionState([1], 2), BlobRef("sha256-0", 3, "a/b"), 2**80]

    kv_put(io, "k", [value, special])
    append(io, "cart-1", "added", 1, [value, special])

    equal(kv_get(io, "k"), [value, special])
    equal(read(io, "cart-1")[0].data, [value, special])


@DURABLE.case("P-BKD-7", "P-DUR-3", level="atomic")
def the_extended_operations_go_over_requests_too(b: Backend) -> None:
    store, io = atomic(b), mock_durable(b)
    counted(io, "cart-1", 5, globally=True)
    kv_put(io, "k", 1)
    truncate_through(io, "cart-1", 2)

    equal(io.read_range("cart-1", 1, 9, limit=2), store.read_range("cart-1", 1, 9, limit=2))
    equal((io.event_at("cart-1", 2), io.event_at("cart-1", 4)), (None, store.event_at("cart-1", 4)))
    equal(io.truncated_through("cart-1"), 2)
    equal(io.global_range(1, limit=9), store.global_range(1, limit=9))
    equal(io.stream_scan("", after="", limit=9), store.stream_scan("", after="", limit=9))
    equal(io.kv_scan("", after="", limit=9), store.kv_scan("", after="", limit=9))
    equal(io.wait("cart-1", 4, timeout_s=0), 5)
    equal(io.info()["lineage"], store.info()["lineage"])


@DURABLE.case("P-DUR-8")
def a_host_acknowledges_every_write(b: Backend) -> None:
    equal(serve(b, req_append("s", Event("s", 1, "t", 1, {}))), 1)
    equal(serve(b, req_truncate("s", 0)), True)
    equal(serve(b, req_kv_put("k", 1)), True)
    equal(serve(b, req_kv_delete("k")), True)


@DURABLE.case("P-DUR-1")
def a_malformed_request_is_refused(b: Backend) -> None:
    odd: list[Any] = [
        {"op": "persist/read"},
        {"op": "persist/read", "args": "cart-1"},
        {"op": "persist/read", "args": []},
        {"op": "persist/read", "args": ["a", "b"]},
        {"op": "persist/read", "args": ["a"], "extra": 1},
        {"op": "persist/commit", "args": [[], [["frobnicate", "a"]], None]},
        {"op": "persist/commit", "args": [[["frobnicate", "a"]], [], None]},
    ]

    each_raises(UsageError, {repr(request): call(serve, b, request) for request in odd})


@DURABLE.case("P-DUR-15", needs=["reopen"])
def a_restarted_host_has_everything(b: Backend, f: BackendFixture) -> None:
    io = mock_durable(b)
    counted(io, "cart-1", 3)
    kv_put(io, "k", [1])

    again = mock_durable(f.crash())

    equal((seqs(read(again, "cart-1")), kv_get(again, "k"), last_seq(again, "cart-1")), ([1, 2, 3], [1], 3))
