"""Values: what may be stored comes back as it was, what may not is refused before any write."""

from collections import OrderedDict
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.persist import (
    ABSENT,
    Backend,
    BlobRef,
    Compacted,
    Conflict,
    Event,
    NotStorable,
    ProjectionState,
    append,
    append_batch,
    is_conflict,
    kv_cas,
    kv_get,
    kv_items,
    kv_keys,
    kv_put,
    last_seq,
    read,
    read_global,
    snapshot_exists,
    snapshot_load,
    snapshot_save,
    streams_all,
)
from strandline.persist.value import decode, encode

VALUE = Suite("value", expected=15)

STORABLE: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "minus": -1,
    "one point zero": 1.0,
    "zero point zero": 0.0,
    "minus zero": -0.0,
    "third": 1 / 3,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "exponent": 1e16,
    "small exponent": 1e-05,
    "exact float": 9007199254740993.0,
    "text of a number": "1",
    "empty text": "",
    "text of none": "null",
    "empty list": [],
    "empty mapping": {},
    "nul": "a\0b",
    "quotes": '"\\/\b\f\n\r\t',
    "line separators": "\u2028\u2029\x7f\x85",
    "emoji": "👩‍👩‍👧 \U0001f600",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "last code point": "\U0010ffff",
    "private": "\ue000\uffff",
    "max int": 2**63 - 1,
    "min int": -(2**63),
    "above": 2**63,
    "below": -(2**63) - 1,
    "two to the 64": 2**64,
    "very large": 10**300,
    "minus very large": -(10**300),
    "nested": [[[{"a": [{}]}]]],
    "mapping": {"b": 1, "a": [None, True], "": "empty key", "ü": "ü", "a\0": 1},
    "event": Event("s", 3, "t", 1.5, {"n": [1]}),
    "state": ProjectionState({"n": 1}, 4),
    "blob": BlobRef("sha256-00", 2**70, "a/b"),
    "state of an event": ProjectionState(Event("s", 1, "t", "x", None), 1),
    "list of specials": [
        BlobRef("c", 1, "m"),
        ProjectionState(None, 0),
        2**80,
        {"x": Event("s", 1, "t", 1, [])},
    ],
    "looks like a blob": {"$blob": ["c", 1, "m"]},
    "looks like an event": {"$event": ["s", 1, "t", 1, {}]},
    "looks like an int": {"$int": "ff"},
    "looks like a map": {"$map": {"$map": {}}},
    "looks absent": {"$absent": []},
    "unknown dollar": {"$": 1},
    "dollar among others": {"$blob": 1, "x": 2},
    "dollar text": "$blob",
}


class Colour(Enum):
    RED = 1


class Text(str):
    """A subclass, which could not be given back as such."""

    __slots__ = ()


class Number(int):
    """The same of a number."""


REFUSED: dict[str, Any] = {
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "frozenset": frozenset(),
    "tuple": (1, 2),
    "object": object(),
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "lone surrogate": "\ud800",
    "surrogate in a key": {"\udfff": 1},
    "enum": Colour.RED,
    "complex": 1j,
    "ordered dict": OrderedDict(a=1),
    "text subclass": Text("x"),
    "int subclass": Number(1),
    "int key": {1: 2},
    "none key": {None: 1},
    "bool key": {True: 1},
    "generator": iter(()),
    "class": int,
    "path": Path("x"),
    "absent": ABSENT,
    "conflict": Conflict(1, 2, "STALE"),
    "compacted": Compacted("s", 1),
    "date": date(2024, 1, 1),
    "event with bytes": Event("s", 1, "t", 1, b"x"),
    "state with a set": ProjectionState({1}, 1),
}


def nested(depth: int) -> Any:
    value: Any = "core"
    for i in range(depth):
        value = [value] if i % 2 else {"x": value}
    return value


@VALUE.case("P-VAL-1", "P-VAL-2", "P-DUR-14")
def each_kind_comes_back_from_kv_with_its_type(b: Backend) -> None:
    for name, value in STORABLE.items():
        kv_put(b, name, value)

    for name, value in STORABLE.items():
        equal(kv_get(b, name), value, name)


