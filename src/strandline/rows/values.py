"""Values that no column keeps, and how deep a value may be nested.

A value of open shape goes MAX_DEPTH levels deep: a list in a list is two. What is deeper is refused as its
row is judged, whichever way it came. Nothing here recurses: Python bounds that, by the depth of the caller
too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

MAX_DEPTH: Final = 100
TOO_DEEP: Final = f"a value nested over {MAX_DEPTH} levels deep"
FINER: Final = "finer than a microsecond"

_MOST_SHOWN: Final = 16 * 1024 * 1024  # characters
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]', re.DOTALL)


class Unstorable:
    """A value that no column keeps unchanged, as `text` shows it; its row is refused."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class TooDeep(Unstorable):
    """A value that is nested too deep; `json` is all of it as text."""

    def __init__(self, json: str) -> None:
        super().__init__(TOO_DEEP)
        self.json = json

    def __str__(self) -> str:
        return self.json

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TooDeep) and other.json == self.json

    def __hash__(self) -> int:
        return hash(self.json)


def is_too_deep(value: Any) -> bool:
    """Whether it is nested over MAX_DEPTH levels deep; one that holds itself is."""
    if not isinstance(value, dict | list):
        return False
    path = [_inner(value)]
    while path:
        below = next(path[-1], None)
        if below is None:
            path.pop()
        elif len(path) == MAX_DEPTH:
            return True
        else:
            path.append(_inner(below))
    return False


def _inner(value: Any) -> Iterator[Any]:
    """The mappings and lists right inside a value."""
    values = value.values() if isinstance(value, Mapping) else value
    return (each for each in values if isinstance(each, dict | list))


def too_deep(value: Any) -> TooDeep:
    """What is kept of a value that is nested too deep: its JSON, or as much of it as can be shown."""
    pieces: list[str] = []
    left: list[Any] = [value]  # what is still to be written, the next one last
    around: dict[int, None] = {}  # the ids of what is open: a value that holds itself is shown once
    size = 0
    while left and size < _MOST_SHOWN:
        each = left.pop()
        if isinstance(each, dict | list) and id(each) not in around:
            around[id(each)] = None
            left += reversed(_parts(each))
            continue
        if isinstance(each, _Mark) and each.is_end:
            around.popitem()
        text = each.text if isinstance(each, _Mark) else "…" if isinstance(each, dict | list) else _text(each)
        pieces.append(text)
        size += len(text)
    return TooDeep("".join(pieces) + ("…" if left else ""))


class _Mark(NamedTuple):
    """What stands around and between values."""

    text: str
    is_end: bool = False


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list):
        inner = [part for each in value for part in (_Mark(","), each)]
        return [_Mark("["), *inner[1:], _Mark("]", True)]
    inner = [part for key, each in value.items() for part in (_Mark(","), _Mark(_text(key) + ":"), each)]
    return [_Mark("{"), *inner[1:], _Mark("}", True)]


def _text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return orjson.dumps(ascii(value)).decode()


def without_depth(line: str) -> tuple[str, dict[str, str]] | None:
    """The text of a JSON object in which each member that is too deep is a text, and the JSON of those by
    that text; None if the line is no object, or is cut short."""
    found: dict[str, str] = {}
    pieces: list[str] = []
    done = depth = deepest = start = 0
    for token in _TOKEN.finditer(line):
        mark = token[0]
        if mark in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth - 1)
        is_end = depth == 1 and mark in (",", "}")
        if is_end and deepest > MAX_DEPTH:
            name = f"\0{len(found)}"
            found[name] = line[start : token.start()].strip()
            pieces += [line[done:start], orjson.dumps(name).decode()]
            done = token.start()
        if depth == 1 and mark in (":", ","):
            start, deepest = token.end(), 0
        if mark in ("]", "}"):
            depth -= 1
    if depth or not found or not line.lstrip().startswith("{"):
        return None
    return "".join(pieces) + line[done:], found
