"""The requests of a purge to the lake, as plain values without Spark. `jobs/purge.py` carries them out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.base.ranges import Range
from strandline.errors import UnavailableError, UsageError
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


class TooScattered(UsageError):
    """A predicate that chooses rows in more separate ranges than one purge can record."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"the predicate chooses rows of dataset {dataset!r} in too many separate places for one purge",
            hint="purge in parts: add a condition that halves the rows, and repeat with the other half",
        )
        self.dataset = dataset


class FilesUnlisted(UnavailableError):
    """The files of a table cannot be listed here."""

    def __init__(self, dataset: str, found: str) -> None:
        super().__init__(
            f"the files of dataset {dataset!r} cannot be listed: {found:.500}",
            hint="make the storage reachable from here, and repeat the purge",
        )
        self.dataset, self.found = dataset, found


@dataclass(frozen=True, slots=True)
class PurgeAsked:
    """Rows of a source, or of all, for which `where` is true; those of flushes up to `flush` alone, so that
    the same is asked after a crash.

    `rows` are the seqs that `where` chose, by source, once that is decided. Then they alone say which rows
    go: a predicate may mean something else to another session, or after a change of its settings.
    """

    where: str | None
    source: str | None
    flush: int
    rows: Mapping[str, Sequence[Range]] | None = None


class Match(NamedTuple):
    """What was asked for of one strand: how many rows, between which seqs and flushes. If a predicate chose
    them, `ranges` are their seqs exactly."""

    source: str
    rows: int
    seqs: Range
    flushes: Range
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class FileListing:
    """Files of a table that may hold rows, or bounds of rows. `keeps` says why none of them may be removed,
    and is empty if they may."""

    files: tuple[str, ...] = ()
    keeps: str = ""


class Purger(Protocol):
    """Whatever raises may have had its effect; each call is safe to repeat."""

    def check(self, dataset: Dataset, where: str) -> None:
        """PredicateUnreadable unless it is a condition over the dataset's own columns."""
        ...

    def count(self, dataset: Dataset, asked: PurgeAsked) -> list[Match]:
        """Raises TooScattered."""
        ...

    def passed(
        self, dataset: Dataset, asked: PurgeAsked, marks: Mapping[tuple[str, str], int]
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

    def list_files(self, dataset: str) -> FileListing:
        """Return every file below the table. Raises FilesUnlisted."""
        ...

    def unnamed(self, dataset: str, listing: FileListing) -> list[str]:
        """Return those that no snapshot of now names. Raises FilesUnlisted if the listing lacks a file that
        one names: then its names cannot be compared with theirs."""
        ...

    def remove(self, dataset: str, files: Sequence[str]) -> list[str]:
        """Remove them; return those that are still there."""
        ...