@VALUE.case("P-VAL-1", "P-VAL-2", "P-DUR-14")
def each_kind_comes_back_from_an_event_with_its_type(b: Backend) -> None:
    append_batch(b, "values", [("stored", 1, {"whole": value}) for value in STORABLE.values()])
    append_batch(b, "bare", [("stored", 1, value) for value in STORABLE.values()])

    for name, event in zip(STORABLE, read(b, "values"), strict=True):
        equal(event.data, {"whole": STORABLE[name]}, name)
    for name, event in zip(STORABLE, read(b, "bare"), strict=True):
        equal(event.data, STORABLE[name], name)


@VALUE.case("P-VAL-2")
def keys_of_a_mapping_come_back_sorted(b: Backend) -> None:
    kv_put(b, "k", {"b": 1, "a": {"z": 1, "y": 2}, "é": 0, "B": 3})

    equal(list(kv_get(b, "k")), ["B", "a", "b", "é"])
    equal(list(kv_get(b, "k")["a"]), ["y", "z"])


@VALUE.case("P-VAL-3")
def what_cannot_come_back_is_refused_in_kv(b: Backend) -> None:
    for name, value in REFUSED.items():
        each_raises(
            NotStorable,
            {
                name: call(kv_put, b, "k", value),
                f"{name} in a list": call(kv_put, b, "k", [1, value]),
                f"{name} in a mapping": call(kv_put, b, "k", {"x": {"y": value}}),
            },
        )
    equal(kv_keys(b), [])


@VALUE.case("P-VAL-3")
def what_cannot_come_back_is_refused_in_an_event(b: Backend) -> None:
    for name, value in REFUSED.items():
        each_raises(
            NotStorable,
            {
                name: call(append, b, "s", "t", 1, value),
                f"{name} deep inside": call(append, b, "s", "t", 1, {"x": [value]}),
                f"{name} in a batch": call(append_batch, b, "s", [("t", 1, {}), ("t", 1, value)]),
                f"{name} in a snapshot": call(snapshot_save, b, "n", ProjectionState(value, 0)),
            },
        )
    equal((streams_all(b), snapshot_exists(b, "n")), ([], False))


@VALUE.case("P-VAL-3")
def the_refusal_is_a_usage_error_that_names_the_place(b: Backend) -> None:
    with raises(NotStorable) as caught:
        kv_put(b, "k", {"user": {"photo": [1, b"x"]}})

    truthy(isinstance(caught.error, ValueError), "a ValueError")
    truthy("photo" in str(caught.error), "a message that names the place")


@VALUE.case("P-VAL-4")
def changing_what_was_written_does_not_change_the_store(b: Backend) -> None:
    data: dict[str, Any] = {"list": [1]}
    event = append(b, "s", "t", 1, data)
    kv_put(b, "k", data)
    snapshot_save(b, "n", ProjectionState(data, 0))

    data["list"].append(2)
    data["new"] = 1
    if isinstance(event.data, dict):
        event.data["late"] = 1

    equal((read(b, "s")[0].data, kv_get(b, "k")), ({"list": [1]}, {"list": [1]}))
    equal(snapshot_load(b, "n", None).value, {"list": [1]})


@VALUE.case("P-VAL-4")
def changing_what_was_read_does_not_change_the_store(b: Backend) -> None:
    append(b, "s", "t", 1, {"list": [1]}, globally=True)
    kv_put(b, "k", {"list": [1]})

    read(b, "s")[0].data["list"].append(2)
    read_global(b)[0].data["x"] = 1  # type: ignore[union-attr]  # an Event
    kv_get(b, "k")["list"].clear()
    dict(kv_items(b))["k"]["list"].clear()
    read(b, "s").clear()

    equal((read(b, "s")[0].data, kv_get(b, "k")), ({"list": [1]}, {"list": [1]}))
    equal(read_global(b)[0].data, {"list": [1]})  # type: ignore[union-attr]  # an Event


