"""Which of some rows are in the spool or in the table, asked of Spark: joins over identities alone.

What is asked for is small (a few chunks) and is broadcast; history and spool stream past it, so memory does
not grow with either. Ids are made by the one definition in `stamp.py`. Few ids go to the scan as a list,
which the table's bloom filters answer without reading the column.

    segments ──▶ identity columns ──▶ ids ──┐
                                            ├── semi-join with the asked ──▶ those that are known
    table    ──▶ _sl_row_id ────────────────┘
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.errors import UnavailableError
from strandline.lake.jobs.scan import ScanRange, pieces_sql
from strandline.lake.jobs.segment_batches import producer_schema
from strandline.lake.jobs.stamp import key_text, row_id
from strandline.lake.jobs.table_schema import (
    ROW_ID,
    columns_sql,
    literal,
    own_columns,
    spark_errors,
    table_name,
)
from strandline.lake.ports.lookup import RowKey, SpoolAnswer, SpooledRun, has_identity, identity_columns
from strandline.lake.spark.python_task import ArrowMap, Batches, lean
from strandline.lake.spark.session import slots
from strandline.rows.dataset import SOURCE, Dataset
from strandline.storage import ContentStore, open_content
from strandline.storage.segment import SegmentUnreadable
from strandline.storage.segment_reader import open_segment

FEW_IDS: Final = 100
SMALL_ROWS: Final = 50_000  # of the spool, read here: a Python task takes longer to start
MANY_SOURCES: Final = 1_000

_PLACE: Final = "_sl_place"
_ASKED: Final = "_sl_asked"
SEGMENT, FAULT, UNREAD = "_sl_segment", "_sl_fault", "_sl_unread"
_TOLD: Final = (SEGMENT, FAULT, UNREAD)


class SparkLookup:
    """See Lookup. `content_options` are those that the content store was opened with."""

    def __init__(
        self, spark: SparkSession, content: ContentStore, *, content_options: Mapping[str, Any] | None = None
    ) -> None:
        self.session = spark
        self._content, self._options = content, dict(content_options or {})
        self._slots: int | None = None

    def ids(self, dataset: Dataset, table: Any) -> list[str | None]:
        narrow = narrowed(dataset)
        made = [*(_filled(table, field) for field in producer_schema(narrow)), table[SOURCE]]
        place = pa.array(range(table.num_rows), pa.int64())
        names = [*producer_schema(narrow).names, SOURCE, _PLACE]
        with spark_errors("make ids of", table_name(dataset.name)):
            rows = self.session.createDataFrame(pa.table([*made, place], names=names))
            found = rows.selectExpr(_PLACE, f"{identity_sql(narrow)} as {ROW_ID}").toArrow()
        found = found.sort_by(_PLACE)
        ids: list[str | None] = found[ROW_ID].to_pylist()
        return ids

    def spooled(self, dataset: Dataset, asked: Sequence[RowKey], runs: Sequence[SpooledRun]) -> SpoolAnswer:
        if not asked or not runs:
            return SpoolAnswer(frozenset(), {}, {})
        narrow = narrowed(dataset)
        with spark_errors("look for spooled rows of", table_name(dataset.name)):
            rows = self.spooled_rows(narrow, runs)
            is_seen = f"{FAULT} is null and {UNREAD} is null"
            ids = rows.selectExpr(SOURCE, f"if({is_seen}, {identity_sql(narrow)}, null) as {ROW_ID}", *_TOLD)
            small = self._asked(asked).selectExpr(SOURCE, ROW_ID, f"true as {_ASKED}").hint("broadcast")
            joined = ids.join(small, on=[SOURCE, ROW_ID], how="left").where(f"{_ASKED} or not ({is_seen})")
            found = joined.select(SOURCE, ROW_ID, *_TOLD).distinct().collect()
        faults = {cid: fault for _, _, cid, fault, _ in found if fault is not None}
        unread = {cid: why for _, _, cid, _, why in found if why is not None}
        # What a segment gave before it turned out bad does not count: flush lands it whole or not at all.
        bad = faults.keys() | unread.keys()
        known = {
            RowKey(source, id_) for source, id_, cid, _, _ in found if id_ is not None and cid not in bad
        }
        return SpoolAnswer(frozenset(known), faults, unread)

    def committed(
        self,
        dataset: Dataset,
        asked: Sequence[RowKey],
        within: Mapping[str, Sequence[Range]] | None = None,
        *,
        by_columns: bool = False,
    ) -> frozenset[RowKey]:
        if not asked or (within is not None and not within):
            return frozenset()
        with spark_errors("look for rows in", table_name(dataset.name)):
            table = self.table_ids(dataset, bounds(asked, within), by_columns=by_columns)
            if len(asked) <= FEW_IDS:
                ids = ", ".join(literal(each) for each in sorted({key.id for key in asked}))
                found = table.where(f"{ROW_ID} in ({ids})").distinct().collect()
                return frozenset(RowKey(*row) for row in found) & frozenset(asked)
            small = self._asked(asked).hint("broadcast")
            joined = table.join(small, on=[SOURCE, ROW_ID], how="left_semi").distinct().toArrow()
        return frozenset(map(RowKey, joined[SOURCE].to_pylist(), joined[ROW_ID].to_pylist()))

    def table_ids(self, dataset: Dataset, where: str, *, by_columns: bool) -> DataFrame:
        """The ids of committed rows, as they were stamped, or made of their columns."""
        table = self.session.table(table_name(dataset.name)).where(where)
        if not by_columns:
            return table.select(SOURCE, ROW_ID)
        narrow = narrowed(dataset)
        there = tuple(each for each in own_columns(narrow) if each.name in table.columns)
        ids = table.selectExpr(SOURCE, f"{identity_sql(replace(narrow, columns=there))} as {ROW_ID}")
        return ids.where(f"{ROW_ID} is not null")

    # What is asked, and what is spooled

    def _asked(self, asked: Sequence[RowKey]) -> DataFrame:
        columns = {SOURCE: [each.source for each in asked], ROW_ID: [each.id for each in asked]}
        return self.session.createDataFrame(
            pa.table(columns, schema=pa.schema([(SOURCE, pa.string()), (ROW_ID, pa.string())]))
        )

    def spooled_rows(self, narrow: Dataset, runs: Sequence[SpooledRun]) -> DataFrame:
        """Identities of spooled rows, each with its segment; a fault is a row too. Few rows are read here."""
        ordered = sorted(runs, key=lambda run: (run.segment.cid, run.first_row))
        columns = ", ".join([columns_sql(narrow, (SOURCE,)), *(f"{name} string" for name in _TOLD)])
        if sum(run.of for run in runs) <= SMALL_ROWS or self._content.url.startswith("memory:"):
            batches = list(spooled_batches(self._content, ordered, narrow))
            return self.session.createDataFrame(pa.Table.from_batches(batches, _schema(narrow)))
        if self._slots is None:
            self._slots = slots(self.session)
        shares = _shares(ordered, self._slots)
        read = _reader(self._content.url, self._options, shares, narrow)
        numbers = self.session.range(0, len(shares), 1, len(shares))
        return numbers.mapInArrow(lean(read), columns)


# Ids


def narrowed(dataset: Dataset) -> Dataset:
    """The dataset with the columns alone that its identity is made of."""
    wanted = set(identity_columns(dataset))
    return replace(dataset, columns=tuple(each for each in own_columns(dataset) if each.name in wanted))


def identity_sql(narrow: Dataset) -> str:
    """The row id as SQL, as `stamp.py` has it, but null for a row without identity."""
    assert has_identity(narrow), "rows of other datasets are never asked for"
    if narrow.identity is None:
        return row_id(narrow)
    key = key_text(narrow)
    return f"sha2(concat('k', {key}), 256)" if key else "cast(null as string)"


def _filled(table: Any, field: Any) -> Any:
    """A column in the dataset's type; one that no row has is null."""
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    return table[field.name].cast(field.type)


