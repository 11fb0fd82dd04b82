"""Whether files hold the rows that others held, told here: to open a thousand small files takes Spark as long
as to rewrite them.

Both sides are read in the order of their seqs, some batches at a time, so it needs little memory however
much they hold. That order is had by putting files after each other: a bin has one source then, and its files
do not overlap. Where it is not had, or Arrow cannot read a file as Spark does, the rows seem to differ: then
Spark has the last word.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from strandline.lake.ports.rewrite import DataFile

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO

SMALL: Final = 1024 * 1024  # bytes of a file, on average, up to which Spark is slower
FEW: Final = 256 * SMALL  # bytes in all
_BATCH: Final = 50_000  # rows
_AHEAD: Final = 4  # batches, and files


def is_worth(before: Sequence[DataFile]) -> bool:
    """Small files, one after the other in each bin."""
    total = sum(file.bytes for file in before)
    if not before or total > min(FEW, SMALL * len(before)):
        return False
    return all(left.bin != right.bin or left.hi <= right.lo for left, right in pairwise(_ordered(before)))


def are_same(io: "FileIO", before: Sequence[DataFile], after: Sequence[DataFile]) -> bool:
    """Whether both hold the same rows in the same order; a column that came since, or became wider, is what
    it is in `after`."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not after or not isinstance(io, PyArrowFileIO):
        return False
    try:
        found = _dataset(io, after)
        new, old = _Side(found), _Side(_dataset(io, before, found.schema))
        while (rows := min(old.left(), new.left())) > 0:
            if not _equal(old.taken(rows), new.taken(rows)):
                return False
        return old.left() == new.left()
    except (pa.ArrowException, OSError):
        return False


def _ordered(files: Sequence[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: (str(file.bin.place), file.bin.first, file.lo))


def _dataset(io: "PyArrowFileIO", files: Sequence[DataFile], schema: pa.Schema | None = None) -> pads.Dataset:
    places = [io.parse_location(file.path) for file in _ordered(files)]
    scheme, host, _ = places[0]
    paths = [path for _, _, path in places]
    return pads.dataset(paths, schema, format="parquet", filesystem=io.fs_by_scheme(scheme, host))


class _Side:
    """Rows, taken as many at a time as both sides have."""

    def __init__(self, dataset: pads.Dataset) -> None:
        self._batches: Iterator[pa.RecordBatch] = dataset.to_batches(
            batch_size=_BATCH, batch_readahead=_AHEAD, fragment_readahead=_AHEAD
        )
        self._batch: pa.RecordBatch = pa.RecordBatch.from_pylist([])

    def left(self) -> int:
        """Rows that can be taken now; 0 at the end."""
        while self._batch.num_rows == 0:
            found = next(self._batches, None)
            if found is None:
                return 0
            self._batch = found
        return int(self._batch.num_rows)

    def taken(self, rows: int) -> pa.RecordBatch:
        batch, self._batch = self._batch.slice(0, rows), self._batch.slice(rows)
        return batch


def _equal(old: pa.RecordBatch, new: pa.RecordBatch) -> bool:
    return old.equals(new) or all(map(_same_values, old.columns, new.columns))


def _same_values(old: pa.Array, new: pa.Array) -> bool:
    if old.equals(new):
        return True
    if not pa.types.is_floating(new.type):
        return False
    sides = [pc.if_else(pc.is_nan(side), None, side) for side in (old, new)]  # NaN is no NaN's equal
    return bool(pc.is_nan(old).equals(pc.is_nan(new)) and sides[0].equals(sides[1]))
