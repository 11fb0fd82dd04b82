"""Pieces of segments as Arrow batches with their places: how a flush's rows reach Spark.

A row's place in its segment gives its seq, so a task that runs twice, or another cut into tasks, gives the
same rows. This runs in Spark's Python workers and needs no Spark itself.
"""

import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from strandline.errors import StrandlineError, UnavailableError
from strandline.lake.spark.python_task import ArrowMap, Batches
from strandline.rows.dataset import SOURCE, Dataset
from strandline.rows.validate import arrow_schema
from strandline.state.landing import SegmentPiece
from strandline.storage import ContentStore, open_content
from strandline.storage.segment_reader import read_segment

SEQ: Final = "_sl_seq"
AT: Final = "_sl_at"
FLUSH: Final = "_sl_flush"
FAULT: Final = "fault"  # a pickled error, as a row

_BATCH_ROWS: Final = 4_096
_AT: Final = pa.timestamp("us", "UTC")


def producer_schema(dataset: Dataset) -> pa.Schema:
    """The producer's columns alone, all nullable: what a table requires, the table checks."""
    return pa.schema(
        [pa.field(each.name, each.type) for each in arrow_schema(dataset) if each.name != SOURCE]
    )


def placed_schema(dataset: Dataset) -> pa.Schema:
    """The producer's columns, then each row's place."""
    place = [pa.field(SOURCE, pa.string()), pa.field(SEQ, pa.int64()), pa.field(AT, _AT)]
    return pa.schema([*producer_schema(dataset), *place])


def numbered_schema(dataset: Dataset) -> pa.Schema:
    """Those of placed_schema, and the flush number."""
    return placed_schema(dataset).append(pa.field(FLUSH, pa.int64()))


def reading_order(pieces: Sequence[SegmentPiece]) -> tuple[tuple[SegmentPiece, ...], bool]:
    """The pieces as they are best read, and whether their rows must be sorted afterwards.

    By source and seq, so that nothing needs sorting; but where segments hold many sources each, by segment:
    else every one of them would be read once a source.
    """
    if len(pieces) <= 2 * len({piece.segment.cid for piece in pieces}):
        return tuple(pieces), False
    return tuple(sorted(pieces, key=lambda piece: (piece.segment.cid, piece.first_row))), True


def placed_batches(
    content: ContentStore, pieces: Iterable[SegmentPiece], dataset: Dataset
) -> Iterator[pa.RecordBatch]:
    """The rows of the pieces in order. Raises SegmentUnreadable, after batches that were good perhaps.

    Pieces of one segment that follow each other in it are read in one go.
    """
    for _, together in groupby(pieces, key=lambda piece: piece.segment.cid):
        run = list(together)
        if any(before.first_row > after.first_row for before, after in pairwise(run)):
            for piece in run:
                yield from _joined(_placed_run(content, [piece], dataset), dataset)
        else:
            yield from _joined(_placed_run(content, run, dataset), dataset)


def numbered(batches: Batches, number: int) -> Iterator[pa.RecordBatch]:
    """Placed rows with the number of their flush."""
    for batch in batches:
        yield batch.append_column(FLUSH, pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows))


def _placed_run(
    content: ContentStore, run: Sequence[SegmentPiece], dataset: Dataset
) -> Iterator[pa.RecordBatch]:
    """Pieces of one segment, in its order: every row group is read once."""
    own, placed = producer_schema(dataset), placed_schema(dataset)
    first, end = run[0].first_row, run[-1].first_row + run[-1].rows
    waiting = deque(run)
    row = first
    for batch in read_segment(content, run[0].segment, first_row=first, rows=end - first, schema=own):
        behind = row + batch.num_rows
        while waiting and waiting[0].first_row < behind:
            piece = waiting[0]
            lo, hi = max(piece.first_row, row), min(piece.first_row + piece.rows, behind)
            seq = piece.lo + 1 + lo - piece.first_row
            place = [
                pa.repeat(pa.scalar(piece.source), hi - lo),
                pa.array(np.arange(seq, seq + hi - lo, dtype=np.int64)),
                pa.repeat(pa.scalar(piece.at, _AT), hi - lo),
            ]
            columns = batch.slice(lo - row, hi - lo).columns
            yield pa.RecordBatch.from_arrays([*columns, *place], schema=placed)
            if hi < piece.first_row + piece.rows:
                break
            waiting.popleft()
        row = behind
    assert not waiting, "read_segment gives the rows it was asked for, or raises"