def bounds(asked: Sequence[RowKey], within: Mapping[str, Sequence[Range]] | None) -> str:
    if within is not None:
        return pieces_sql([ScanRange(source, each) for source, ranges in within.items() for each in ranges])
    sources = sorted({key.source for key in asked})
    if len(sources) > MANY_SOURCES:
        return "true"
    return f"{SOURCE} in ({', '.join(map(literal, sources))})"


# Segments


def _schema(narrow: Dataset) -> pa.Schema:
    told = [pa.field(name, pa.string()) for name in (SOURCE, *_TOLD)]
    return pa.schema([*producer_schema(narrow), *told])


def spooled_batches(
    content: ContentStore, runs: Sequence[SpooledRun], narrow: Dataset
) -> Iterator[pa.RecordBatch]:
    """The identities of the runs, which are in order of segment. A segment that is not valid, by the rule
    that flush goes by, gives a row with its fault instead."""
    for cid, together in groupby(runs, key=lambda run: run.segment.cid):
        ours = list(together)
        try:
            with open_segment(content, ours[0].segment) as opened:
                if (fault := opened.fault(ours[0].of)) is not None:
                    yield _fault(cid, fault, narrow)
                    continue
                for run in ours:
                    own = opened.batches(
                        first_row=run.first_row, rows=run.rows, schema=producer_schema(narrow)
                    )
                    for batch in own:
                        yield _told(batch, run, narrow)
        except SegmentUnreadable as error:
            yield _fault(cid, error.reason, narrow)
        except UnavailableError as error:
            yield _fault(cid, None, narrow, unread=error.message)


def _told(batch: Any, run: SpooledRun, narrow: Dataset) -> pa.RecordBatch:
    count = batch.num_rows
    told = [
        pa.repeat(pa.scalar(run.source), count),
        pa.repeat(pa.scalar(run.segment.cid), count),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *told], schema=_schema(narrow))


def _fault(cid: str, reason: str | None, narrow: Dataset, *, unread: str | None = None) -> pa.RecordBatch:
    own = [pa.nulls(1, field.type) for field in producer_schema(narrow)]
    told = [pa.array([text], pa.string()) for text in (None, cid, reason, unread)]
    return pa.RecordBatch.from_arrays([*own, *told], schema=_schema(narrow))


def _shares(runs: Sequence[SpooledRun], tasks: int) -> list[list[SpooledRun]]:
    """Whole segments to tasks in turn: each is opened once."""
    shares: list[list[SpooledRun]] = [[] for _ in range(tasks)]
    for at, (_, together) in enumerate(groupby(runs, key=lambda run: run.segment.cid)):
        shares[at % tasks] += together
    return [share for share in shares if share]


def _reader(
    url: str, options: Mapping[str, Any], shares: Sequence[Sequence[SpooledRun]], narrow: Dataset
) -> ArrowMap:
    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        content = open_content(url, **options)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from spooled_batches(content, shares[number], narrow)

    return read
