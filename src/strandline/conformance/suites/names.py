"""Names and arguments: what may be called how, and that the rest is refused before any write."""

from collections.abc import Callable
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.suites.given import counted, seqs, total
from strandline.persist import (
    Backend,
    Event,
    ExpectKey,
    ExpectSeq,
    ProjectionState,
    UsageError,
    append,
    append_batch,
    append_expect,
    append_once,
    checkpoint,
    commit,
    consumer,
    count,
    events,
    hold,
    holds,
    kv_cas,
    kv_delete,
    kv_get,
    kv_get_or,
    kv_has,
    kv_keys_all,
    kv_put,
    kv_put_new,
    kv_update,
    last_seq,
    maybe_compact,
    poll,
    project,
    read,
    read_by_type,
    read_since,
    read_window,
    seen,
    snapshot_exists,
    snapshot_load,
    snapshot_save,
    snapshots,
    stream_exists,
    streams,
    streams_all,
    truncate_through,
    view,
)

NAMES = Suite("names", expected=9)

ODD: dict[str, Any] = {
    "empty": "",
    "nul": "a\0b",
    "lone surrogate": "a\ud800",
    "too long": "x" * 1025,
    "too long in UTF-8": "é" * 513,
    "none": None,
    "int": 5,
    "bytes": b"a",
    "subclass": type("Name", (str,), {})("a"),
}

UNUSUAL = [
    " ",
    "a b",
    "a/b",
    "a%2Fb",
    "%",
    "..",
    "'",
    '"',
    ";--",
    "\\",
    "\n",
    "\t",
    "é",
    "e\u0301",
    "ß",
    "SS",
    "İ",
    "\u200b",
    "\U0001f600",
    "\uffff",
    "\ufeff",
    "null",
    "None",
    "0",
    "x" * 1024,
    "é" * 512,
    "A",
    "a",
    "a ",
    "-",
    "_",
    "*",
    "?",
]


@NAMES.case("P-LOG-1", "P-KV-2", "P-BKD-8")
def unusual_names_are_names(b: Backend) -> None:
    for index, name in enumerate(UNUSUAL):
        append(b, name, name, index, {"name": name})
        kv_put(b, name, index)

    equal(streams(b), sorted(UNUSUAL))
    for index, name in enumerate(UNUSUAL):
        equal(
            (read(b, name), kv_get(b, name)),
            ([Event(name, 1, name, index, {"name": name})], index),
            repr(name),
        )


@NAMES.case("P-CMP-10", "P-SNP-1", "P-IDM-6", "P-SUB-12")
def unusual_names_serve_in_the_reserved_space_too(b: Backend) -> None:
    for name in UNUSUAL:
        counted(b, name, 2)
        hold(b, name, name, 1)
        checkpoint(b, name, name, total, 0)
        append_once(b, name, name, "added", 3, {"n": 3})
        consumer(b, name, name, start=2)

    for name in UNUSUAL:
        equal((snapshots(b, name), seen(b, name, name)), ([(name, 2)], True), repr(name))
        equal([each.seq for each in holds(b, name) if each.name == name], [1], repr(name))
        equal(seqs(poll(consumer(b, name, name))), [3], repr(name))


@NAMES.case("P-LOG-1", "P-OPS-4")
def odd_stream_names_are_refused_everywhere(b: Backend) -> None:
    for what, name in ODD.items():
        each_raises(
            UsageError,
            {
                f"append {what}": call(append, b, name, "t", 1, {}),
                f"read {what}": call(read, b, name),
                f"last_seq {what}": call(last_seq, b, name),
                f"count {what}": call(count, b, name),
                f"truncate {what}": call(truncate_through, b, name, 1),
                f"batch {what}": call(append_batch, b, name, [("t", 1, {})]),
                f"expect {what}": call(append_expect, b, name, 0, "t", 1, {}),
                f"once {what}": call(append_once, b, name, "k", "t", 1, {}),
                f"project {what}": call(project, b, name, total, 0),
                f"hold {what}": call(hold, b, name, "h", 1),
                f"consumer {what}": call(consumer, b, "c", name),
                f"exists {what}": call(stream_exists, b, name),
                f"view {what}": call(view, "v", name, total, 0),
                f"commit {what}": call(commit, b, [ExpectSeq(name, 0)], []),
            },
        )
    equal((streams_all(b), kv_keys_all(b)), ([], []))


