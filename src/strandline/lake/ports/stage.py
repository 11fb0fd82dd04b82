"""What lands, and what can be asked of tables about it: plain values, no Spark.

A landing has a number (the flush number of its dataset) and an id, under which it is staged and published
once (Iceberg's WAP id). Staging it again, here or elsewhere, gives the same rows with the same seqs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from strandline.rows.dataset import Dataset
from strandline.state.landing import FixedInput, Landing

BURNED: Final = -1  # the version of the empty commit that uses an id up


Settle = Callable[[Any], Any]  # DataFrame -> DataFrame; Any, since this module knows no Spark


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot under an id: what it adds to the table, and what the settle hook did while it was staged."""

    snapshot: int
    version: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    settled_drop: int = 0
    settle_failure: str | None = None


@dataclass(frozen=True, slots=True)
class Staged(Written):
    """It is not part of the table yet. `is_behind` tells that something was published since it was staged."""

    is_behind: bool = field(default=False, compare=False)


class Published(Written):
    """It is in the table's history; `version` is the one that was published."""


@dataclass(frozen=True, slots=True)
class LandingSnapshots:
    """What a table knows of an id: the published snapshot if there is one, and the staged ones."""

    published: Published | None
    staged: tuple[Staged, ...]


class Tables(Protocol):
    """What flush and load ask of the lake. Any call may fail after it had its effect: look, never assume."""

    def ensure(self, dataset: Dataset, *, has_landed: bool = False) -> None:
        """Make the table, or grow it to the dataset's columns. Where rows have landed it must be there:
        TableMissing if it is not, since a new one would hide them. SchemaBreaking or PartitionDrift if it
        cannot hold the rows; nothing was written then."""

    def stage(self, landing: Landing, *, settle: Settle | None = None) -> None:
        """Write the rows under the landing's id, invisible to readers. SegmentUnreadable names the segment
        that cannot be read; nothing is staged then. `settle` sees a flush's rows before they get row ids."""

    def look(self, dataset: str, id: str) -> LandingSnapshots:
        """What the table says now, read fresh. NotFoundError if there is no table."""

    def publish(self, dataset: str, snapshot: int) -> None:
        """Make a staged snapshot visible. Iceberg refuses an id that is published already: whatever this
        raises, `look` tells what happened."""

    def keep_highest(self, dataset: str, seq: int, flush: int) -> None:
        """Have the table remember these numbers apart from its rows, if it knows none that are higher."""

    def burn(self, dataset: str, id: str) -> None:
        """Publish an empty commit under an id, of version BURNED, so that no staged copy of it can be
        published any more. Nothing happens if the id is published already."""

    def drop_input(self, load: str) -> None:
        """Remove the scratch table of a load that is settled, or was never begun; one that is gone is
        fine."""

    def has_input(self, input: FixedInput) -> bool:
        """Whether the scratch table is there with its snapshot."""