@VALUE.case("P-VAL-4")
def one_value_written_in_two_places_is_two_values(b: Backend) -> None:
    shared: list[Any] = []
    kv_put(b, "k", [shared, shared])

    found = kv_get(b, "k")
    found[0].append(1)

    equal(found, [[1], []])


@VALUE.case("P-VAL-5")
def equality_of_stored_values_is_of_their_encoding(b: Backend) -> None:
    kv_put(b, "k", {"a": 1, "b": [0.0]})

    truthy(is_conflict(kv_cas(b, "k", {"a": True, "b": [0.0]}, 1)), "a conflict: True is not 1")
    truthy(is_conflict(kv_cas(b, "k", {"a": 1, "b": [-0.0]}, 1)), "a conflict: -0.0 is not 0.0")
    truthy(is_conflict(kv_cas(b, "k", {"a": 1, "b": [0]}, 1)), "a conflict: 0 is not 0.0")
    equal(kv_cas(b, "k", {"b": [0.0], "a": 1}, "new"), "new")


@VALUE.case("P-VAL-6")
def the_encoding_is_canonical_json() -> None:
    wanted = {
        "sorted": ({"b": 1, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
        "floats": ([1e16, 1e-05, 1.5, -0.0], "[1e+16,1e-05,1.5,-0.0]"),
        "escapes": ('\0\x1f"\\\u2028/', '"\\u0000\\u001f\\"\\\\\u2028/"'),
        "event": (Event("s", 1, "t", 1.0, None), '{"$event":["s",1,"t",1.0,null]}'),
        "state": (ProjectionState([2**64], 3), '{"$state":[[{"$int":"10000000000000000"}],3]}'),
        "negative": (-(2**63) - 1, '{"$int":"-8000000000000001"}'),
        "blob": (BlobRef("c", 5, "m"), '{"$blob":["c",5,"m"]}'),
        "map": ({"$oid": 1}, '{"$map":{"$oid":1}}'),
        "not wrapped": ({"$a": 1, "$b": 2}, '{"$a":1,"$b":2}'),
    }

    for name, (value, text) in wanted.items():
        equal(encode(value).decode(), text, name)
        equal(decode(text), value, name)


@VALUE.case("P-VAL-1", "P-OPS-4")
def a_hundred_levels_are_stored_and_one_more_is_not(b: Backend) -> None:
    kv_put(b, "deep", nested(100))
    append(b, "s", "t", 1, nested(100))

    equal(kv_get(b, "deep"), nested(100))
    equal(read(b, "s")[0].data, nested(100))
    each_raises(
        NotStorable,
        {"kv": call(kv_put, b, "k", nested(101)), "log": call(append, b, "s", "t", 1, nested(101))},
    )


@VALUE.case("P-OPS-4", "P-VAL-3")
def a_value_of_16_mib_is_stored_and_one_byte_more_is_not(b: Backend) -> None:
    most = "x" * (16 * 1024 * 1024 - 2)  # and its quotes

    kv_put(b, "most", most)
    equal(len(kv_get(b, "most")), len(most))
    each_raises(
        NotStorable,
        {"kv": call(kv_put, b, "over", most + "x"), "log": call(append, b, "s", "t", 1, [most])},
    )
    equal((kv_keys(b), last_seq(b, "s")), (["most"], 0))


@VALUE.case("P-OPS-4")
def a_commit_over_64_mib_is_refused_as_a_whole(b: Backend) -> None:
    part = "x" * (13 * 1024 * 1024)

    with raises(NotStorable):
        append_batch(b, "s", [("t", 1, part)] * 5)

    equal(last_seq(b, "s"), 0)


@VALUE.case("P-VAL-2")
def a_large_value_comes_back_whole(b: Backend) -> None:
    rows = [{"id": i, "name": f"row {i} é", "score": i / 7} for i in range(5_000)]
    append(b, "s", "t", 1, {"rows": rows})

    equal(read(b, "s")[0].data["rows"], rows)
