"""Make two runs of the same story equal: replace what a run draws or measures by the name of what it is.

Ids and digests are numbered in the order in which they first occur, so that a value that stands in two
places keeps one name. All else stays, to the byte.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

# In this order: a longer form contains the shorter ones.
_DRAWN: Final = re.compile(
    r"(?P<process>[0-9a-f-]{36}/pid:\[\d+\]/\d+/\d+)"
    r"|(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?<![0-9a-f])(?:(?P<digest>[0-9a-f]{64})|(?P<commit>[0-9a-f]{60})|(?P<id>[0-9a-f]{32})|(?P<run>[0-9a-f]{16}|[0-9a-f]{12}))(?![0-9a-f])"
    r"|(?P<token>slt_[0-9a-f]{12}_[A-Za-z0-9_-]{43})"
)
_PORT: Final = re.compile(r"(127\.0\.0\.1:|(?<=pid ))\d+")
# How long something took, and sizes of files in which Iceberg and Parquet keep ids and times of their own.
_MEASURED: Final = frozenset(
    {
        *("ms", "snapshot", "snapshot_id", "parent_snapshot_id", "age_s", "since_flush_s", "pid", "seconds"),
        *("bytes_in", "bytes_out", "table_bytes", "bytes", "bytes_read", "size"),
    }
)
_SNAPSHOT: Final = 1 << 54  # Iceberg draws larger ids, and no other number of the story is so large


class Mask:
    """The names that one run has given so far."""

    def __init__(self, places: dict[str, Path | str]) -> None:
        # The longest first, because one folder may contain another.
        self._places = sorted(
            ((str(place), name) for name, place in places.items()), key=lambda p: -len(p[0])
        )
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def text(self, text: str) -> str:
        for place, name in self._places:
            text = text.replace(place, f"<{name}>")
        return _PORT.sub(r"\1<number>", _DRAWN.sub(self._named, text))

    def order(self, item: Any) -> str:
        """A key to sort by that does not depend on ids that were not seen before."""
        return _DRAWN.sub(lambda match: self._names.get(match[0], "<new>"), json.dumps(item, default=str))

    def value(self, value: Any, key: str = "") -> Any:
        """`value` with every text in it masked, keys of mappings too."""
        if isinstance(value, dict):
            names: dict[str, Any] = value
            if any(_DRAWN.search(name) for name in names):
                names = dict(sorted(value.items(), key=self.order))
            return {self.text(str(name)): self.value(each, str(name)) for name, each in names.items()}
        if isinstance(value, list | tuple):
            if key == "$blob":  # digest, size, type
                return [self.value(value[0]), "<int>", value[2]]
            return [self.value(each, key) for each in value]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if abs(value) > _SNAPSHOT:
            return "<snapshot>"
        return f"<{type(value).__name__}>" if key in _MEASURED else value

    def _named(self, match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        if match[0] not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[match[0]] = f"<{kind} {self._counts[kind]}>"
        return self._names[match[0]]


def differences(golden: Any, made: Any, place: str = "") -> list[str]:
    """Each place at which the two differ."""
    if isinstance(golden, dict) and isinstance(made, dict):
        return [
            line
            for key in sorted(golden.keys() | made.keys())
            for line in differences(
                golden.get(key, "<nothing>"), made.get(key, "<nothing>"), f"{place}.{key}"
            )
        ]
    if isinstance(golden, list) and isinstance(made, list) and len(golden) == len(made):
        pairs = enumerate(zip(golden, made, strict=True))
        return [line for at, pair in pairs for line in differences(*pair, f"{place}[{at}]")]
    return [] if golden == made else [f"{place}: {golden!r:.300} became {made!r:.300}"]