@NAMES.case("P-KV-2", "P-OPS-4")
def odd_keys_are_refused_everywhere(b: Backend) -> None:
    for what, key in ODD.items():
        each_raises(
            UsageError,
            {
                f"put {what}": call(kv_put, b, key, 1),
                f"get {what}": call(kv_get, b, key),
                f"has {what}": call(kv_has, b, key),
                f"get_or {what}": call(kv_get_or, b, key, 1),
                f"delete {what}": call(kv_delete, b, key),
                f"update {what}": call(kv_update, b, key, 0, lambda n: n),
                f"cas {what}": call(kv_cas, b, key, None, 1),
                f"put_new {what}": call(kv_put_new, b, key, 1),
                f"commit {what}": call(commit, b, [ExpectKey(key, 1)], []),
            },
        )
    equal(kv_keys_all(b), [])


@NAMES.case("P-LOG-1", "P-SNP-1", "P-CMP-10", "P-SUB-12")
def odd_types_and_other_names_are_refused(b: Backend) -> None:
    for what, name in ODD.items():
        each_raises(
            UsageError,
            {
                f"type {what}": call(append, b, "s", name, 1, {}),
                f"query {what}": call(read_by_type, b, "s", name)
                if name is not None
                else call(append, b, "s", name, 1, {}),
                f"snapshot {what}": call(snapshot_save, b, name, ProjectionState(0, 0)),
                f"load {what}": call(snapshot_load, b, name, 0),
                f"hold {what}": call(hold, b, "s", name, 1),
                f"consumer {what}": call(consumer, b, name, "s"),
                f"view {what}": call(view, name, "s", total, 0),
                f"once key {what}": call(append_once, b, "s", name, "t", 1, {}),
            },
        )
    equal((streams_all(b), kv_keys_all(b) in ([], ["$lineage"])), ([], True))


@NAMES.case("P-CMP-10")
def odd_seqs_are_refused(b: Backend) -> None:
    counted(b, "s", 2)
    odd: list[Any] = [-1, 2**63, 1.0, True, None, "1"]

    for seq in odd:
        each_raises(
            UsageError,
            {
                f"hold {seq!r}": call(hold, b, "s", "h", seq),
                f"expect {seq!r}": call(commit, b, [ExpectSeq("s", seq)], []),
                f"snapshot {seq!r}": call(snapshot_save, b, "n", ProjectionState(0, seq)),
            },
        )
    equal((holds(b, "s"), snapshot_exists(b, "n")), ([], False))


@NAMES.case("P-SUB-12", "P-LOG-13")
def odd_limits_are_refused(b: Backend) -> None:
    c = consumer(b, "c", "s")
    odd: list[Any] = [-1, 1.5, "1"]

    for limit in odd:
        each_raises(
            UsageError,
            {
                f"poll {limit!r}": call(poll, c, limit=limit),
                f"events {limit!r}": call(lambda most: list(events(b, "s", limit=most)), limit),
            },
        )


@NAMES.case("P-QRY-2", "P-QRY-3")
def odd_times_are_refused_in_queries(b: Backend) -> None:
    counted(b, "s", 1)
    odd: list[Any] = [True, float("nan"), float("inf"), 2**63, [1], ""]

    for at in odd:
        each_raises(
            UsageError,
            {
                f"since {at!r}": call(read_since, b, "s", at),
                f"window {at!r}": call(read_window, b, "s", 0, at),
            },
        )


@NAMES.case("P-OPS-4")
def every_refusal_is_a_value_error_with_a_hint(b: Backend) -> None:
    each: dict[str, Callable[[], object]] = {
        "name": call(append, b, "", "t", 1, {}),
        "value": call(kv_put, b, "k", b"x"),
        "reserved": call(kv_put, b, "$k", 1),
        "threshold": call(maybe_compact, b, "s", "n", total, 0, every=0),
    }

    for name, refused in each.items():
        with raises(UsageError) as caught:
            refused()
        truthy(
            isinstance(caught.error, ValueError) and caught.error.hint, f"a ValueError with a hint for {name}"
        )
