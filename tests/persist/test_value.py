"""What may be stored comes back as it was, type and all, through one encoding; all else is refused."""

import datetime as dt
import decimal
import enum
import json
import math
import sys
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import NotStorable, UsageError
from strandline.persist import (
    ABSENT,
    BlobRef,
    Compacted,
    Conflict,
    Event,
    ProjectionState,
    append,
    append_batch,
    kv_keys_all,
    kv_put,
    open_store,
    read,
    streams_all,
)
from strandline.persist import value as value_module
from strandline.persist.value import (
    MAX_DEPTH,
    MAX_VALUE_BYTES,
    check_at,
    check_key,
    check_name,
    decode,
    encode,
    encode_wire,
    encoder_of,
    is_within,
    same,
)
from tests.conftest import as_any


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ADA = "ada"


class Text(str):
    __slots__ = ()


class Numbers(list[int]):
    pass


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ATS = st.integers(-(2**63), 2**63 - 1) | FLOATS | st.text(min_size=1)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 0, -1])
    | FLOATS
    | st.text()
    | st.builds(BlobRef, st.text(), st.integers(), st.text())
)
DOLLARS = st.sampled_from(["$", "$map", "$int", "$event", "$state", "$blob", "$absent", "$x"])


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(DOLLARS, inner, min_size=1, max_size=2)
        | st.builds(ProjectionState, inner, st.integers())
        | st.builds(Event, st.text(), st.integers(), st.text(), ATS, inner)
    )


VALUES = st.recursive(LEAVES, nested, max_leaves=12)


def typed(value: Any) -> Any:
    """A value in a form whose equality sees types: 1, 1.0 and True are three, and so are 0.0 and -0.0."""
    if isinstance(value, dict):
        return ["dict", *([key, typed(value[key])] for key in sorted(value))]
    if isinstance(value, list):
        return ["list", *map(typed, value)]
    if isinstance(value, Event):
        return ["Event", *map(typed, (value.stream, value.seq, value.type, value.at, value.data))]
    if isinstance(value, ProjectionState):
        return ["ProjectionState", typed(value.value), typed(value.seq)]
    if isinstance(value, BlobRef):
        return ["BlobRef", typed(value.cid), typed(value.size), typed(value.mime)]
    return [type(value).__name__, repr(value)]


def as_json(value: Any) -> Any:
    """The rewriting of P-VAL-6 in its plainest form."""
    if isinstance(value, dict):
        body = {key: as_json(item) for key, item in value.items()}
        return {"$map": body} if len(body) == 1 and next(iter(body)).startswith("$") else body
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, Event):
        parts = (value.stream, value.seq, value.type, value.at, value.data)
        return {"$event": [as_json(part) for part in parts]}
    if isinstance(value, ProjectionState):
        return {"$state": [as_json(value.value), as_json(value.seq)]}
    if isinstance(value, BlobRef):
        return {"$blob": [value.cid, as_json(value.size), value.mime]}
    if type(value) is int and not -(2**63) <= value < 2**63:
        return {"$int": f"{value:x}"}
    return value


def canonical(value: Any) -> bytes:
    form = as_json(value)
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@given(VALUES)
@example({"$int": "ff"})
@example({"$map": {"$map": {"$x": []}}})
@example([{"$absent": []}, {"$event": [1, 2, 3, 4, 5]}])
@example({"a": '{"$int":"1"}', '{"$': "\\"})
def test_a_value_comes_back_equal_and_of_the_same_types(value: Any) -> None:  # P-VAL-1, P-VAL-2
    text = encode(value)

    assert typed(decode(text)) == typed(value)
    assert typed(decode(text.decode())) == typed(value)


