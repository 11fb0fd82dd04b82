"""Which rows of a DataFrame of any size are there already.

rows of the frame ─▶ without those of the table ─▶ without those of the spool ─▶ each once
                 asked                     committed                      spooled      repeated

What is known is a key a row. Up to some number of keys they go to each task, so that rows stay where they
are; beyond, rows and keys are shuffled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import expr

from strandline.base.ranges import Range
from strandline.errors import UsageError
from strandline.lake.jobs import load_input
from strandline.lake.jobs.lookup import FAULT, SEGMENT, UNREAD, SparkLookup, bounds, identity_sql, narrowed
from strandline.lake.jobs.scan import bounds_sql
from strandline.lake.jobs.table_schema import ROW_ID, own_columns, quoted, spark_errors, sql_type, table_name
from strandline.lake.ports.lookup import SpoolAnswer, SpooledRun
from strandline.rows.dataset import SOURCE, Dataset
from strandline.state.landing import FixedInput

MANY_KEYS: Final = 1_000_000  # some 250 MB of the heap of Spark, for as long as the rows are computed
_ROW: Final = "_sl_row"
_KEY: Final = "_sl_key"
_PLACE: Final = "_sl_place"
_VALID: Final = f"{FAULT} is null and {UNREAD} is null"


class LookupCounts(NamedTuple):
    """Rows that were looked at, and how many of them were left out, why."""

    asked: int
    committed: int
    spooled: int
    repeated: int


class Unknown(NamedTuple):
    """Rows that are not there yet. `counts` is asked with their number, once they were computed. `is_sure`
    where they were looked for by the ids that the table will stamp them with."""

    rows: DataFrame
    counts: Callable[[int], LookupCounts]
    is_sure: bool


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
        table_rows: int,
        by_columns: bool = False,
    ) -> Unknown:
        """The rows of `df` that are not there yet, as they are. The table, of about that many rows, 0 where
        there is none, is as it is now; all is computed when the rows are. Null ids equal nothing, and each
        stays."""
        grown = load_input.grown_for(dataset, df.schema)
        narrow = narrowed(grown)
        is_sure = not by_columns and load_input.plain_rows(df, grown, source) is not None
        with spark_errors("look for rows in", table_name(dataset.name)):
            ids = _with_ids(df, narrow, _source_sql(grown, df, source))
            rows = ids.selectExpr(_ROW, f"{_key_sql(source)} as {_KEY}")
            steps = [_Step(rows)]
            if table_rows:
                table = self.table_ids(dataset, bounds_sql(source, None, None), by_columns=by_columns)
                steps.append(steps[-1].without(_keys(table, source), table_rows))
            if runs:
                spooled = self._valid_ids(self.spooled_rows(narrow, runs), narrow)
                steps.append(steps[-1].without(_keys(spooled, source), sum(run.rows for run in runs)))
            place = f"row_number() over (partition by {_KEY}, {_APART} order by {_KEY}) as {_PLACE}"
            once = steps[-1].seen_rows.selectExpr(_ROW, _KEY, place).where(f"{_PLACE} = 1 or {_KEY} is null")

        def counts(left: int) -> LookupCounts:
            asked, *after = (step.count(left) for step in steps)
            committed = asked - after[0] if table_rows else 0
            last = after[-1] if after else asked
            return LookupCounts(asked, committed, asked - committed - last, last - left)

        return Unknown(once.selectExpr(f"{_ROW}.*"), counts, is_sure)

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


class _Step:
    """Rows with their keys, counted on their way to what is left of them."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows, self._seen = rows, Observation()
        self.seen_rows = rows.observe(self._seen, expr("count(1) as rows"))

    def without(self, keys: DataFrame, about: int) -> "_Step":
        known = keys.hint("broadcast") if about <= MANY_KEYS else keys
        return _Step(self.seen_rows.join(known, on=_KEY, how="left_anti"))

    def count(self, left: int) -> int:
        """After `left` rows came out. Spark forgets what it has seen below a shuffle of nothing, which there
        is on the way if none did: then they are counted by themselves."""
        return int(self._seen.get["rows"]) if left else self._rows.count()


# Rows without a key stay apart: together they would be the work of one task.
_APART: Final = f"if({_KEY} is null, spark_partition_id(), -1)"


def _key_sql(source: str | None) -> str:
    """A row's id, and its source where there may be several. An id has 32 bytes, so the two stay apart."""
    return f"unhex({ROW_ID})" if source is not None else f"concat(unhex({ROW_ID}), cast({SOURCE} as binary))"


def _keys(ids: DataFrame, source: str | None) -> DataFrame:
    return ids.selectExpr(f"{_key_sql(source)} as {_KEY}")


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
