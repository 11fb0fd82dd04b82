"""Reads of tables within bounds, which are pushed into Iceberg's scan, so that other files stay shut.

Predicates are one text for all pieces: as Column objects each piece would be a call into the JVM. Order is
made by sorting inside one partition: a global `orderBy` samples first, and so reads every file twice.

    scan of the pieces ──▶ one partition ──▶ sorted by flush, source, seq ──▶ first max_rows ──▶ Arrow

Iceberg shows a pinned snapshot in the schema it had. Here it is shown in the dataset's: a column that is
younger reads as null, a narrower one as the wider type.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.errors import StrandlineError, UsageError
from strandline.lake.jobs.table_schema import (
    FLUSH,
    INTERNAL,
    SEQ,
    STAMPED,
    TableUnavailable,
    literal,
    quoted,
    sql_type,
    table_name,
)
from strandline.lake.metadata.iceberg import SnapshotGone, TableMissing, UnstampedRows, check_warehouse
from strandline.rows.dataset import SOURCE, Dataset

_BYTES: Final = "_sl_bytes"  # of the page up to and including this row
_FIXED_BYTES: Final = 8  # what a value counts that is neither text nor bytes


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Rows of one source: those in `seqs`, and where `flush` is given only those that it landed. With
    neither source nor seqs all rows of the flush."""

    source: str | None
    seqs: Range | None
    flush: int | None = None