@given(VALUES)
@example([1e16, 1e-5, 1.5e300, 5e-324, -0.0, 0.1, 1e22, 9999999999999998.0, 123456789012345680.0])
@example(["\x00\x1f\x7f\x80\u2028\u2029\ufeff\U0001f9ff\U0010ffff", '"\\/\b\f\n\r\t'])
@example({"\U0001f600": 1, "\uffff": 2, "a": 3, "": 4, "$": 5})
@example({"b": 2**64, "a": -(2**64)})
def test_the_encoding_is_the_canonical_json(value: Any) -> None:  # P-VAL-6
    assert encode(value) == canonical(value)


@given(FLOATS)
def test_every_float_is_written_as_python_writes_it(number: float) -> None:  # P-VAL-6
    assert encode([number]) == f"[{number!r}]".encode()
    assert repr(decode(encode(number))) == repr(number)


@given(VALUES, VALUES)
def test_two_values_are_the_same_if_and_only_if_their_types_and_content_are(left: Any, right: Any) -> None:
    assert same(left, right) is (typed(left) == typed(right))  # P-VAL-5


def test_values_that_python_calls_equal_stay_apart() -> None:  # P-VAL-2, P-VAL-5
    apart = [1, 1.0, True, "1", None, [], {}, 0, 0.0, -0.0, False, "", [None], {"": None}]

    texts = [encode(value) for value in apart]

    assert len(set(texts)) == len(apart)
    assert [typed(decode(text)) for text in texts] == [typed(value) for value in apart]


def test_key_order_is_not_kept() -> None:  # P-VAL-2
    assert encode({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":1}'
    assert list(decode(encode({"b": 1, "a": 2}))) == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Event("s", 3, "t", 1.5, {"n": 1}), '{"$event":["s",3,"t",1.5,{"n":1}]}'),
        (ProjectionState({"n": 2}, 3), '{"$state":[{"n":2},3]}'),
        (BlobRef("sha256-9f", 512, "image/png"), '{"$blob":["sha256-9f",512,"image/png"]}'),
        (2**63, '{"$int":"8000000000000000"}'),
        (-(2**63) - 1, '{"$int":"-8000000000000001"}'),
        ({"$oid": 1}, '{"$map":{"$oid":1}}'),
        ({"$oid": 1, "a": 2}, '{"$oid":1,"a":2}'),
    ],
)
def test_what_json_lacks_has_a_form_of_its_own(value: Any, text: str) -> None:  # P-VAL-6
    assert encode(value) == text.encode()
    assert typed(decode(text)) == typed(value)


