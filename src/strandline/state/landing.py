"""The rows that a flush or a load is about to land: part of its plan, so that a retry lands the same rows."""

from dataclasses import dataclass
from typing import ClassVar

from strandline.persist import BlobRef
from strandline.rows.dataset import Dataset


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """A run of rows in one segment: row `first_row + i` has seq `lo + 1 + i`, and `at` is its `_sl_at`."""

    source: str
    segment: BlobRef
    first_row: int
    rows: int
    lo: int
    at: int  # microseconds since 1970, UTC: when the ledger numbered these rows

    @property
    def hi(self) -> int:
        return self.lo + self.rows


@dataclass(frozen=True, slots=True)
class FlushLanding:
    """Planned pieces of segments. `version` counts how often the plan was amended."""

    dataset: Dataset
    number: int
    id: str
    pieces: tuple[SegmentPiece, ...]  # by source, then lo
    version: int = 0
    looked: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class FixedInput:
    """A load's rows, written once: a scratch table at one snapshot, and how many rows each source has."""

    table: str
    snapshot: int
    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class LoadLanding:
    """The rows of a fixed input. The rows of a source are numbered from `los[source] + 1` on, in the order
    of their file names and places in the file. Where somebody has `looked`, no id is there twice, and none is
    in the table in a flush up to that number; what came since nobody has looked at."""

    dataset: Dataset
    number: int
    id: str
    input: FixedInput
    los: dict[str, int]
    at: int
    version: int = 0
    looked: int = 0


Landing = FlushLanding | LoadLanding
