"""The requests of retention to the lake, as plain values without Spark. `jobs/prune.py` carries them out.

Which rows go is said by bounds, never by a list of them, so that the same can be said again after a crash:

    a row goes   if it is of a strand of some part, at or below the seq up to which that part may take it,
                 and was taken in early enough, and is old enough by its own time or among the first taken in

Times are microseconds since 1970, UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from strandline.base.ranges import Range

Unit = Literal["s", "ms", "us", "ns"]
PER_UNIT: Final[Mapping[Unit, tuple[int, int]]] = {  # a microsecond in the unit, as a fraction
    "s": (1, 1_000_000),
    "ms": (1, 1_000),
    "us": (1, 1),
    "ns": (1_000, 1),
}


class TimeColumn(NamedTuple):
    """A column that dates a row. A number says in which unit; a timestamp or a date has none."""

    name: str
    type: str
    unit: Unit | None = None


class RowPlace(NamedTuple):
    """A row in the order in which rows were taken in: those of one instant by source, then seq."""

    at: int
    source: str
    seq: int


@dataclass(frozen=True, slots=True)
class Condition:
    """A row was taken in before `taken_before`, and is older than `older_than` by its own time or at or
    before `first`; where `within` is given it is at or before that as well."""

    taken_before: int
    older_than: int | None = None
    first: RowPlace | None = None
    within: RowPlace | None = None


@dataclass(frozen=True, slots=True)
class PrunePart:
    """Rows of these strands, in these seqs, of which the condition holds. Where `through` is given, the rows
    of all of them in those seqs are those that the flushes up to it landed, which is said in fewer words."""

    condition: Condition
    strands: Mapping[str, Range]
    through: int | None = None


@dataclass(frozen=True, slots=True)
class RowsToDelete:
    """What goes: the rows of any part. `times` date a row, the first that is not null; then `_sl_at` does."""

    times: tuple[TimeColumn, ...]
    parts: tuple[PrunePart, ...]

    def strands(self) -> list[str]:
        return sorted({source for part in self.parts for source in part.strands})


class TimeBounds(NamedTuple):
    """Of one column in one file. `low` is None where the file has no bound of it; `has_null` where some row
    has no time there, or may have none."""

    low: int | None
    high: int | None
    has_null: bool


@dataclass(frozen=True, slots=True)
class FileBounds:
    """What a data file says of its rows. `sources` are the lowest and the highest; mostly one."""

    sources: tuple[str, str]
    seqs: Range
    at: tuple[int, int]
    times: tuple[TimeBounds, ...]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table as of one commit, which `pointer` names, and the columns that it has."""

    pointer: str
    files: tuple[FileBounds, ...] = ()
    columns: frozenset[str] = frozenset()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files)


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of a strand in one of the bands that were asked for: how many, between which seqs and flushes."""

    source: str
    band: Range
    rows: int
    seqs: Range
    flushes: Range


class Upkeep(Protocol):
    """Whatever raises may have had its effect; each call is safe to repeat."""

    def pointers(self) -> Mapping[str, str]:
        """By dataset: what the newest commit of its table is called. No Spark, and no file of a table."""
        ...

    def files(self, dataset: str, times: Sequence[TimeColumn] = ()) -> TableFiles:
        """Bounds of every file, from the manifests. No Spark. TableMissing if there is no table."""
        ...

    def first_rows(self, dataset: str, count: int, among: RowsToDelete | None = None) -> RowPlace | None:
        """The place of the last of the first `count` rows that were taken in; of those `among` only. None
        where there are none."""
        ...

    def count(self, dataset: str, doomed: RowsToDelete, bands: Mapping[str, Sequence[Range]]) -> list[Count]:
        """How many rows would go, by strand, and where bands of seqs are given for it in each of them."""
        ...

    def delete(self, dataset: str, doomed: RowsToDelete) -> None:
        """Delete them, in one commit. What is deleted already stays so. Files that go whole are not
        opened."""
        ...


# As data of events


def doomed_data(doomed: RowsToDelete) -> dict[str, Any]:
    return {
        "times": [list(each) for each in doomed.times],
        "parts": [
            {
                "taken_before": part.condition.taken_before,
                "older_than": part.condition.older_than,
                "first": _place_data(part.condition.first),
                "within": _place_data(part.condition.within),
                "strands": {source: [each.lo, each.hi] for source, each in part.strands.items()},
                "through": part.through,
            }
            for part in doomed.parts
        ],
    }


def doomed_of(data: Mapping[str, Any]) -> RowsToDelete:
    parts = tuple(
        PrunePart(
            Condition(
                part["taken_before"], part["older_than"], _place_of(part["first"]), _place_of(part["within"])
            ),
            {source: Range(lo, hi) for source, (lo, hi) in part["strands"].items()},
            part["through"],
        )
        for part in data["parts"]
    )
    return RowsToDelete(tuple(TimeColumn(*each) for each in data["times"]), parts)


def _place_data(place: RowPlace | None) -> list[Any] | None:
    return None if place is None else list(place)


def _place_of(data: Sequence[Any] | None) -> RowPlace | None:
    return None if data is None else RowPlace(*data)
