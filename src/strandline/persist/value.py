"""What may be stored, what it may be called, and the one encoding of it: in storage, in comparison, on the
wire.

The encoding is JSON with sorted keys and no spaces, as `json.dumps(v, sort_keys=True, separators=(",", ":"),
ensure_ascii=False)` writes it. What JSON lacks is a mapping with one `$` key:

    {"$event":["cart-1",3,"added",1700000000,{"sku":"A"}]}   an Event
    {"$state":[{"n":2},3]}                                   a ProjectionState
    {"$blob":["sha256-9f…",512,"image/png"]}                 a BlobRef
    {"$int":"-1f…"}                                          an int outside 64 bits, hexadecimal
    {"$map":{"$oid":"…"}}                                    a user's own mapping whose only key starts with $
    {"$absent":[]}                                           ABSENT, on the wire only

orjson writes the same bytes and is several times quicker, but it also writes what we must refuse (NaN as
null, a tuple as a list) and floats with an exponent in another form. So a quick walk lets orjson write what
is plain, and a second one refuses the rest or rewrites it. Of many values the quick walk goes through all at
once, level by level.
"""

import json
from collections.abc import Callable, Sequence
from gc import get_referents
from math import isfinite
from typing import Any, Final

import orjson

from strandline.errors import NotStorable, UsageError
from strandline.persist.event import ABSENT, BlobRef, Event, ProjectionState, Scalar, Storable

MAX_SEQ: Final = 2**63 - 1
MAX_NAME_BYTES: Final = 1024
MAX_RESERVED_KEY_BYTES: Final = (
    2400  # two encoded names and a prefix (see reserved.py); a Postgres index row holds it
)
MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_COMMIT_BYTES: Final = 64 * 1024 * 1024
MAX_DEPTH: Final = 100

_LOW: Final = -(2**63)
_WIRE_DEPTH: Final = -12  # a request nests a value in lists and mappings of its own
_PLAIN: Final = frozenset({str, bool, type(None)})
_CONTAINERS: Final = frozenset({dict, list})
_JSON: Final = _PLAIN | _CONTAINERS | {int, float}
_MANY: Final = 8  # from so many values on it is quicker to walk through all at once
_DOLLAR: Final = ord("$")  # one byte is found much sooner than three
_MOST_AT_ONCE: Final = 1_000_000
_ASKED_AT_ONCE: Final = 64
_SORTED: Final = orjson.OPT_SORT_KEYS
_STRICT: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER  # no int beyond 53 bits
# The fields of the first-class values, and of which types each may be; of none: of any that is storable.
_SPECIAL: Final[dict[type, dict[str, tuple[type, ...]]]] = {
    Event: {"stream": (str,), "seq": (int,), "type": (str,), "at": (int, float, str), "data": ()},
    ProjectionState: {"value": (), "seq": (int,)},
    BlobRef: {"cid": (str,), "size": (int,), "mime": (str,)},
}
_TAGS: Final[dict[type, str]] = {Event: "$event", ProjectionState: "$state", BlobRef: "$blob"}


def encode(value: Storable) -> bytes:
    """The canonical encoding of `value`. Raises NotStorable, which names the place, for what cannot be
    given back."""
    text = _encode(value, 0)
    if len(text) > MAX_VALUE_BYTES:
        raise NotStorable(
            f"a value of {len(text):,} bytes is over the limit of {MAX_VALUE_BYTES:,}",
            hint="put large bytes into a content store and keep the BlobRef",
        )
    return text


def encoder_of(values: Sequence[Storable]) -> Callable[[Storable], bytes]:
    """`encode` for these values, or what gives the same for them in less time."""
    return _encode_plain if _TELLS_ALL and len(values) >= _MANY and are_plain(values) else encode


def _encode_plain(value: Storable) -> bytes:
    """What are_plain lets pass."""
    try:
        text = orjson.dumps(value, None, _STRICT)
    except orjson.JSONEncodeError:
        return encode(value)
    if (_DOLLAR in text and b'{"$' in text) or len(text) > MAX_VALUE_BYTES:
        return encode(value)
    return text


def encode_wire(message: Any) -> bytes:
    """A request or an answer: the same encoding, in which ABSENT may stand, without the size limit of one
    value."""
    return _encode(message, _WIRE_DEPTH)


def decode(text: str | bytes) -> Storable:
    """The value that `encode` was given; a ValueError for text that it never wrote."""
    value = orjson.loads(text)
    # A quote inside a JSON string is escaped, so these three characters can only open a mapping. One alone is
    # found much sooner.
    if ("$" in text and '{"$' in text) if isinstance(text, str) else (_DOLLAR in text and b'{"$' in text):
        return _revive(value)
    return value


def same(left: Storable, right: Storable) -> bool:
    """Whether two values are one in the store: `True` is not `1`, `-0.0` is not `0.0`."""
    return encode(left) == encode(right)


def check_name(what: str, name: object) -> str:
    """`name` itself, if it may name a stream, a key, a type or anything else that the store lists."""
    if type(name) is str and name and name.isascii() and len(name) <= MAX_NAME_BYTES and "\0" not in name:
        return name
    return _check_unusual_name(what, name, MAX_NAME_BYTES)