MANY = [("t", 1, {"n": n, "of": ["it", {"price": 1.5}]}) for n in range(20)]
NOT_STORABLE = {
    "bytes": (b"x", "value is of type builtins.bytes"),
    "bytes inside": ({"a": [1, b"x"]}, "value['a'][1] is of type builtins.bytes"),
    "a bytearray": ([bytearray(b"x")], "value[0] is of type builtins.bytearray"),
    "a set": ({"tags": {1}}, "value['tags'] is of type builtins.set"),
    "a tuple": ([[], (1, 2)], "value[1] is of type builtins.tuple"),
    "an object": (object(), "value is of type builtins.object"),
    "NaN": ({"a": {"b": math.nan}}, "value['a']['b'] is nan"),
    "infinity": ([math.inf], "value[0] is inf"),
    "minus infinity": (-math.inf, "value is -inf"),
    "a lone surrogate": ({"a": "x\ud800"}, "value['a'] has a lone surrogate"),
    "a lone surrogate in a key": ({"a": {"\udfff": 1}}, "value['a'] has a key with a lone surrogate"),
    "a surrogate beside an exponent": ({"a": 1e300, "b": "\ud800"}, "value['b'] has a lone surrogate"),
    "a key that is no text": ({"a": {1: 2}}, "value['a'] has the key 1 (int)"),
    "a key that is None": ({None: 2}, "value has the key None"),
    "a key of a subclass": ({Text("a"): 2}, "(Text)"),
    "an enum member": ([Colour.RED], "value[0] is of type"),
    "an enum member that is an int": ({"a": Level.LOW}, "value['a'] is of type"),
    "an enum member that is a str": ({"a": Name.ADA}, "value['a'] is of type"),
    "a str of a subclass": ([Text("a")], "value[0] is of type"),
    "an ordered dict": (OrderedDict(a=1), "value is of type collections.OrderedDict"),
    "a list of a subclass": ({"a": Numbers([1])}, "value['a'] is of type"),
    "a decimal": ([decimal.Decimal(1)], "value[0] is of type decimal.Decimal"),
    "a time": ([dt.datetime.now(dt.UTC)], "value[0] is of type datetime.datetime"),
    "a complex number": ([1j], "value[0] is of type builtins.complex"),
    "ABSENT": ([ABSENT], "value[0] is of type"),
    "a Conflict": (Conflict(1, 2, "STALE"), "value is of type"),
    "a Compacted": ({"a": Compacted("s", 1)}, "value['a'] is of type"),
    "bytes in an Event": ([Event("s", 1, "t", 1, {"a": b""})], "value[0] (Event)[4]['a'] is of type"),
    "an Event without a stream": ({"a": Event(as_any(None), 1, "t", 1, 0)}, "value['a']"),
    "an Event whose seq is a bool": ([Event("s", True, "t", 1, 0)], "value[0]"),
    "an Event whose at is None": ([1, Event("s", 1, "t", as_any(None), 0)], "value[1]"),
    "an Event whose at is NaN": (Event("s", 1, "t", math.nan, 0), "value (Event)[3] is nan"),
    "a state whose seq is a text": ({"a": ProjectionState(1, as_any("1"))}, "value['a']"),
    "a state with bytes": (ProjectionState([b""], 1), "value (ProjectionState)[0][0] is of type"),
    "a ref whose size is a float": ({"a": BlobRef("c", as_any(1.0), "m")}, "value['a']"),
    "a ref with a lone surrogate": ([BlobRef("\ud800", 1, "m")], "value[0]"),
}


@pytest.mark.parametrize("name", NOT_STORABLE)
def test_what_cannot_come_back_is_refused_with_its_place_and_nothing_is_written(name: str) -> None:
    value, place = NOT_STORABLE[name]  # P-VAL-3
    b = open_store()

    with pytest.raises(NotStorable) as refused:
        append(b, "s", "t", 1, value)
    with pytest.raises(NotStorable):
        kv_put(b, "k", value)
    with pytest.raises(NotStorable):
        append_batch(b, "s", [("t", 1, {}), ("t", 1, value), ("t", 1, {})])
    with pytest.raises(NotStorable) as refused_among_many:
        append_batch(b, "s", [*MANY, ("t", 1, value), *MANY])

    assert place in refused.value.message
    assert refused_among_many.value.message == refused.value.message
    assert refused.value.hint
    assert isinstance(refused.value, ValueError)
    assert (streams_all(b), kv_keys_all(b)) == ([], [])


UNUSUAL = st.sampled_from(
    [
        math.nan,
        2**53,
        2**64,
        -(2**63),
        1e16,
        1e-5,
        -0.0,
        (1,),
        b"",
        Text("a"),
        {1: 2},
        {None: 1},
        {Text("a"): 1},
    ]
)


@given(st.lists(VALUES | st.recursive(UNUSUAL | LEAVES, nested, max_leaves=6), min_size=8, max_size=20))
def test_values_are_written_or_refused_among_many_as_each_is_alone(values: list[Any]) -> None:
    among_many = encoder_of(values)  # P-VAL-3, P-VAL-6

    assert [outcome(among_many, value) for value in values] == [outcome(encode, value) for value in values]


def outcome(encoder: Callable[[Any], bytes], value: Any) -> bytes | str:
    try:
        return encoder(value)
    except NotStorable as refused:
        return refused.message


class Order:
    """What has its attributes in a dict of its own."""

    def __init__(self, price: Any) -> None:
        self.price = price


