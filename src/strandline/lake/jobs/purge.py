"""Takes rows out of tables by a predicate, by Spark. See `ports/purge.py` for what it is asked."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, expr

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.delete import delete_rows
from strandline.lake.jobs.expire_snapshots import expire, snapshots
from strandline.lake.jobs.scan import bounds_sql
from strandline.lake.jobs.table_schema import FLUSH, SEQ, quoted, spark_errors, table_name
from strandline.lake.ports.purge import Match, PredicateUnreadable, PurgeAsked
from strandline.lake.ports.snapshots import KnownSnapshot
from strandline.rows.dataset import SOURCE, Dataset

_PLACE: Final = "_sl_place"
# What these give is another thing tomorrow, or on another machine.
_FICKLE: Final = re.compile(
    r"\b(select|rand|randn|random|uuid|shuffle|now|localtimestamp|current_\w+|monotonically_increasing_id)\b",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)


class SparkPurger:
    """See Purger. `spark` is asked for by the first who needs it."""

    def __init__(self, spark: Callable[[], SparkSession], lake: LakeSettings) -> None:
        self._spark, self._lake = spark, lake

    def check(self, dataset: Dataset, where: str) -> None:
        if fickle := _FICKLE.search(_QUOTED.sub("''", where)):
            raise PredicateUnreadable(dataset.name, where, f"{fickle[0]} may say something else later")
        public = [quoted(name) for name in dict.fromkeys((SOURCE, *(each.name for each in dataset.columns)))]
        with spark_errors("look at", table_name(dataset.name)):
            rows = self._table(dataset.name).select(*public)
            _ = rows.columns  # the table is there: what Spark says from here on is of the predicate
        try:
            _ = rows.selectExpr(f"(\n{where}\n) AS found").where("found").columns
        except (AnalysisException, ParseException) as error:
            raise _unreadable(dataset, where, error) from error

    def count(self, dataset: str, asked: PurgeAsked) -> list[Match]:
        rows = self._table(dataset).where(asked_sql(asked))
        wanted = ("count(1)", f"min({SEQ})", f"max({SEQ})", f"min({FLUSH})", f"max({FLUSH})")
        counted = rows.groupBy(SOURCE).agg(*map(expr, wanted))
        with spark_errors("count rows of", table_name(dataset)):
            found = sorted(tuple(row) for row in counted.collect())
        return [
            Match(source, count, Range(low - 1, high), Range(early - 1, late))
            for source, count, low, high, early, late in found
        ]

    def passed(
        self, dataset: str, asked: PurgeAsked, marks: Mapping[tuple[str, str], int]
    ) -> dict[tuple[str, str], int]:
        if not marks:
            return {}
        stands = self._spark().createDataFrame(
            [(name, source, mark) for (name, source), mark in marks.items()],
            "stand_name string, stand_source string, stand_mark bigint",
        )
        rows = self._table(dataset).where(asked_sql(asked)).select(SOURCE, SEQ)
        is_passed = expr(f"{SOURCE} = stand_source AND {SEQ} <= stand_mark")
        counted = rows.join(broadcast(stands), on=is_passed, how="inner").groupBy("stand_name", SOURCE)
        with spark_errors("count rows of", table_name(dataset)):
            return {(row[0], row[1]): row[2] for row in counted.count().collect()}

    def delete(self, dataset: str, asked: PurgeAsked) -> None:
        delete_rows(self._spark(), self._lake, dataset, asked_sql(asked))

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

    def _table(self, dataset: str) -> DataFrame:
        with spark_errors("read", table_name(dataset)):
            return self._spark().table(table_name(dataset))


def _unreadable(dataset: Dataset, where: str, error: PySparkException) -> PredicateUnreadable:
    return PredicateUnreadable(dataset.name, where, (str(error).splitlines() or [""])[0])


def asked_sql(asked: PurgeAsked) -> str:
    """What a row must satisfy to go. The predicate stands on lines of its own: it may end in a comment."""
    bounds = bounds_sql(asked.source, None, Range(0, asked.flush))
    return bounds if asked.where is None else f"{bounds} AND (\n{asked.where}\n)"
