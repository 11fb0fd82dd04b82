"""The question which of some rows are there already. It needs no Spark; `jobs/lookup.py` answers it.

A row is asked for by its id, the hash of its identity that the table stamps it with. A row that has none has
no id here either, and is never known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from strandline.base.ranges import Range
from strandline.persist import BlobRef
from strandline.rows.dataset import SOURCE, Dataset


class RowKey(NamedTuple):
    """A row by its strand and its id."""

    source: str
    id: str


@dataclass(frozen=True, slots=True)
class SpooledRun:
    """Rows of a segment that have not landed; `of` is how many rows the ledgers name in it."""

    source: str
    segment: BlobRef
    of: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class SpoolAnswer:
    """The asked rows that are in valid segments; by segment what is wrong with those that are not, and why
    others could not be read, which is no verdict."""

    known: frozenset[RowKey]
    faults: Mapping[str, str]
    unread: Mapping[str, str]


class Lookup(Protocol):
    """Any call may fail; then nothing is known about the rows, neither that they are there nor that not."""

    def ids(self, dataset: Dataset, table: Any) -> list[str | None]:
        """The ids of rows that `accept` has taken, in their order; None of one without identity."""

    def spooled(self, dataset: Dataset, asked: Sequence[RowKey], runs: Sequence[SpooledRun]) -> SpoolAnswer:
        """Which of the asked rows are in these segments. A segment that flush would not land counts as
        unseen, and is told."""

    def committed(
        self,
        dataset: Dataset,
        asked: Sequence[RowKey],
        within: Mapping[str, Sequence[Range]] | None = None,
        *,
        by_columns: bool = False,
    ) -> frozenset[RowKey]:
        """Which of the asked rows are in the table, where `within` is given only in these seqs of a source.
        `by_columns` makes ids anew, where rows landed before the dataset had this identity. NotFoundError if
        there is no table."""


def has_identity(dataset: Dataset) -> bool:
    """Whether rows of it can be the same: by an identity, or by their whole content where that is one."""
    return dataset.identity is not None or dataset.collapse


def identity_columns(dataset: Dataset) -> tuple[str, ...]:
    """The columns that the id is made of."""
    if dataset.identity is None:
        return tuple(column.name for column in dataset.columns if column.name != SOURCE)
    wanted = {dataset.identity.key, *dataset.identity.legacy}
    return tuple(column.name for column in dataset.columns if column.name in wanted)