def check_key(key: object) -> str:
    """As check_name, with room for the keys that the store makes of two names."""
    if type(key) is str and key.startswith("$"):
        return _check_unusual_name("key", key, MAX_RESERVED_KEY_BYTES)
    return check_name("key", key)


def check_at(at: object) -> Scalar:
    if type(at) is int:
        if _LOW <= at <= MAX_SEQ:
            return at
        raise UsageError(
            "at is an int that does not fit in 64 bits", hint="use microseconds since 1970, or text"
        )
    if type(at) is float:
        if isfinite(at):
            return at
        raise UsageError(f"at is {at}", hint="at is a finite number or a text")
    if type(at) is str:
        return check_name("at", at)
    raise UsageError(
        f"at is {type(at).__name__} {at!r:.80}",
        hint="at is an int of 64 bits, a finite float or a non-empty str",
    )


def check_seq(what: str, seq: object, *, least: int = 0) -> int:
    if type(seq) is int and least <= seq <= MAX_SEQ:
        return seq
    raise UsageError(f"{what} is {seq!r:.80}", hint=f"{what} is an int from {least} to 2^63-1")


def check_timeout(timeout_s: object) -> float:
    if type(timeout_s) in (int, float) and 0 <= timeout_s < 10**9:  # type: ignore[operator]  # NaN is not
        return float(timeout_s)  # type: ignore[arg-type]  # a number
    raise UsageError(f"timeout_s is {timeout_s!r:.80}", hint="a number of seconds, 0 or more")


def check_limit(limit: object) -> int:
    if type(limit) is int and limit >= 0:
        return limit
    raise UsageError(f"limit is {limit!r:.80}", hint="limit is an int of 0 or more")


def _check_unusual_name(what: str, name: object, most: int) -> str:
    if type(name) is not str:
        raise UsageError(f"{what} is {type(name).__name__} {name!r:.80}", hint=f"a {what} is a str")
    if not name:
        raise UsageError(f"{what} is empty", hint=f"a {what} has at least one character")
    if "\0" in name:
        raise UsageError(f"{what} {name!r:.80} contains U+0000", hint="leave that character out")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {name!r:.80} contains a lone surrogate", hint="leave it out") from error
    if size > most:
        raise UsageError(
            f"{what} {name[:40]!r}… has {size:,} bytes", hint=f"a {what} has at most {most:,} in UTF-8"
        )
    return name