@pytest.mark.parametrize("price", [math.nan, (1, 2), b"x", 1e-5, 1.5])
def test_the_attributes_of_objects_are_looked_at_among_many_too(price: Any) -> None:  # P-VAL-3
    orders = [Order(price) for _ in range(20)]
    values = [vars(order) for order in orders]

    among_many = encoder_of(values)

    assert [outcome(among_many, value) for value in values] == [outcome(encode, {"price": price})] * 20


def test_where_a_dict_tells_the_collector_only_a_part_each_value_is_looked_at_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # P-VAL-3
    assert (sys.version_info < (3, 13)) == value_module._TELLS_ALL
    monkeypatch.setattr(value_module, "_TELLS_ALL", False)

    assert encoder_of([{}] * 20) is encode


def test_a_value_that_holds_itself_many_times_is_refused_in_little_memory() -> None:  # P-VAL-3
    parent: dict[str, Any] = {}
    parent["children"] = [{"parent": parent} for _ in range(5_000)]
    tracemalloc.start()

    with pytest.raises(NotStorable, match="over 100 deep"):
        append_batch(open_store(), "s", [("t", 1, parent)] * 8)

    assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    tracemalloc.stop()


def test_limits_hold_among_many_too() -> None:  # P-OPS-4
    endless: list[Any] = []
    endless.append(endless)
    for value in (deep(101, "list"), deep(101, "dict"), endless, "x" * (MAX_VALUE_BYTES - 1)):
        with pytest.raises(NotStorable):
            append_batch(open_store(), "s", [*MANY, ("t", 1, value)])

    stored = append_batch(open_store(), "s", [*MANY, ("t", 1, deep(100, "dict"))])

    assert len(stored) == 21


def deep(levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"list": [value], "dict": {"a": value}, "state": ProjectionState(value, 0)}[kind]
    return value


@pytest.mark.parametrize("kind", ["list", "dict", "state"])
def test_a_value_may_be_100_deep_and_no_deeper(kind: str) -> None:  # P-VAL-1, P-OPS-4
    assert MAX_DEPTH == 100
    assert typed(decode(encode(deep(100, kind)))) == typed(deep(100, kind))

    with pytest.raises(NotStorable, match="over 100 deep"):
        encode(deep(101, kind))


def test_a_list_that_holds_itself_is_refused() -> None:  # P-VAL-3
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(NotStorable, match="over 100 deep"):
        encode(endless)


def test_a_value_may_have_16_mib_and_no_more() -> None:  # P-OPS-4
    assert MAX_VALUE_BYTES == 16 * 1024 * 1024
    assert len(encode("x" * (MAX_VALUE_BYTES - 2))) == MAX_VALUE_BYTES

    with pytest.raises(NotStorable, match="16,777,217 bytes is over the limit of 16,777,216"):
        encode("x" * (MAX_VALUE_BYTES - 1))


