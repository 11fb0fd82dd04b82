"""Takes rows out of tables, by Spark. See `ports/prune.py` for what it is told.

A predicate is one text over all strands, so that Iceberg rules out files by their bounds; what dates a row is
written as alternatives, since no bound helps with a `coalesce`. Where a predicate covers whole files, Iceberg
deletes them without opening any; else Spark rewrites those that it covers in part, in the same commit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.errors import StrandlineError
from strandline.lake.jobs.delete import delete_rows
from strandline.lake.jobs.scan import bounds_sql
from strandline.lake.jobs.table_schema import AT, FLUSH, SEQ, literal, quoted, spark_errors, table_name
from strandline.lake.metadata.file_bounds import file_bounds
from strandline.lake.metadata.iceberg import check_warehouse, table_pointers
from strandline.lake.ports.prune import (
    PER_UNIT,
    Condition,
    Count,
    PrunePart,
    RowPlace,
    RowsToDelete,
    TableFiles,
    TimeColumn,
)
from strandline.rows.dataset import SOURCE

_FEW: Final = 20  # strands that are named with their seqs
_BUCKETS: Final = 4_096  # of time, in one look for the first rows
_DAY_US: Final = 86_400_000_000


class Pruner:
    """See Upkeep. `spark` is asked for by the first who needs it."""

    def __init__(self, spark: Callable[[], SparkSession], lake: LakeSettings) -> None:
        self._spark, self._lake = spark, lake

    # Without Spark

    def pointers(self) -> Mapping[str, str]:
        return table_pointers(self._lake)

    def files(self, dataset: str, times: Sequence[TimeColumn] = ()) -> TableFiles:
        return file_bounds(self._lake, dataset, times)

    # With it

    def first_rows(self, dataset: str, count: int, among: RowsToDelete | None = None) -> RowPlace | None:
        """Rows are counted by time, in ever finer buckets, until one instant is left: no sort, and at most
        a few thousand groups, however many rows there are."""
        rows = self._table(dataset).where("true" if among is None else doomed_sql(among))
        with spark_errors("count the oldest rows of", table_name(dataset)):
            span = rows.selectExpr(f"unix_micros(min({AT}))", f"unix_micros(max({AT}))").collect()[0]
            if span[0] is None or count < 1:
                return None
            at, before = _instant(rows, count, span[0], span[1])
            return _place(rows, at, count - before)

    def count(self, dataset: str, doomed: RowsToDelete, bands: Mapping[str, Sequence[Range]]) -> list[Count]:
        asked = {source: list(each) for source, each in bands.items() if len(each) > 1}
        spark, rows = self._spark(), self._table(dataset).where(doomed_sql(doomed)).select(SOURCE, SEQ, FLUSH)
        if asked:
            cuts = [(source, each.lo, each.hi) for source, ranges in asked.items() for each in ranges]
            frame = spark.createDataFrame(cuts, "band_source string, band_lo bigint, band_hi bigint")
            # Each row is in one band of its strand, or the strand has none.
            is_in = (rows[SEQ] > frame["band_lo"]) & (rows[SEQ] <= frame["band_hi"])
            is_of = rows[SOURCE] == frame["band_source"]
            rows = rows.join(frame.hint("broadcast"), on=is_of & is_in, how="left")
        else:
            rows = rows.selectExpr("*", "cast(NULL AS bigint) AS band_lo", "cast(NULL AS bigint) AS band_hi")
        rows = rows.selectExpr(
            SOURCE,
            "band_lo",
            "band_hi",
            f"{SEQ} AS low",
            f"{SEQ} AS high",
            f"{FLUSH} AS early",
            f"{FLUSH} AS late",
        )
        counted = rows.groupBy(SOURCE, "band_lo", "band_hi").agg(
            {"low": "min", "high": "max", "early": "min", "late": "max", "*": "count"}
        )
        wanted = ("min(low)", "max(high)", "min(early)", "max(late)", "count(1)")
        with spark_errors("count rows of", table_name(dataset)):
            found = counted.select(SOURCE, "band_lo", "band_hi", *map(quoted, wanted)).collect()
        return [
            Count(
                row[0],
                Range(0, 2**63 - 1) if row[1] is None else Range(row[1], row[2]),
                row[7],
                Range(row[3] - 1, row[4]),
                Range(row[5] - 1, row[6]),
            )
            for row in sorted(found, key=lambda row: (row[0], row[1] or 0))
        ]

    def delete(self, dataset: str, doomed: RowsToDelete) -> None:
        delete_rows(self._spark(), self._lake, dataset, doomed_sql(doomed))

    def _table(self, dataset: str) -> DataFrame:
        try:
            with spark_errors("read", table_name(dataset)):
                return self._spark().sql(f"SELECT * FROM {table_name(dataset)}")
        except StrandlineError:
            check_warehouse(self._lake, dataset)
            raise


# The first rows


def _instant(rows: DataFrame, count: int, low: int, high: int) -> tuple[int, int]:
    """The instant at which the row of this place was taken in, and how many rows were before that."""
    before = 0
    while low < high:
        width = -(-(high - low + 1) // _BUCKETS)
        span = rows.where(f"{AT} >= {_time(low)} AND {AT} <= {_time(high)}")
        buckets = span.selectExpr(f"(unix_micros({AT}) - {low}) div {width} AS bucket").groupBy("bucket")
        for bucket, found in sorted((row[0], row[1]) for row in buckets.count().collect()):
            last = bucket
            if before + found >= count:
                break
            before += found
        else:
            return high, 0  # there are fewer: all of them
        low, high = low + last * width, min(low + (last + 1) * width - 1, high)
    return low, before


def _place(rows: DataFrame, at: int, count: int) -> RowPlace:
    """Of one instant: whole sources in their order, then the seqs of one."""
    tied = rows.where(f"{AT} = {_time(at)}").selectExpr(SOURCE, f"{SEQ} AS low", f"{SEQ} AS high")
    grouped = tied.groupBy(SOURCE).agg({"low": "min", "high": "max", "*": "count"})
    named = grouped.select(SOURCE, "`min(low)`", "`max(high)`", "`count(1)`")
    last = RowPlace(at, "", 0)
    for source, low, high, found in sorted(tuple(row) for row in named.collect()):
        if found > count:
            return RowPlace(at, source, low + count - 1) if count > 0 else last
        last, count = RowPlace(at, source, high), count - found
    return last


# Text of SQL


def doomed_sql(doomed: RowsToDelete) -> str:
    """What a row must satisfy to go."""
    parts = [
        f"({condition_sql(part.condition, doomed.times)} AND ({_strands_sql(part)}))"
        for part in doomed.parts
        if part.strands
    ]
    return " OR ".join(parts) or "false"


def _strands_sql(part: PrunePart) -> str:
    """A set of sources is looked up; one range after another is compared with every file."""
    if part.through is not None and len(part.strands) > _FEW:
        return f"{FLUSH} <= {part.through} AND {SOURCE} IN ({', '.join(map(literal, part.strands))})"
    return " OR ".join(f"({bounds_sql(source, each, None)})" for source, each in part.strands.items())


def condition_sql(condition: Condition, times: Sequence[TimeColumn]) -> str:
    either = []
    if condition.older_than is not None:
        either += list(_age_sql(times, condition.older_than))
    if condition.first is not None:
        either.append(_first_sql(condition.first))
    text = f"{AT} < {_time(condition.taken_before)} AND ({' OR '.join(either) or 'false'})"
    return text if condition.within is None else f"{text} AND ({_first_sql(condition.within)})"


def _age_sql(times: Sequence[TimeColumn], before: int) -> Iterator[str]:
    """One alternative for each column that may date a row."""
    lacking: list[str] = []
    for time in times:
        yield " AND ".join([*lacking, f"{quoted(time.name)} < {_limit(time, before)}"]).join("()")
        lacks = f"{quoted(time.name)} IS NULL"
        if time.type in ("float", "double"):
            lacks = f"({lacks} OR isnan({quoted(time.name)}))"
        lacking.append(lacks)
    yield " AND ".join([*lacking, f"{AT} < {_time(before)}"]).join("()")


def _limit(time: TimeColumn, before: int) -> str:
    """A time in the terms of a column. A day is over when it has ended."""
    if time.unit is not None:
        above, below = PER_UNIT[time.unit]
        if time.type in ("float", "double"):
            return f"cast('{before * above / below!r}' AS double)"
        return f"{-(-before * above // below)}L"
    if time.type == "date":
        return f"date_from_unix_date({before // _DAY_US})"
    return _time(before)


def _first_sql(place: RowPlace) -> str:
    at, source = _time(place.at), literal(place.source)
    return (
        f"{AT} < {at} OR ({AT} = {at} AND ({SOURCE} < {source} "
        f"OR ({SOURCE} = {source} AND {SEQ} <= {place.seq})))"
    )


def _time(at_us: int) -> str:
    return f"timestamp_micros({at_us}L)"