def _encode(value: Any, depth: int) -> bytes:
    try:
        if is_plain(value, depth):
            return orjson.dumps(value, None, _SORTED)
        exponents: list[float] = []
        made = _rewrite(value, depth, exponents)
        if not exponents:
            return orjson.dumps(made, None, _SORTED)
        return json.dumps(made, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (_Refused, orjson.JSONEncodeError, UnicodeEncodeError) as error:
        raise NotStorable(
            f"{_fault(value, depth) or error} cannot be stored",
            hint="storable: None, bool, int, float, str, list, dict by str, Event, ProjectionState, BlobRef",
        ) from None


class _Refused(Exception):
    """Found by a quick walk; _fault then says what and where."""


def is_plain(value: Any, depth: int) -> bool:
    """Whether orjson writes `value` as the canonical bytes, or refuses it as we do (a key that is no str).
    The common kinds come first and are looked at in place: this walk is half the price of an append."""
    kind = type(value)
    if kind is dict:
        if depth >= MAX_DEPTH:
            return False
        for item in value.values():
            kind = type(item)
            if kind is str:
                continue
            if kind is int:
                if not _LOW <= item <= MAX_SEQ:
                    return False
            elif kind is float:
                if not 1e-4 <= item < 1e16 and not _is_plain_scalar(item):
                    return False
            elif kind not in _PLAIN and not is_plain(item, depth + 1):
                return False
        if len(value) == 1:
            (key,) = value
            return type(key) is str and key[:1] != "$"
        return True
    if kind is list:
        if depth >= MAX_DEPTH:
            return False
        for item in value:
            kind = type(item)
            if kind is not str and kind not in _PLAIN and not is_plain(item, depth + 1):
                return False
        return True
    return _is_plain_scalar(value)


def are_plain(values: Sequence[Any]) -> bool:
    """Whether is_plain holds for all, but for what the bytes show: ints beyond 64 bits, and mappings whose
    only key starts with $. The types of a whole level are looked at in C, at a third of the price of a walk.

    What an object refers to is what its type tells the garbage collector: of a list what is in it, of a dict
    the same, without its keys if all are of type str. Nothing else is asked: its type is refused before. Few
    are asked at a time, since of a value that holds itself, or one thing many times, a level can be huge.
    """
    level: Sequence[Any] = values
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if not kinds <= _JSON:
            return False
        if float in kinds:
            for item in level:
                if type(item) is float and not 1e-4 <= item < 1e16 and not _is_plain_scalar(item):
                    return False
        if kinds.isdisjoint(_CONTAINERS):
            return True
        below: list[Any] = []
        for start in range(0, len(level), _ASKED_AT_ONCE):
            below += get_referents(*level[start : start + _ASKED_AT_ONCE])
            if len(below) > _MOST_AT_ONCE:
                return False
        level = below
    return False


def _tells_all() -> bool:
    """Whether a dict tells the garbage collector of all that it holds. From Python 3.13 on that of an object
    does not: the object does."""

    class Probe:
        def __init__(self) -> None:
            self.held = object()

    probe = Probe()
    return get_referents(vars(probe)) == [probe.held]


_TELLS_ALL: Final = _tells_all()


def _is_plain_scalar(value: Any) -> bool:
    kind = type(value)
    if kind is float:  # orjson has another form of an exponent, and writes NaN as null
        return bool(1e-4 <= value < 1e16 or value == 0.0 or -1e16 < value <= -1e-4)
    if kind is int:
        return bool(_LOW <= value <= MAX_SEQ)
    return kind in _PLAIN


def _rewrite(value: Any, depth: int, exponents: list[float]) -> Any:
    """A storable value as JSON has it, and the floats in it that are written with an exponent."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if _LOW <= value <= MAX_SEQ else {"$int": format(value, "x")}
    if kind is float:
        if not isfinite(value):
            raise _Refused
        if not is_plain(value, depth):
            exponents.append(value)
        return value
    if kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            raise _Refused
        if kind is list:
            return [_rewrite(item, depth + 1, exponents) for item in value]
        if not all(type(key) is str for key in value):
            raise _Refused
        mapping = {key: _rewrite(item, depth + 1, exponents) for key, item in value.items()}
        return {"$map": mapping} if len(value) == 1 and next(iter(value)).startswith("$") else mapping
    if kind in _SPECIAL:
        for name, allowed in _SPECIAL[kind].items():
            if allowed and type(getattr(value, name)) not in allowed:
                raise _Refused
        fields = [getattr(value, name) for name in _SPECIAL[kind]]
        return {_TAGS[kind]: _rewrite(fields, depth, exponents)}
    if value is ABSENT and depth < 0:
        return {"$absent": []}
    raise _Refused


def _revive(value: Any) -> Any:
    if type(value) is list:
        return [_revive(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        (key, body), *_ = value.items()
        if key.startswith("$"):
            return _revive_special(key, body)
    return {key: _revive(item) for key, item in value.items()}


def _revive_special(key: str, body: Any) -> Any:
    match key, body:
        case "$map", dict():
            return {name: _revive(item) for name, item in body.items()}
        case "$event", [stream, seq, type_, at, data]:
            return Event(stream, _revive(seq), type_, _revive(at), _revive(data))
        case "$state", [state, seq]:
            return ProjectionState(_revive(state), _revive(seq))
        case "$blob", [cid, size, mime]:
            return BlobRef(cid, _revive(size), mime)
        case "$int", str():
            return int(body, 16)
        case "$absent", []:
            return ABSENT
    raise ValueError(f"a mapping with the only key {key!r} is not of this encoding")


def _fault(value: Any, depth: int, path: str = "value") -> str | None:
    """What is wrong first, and where; the walk that may take its time."""
    kind = type(value)
    if kind in (dict, list) and depth >= MAX_DEPTH:
        return f"{path[:200]}… is nested over {MAX_DEPTH} deep and"
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                return f"{path} has the key {key!r:.80} ({type(key).__name__}) and"
            if not _is_utf8(key):
                return f"{path} has a key with a lone surrogate and"
            if found := _fault(item, depth + 1, f"{path}[{key!r:.80}]"):
                return found
    elif kind is list:
        for index, item in enumerate(value):
            if found := _fault(item, depth + 1, f"{path}[{index}]"):
                return found
    elif kind is str:
        return None if _is_utf8(value) else f"{path} has a lone surrogate and"
    elif kind is float:
        return None if isfinite(value) else f"{path} is {value} and"
    elif kind in _SPECIAL:
        return _fault_of_fields(value, depth, path)
    elif kind is not int and kind not in _PLAIN:
        return f"{path} is of type {kind.__module__}.{kind.__qualname__} and"
    return None


def _fault_of_fields(value: Any, depth: int, path: str) -> str | None:
    kinds = _SPECIAL[type(value)]
    fields = [getattr(value, name) for name in kinds]
    found = _fault(fields, depth, f"{path} ({type(value).__name__})")
    for (name, allowed), field in zip(kinds.items(), fields, strict=True):
        if allowed and type(field) not in allowed:
            return found or f"{path}.{name} is of type {type(field).__name__} and"
    return found


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_within(at: Scalar, start: Scalar | None, end: Scalar | None) -> bool:
    """start <= at <= end, where numbers compare with numbers and text with text, and never with each
    other."""
    for bound in (start, end):
        if bound is not None and isinstance(bound, str) is not isinstance(at, str):
            return False
    return (start is None or start <= at) and (end is None or at <= end)  # type: ignore[operator]  # of one kind