def test_the_limit_counts_bytes_and_not_characters() -> None:  # P-OPS-4
    with pytest.raises(NotStorable, match="over the limit"):
        encode("ü" * (MAX_VALUE_BYTES // 2))


def test_absent_travels_on_the_wire_only() -> None:  # P-DUR-16
    assert encode_wire({"args": [[["key", "k", ABSENT]]], "op": "o"}) == (
        b'{"args":[[["key","k",{"$absent":[]}]]],"op":"o"}'
    )
    assert decode(b'{"$absent":[]}') is ABSENT


@pytest.mark.parametrize(
    "text", ["", "{", '{"$new":1}', '{"$int":1}', '{"$event":[1]}', '{"$state":[1]}', '{"$blob":{}}', "NaN"]
)
def test_text_that_was_never_encoded_is_a_value_error(text: str) -> None:  # P-VAL-6
    with pytest.raises(ValueError):  # noqa: PT011  # the decoder's own words
        decode(text)


BAD_NAMES = {
    "empty": ("", "is empty"),
    "1,025 bytes": ("x" * 1025, "1,025 bytes"),
    "1,026 bytes in 513 characters": ("ü" * 513, "1,026 bytes"),
    "NUL": ("a\0b", "U+0000"),
    "a surrogate": ("a\ud800", "surrogate"),
    "bytes": (b"a", "bytes"),
    "None": (None, "NoneType"),
    "a number": (1, "int"),
    "a str of a subclass": (Text("a"), "Text"),
    "an enum member": (Name.ADA, "Name"),
}


@pytest.mark.parametrize("case", BAD_NAMES)
def test_a_bad_name_is_a_usage_error_that_says_what_is_wrong(case: str) -> None:  # section 0
    name, said = BAD_NAMES[case]
    b = open_store()

    for call in (
        lambda: check_name("stream", name),
        lambda: check_key(name),
        lambda: append(b, as_any(name), "t", 1, 1),
        lambda: append(b, "s", as_any(name), 1, 1),
        lambda: kv_put(b, as_any(name), 1),
        lambda: read(b, as_any(name)),
    ):
        with pytest.raises(UsageError) as refused:
            call()
        assert said in refused.value.message

    assert (streams_all(b), kv_keys_all(b)) == ([], [])


@pytest.mark.parametrize(
    "name", ["a", " ", "\n", "x" * 1024, "ü" * 512, "\U0001f9ff" * 256, "\x01", "a/b%", "é"]
)
def test_a_good_name_is_taken_as_it_is(name: str) -> None:  # section 0
    assert check_name("stream", name) == name
    assert check_key(name) == name

    b = open_store()
    append(b, name, name, name, name)

    assert read(b, name) == [Event(name, 1, name, name, name)]


BAD_ATS = {
    "a bool": True,
    "None": None,
    "NaN": math.nan,
    "infinity": math.inf,
    "too large": 2**63,
    "too small": -(2**63) - 1,
    "an empty text": "",
    "a long text": "x" * 1025,
    "NUL": "a\0",
    "a surrogate": "\ud800",
    "bytes": b"1",
    "a decimal": decimal.Decimal(1),
    "a time": dt.datetime.now(dt.UTC),
    "an enum member": Level.LOW,
}


@pytest.mark.parametrize("case", BAD_ATS)
def test_a_bad_at_is_a_usage_error(case: str) -> None:  # section 0
    b = open_store()

    with pytest.raises(UsageError):
        check_at(BAD_ATS[case])
    with pytest.raises(UsageError):
        append(b, "s", "t", as_any(BAD_ATS[case]), 1)

    assert streams_all(b) == []


@pytest.mark.parametrize("at", [0, -1, 2**63 - 1, -(2**63), 0.0, -0.0, 1e300, 5e-324, "now", "x" * 1024, "é"])
def test_a_good_at_comes_back_with_its_type(at: float | str) -> None:  # section 0
    b = open_store()

    append(b, "s", "t", at, None)

    assert typed(read(b, "s")[0].at) == typed(at)


@pytest.mark.parametrize(
    ("at", "start", "end", "expected"),
    [
        (1, 1, 1, True),
        (1, 1.0, 1.0, True),
        (1.5, 1, 2, True),
        (2**53 + 1, float(2**53), None, True),
        (2**53 + 1, None, float(2**53), False),
        (1, "0", None, False),
        ("1", 0, None, False),
        ("1", None, 9, False),
        ("b", "a", "c", True),
        ("b", "a", 9, False),
        (1, None, None, True),
        (3, 4, 2, False),
    ],
)
def test_numbers_compare_with_numbers_and_text_with_text(
    at: Any, start: Any, end: Any, expected: bool
) -> None:
    assert is_within(at, start, end) is expected  # P-QRY-2, P-QRY-3


def test_a_refusal_survives_pickling() -> None:
    import pickle

    with pytest.raises(NotStorable) as refused:
        encode([b"x"])

    again = pickle.loads(pickle.dumps(refused.value))
    assert isinstance(again, NotStorable)
    assert (again.message, again.hint) == (refused.value.message, refused.value.hint)
