"""Reads: rows that are visible, in bounds that tokens name, at a cost that follows the rows asked for.

A read of one strand goes up to V, one over all sources up to the visible flush: nothing can appear behind
either any more. `read` gives a DataFrame; `scan` gives pages in order, each with the token to go on from.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame

from strandline.base.ranges import Range
from strandline.errors import UsageError
from strandline.lake.jobs.scan import LakeReader, ScanRange
from strandline.lake.jobs.table_schema import FLUSH, SEQ
from strandline.lake.metadata.iceberg import SnapshotGone
from strandline.read.token import ReadToken
from strandline.read.visible import Bounds, DataAge
from strandline.rows.dataset import SOURCE, Dataset
from strandline.state.context import Site
from strandline.state.flush_plan import FlushPlan, plan_of, plans_after

T = TypeVar("T")

MAX_PAGE_ROWS: Final = 1_000_000
PAGE_BYTES: Final = 64 * 1024 * 1024
MOST_PIECES: Final = 500  # of one query, whose text names them all
_TRIES: Final = 3


def read(
    reader: LakeReader, dataset: Dataset, asked: Bounds, *, columns: Sequence[str] | None = None
) -> DataFrame:
    """The visible rows in bounds, public columns only, in no order."""
    if asked.source is not None:
        return reader.rows(dataset, source=asked.source, seqs=asked.range, columns=columns)
    return reader.rows(dataset, flushes=asked.range, columns=columns)


# Pages


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in order. `token` stands for everything up to the last of them; over all sources it is None
    where the page ends inside a flush, since a place over all sources stands between flushes."""

    rows: tuple[dict[str, Any], ...]
    afters: tuple[str | None, ...]  # beside each row: the token after it, where there is one
    token: str | None

    def items(self) -> Iterator[tuple[dict[str, Any], str | None]]:
        return zip(self.rows, self.afters, strict=True)


class _Part(NamedTuple):
    """A range that one flush landed of one source; `is_first` and `is_last` where the flush begins and ends
    with it."""

    flush: int
    source: str
    seqs: Range
    is_first: bool
    is_last: bool


