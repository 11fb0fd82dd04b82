"""The requests of compaction to the lake, as plain values without Spark. `jobs/rewrite.py` carries them out.

A bin holds the files that may become one: those of one source (with `source_buckets`: of one of these) in one
bucket of seqs. Its files have an order: that of their seqs, or, where many sources share a bin, that of their
flush numbers. What is merged is always a stretch `(lo, hi]` of that order, so that one predicate names it and
the files of a strand stay apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.errors import CorruptionError, UnavailableError
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    from strandline.lake.ports.snapshots import KnownSnapshot


class Bin(NamedTuple):
    """`place` is a source, or the number of a source bucket; `first` the lowest seq that may be in it."""

    place: str | int
    first: int


class DataFile(NamedTuple):
    """A file of a bin, `(lo, hi]` in its order. `snapshot` is the commit that brought it."""

    bin: Bin
    lo: int
    hi: int
    rows: int
    bytes: int
    snapshot: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table as of one snapshot. `pointer` names the newest commit. With `has_deletes` some
    rows of these files are none."""

    pointer: str
    snapshot: int | None
    files: tuple[DataFile, ...]
    snapshots: int
    has_deletes: bool = False


class Stretch(NamedTuple):
    """Files of a bin that become one: those in `(lo, hi]` of its order. Up to `visible` of that order no row
    can appear any more. Rows are looked for repeats of `since` there: 0 is all that went before."""

    bin: Bin
    lo: int
    hi: int
    visible: int
    since: int


class Repeats(NamedTuple):
    """How many rows of a strand, in one bucket of seqs, repeat one with a lower seq, and where they are."""

    source: str
    first: int
    lo: int
    hi: int
    rows: int


def within(files: Sequence[DataFile], asked: Sequence[Stretch]) -> dict[Bin, list[DataFile]]:
    """The files of these stretches."""
    wanted = {each.bin: each for each in asked}
    found: dict[Bin, list[DataFile]] = {}
    for file in files:
        stretch = wanted.get(file.bin)
        if stretch is not None and stretch.lo <= file.lo and file.hi <= stretch.hi:
            found.setdefault(file.bin, []).append(file)
    return found


class RewriteDiffers(CorruptionError):
    """What was rewritten does not hold the rows that were read: it is thrown away."""

    def __init__(self, dataset: str, found: int, wanted: int) -> None:
        said = f"{found:,} rows, not {wanted:,}" if found != wanted else f"{found:,} rows, but not the same"
        super().__init__(
            f"dataset {dataset!r}: rewritten files have {said}; they are not taken",
            hint="the table is as it was; its files may be damaged: `strandline sink verify` compares rows",
        )
        self.dataset, self.found, self.wanted = dataset, found, wanted


class MainMoved(UnavailableError):
    """Something was committed while files were rewritten, so the rewrite is not taken."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"the table of dataset {dataset!r} changed while its files were rewritten",
            hint="nothing is lost; the next walk rewrites them again",
        )
        self.dataset = dataset


class Rewriter(Protocol):
    """Whatever raises may have had its effect; each call is safe to repeat. The first two need no Spark."""

    def pointer(self, dataset: str) -> str | None:
        """What the newest commit is called; None if there is no table. One small query."""
        ...

    def files(self, dataset: Dataset, *, snapshot: int | None = None) -> Listing:
        """All files, from the manifests, of the table as it is now, or as it was. TableMissing if there is
        none."""
        ...

    def branches(self, dataset: str) -> Mapping[str, int]:
        """The refs beside main, each with its snapshot; no file is listed for it."""
        ...

    def ancestry(self, dataset: str, snapshot: int | None = None) -> list[int]:
        """The current snapshot, or this one, and what it was made from, newest first."""
        ...

    def repeats(self, dataset: Dataset, base: int, asked: Sequence[Stretch]) -> list[Repeats]:
        """Rows of these stretches that repeat one with a lower seq of the same strand."""
        ...

    def branch(self, dataset: str, name: str, base: int) -> None:
        """Make a branch at a snapshot."""
        ...

    def remove_repeats(self, dataset: Dataset, branch: str, base: int, asked: Sequence[Stretch]) -> None:
        """Delete on the branch what `repeats` finds at its base."""
        ...

    def rewrite(self, dataset: Dataset, branch: str, asked: Sequence[Stretch], *, target_bytes: int) -> None:
        """Merge the files of each stretch on the branch, in one commit. One that cannot be read stays."""
        ...

    def check(
        self, dataset: Dataset, base: int, head: int, asked: Sequence[Stretch], *, has_repeats: bool
    ) -> None:
        """Compare the rows of these stretches, repeats aside. RewriteDiffers if they are not the same."""
        ...

    def land(self, dataset: str, branch: str, base: int) -> None:
        """Make the head of the branch the current snapshot; MainMoved if something else came since its
        base."""
        ...

    def drop(self, dataset: str, branch: str) -> None:
        """Remove a branch; one that is gone is fine."""
        ...

    def snapshots(self, dataset: str) -> "Sequence[KnownSnapshot]":
        """Every snapshot, oldest first. It needs no Spark where the metadata can be read here."""
        ...

    def expire(self, dataset: str, ids: Iterable[int]) -> None:
        """Remove these snapshots, and the files that only they name. One that is gone is fine."""
        ...

    def remove_orphans(self, dataset: str) -> int:
        """Remove files that no snapshot names and that are older than a day; how many."""
        ...
