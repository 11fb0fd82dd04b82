"""Rows of a unit as the lines of a request's body: read ahead as far as needed, cut by seq."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Final

import pyarrow as pa

from strandline.batches import cut
from strandline.dataset import Dataset
from strandline.ranges import Range
from strandline.sinks.host import SEQ
from strandline.sinks.ndjson import lines_of

_CUT_ROWS: Final = 5_000
_CUT_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Piece:
    """A range and its rows: what one request carries, or a part of that."""

    range: Range
    seqs: Sequence[int]
    lines: Sequence[bytes]

    @property
    def rows(self) -> int:
        return len(self.lines)

    @cached_property
    def size(self) -> int:
        return sum(map(len, self.lines))

    def body(self) -> bytes:
        return b"".join(self.lines)

    @cached_property
    def digest(self) -> str:
        return sha256(self.body()).hexdigest()

    def within(self, part: Range) -> "Piece":
        first, last = bisect_right(self.seqs, part.lo), bisect_right(self.seqs, part.hi)
        return Piece(part, self.seqs[first:last], self.lines[first:last])

    def halves(self) -> list["Piece"]:
        return [self.within(half) for half in self.range.halves()]


class Ahead:
    """The encoded rows of a unit, of which no more are held than it takes to know whether a range fits."""

    def __init__(self, dataset: Dataset, batches: Iterable[pa.RecordBatch], *, with_row_id: bool) -> None:
        self._rows = _encoded(dataset, batches, with_row_id=with_row_id)
        self._held: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def is_over(self, part: Range, limit: int) -> bool:
        """Whether the rows of `part`, which is next, are over `limit` bytes; 0 is no limit."""
        self._read(part.hi, limit)
        size = 0
        for seq, line in self._held:
            if seq > part.hi:
                break
            size += len(line)
        return 0 < limit < size

    def take(self, part: Range) -> Piece:
        """The rows of `part`, which is next."""
        self._read(part.hi, 0)
        taken = []
        while self._held and self._held[0][0] <= part.hi:
            taken.append(self._held.popleft())
        self._size -= sum(len(line) for _, line in taken)
        return Piece(part, [seq for seq, _ in taken], [line for _, line in taken])

    def _read(self, hi: int, limit: int) -> None:
        """Until a row above `hi` is held, or more than `limit` bytes."""
        while not (self._held and self._held[-1][0] >= hi) and not 0 < limit < self._size:
            row = next(self._rows, None)
            if row is None:
                return
            self._held.append(row)
            self._size += len(row[1])


def _encoded(
    dataset: Dataset, batches: Iterable[pa.RecordBatch], *, with_row_id: bool
) -> Iterator[tuple[int, bytes]]:
    for batch in chain.from_iterable(cut(each, rows=_CUT_ROWS, size=_CUT_BYTES) for each in batches):
        lines = lines_of(dataset, batch, with_source=False, with_row_id=with_row_id)
        yield from zip(batch.column(SEQ).to_pylist(), lines.cast(pa.binary()).to_pylist(), strict=True)