class Scan:
    """An ordered read. Iterate over it for pages; `end` stands for all that it covers, rows or not. `age`
    tells what had not landed when it was asked for, `is_clamped` whether `until` was past what is visible."""

    def __init__(
        self,
        site: Site,
        reader: Callable[[], LakeReader],  # asked for with the first page: a scan of nothing needs no Spark
        origin: str,
        dataset: Dataset,
        asked: Bounds,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int = 1_000,
        max_bytes: int = PAGE_BYTES,
        age: DataAge,
    ) -> None:
        if not 0 < max_rows <= MAX_PAGE_ROWS:
            raise UsageError(f"max_rows is {max_rows!r}", hint=f"1 to {MAX_PAGE_ROWS:,}")
        if max_bytes < 1:
            raise UsageError(f"max_bytes is {max_bytes!r}", hint="at least 1; a page has one row at least")
        self._site, self._reader, self._origin = site, reader, origin
        self._dataset, self._asked, self._columns = dataset, asked, columns
        self._max_rows, self._max_bytes = max_rows, max_bytes
        # Looked up after the bounds: the snapshot holds all that was visible then.
        self._snapshot: int | None = None
        self.is_clamped, self.age = asked.is_clamped, age
        self.end = self._token(max(asked.until, asked.since))

    def __iter__(self) -> Iterator[Page]:
        if self._asked.since >= self._asked.until:
            return
        self._snapshot = self._reader().current_snapshot(self._dataset)
        yield from self._strand_pages() if self._asked.source is not None else self._all_pages()

    def rows(self) -> Iterator[tuple[dict[str, Any], str | None]]:
        """Row by row, each with the token after it."""
        for page in self:
            yield from page.items()

    # One strand: a window of seqs is a bound in rows, since seqs are dense

    def _strand_pages(self) -> Iterator[Page]:
        source, since, until = self._asked.source, self._asked.since, self._asked.until
        assert source is not None
        while since < until:
            window = Range(since, min(since + self._max_rows, until))
            table = self._read([ScanRange(source, window)])
            if table.num_rows:
                # It may end before the window, by a gap or by its bytes: what follows is asked for again.
                seqs = table.column(SEQ).to_pylist()
                since = seqs[-1]
                yield Page(self._rows(table), tuple(map(self._token, seqs)), self._token(since))
            elif window.hi < until:
                # A gap: a load that was released, or rows removed since. It is passed in one step.
                found = self._retried(partial(self._next_seq, source, window.hi, until))
                since = until if found is None else found - 1
            else:
                since = until

    def _next_seq(self, source: str, after: int, until: int) -> int | None:
        return self._reader().next_seq(
            self._dataset, source, after=after, until=until, snapshot=self._snapshot
        )

    # All sources: flush by flush; the plan of each says which ranges it holds

    def _all_pages(self) -> Iterator[Page]:
        waiting: list[_Part] = []
        room = self._max_rows
        for part in self._parts():
            rest = part
            while len(rest.seqs) > room:
                if room:
                    middle = rest.seqs.lo + room
                    waiting.append(rest._replace(seqs=Range(rest.seqs.lo, middle), is_last=False))
                    rest = rest._replace(seqs=Range(middle, rest.seqs.hi), is_first=False)
                yield from self._all_page(waiting)
                waiting, room = [], self._max_rows
            waiting.append(rest)
            room -= len(rest.seqs)
        yield from self._all_page(waiting)

    def _parts(self) -> "Iterator[_Part]":
        """Everything in bounds, in order. What was amended, lost or removed since is simply not found."""
        done = self._asked.since
        for number, event in plans_after(self._site.b, self._dataset.name, done, self._asked.until):
            yield from self._parts_of_table(Range(done, number - 1))
            plan = plan_of(event)
            ranges = (
                [(source, each) for source, share in plan.strands.items() for each in share.ranges]
                if isinstance(plan, FlushPlan)
                else list(plan.ranges.items())
            )
            yield from _ended([(number, *each) for each in sorted(ranges)])
            done = number
        yield from self._parts_of_table(Range(done, self._asked.until))

    def _parts_of_table(self, flushes: Range) -> "Iterator[_Part]":
        """Flushes whose plans this store does not have: it was restored, and its numbers were raised over
        them."""
        if len(flushes):
            found = self._retried(
                lambda: self._reader().landed(self._dataset, flushes, snapshot=self._snapshot)
            )
            yield from _ended(found)

    def _all_page(self, parts: "list[_Part]") -> Iterator[Page]:
        """The rows of these parts, in one page or, where they are too many or too large, in several."""
        while parts:
            count, pieces = _pieces(parts)
            parts, later = parts[:count], parts[count:]
            table = self._read(pieces)
            if not table.num_rows:
                # Rows that are gone, at the end of a flush: it is passed all the same.
                if parts[-1].is_last:
                    yield Page((), (), self._token(parts[-1].flush))
                parts = later
                continue
            flushes = table.column(FLUSH).to_pylist()
            rest = _behind(
                parts, flushes[-1], table.column(SOURCE)[-1].as_py(), table.column(SEQ)[-1].as_py()
            )
            ended = {part.flush for part in parts if part.is_last} - {part.flush for part in rest}
            last_rows = {flush: index for index, flush in enumerate(flushes)}
            afters = tuple(
                self._token(flush) if flush in ended and last_rows[flush] == index else None
                for index, flush in enumerate(flushes)
            )
            yield Page(self._rows(table), afters, afters[-1])
            parts = [*rest, *later]

    # Both

    def _read(self, pieces: list[ScanRange]) -> pa.Table:
        """One query. Bytes are counted in each: that the rows so far were small says nothing of the next."""
        return self._retried(
            lambda: self._reader().page(
                self._dataset,
                pieces,
                columns=self._columns,
                snapshot=self._snapshot,
                max_rows=self._max_rows,
                max_bytes=self._max_bytes,
            )
        )

    def _retried(self, ask: Callable[[], T]) -> T:
        """Where the pinned snapshot has expired, go on with the current one: rows can only have been
        removed. That one may expire as well, before it is read."""
        for _ in range(_TRIES):
            try:
                return ask()
            except SnapshotGone:
                self._snapshot = self._reader().current_snapshot(self._dataset)
        return ask()

    def _rows(self, table: pa.Table) -> tuple[dict[str, Any], ...]:
        hidden = {SEQ, FLUSH} if self._columns is None or SOURCE in self._columns else {SEQ, FLUSH, SOURCE}
        public = table.drop_columns(sorted(hidden))
        rows = public.to_pylist()
        json_columns = [
            column.name
            for column in self._dataset.columns
            if column.type == "json" and column.name in public.column_names
        ]
        for name in json_columns:
            for row in rows:
                if row[name] is not None:
                    row[name] = orjson.loads(row[name])
        return tuple(rows)

    def _token(self, at: int) -> str:
        return ReadToken(self._origin, self._dataset.name, self._asked.source, at).text()


def _ended(ranges: Sequence[tuple[int, str, Range]]) -> Iterator[_Part]:
    """Ranges in order as parts, the first and the last one of each flush marked."""
    before = None
    for index, (flush, source, range_) in enumerate(ranges, 1):
        is_last = index == len(ranges) or ranges[index][0] != flush
        yield _Part(flush, source, range_, flush != before, is_last)
        before = flush


def _pieces(parts: "Sequence[_Part]") -> tuple[int, list[ScanRange]]:
    """How many of the parts one query takes, and its pieces: a flush that is there whole is one, whatever the
    number of its sources."""
    pieces: list[ScanRange] = []
    taken = 0
    for _, group in groupby(parts, key=attrgetter("flush")):
        mine = list(group)
        if mine[0].is_first and mine[-1].is_last:
            found = [ScanRange(None, None, mine[0].flush)]
        else:
            found = [ScanRange(part.source, part.seqs, part.flush) for part in mine]
        room = MOST_PIECES - len(pieces)
        if len(found) > room:
            return taken + room, pieces + found[:room]
        pieces += found
        taken += len(mine)
    return taken, pieces


def _behind(parts: "Sequence[_Part]", flush: int, source: str, seq: int) -> "list[_Part]":
    """What follows a row, in the order of flush, source and seq."""
    rest = []
    for part in parts:
        if (part.flush, part.source) > (flush, source):
            rest.append(part)
        elif (part.flush, part.source) == (flush, source) and part.seqs.hi > seq:
            lo = max(part.seqs.lo, seq)
            rest.append(
                part._replace(seqs=Range(lo, part.seqs.hi), is_first=part.is_first and lo == part.seqs.lo)
            )
    return rest
