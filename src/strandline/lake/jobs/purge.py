"""Takes rows out of tables by a predicate, by Spark. See `ports/purge.py` for what it is asked."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, expr

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.delete import delete_rows
from strandline.lake.jobs.expire_snapshots import expire, snapshots
from strandline.lake.jobs.orphan_files import unnamed_files
from strandline.lake.jobs.scan import ScanRange, bounds_sql, pieces_sql
from strandline.lake.jobs.table_schema import (
    FLUSH,
    INTERNAL,
    SEQ,
    quoted,
    spark_errors,
    sql_type,
    table_name,
)
from strandline.lake.metadata.table_files import list_table_files, remove_table_files
from strandline.lake.ports.purge import FileListing, Match, PredicateUnreadable, PurgeAsked, TooScattered
from strandline.lake.ports.snapshots import KnownSnapshot
from strandline.rows.dataset import SOURCE, Dataset

MOST_RANGES: Final = 1_000_000  # of seqs, in one purge: they are held in memory
_MOST_IN_TEXT: Final = 200  # ranges in one statement
_PLACE: Final = "_sl_place"


class SparkPurger:
    """See Purger. `spark` is asked for by the first who needs it."""

    def __init__(self, spark: Callable[[], SparkSession], lake: LakeSettings) -> None:
        self._spark, self._lake = spark, lake

    def check(self, dataset: Dataset, where: str) -> None:
        with spark_errors("look at", table_name(dataset.name)):
            rows = self._rows(dataset).drop(*INTERNAL)
            _ = rows.columns  # the table is there: what Spark says from here on is of the predicate
        try:
            _ = rows.selectExpr(f"(\n{where}\n) AS found").where("found").columns
        except (AnalysisException, ParseException) as error:
            raise _unreadable(dataset, where, error) from error

    def count(self, dataset: Dataset, asked: PurgeAsked) -> list[Match]:
        rows = self._rows(dataset).where(asked_sql(asked)).select(SOURCE, SEQ, FLUSH)
        return self._chosen(dataset.name, rows) if asked.where is not None else self._whole(dataset, rows)

    def _whole(self, dataset: Dataset, rows: DataFrame) -> list[Match]:
        wanted = ("count(1)", f"min({SEQ})", f"max({SEQ})", f"min({FLUSH})", f"max({FLUSH})")
        counted = rows.groupBy(SOURCE).agg(*map(expr, wanted))
        with spark_errors("count rows of", table_name(dataset.name)):
            found = sorted(tuple(row) for row in counted.collect())
        return [
            Match(source, count, Range(low - 1, high), Range(early - 1, late))
            for source, count, low, high, early, late in found
        ]

    def _chosen(self, dataset: str, rows: DataFrame) -> list[Match]:
        """Neighbouring seqs have the same distance from their place in the order, so that distance names
        their range."""
        place = f"row_number() OVER (PARTITION BY {SOURCE} ORDER BY {SEQ})"
        islands = rows.selectExpr("*", f"{SEQ} - {place} AS {_PLACE}").groupBy(SOURCE, _PLACE)
        wanted = (
            f"min({SEQ}) AS low",
            f"max({SEQ}) AS high",
            f"min({FLUSH}) AS early",
            f"max({FLUSH}) AS late",
        )
        with spark_errors("count rows of", table_name(dataset)):
            found = islands.agg(*map(expr, wanted)).limit(MOST_RANGES + 1).toArrow().drop_columns([_PLACE])
        if found.num_rows > MOST_RANGES:
            raise TooScattered(dataset)
        by_source = sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
        return [_match(source, list(group)) for source, group in groupby(by_source, lambda row: row[0])]

    def passed(
        self, dataset: Dataset, asked: PurgeAsked, marks: Mapping[tuple[str, str], int]
    ) -> dict[tuple[str, str], int]:
        if not marks:
            return {}
        if asked.rows is not None:  # it is decided which: no need to look
            counts = {
                key: sum(max(min(each.hi, mark) - each.lo, 0) for each in asked.rows.get(key[1], ()))
                for key, mark in marks.items()
            }
            return {key: count for key, count in counts.items() if count}
        stands = self._spark().createDataFrame(
            [(name, source, mark) for (name, source), mark in marks.items()],
            "stand_name string, stand_source string, stand_mark bigint",
        )
        rows = self._rows(dataset).where(asked_sql(asked)).select(SOURCE, SEQ)
        is_passed = expr(f"{SOURCE} = stand_source AND {SEQ} <= stand_mark")
        counted = rows.join(broadcast(stands), on=is_passed, how="inner").groupBy("stand_name", SOURCE)
        with spark_errors("count rows of", table_name(dataset.name)):
            return {(row[0], row[1]): row[2] for row in counted.count().collect()}

    def delete(self, dataset: str, asked: PurgeAsked) -> None:
        if asked.rows is None:
            delete_rows(self._spark(), self._lake, dataset, asked_sql(asked))
        elif sum(map(len, asked.rows.values())) <= _MOST_IN_TEXT:
            delete_rows(self._spark(), self._lake, dataset, _pieces(asked.rows))
        else:
            self._delete_keys(dataset, asked.rows)

    def _delete_keys(self, dataset: str, rows: Mapping[str, Sequence[Range]]) -> None:
        """As a table of keys: Spark would take minutes to read so many ranges as text."""
        spark, view = self._spark(), f"strandline_purge_{uuid.uuid4().hex}"
        ranges = [(source, each.lo, each.hi) for source, ranges in rows.items() for each in ranges]
        columns = [pa.array(column) for column in zip(*ranges, strict=True)]
        frame = spark.createDataFrame(pa.table(columns, names=["key_source", "lo", "hi"]))
        keys = frame.selectExpr("key_source", "explode(sequence(lo + 1, hi)) AS key_seq")
        keys.createOrReplaceTempView(view)
        bounds = {source: [Range(ranges[0].lo, ranges[-1].hi)] for source, ranges in rows.items()}
        near = f"({_pieces(bounds)}) AND " if len(bounds) <= _MOST_IN_TEXT else ""
        is_key = f"key_source = {SOURCE} AND key_seq = {SEQ}"
        try:
            delete_rows(spark, self._lake, dataset, f"{near}EXISTS (SELECT 1 FROM {view} WHERE {is_key})")
        finally:
            spark.catalog.dropTempView(view)

    def holds_for(self, dataset: Dataset, where: str, rows: pa.Table) -> list[bool]:
        placed = rows.append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
        frame = self._spark().createDataFrame(placed)
        try:
            judged = frame.selectExpr(_PLACE, f"coalesce((\n{where}\n), false) AS found")
            _ = judged.columns
        except (AnalysisException, ParseException) as error:
            raise _unreadable(dataset, where, error) from error
        with spark_errors("judge rows of", table_name(dataset.name)):
            found = judged.collect()
        return [row[1] for row in sorted(found, key=lambda row: row[0])]

    def snapshots(self, dataset: str) -> Sequence[KnownSnapshot]:
        return snapshots(self._spark, self._lake, dataset)

    def expire(self, dataset: str, ids: Iterable[int]) -> None:
        expire(self._spark(), dataset, ids)

    def list_files(self, dataset: str) -> FileListing:
        return list_table_files(self._lake, dataset)

    def unnamed(self, dataset: str, listing: FileListing) -> list[str]:
        return unnamed_files(self._spark(), dataset, listing.files)

    def remove(self, dataset: str, files: Sequence[str]) -> list[str]:
        return remove_table_files(self._lake, dataset, files)

    def _rows(self, dataset: Dataset) -> DataFrame:
        """The rows of the table with all columns of the dataset: one that was declared since the last flush
        is null in each row."""
        with spark_errors("read", table_name(dataset.name)):
            table = self._spark().table(table_name(dataset.name))
            there = set(table.columns)
            names = list(dict.fromkeys((SOURCE, *(each.name for each in dataset.columns))))
            types = {each.name: sql_type(each.type) for each in dataset.columns}
            shown = (
                quoted(name) if name in there else f"CAST(NULL AS {types[name]}) AS {quoted(name)}"
                for name in names
            )
            return table.selectExpr(*shown, *INTERNAL)


def _match(source: str, islands: Sequence[tuple[Any, ...]]) -> Match:
    ranges = tuple(Range(low - 1, high) for _, low, high, _, _ in islands)
    flushes = Range(min(each[3] for each in islands) - 1, max(each[4] for each in islands))
    return Match(source, sum(map(len, ranges)), Range(ranges[0].lo, ranges[-1].hi), flushes, ranges)


def _pieces(rows: Mapping[str, Sequence[Range]]) -> str:
    return pieces_sql([ScanRange(source, each) for source, ranges in rows.items() for each in ranges])


def _unreadable(dataset: Dataset, where: str, error: PySparkException) -> PredicateUnreadable:
    return PredicateUnreadable(dataset.name, where, (str(error).splitlines() or [""])[0])


def asked_sql(asked: PurgeAsked) -> str:
    """What a row must satisfy to go. The predicate stands on lines of its own: it may end in a comment."""
    bounds = bounds_sql(asked.source, None, Range(0, asked.flush))
    return bounds if asked.where is None else f"{bounds} AND (\n{asked.where}\n)"
