"""Rows of a unit as the lines of a request's body: read ahead as far as needed, cut by seq.

Lines stay where Arrow wrote them, one behind another, and are cut by their places: no row is an object of
Python's.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from strandline.base.ranges import Range
from strandline.rows.batches import cut
from strandline.rows.dataset import Dataset
from strandline.sinks.ndjson import lines_of
from strandline.sinks.unit_runner import SEQ

_LINE: Final = "_sl_line"
_CUT_ROWS: Final = 5_000
_CUT_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Lines:
    """Neighbouring lines: their seqs, where each begins in `data`, and where the last one ends."""

    seqs: "memoryview[int]"
    places: "memoryview[int]"
    data: "memoryview[int]"

    @property
    def size(self) -> int:
        return self.places[-1] - self.places[0]

    @property
    def text(self) -> "memoryview[int]":
        return self.data[self.places[0] : self.places[-1]]

    def within(self, part: Range) -> "_Lines":
        first, last = bisect_right(self.seqs, part.lo), bisect_right(self.seqs, part.hi)
        return _Lines(self.seqs[first:last], self.places[first : last + 1], self.data)


@dataclass(frozen=True)
class RequestLines:
    """A range and its rows: what one request carries, or a part of that."""

    range: Range
    lines: tuple[_Lines, ...]

    @property
    def rows(self) -> int:
        return sum(len(each.seqs) for each in self.lines)

    @cached_property
    def seqs(self) -> list[int]:
        return [seq for each in self.lines for seq in each.seqs]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.lines)

    def body(self) -> bytes:
        return b"".join(each.text for each in self.lines)

    @cached_property
    def digest(self) -> str:
        return sha256(self.body()).hexdigest()

    def within(self, part: Range) -> "RequestLines":
        return RequestLines(part, tuple(each.within(part) for each in self.lines))

    def halves(self) -> list["RequestLines"]:
        return [self.within(half) for half in self.range.halves()]


class Ahead:
    """The encoded rows of a unit, of which no more are held than it takes to know whether a range fits."""

    def __init__(self, dataset: Dataset, batches: Iterable[pa.RecordBatch], *, with_row_id: bool) -> None:
        self._blocks = _encoded(dataset, batches, with_row_id=with_row_id)
        self._held: deque[_Lines] = deque()

    def is_over(self, part: Range, limit: int) -> bool:
        """Whether the rows of `part`, which is next, are over `limit` bytes; 0 is no limit."""
        self._read(part.hi, limit)
        return 0 < limit < sum(each.within(part).size for each in self._held)

    def take(self, part: Range) -> RequestLines:
        """The rows of `part`, which is next."""
        self._read(part.hi, 0)
        taken: list[_Lines] = []
        while self._held and self._held[0].seqs[0] <= part.hi:
            block = self._held.popleft()
            taken.append(block.within(part))
            if block.seqs[-1] > part.hi:
                self._held.appendleft(block.within(Range(part.hi, block.seqs[-1])))
        return RequestLines(part, tuple(taken))

    def _read(self, hi: int, limit: int) -> None:
        """Until a row at or above `hi` is held, or more than `limit` bytes."""
        while not (self._held and self._held[-1].seqs[-1] >= hi) and not 0 < limit < self._size():
            block = next(self._blocks, None)
            if block is None:
                return
            self._held.append(block)

    def _size(self) -> int:
        return sum(each.size for each in self._held)


def with_lines(dataset: Dataset, rows: pa.RecordBatch, *, with_row_id: bool) -> pa.RecordBatch:
    """The rows with the line of each beside it."""
    lines = lines_of(dataset, rows, with_source=False, with_row_id=with_row_id)
    return rows.append_column(_LINE, lines)


def _encoded(dataset: Dataset, batches: Iterable[pa.RecordBatch], *, with_row_id: bool) -> Iterator[_Lines]:
    for batch in chain.from_iterable(cut(each, rows=_CUT_ROWS, size=_CUT_BYTES) for each in batches):
        is_ready = _LINE in batch.schema.names
        ready = batch if is_ready else with_lines(dataset, batch, with_row_id=with_row_id)
        lines, seqs = ready.column(_LINE), ready.column(SEQ)
        _, places, data = lines.buffers()
        yield _Lines(
            _numbers(seqs.buffers()[1], "q", seqs.offset, len(seqs)),
            _numbers(places, "i", lines.offset, len(lines) + 1),
            memoryview(data),
        )


def _numbers(buffer: Any, form: str, first: int, count: int) -> "memoryview[int]":
    return memoryview(buffer).cast("B").cast(form)[first : first + count]  # type: ignore[call-overload, no-any-return]  # a form by name