class LakeReader:
    """Tables as DataFrames and as pages. It knows neither tokens nor what is visible: bounds come from above.

    Raises TableMissing, WarehouseMoved, SnapshotGone, UnstampedRows; TableUnavailable for what else Spark
    says.
    """

    def __init__(self, spark: SparkSession, lake: LakeSettings) -> None:
        self._spark, self._lake = spark, lake

    def rows(
        self,
        dataset: Dataset,
        *,
        source: str | None = None,
        seqs: Range | None = None,
        flushes: Range | None = None,
        columns: Sequence[str] | None = None,
        internal: bool = False,
        snapshot: int | None = None,
    ) -> DataFrame:
        """The rows within all bounds, in no order. Columns are the dataset's and `source`, or those asked
        for; the internal ones follow only if `internal`. Run it inside `reading` to have its errors
        named."""
        table = self._table(dataset, snapshot)
        shown = _shown(dataset, table, columns, INTERNAL if internal else ())
        if not shown:
            raise UsageError(f"a read of dataset {dataset.name!r} names no column", hint="name at least one")
        return table.where(bounds_sql(source, seqs, flushes)).selectExpr(*shown)

    def leaving(
        self, dataset: Dataset, pieces: Sequence[ScanRange], *, also: Sequence[str] = ()
    ) -> DataFrame:
        """The rows of the pieces, in no order: the dataset's columns, `source`, `_sl_seq`, and the
        expressions `also`, over the columns of the table."""
        table = self._table(dataset, None)
        shown = _shown(dataset, table, None, (SEQ, *also))
        return table.where(pieces_sql(pieces)).selectExpr(*shown)

    def no_rows(self, dataset: Dataset, *, columns: Sequence[str] | None = None) -> DataFrame:
        """What `rows` gives of a dataset whose table is not there yet: its columns and nothing else."""
        nothing = self._spark.range(0).select()
        return nothing.selectExpr(*_shown(dataset, nothing, columns, ()))

    def current_snapshot(self, dataset: Dataset) -> int | None:
        """The snapshot to pin; None for a table that has no rows yet."""
        with self.reading(dataset):
            shown = self._spark.sql(
                f"SHOW TBLPROPERTIES {table_name(dataset.name)} ('current-snapshot-id')"
            ).collect()
        return int(shown[0][1]) if shown[0][1] != "none" else None

    def page(
        self,
        dataset: Dataset,
        pieces: Sequence[ScanRange],
        *,
        columns: Sequence[str] | None = None,
        snapshot: int | None = None,
        max_rows: int,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """The first rows of the pieces in order, as `page_query` has them."""
        query = self.page_query(
            dataset, pieces, columns=columns, snapshot=snapshot, max_rows=max_rows, max_bytes=max_bytes
        )
        with self.reading(dataset, snapshot):
            return query.toArrow()

    def page_query(
        self,
        dataset: Dataset,
        pieces: Sequence[ScanRange],
        *,
        columns: Sequence[str] | None = None,
        snapshot: int | None = None,
        max_rows: int,
        max_bytes: int | None = None,
    ) -> DataFrame:
        """A page that was not fetched yet: `toArrow` gives the rows in order of source and seq; where the
        pieces name flushes, of flush, source and seq. Behind the columns asked for stand `_sl_seq`,
        `_sl_flush`, and `source` if it was not asked for.

        It has at most `max_rows` rows of `max_bytes` together (a text or binary counts its length, any other
        value 8); the first row is there whatever its size. All rows of the pieces are read and sorted by one
        task, which spills: cut pieces to about the size of a page.
        """
        order = _order(pieces)
        table = self._table(dataset, snapshot)
        place = (SEQ, FLUSH) if columns is None or SOURCE in columns else (SEQ, FLUSH, SOURCE)
        shown = _shown(dataset, table, columns, place)
        found = table.where(pieces_sql(pieces)).selectExpr(*shown).coalesce(1)
        if max_bytes is None:
            return found.sortWithinPartitions(*order).limit(max_rows)
        kept = found.columns
        summed = (
            f"sum({_size_sql(found)}) OVER (ORDER BY {', '.join(order)} ROWS UNBOUNDED PRECEDING) AS {_BYTES}"
        )
        first = f"row_number() OVER (ORDER BY {', '.join(order)}) AS {_BYTES}_place"
        sized = found.selectExpr("*", summed, first).where(
            f"{_BYTES} <= {int(max_bytes)} OR {_BYTES}_place = 1"
        )
        return sized.select(*map(quoted, kept)).limit(max_rows)

    def landed(
        self, dataset: Dataset, flushes: Range, *, snapshot: int | None = None
    ) -> list[tuple[int, str, Range]]:
        """What these flushes landed of each source, from the rows themselves: flush, source, and the range
        from its lowest to its highest seq. For flushes of which nothing else tells."""
        table = self._table(dataset, snapshot)
        with self.reading(dataset, snapshot):
            rows = table.where(bounds_sql(None, None, flushes))
            places = rows.selectExpr(FLUSH, SOURCE, f"{SEQ} AS lowest", f"{SEQ} AS highest")
            bounds = places.groupBy(FLUSH, SOURCE).agg({"lowest": "min", "highest": "max"})
            found = bounds.select(FLUSH, SOURCE, "min(lowest)", "max(highest)").collect()
        return sorted((row[0], row[1], Range(row[2] - 1, row[3])) for row in found)

    def next_seq(
        self, dataset: Dataset, source: str, *, after: int, until: int, snapshot: int | None = None
    ) -> int | None:
        """The lowest seq in (after, until] that has a row, None if none has. The bounds of the files lead
        over a gap of any width, so at most the seqs of one bucket are read."""
        table = self._table(dataset, snapshot)
        with self.reading(dataset, snapshot):
            while after < until:
                lowest = self._lowest_bound(dataset, source, Range(after, until), snapshot)
                if lowest is None:
                    return None
                lo = max(after, lowest - 1)
                hi = min(until, lo + dataset.seq_bucket - (lo + 1) % dataset.seq_bucket)
                seqs = table.where(bounds_sql(source, Range(lo, hi), None))
                found: int | None = seqs.selectExpr(f"min({SEQ})").collect()[0][0]
                if found is not None:
                    return found
                after = hi  # rows were deleted out of the files, or are another source's of the same bucket
        return None

    @contextmanager
    def reading(self, dataset: Dataset, snapshot: int | None = None) -> Iterator[None]:
        """What fails inside is named for what it is: a table or snapshot that is gone, a moved warehouse."""
        try:
            yield
        except StrandlineError:
            raise
        except Exception as error:
            self._name(error, dataset, snapshot)
            raise TableUnavailable("read", table_name(dataset.name), error) from error

    def _name(self, error: Exception, dataset: Dataset, snapshot: int | None) -> None:
        """Raise what the error means. Messages differ between classic, Connect and catalogs: it looks
        instead."""
        if isinstance(error, AnalysisException) and error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            raise TableMissing(dataset.name) from error
        check_warehouse(self._lake, dataset.name)
        if snapshot is not None and not self._has_snapshot(dataset, snapshot):
            raise SnapshotGone(dataset.name, snapshot) from error

    def _has_snapshot(self, dataset: Dataset, snapshot: int) -> bool:
        snapshots = self._spark.table(f"{table_name(dataset.name)}.snapshots")
        return bool(snapshots.where(f"snapshot_id = {int(snapshot)}").limit(1).collect())

    def _table(self, dataset: Dataset, snapshot: int | None) -> DataFrame:
        """The table, looked up now (on Connect nothing is until someone asks), each of its rows numbered."""
        with self.reading(dataset, snapshot):
            table = self._spark.sql(f"SELECT * FROM {_pinned(table_name(dataset.name), snapshot)}")
            fields = {field.name: field for field in table.schema.fields}
            if lacking := [name for name in STAMPED if name not in fields]:
                raise UnstampedRows(dataset.name, f"it has no column {', '.join(lacking)}")
            # NOT NULL holds. Where someone dropped it, the null counts of the files answer, not their rows.
            for name in (each for each in STAMPED if fields[each].nullable):
                if table.where(f"{name} IS NULL").limit(1).collect():
                    raise UnstampedRows(dataset.name, f"{name} is null")
        return table

    def _lowest_bound(self, dataset: Dataset, source: str, seqs: Range, snapshot: int | None) -> int | None:
        """The lowest seq in any file that may hold one of `seqs` by its bounds; None if there is no such
        file."""
        seq, name = f"readable_metrics.{SEQ}", f"readable_metrics.{SOURCE}"
        found = self._spark.sql(
            f"SELECT min(coalesce({seq}.lower_bound, {seqs.lo + 1})) "
            f"FROM {_pinned(f'{table_name(dataset.name)}.files', snapshot)} "
            f"WHERE content = 0 "
            f"AND coalesce({seq}.upper_bound > {seqs.lo} AND {seq}.lower_bound <= {seqs.hi}, true) "
            f"AND coalesce({literal(source)} BETWEEN {name}.lower_bound AND {name}.upper_bound, true)"
        )
        lowest: int | None = found.collect()[0][0]
        return lowest


# Text of SQL


def bounds_sql(source: str | None, seqs: Range | None, flushes: Range | None) -> str:
    """What a row must satisfy to lie within all bounds."""
    parts = [] if source is None else [f"{SOURCE} = {literal(source)}"]
    for column, range_ in ((SEQ, seqs), (FLUSH, flushes)):
        if range_ is not None:
            parts.append(f"{column} > {range_.lo} AND {column} <= {range_.hi}")
    return " AND ".join(parts) or "true"


def pieces_sql(pieces: Sequence[ScanRange]) -> str:
    """What a row must satisfy to be of one of the pieces. It prunes as exactly as each of them would."""
    each = (
        bounds_sql(
            piece.source, piece.seqs, None if piece.flush is None else Range(piece.flush - 1, piece.flush)
        )
        for piece in pieces
    )
    return " OR ".join(f"({bounds})" for bounds in each) or "false"


def _pinned(table: str, snapshot: int | None) -> str:
    return table if snapshot is None else f"{table} VERSION AS OF {int(snapshot)}"


def _order(pieces: Sequence[ScanRange]) -> list[str]:
    """By flush only if the pieces say so: a load takes its number early and lands late, so the flush
    numbers of one strand need not rise with its seqs."""
    named = {piece.flush is not None for piece in pieces}
    if len(named) > 1:
        raise UsageError(
            "some pieces of a page name a flush and some do not", hint="name it in all, or in none"
        )
    return [FLUSH, SOURCE, SEQ] if True in named else [SOURCE, SEQ]


def _shown(
    dataset: Dataset, table: DataFrame, columns: Sequence[str] | None, also: Sequence[str]
) -> list[str]:
    """The columns to select, in the dataset's types, whichever schema the table is in."""
    types = {column.name: sql_type(column.type) for column in dataset.columns} | {SOURCE: STAMPED[SOURCE]}
    names = list(types) if columns is None else list(columns)
    if unknown := [name for name in names if name not in types]:
        raise UsageError(
            f"dataset {dataset.name!r} has no column {', '.join(map(repr, unknown))}",
            hint=f"it has {', '.join(types)}",
        )
    if len(set(names)) != len(names):
        raise UsageError(f"a read of dataset {dataset.name!r} names a column twice", hint="name each once")
    there = set(table.columns)
    known = (
        f"CAST({quoted(name) if name in there else 'NULL'} AS {types[name]}) AS {quoted(name)}"
        for name in names
    )
    return [*known, *also]


def _size_sql(rows: DataFrame) -> str:
    """About what a row takes in memory."""
    sizes = [
        f"coalesce(octet_length({quoted(field.name)}), 0)"
        if field.dataType.simpleString() in ("string", "binary")
        else str(_FIXED_BYTES)
        for field in rows.schema.fields
    ]
    return " + ".join(f"cast({size} AS bigint)" for size in sizes)
