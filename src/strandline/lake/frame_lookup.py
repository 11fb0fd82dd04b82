"""Which rows of a DataFrame of any size are there already: one shuffle on ids, on both sides.

rows of the frame ──▶ id ──┐
table, spool ────▶ ids ────┴── left join ──▶ each row, and why it is left out
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import expr

from strandline.dataset import SOURCE, Dataset
from strandline.errors import UsageError
from strandline.lake import load_input
from strandline.lake.known import SpoolAnswer, SpooledRun
from strandline.lake.landing import FixedInput
from strandline.lake.lookup import FAULT, SEGMENT, UNREAD, SparkLookup, bounds, identity_sql, narrowed
from strandline.lake.reader import bounds_sql
from strandline.lake.schema import ROW_ID, own_columns, quoted, spark_errors, sql_type, table_name
from strandline.ranges import Range

WHY: Final = "_sl_why"
_ROW: Final = "_sl_row"
_RANK: Final = "_sl_rank"
_COMMITTED, _SPOOLED = 1, 2
_REASONS: Final = ("committed", "spooled", "repeated")
_VALID: Final = f"{FAULT} is null and {UNREAD} is null"


class Counts(NamedTuple):
    """Rows that were looked at, and how many of them were left out, why."""

    asked: int
    committed: int
    spooled: int
    repeated: int


class Unknown(NamedTuple):
    """Rows that are not there yet. `counts` waits until they were computed once."""

    rows: DataFrame
    counts: Callable[[], Counts]


class FrameLookup(SparkLookup):
    """A SparkLookup that asks about DataFrames too."""

    def version(self, dataset: Dataset, df: DataFrame) -> str:
        """Changes whenever the rows of a DataFrame do: their number, and the sum of their hashes."""
        columns = [
            f"to_json(struct({quoted(each.name)}))"  # a map has no hash, its text has
            if "map<" in each.dataType.simpleString()
            else quoted(each.name)
            for each in sorted(df.schema.fields, key=lambda each: each.name)
        ]
        hash_ = f"cast(xxhash64({', '.join(columns)}) as decimal(38, 0))"
        with spark_errors("read what is to go into", table_name(dataset.name)):
            (found,) = df.selectExpr("count(1)", f"sum({hash_})").collect()
        return f"{found[0]}:{found[1]}"

    def unknown_rows(
        self,
        dataset: Dataset,
        df: DataFrame,
        source: str | None,
        runs: Sequence[SpooledRun],
        *,
        has_table: bool,
        by_columns: bool = False,
    ) -> Unknown:
        """The rows of `df` that are not there yet, as they are. The table is as it is now; all is computed
        when the rows are. Null ids equal nothing, and each stays."""
        grown = load_input.grown_for(dataset, df.schema)
        narrow = narrowed(grown)
        with spark_errors("look for rows in", table_name(dataset.name)):
            rows = _with_ids(df, narrow, _source_sql(grown, df, source))
            table = (
                self.table_ids(dataset, bounds_sql(source, None, None), by_columns=by_columns)
                if has_table
                else None
            )
            ranked = self._ranked(narrow, table, runs)
            place = (
                f"row_number() over (partition by {SOURCE}, {ROW_ID}, "
                f"if({ROW_ID} is null, spark_partition_id(), -1) order by {SOURCE})"
            )
            why = (
                f"case when {_RANK} = {_COMMITTED} then 'committed' when {_RANK} = {_SPOOLED} then 'spooled' "
                f"when {ROW_ID} is not null and {place} > 1 then 'repeated' end as {WHY}"
            )
            joined = rows.join(ranked, on=[SOURCE, ROW_ID], how="left").selectExpr(_ROW, why)
            seen = Observation()  # above the last shuffle: below one that comes out empty Spark forgets it
            counts = [expr(f"count_if({WHY} = '{each}') as {each}") for each in _REASONS]
            left = joined.observe(seen, expr("count(1) as asked"), *counts).where(f"{WHY} is null")
            return Unknown(left.selectExpr(f"{_ROW}.*"), lambda: Counts(**seen.get))

    def _ranked(self, narrow: Dataset, table: DataFrame | None, runs: Sequence[SpooledRun]) -> DataFrame:
        """What is known, each id once, and where from."""
        known = [self.session.range(0).selectExpr(f"'' as {SOURCE}", f"'' as {ROW_ID}", f"0 as {_RANK}")]
        if table is not None:
            known.append(table.selectExpr(SOURCE, ROW_ID, f"{_COMMITTED} as {_RANK}"))
        if runs:
            ids = self._valid_ids(self.spooled_rows(narrow, runs), narrow)
            known.append(ids.selectExpr(SOURCE, ROW_ID, f"{_SPOOLED} as {_RANK}"))
        ranked = reduce(DataFrame.unionAll, known).groupBy(SOURCE, ROW_ID).agg({_RANK: "min"})
        return ranked.withColumnRenamed(f"min({_RANK})", _RANK)

    def faults(self, dataset: Dataset, runs: Sequence[SpooledRun]) -> SpoolAnswer:
        """By segment, why rows of it cannot be known; none are asked for."""
        if not runs:
            return SpoolAnswer(frozenset(), {}, {})
        with spark_errors("look for spooled rows of", table_name(dataset.name)):
            told = self.spooled_rows(narrowed(dataset), runs).where(f"not ({_VALID})")
            found = told.select(SEGMENT, FAULT, UNREAD).distinct().collect()
        faults = {cid: fault for cid, fault, _ in found if fault is not None}
        unread = {cid: why for cid, _, why in found if why is not None}
        return SpoolAnswer(frozenset(), faults, unread)

    def meets(
        self,
        dataset: Dataset,
        fixed: FixedInput,
        runs: Sequence[SpooledRun],
        within: Mapping[str, Sequence[Range]],
    ) -> bool:
        """Whether a row of a fixed input is in these segments, or at these seqs of the table."""
        narrow = narrowed(dataset)
        with spark_errors("look at the input of a load of", table_name(dataset.name)):
            input_ = self.session.sql(f"SELECT * FROM {fixed.table} VERSION AS OF {fixed.snapshot:d}")
            there = tuple(each for each in own_columns(narrow) if each.name in input_.columns)
            ids = input_.selectExpr(SOURCE, f"{identity_sql(replace(narrow, columns=there))} as {ROW_ID}")
            gained = []
            if runs:
                gained.append(self._valid_ids(self.spooled_rows(narrow, runs), narrow))
            if within:
                table = self.session.table(table_name(dataset.name))
                gained.append(table.where(bounds((), within)).select(SOURCE, ROW_ID))
            if not gained:
                return False
            found = ids.join(reduce(DataFrame.unionAll, gained), on=[SOURCE, ROW_ID], how="left_semi")
            return bool(found.limit(1).collect())

    def _valid_ids(self, rows: DataFrame, narrow: Dataset) -> DataFrame:
        ids = rows.where(_VALID).selectExpr(SOURCE, f"{identity_sql(narrow)} as {ROW_ID}")
        return ids.where(f"{ROW_ID} is not null")


def _with_ids(df: DataFrame, narrow: Dataset, source: str) -> DataFrame:
    """Each row whole as a struct, beside its source and its id."""
    given = {field.name for field in df.schema.fields}
    columns = [
        f"try_cast({name if each.name in given else 'null'} as {sql_type(each.type)}) as {name}"
        for each, name in ((each, quoted(each.name)) for each in own_columns(narrow))
    ]
    cast = df.selectExpr(f"struct(*) as {_ROW}", f"{source} as {SOURCE}", *columns)
    return cast.selectExpr(_ROW, SOURCE, f"{identity_sql(narrow)} as {ROW_ID}")


def _source_sql(grown: Dataset, df: DataFrame, source: str | None) -> str:
    given = {field.name: str(field.dataType.simpleString()) for field in df.schema.fields}
    columns = [column for column in own_columns(grown) if column.name in given]
    found = load_input.named_source(given, columns, grown, source)
    if found is None:
        raise UsageError(
            f"which sources the rows for {grown.name!r} have cannot be told before they are looked at",
            hint="name one `source` for all, or give them a column `source` of texts",
        )
    return found[0]
