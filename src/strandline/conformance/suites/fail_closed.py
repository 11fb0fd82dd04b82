"""Fail closed: a host that does not answer, or not properly, is an error, never a silent loss."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises
from strandline.conformance.suites.given import counted, total
from strandline.persist import (
    Append,
    Backend,
    Event,
    OutcomeUnknown,
    ProtocolError,
    Put,
    UnknownOp,
    append,
    append_batch,
    append_expect,
    append_once,
    count,
    io_backend,
    kv_cas,
    kv_delete,
    kv_keys,
    kv_put,
    last_seq,
    project,
    read,
    serve,
    streams,
    streams_all,
    truncate_through,
)
from strandline.persist.durable import IoBackend

FAIL_CLOSED = Suite("fail-closed", expected=10)


def deaf(b: Backend, *ops: str, answer: Any = None) -> IoBackend:
    """A client of a host that answers the named ops with `answer` and does nothing."""
    return io_backend(lambda request: answer if request["op"] in ops else serve(b, request))


def deaf_to_all(answer: Any) -> IoBackend:
    return io_backend(lambda _: answer)


@FAIL_CLOSED.case("P-DUR-8")
def an_append_that_is_not_answered_is_an_error_and_nothing_is_stored(b: Backend) -> None:
    io = deaf(b, "persist/commit", "persist/append")

    each_raises(
        ProtocolError,
        {
            "append": call(append, io, "s", "t", 1, {}),
            "batch": call(append_batch, io, "s", [("t", 1, {})]),
            "once": call(append_once, io, "s", "k", "t", 1, {}),
            "expect": call(append_expect, io, "s", 0, "t", 1, {}),
            "put": call(kv_put, io, "k", 1),
            "cas": call(kv_cas, io, "k", None, 1),
            "delete": call(kv_delete, io, "k"),
            "truncate": call(truncate_through, io, "s", 1),
            "raw append": call(io.append, "s", Event("s", 1, "t", 1, {})),
        },
    )
    equal((streams_all(b), kv_keys(b)), ([], []))


@FAIL_CLOSED.case("P-DUR-8")
def no_answer_is_an_error_for_every_operation_but_two() -> None:
    io = deaf_to_all(None)

    each_raises(
        ProtocolError,
        {
            "append": call(io.append, "s", Event("s", 1, "t", 1, {})),
            "read": call(io.read, "s"),
            "last_seq": call(io.last_seq, "s"),
            "streams": call(io.streams),
            "truncate": call(io.truncate_through, "s", 1),
            "kv_put": call(io.kv_put, "k", 1),
            "kv_delete": call(io.kv_delete, "k"),
            "kv_has": call(io.kv_has, "k"),
            "kv_keys": call(io.kv_keys),
            "commit": call(io.commit, [], [Put("k", 1)]),
            "read_range": lambda: list(io.read_range("s", 1, 9, limit=9)),
            "truncated_through": call(io.truncated_through, "s"),
            "global_range": lambda: list(io.global_range(1, limit=9)),
            "stream_scan": call(io.stream_scan, "", after="", limit=9),
            "kv_scan": call(io.kv_scan, "", after="", limit=9),
            "wait": call(io.wait, "s", 0, timeout_s=0),
            "info": call(io.info),
            "scrub": call(io.scrub),
            "verify": call(io.verify),
        },
    )
    equal((io.kv_get("k"), io.event_at("s", 1)), (None, None))


@FAIL_CLOSED.case("P-DUR-8")
def an_answer_of_another_kind_is_an_error() -> None:
    answers: list[Any] = ["ok", {}, [1], True, 0.5]
    for answer in answers:
        io = deaf_to_all(answer)
        calls = {
            "append": call(io.append, "s", Event("s", 2, "t", 1, {})),
            "read": call(io.read, "s") if answer != {} else call(io.last_seq, "s"),
            "last_seq": call(io.last_seq, "s"),
            "commit": call(io.commit, [], [Append("s", "t", 1, {})]),
        }
        each_raises(ProtocolError, {f"{name} answered {answer!r}": each for name, each in calls.items()})


@FAIL_CLOSED.case("P-DUR-8")
def an_append_acknowledged_with_another_seq_is_an_error(b: Backend) -> None:
    with raises(ProtocolError):
        deaf(b, "persist/append", answer=7).append("s", Event("s", 1, "t", 1, {}))


@FAIL_CLOSED.case("P-DUR-8")
def a_write_acknowledged_with_anything_but_true_is_an_error(b: Backend) -> None:
    answers: list[Any] = [False, 1, "true", []]
    for answer in answers:
        io = deaf(b, "persist/kv-put", "persist/kv-delete", "persist/truncate", answer=answer)
        each_raises(
            ProtocolError,
            {
                f"put {answer!r}": call(io.kv_put, "k", 1),
                f"delete {answer!r}": call(io.kv_delete, "k"),
                f"truncate {answer!r}": call(io.truncate_through, "s", 1),
            },
        )


@FAIL_CLOSED.case("P-DUR-8")
def a_commit_answered_with_too_few_events_is_an_error(b: Backend) -> None:
    with raises(ProtocolError):
        append_batch(deaf(b, "persist/commit", answer=[]), "s", [("t", 1, {})])


@FAIL_CLOSED.case("P-DUR-8")
def a_read_that_is_not_answered_is_not_an_empty_stream(b: Backend) -> None:
    counted(b, "s", 3)
    io = deaf(b, "persist/read-range", "persist/read", "persist/last-seq", "persist/stream-scan")

    each_raises(
        ProtocolError,
        {
            "read": lambda: read(io, "s"),
            "project": lambda: project(io, "s", total, 0),
            "last_seq": lambda: last_seq(io, "s"),
            "count": lambda: count(io, "s"),
            "streams": lambda: streams(io),
        },
    )


@FAIL_CLOSED.case("P-DUR-8", "P-DUR-5")
def a_host_that_does_not_know_an_op_stops_the_caller(b: Backend) -> None:
    def old_host(request: dict[str, Any]) -> Any:
        known = request["op"] in ("persist/read", "persist/last-seq", "persist/append")
        return serve(
            b, request if known else {"op": request["op"] + "-of-the-future", "args": request["args"]}
        )

    with raises(UnknownOp):
        append(io_backend(old_host), "s", "t", 1, {})
    equal(streams_all(b), [])


@FAIL_CLOSED.case("P-DUR-9")
def a_transport_that_fails_is_passed_on() -> None:
    def broken(_request: dict[str, Any]) -> Any:
        raise OutcomeUnknown("the answer was lost", once=("s", "k"))

    with raises(OutcomeUnknown) as caught:
        append(io_backend(broken), "s", "t", 1, {})
    equal(caught.error.once, ("s", "k"))


@FAIL_CLOSED.case("P-DUR-9", "P-BKD-10")
def a_retry_under_the_same_once_after_a_lost_answer_has_one_effect(b: Backend) -> None:
    lost: list[Any] = []

    def loses_the_first_answer(request: dict[str, Any]) -> Any:
        answer = serve(b, request)
        if request["op"] == "persist/commit" and not lost:
            lost.append(answer)
            raise OutcomeUnknown("the answer was lost", once=("s", "k"))
        return answer

    io = io_backend(loses_the_first_answer)
    with raises(OutcomeUnknown):
        append_once(io, "s", "k", "t", 1, {"n": 1})
    event = append_once(io, "s", "k", "t", 2, {"n": 1})

    equal((event, count(b, "s")), (Event("s", 1, "t", 1, {"n": 1}), 1))