def _joined(batches: Iterator[pa.RecordBatch], dataset: Dataset) -> Iterator[pa.RecordBatch]:
    """Few batches out of many small ones: each costs Spark something."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows >= _BATCH_ROWS and not held:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        if rows >= _BATCH_ROWS:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows = [], 0
    if len(held) == 1:
        yield held[0]
    elif held:
        yield from pa.Table.from_batches(held, placed_schema(dataset)).combine_chunks().to_batches()


def shares(pieces: Sequence[SegmentPiece], tasks: int) -> list[tuple[SegmentPiece, ...]]:
    """The pieces, in order, in at most `tasks` runs of about as many rows.

    A piece is cut only where it is larger than a run: each task that reads from a segment reads all its
    bytes, since only they prove its digest.
    """
    run = max(-(-sum(piece.rows for piece in pieces) // max(tasks, 1)), 1)
    made: list[list[SegmentPiece]] = [[]]
    room = run
    for piece in _cut(pieces, run):
        if room < piece.rows // 2 and made[-1] and len(made) < tasks:
            made.append([])
            room += run
        made[-1].append(piece)
        room -= piece.rows
    return [tuple(each) for each in made if each]


def _cut(pieces: Iterable[SegmentPiece], run: int) -> Iterator[SegmentPiece]:
    for piece in pieces:
        for at in range(0, piece.rows, run):
            rows = min(run, piece.rows - at)
            yield replace(piece, first_row=piece.first_row + at, rows=rows, lo=piece.lo + at)


def share_reader(
    url: str,
    options: Mapping[str, Any],
    cut: Sequence[tuple[SegmentPiece, ...]],
    dataset: Dataset,
    number: int,
) -> ArrowMap:
    """What a task runs over the numbers of its shares: their rows, with the number of the flush."""

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        content = open_content(url, **options)
        for share in _asked(batches, cut):
            yield from numbered(placed_batches(content, share, dataset), number)

    return read


def share_checker(
    url: str, options: Mapping[str, Any], cut: Sequence[tuple[SegmentPiece, ...]], dataset: Dataset
) -> ArrowMap:
    """What a task runs to learn why the reading failed: the errors, each a row, instead of the rows."""

    def check(batches: Batches) -> Iterator[pa.RecordBatch]:
        content = open_content(url, **options)
        for share in _asked(batches, cut):
            for piece in share:
                if (fault := fault_of(content, piece, dataset)) is not None:
                    yield pa.RecordBatch.from_pydict({FAULT: pa.array([fault], pa.binary())})

    return check


def fault_of(content: ContentStore, piece: SegmentPiece, dataset: Dataset) -> bytes | None:
    """The error that a piece's reading raises, pickled; None if it can be read."""
    try:
        for _ in placed_batches(content, [piece], dataset):
            pass
    except StrandlineError as error:
        return pickle.dumps(error)
    except Exception as error:  # noqa: BLE001  # it is handed on: a task that raised would lose all others' errors
        lost = UnavailableError(
            f"segment {piece.segment.cid} cannot be read: {type(error).__name__}: {error}",
            hint="the same call may work later",
        )
        return pickle.dumps(lost)
    return None


def _asked(batches: Batches, cut: Sequence[tuple[SegmentPiece, ...]]) -> Iterator[tuple[SegmentPiece, ...]]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield cut[number]
