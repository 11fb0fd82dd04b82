"""The requests of a purge to the lake, as plain values without Spark. `jobs/purge.py` carries them out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.base.ranges import Range
from strandline.errors import UsageError
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.lake.ports.snapshots import KnownSnapshot


class PredicateUnreadable(UsageError):
    """A predicate that Spark cannot read, or that would not say the same again."""

    def __init__(self, dataset: str, where: str, found: str) -> None:
        super().__init__(
            f"{where!r:.200} does not tell which rows of dataset {dataset!r} go: {found:.500}",
            hint="a condition in SQL over the dataset's columns, such as \"user = 'u1'\"; times as literals",
        )
        self.dataset, self.where, self.found = dataset, where, found


@dataclass(frozen=True, slots=True)
class PurgeAsked:
    """Rows of a source, or of all, for which `where` is true; those of flushes up to `flush` alone, so that
    the same is asked after a crash."""

    where: str | None
    source: str | None
    flush: int


class Match(NamedTuple):
    """What was asked for of one strand: how many rows, between which seqs and flushes."""

    source: str
    rows: int
    seqs: Range
    flushes: Range


class Purger(Protocol):
    """Whatever raises may have had its effect; each call is safe to repeat."""

    def check(self, dataset: Dataset, where: str) -> None:
        """PredicateUnreadable unless it is a condition over the dataset's own columns."""
        ...

    def count(self, dataset: str, asked: PurgeAsked) -> list[Match]: ...

    def passed(
        self, dataset: str, asked: PurgeAsked, marks: Mapping[tuple[str, str], int]
    ) -> dict[tuple[str, str], int]:
        """Of those rows, how many are at or below a mark, by whose mark it is and source."""
        ...

    def delete(self, dataset: str, asked: PurgeAsked) -> None:
        """In one commit. What is deleted already stays so."""
        ...

    def holds_for(self, dataset: Dataset, where: str, rows: "pa.Table") -> list[bool]:
        """For each of these rows, which have all columns, whether `where` is true."""
        ...

    def snapshots(self, dataset: str) -> "Sequence[KnownSnapshot]": ...

    def expire(self, dataset: str, ids: Iterable[int]) -> None: ...
