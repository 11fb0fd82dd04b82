"""Rewrites files of a table by Spark, on a branch, so that nobody sees it until it is checked and lands."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Final

from pyspark.sql import SparkSession

from strandline.config.lake_settings import CATALOG, NAMESPACE, LakeSettings
from strandline.errors import StrandlineError
from strandline.lake.jobs import compare_files
from strandline.lake.jobs.expire_snapshots import expire, snapshots
from strandline.lake.jobs.keep_highest import keep_highest_of_rows
from strandline.lake.jobs.orphan_files import remove_orphans
from strandline.lake.jobs.table_schema import (
    FLUSH,
    ROW_ID,
    SEQ,
    TableUnavailable,
    literal,
    quoted,
    spark_errors,
    table_name,
)
from strandline.lake.metadata.data_files import ancestry, branches, list_files
from strandline.lake.metadata.iceberg import load_table, metadata_pointer
from strandline.lake.ports.rewrite import Listing, MainMoved, Repeats, RewriteDiffers, Stretch, within
from strandline.lake.ports.snapshots import KnownSnapshot
from strandline.lake.spark.session import named_if_gone
from strandline.rows.dataset import SOURCE, Dataset

# The two halves of each hash are summed apart: that overflows with no number of rows, and needs no decimal.
_SUMS: Final = "count(1), coalesce(sum(hash & 4294967295), 0), coalesce(sum(shiftright(hash, 32)), 0)"


class SparkRewriter:
    """See Rewriter. `session` is asked where Spark is needed, not before."""

    def __init__(self, session: Callable[[], SparkSession], lake: LakeSettings) -> None:
        self._session, self._lake = session, lake

    @contextmanager
    def _asking(self, doing: str, dataset: str) -> Iterator[SparkSession]:
        """The session; what it raises is ours, and SparkGone if it has died."""
        spark = self._session()
        with named_if_gone(spark), spark_errors(doing, table_name(dataset)):
            yield spark

    # Without Spark

    def pointer(self, dataset: str) -> str | None:
        return metadata_pointer(self._lake, dataset)

    def files(self, dataset: Dataset, *, snapshot: int | None = None) -> Listing:
        return list_files(self._lake, dataset, snapshot=snapshot)

    def branches(self, dataset: str) -> dict[str, int]:
        return branches(self._lake, dataset)

    def ancestry(self, dataset: str, snapshot: int | None = None) -> list[int]:
        return ancestry(self._lake, dataset, snapshot)

    # With it

    def branch(self, dataset: str, name: str, base: int) -> None:
        table = table_name(dataset)
        with self._asking("make a branch of", dataset) as spark:
            spark.sql(f"ALTER TABLE {table} CREATE BRANCH {quoted(name)} AS OF VERSION {base:d}")

    def repeats(self, dataset: Dataset, base: int, asked: Sequence[Stretch]) -> list[Repeats]:
        first = f"{SEQ} - {SEQ} % {dataset.seq_bucket}"
        query = (
            f"SELECT {SOURCE}, {first} AS first, min({SEQ}) - 1, max({SEQ}), count(1) "
            f"FROM ({_repeats_sql(dataset, base, asked)}) GROUP BY {SOURCE}, {first}"
        )
        with self._asking("look for repeats in", dataset.name) as spark:
            return [Repeats(*row) for row in spark.sql(query).collect()]

    def remove_repeats(self, dataset: Dataset, branch: str, base: int, asked: Sequence[Stretch]) -> None:
        table = f"{table_name(dataset.name)}.{quoted(f'branch_{branch}')}"
        with self._asking("remove repeats from", dataset.name) as spark:
            keep_highest_of_rows(spark, self._lake, dataset.name)
            spark.sql(
                f"DELETE FROM {table} WHERE ({stretches_sql(dataset, asked)}) "
                f"AND ({SOURCE}, {SEQ}) IN ({_repeats_sql(dataset, base, asked)})"
            )

    def rewrite(self, dataset: Dataset, branch: str, asked: Sequence[Stretch], *, target_bytes: int) -> None:
        options = {"rewrite-all": "true", "target-file-size-bytes": str(target_bytes)}
        try:
            self._rewrite(dataset, branch, asked, options)
        except TableUnavailable:
            # With partial progress a file that cannot be read fails its own bin alone; there is one commit
            # still. But whoever commits then waits at the cost of a processor: so only where there is need.
            some = {"enabled": "true", "max-commits": "1", "max-failed-commits": "0"}
            partly = {f"partial-progress.{key}": value for key, value in some.items()}
            self._rewrite(dataset, branch, asked, options | partly)

    def _rewrite(
        self, dataset: Dataset, branch: str, asked: Sequence[Stretch], options: Mapping[str, str]
    ) -> None:
        order = f"{SOURCE}, {SEQ}" if dataset.source_buckets else SEQ
        listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        with self._asking("rewrite files of", dataset.name) as spark:
            spark.sql(
                f"CALL {CATALOG}.system.rewrite_data_files(table => '{_called(dataset.name)}', "
                f"branch => '{branch}', strategy => 'sort', sort_order => '{order}', "
                f'where => "{stretches_sql(dataset, asked)}", options => map({listed}))'
            ).collect()

    def check(
        self, dataset: Dataset, base: int, head: int, asked: Sequence[Stretch], *, has_repeats: bool
    ) -> None:
        is_plain = not (has_repeats or dataset.source_buckets)
        if not (is_plain and self._are_same(dataset, base, head, asked)):
            self._check_by_spark(dataset, base, head, asked, has_repeats=has_repeats)

    def _are_same(self, dataset: Dataset, base: int, head: int, asked: Sequence[Stretch]) -> bool:
        """Whether these stretches hold the same rows, told without Spark; False where that cannot be told."""
        before, after = (self.files(dataset, snapshot=snapshot) for snapshot in (base, head))
        if before.has_deletes or after.has_deletes:
            return False
        old, new = (list(chain(*within(side.files, asked).values())) for side in (before, after))
        return compare_files.is_worth(old) and compare_files.are_same(
            load_table(self._lake, dataset.name).io, old, new
        )

    def _check_by_spark(
        self, dataset: Dataset, base: int, head: int, asked: Sequence[Stretch], *, has_repeats: bool
    ) -> None:
        table, where = table_name(dataset.name), stretches_sql(dataset, asked)
        repeats = f"LEFT ANTI JOIN ({_repeats_sql(dataset, base, asked)}) AS repeats USING ({SOURCE}, {SEQ})"
        aside = repeats if has_repeats else ""
        with self._asking("compare the rows of", dataset.name) as spark:
            before = spark.sql(f"SELECT * FROM {table} VERSION AS OF {base:d}").columns
            after = spark.sql(f"SELECT * FROM {table} VERSION AS OF {head:d}").schema.fields
            # Of columns that both have, in the newer types: one may have come, or be wider, since.
            columns = ", ".join(
                f"cast({quoted(field.name)} AS {field.dataType.simpleString()})"
                for field in after
                if field.name in before
            )
            hashed = f"SELECT xxhash64({columns}) AS hash FROM {table} VERSION AS OF"
            found = spark.sql(
                f"SELECT 0, {_SUMS} FROM ({hashed} {base:d} {aside} WHERE {where}) "
                f"UNION ALL SELECT 1, {_SUMS} FROM ({hashed} {head:d} WHERE {where})"
            ).collect()
        sides = {row[0]: tuple(row)[1:] for row in found}
        if sides[0] != sides[1]:
            raise RewriteDiffers(dataset.name, sides[1][0], sides[0][0])

    def land(self, dataset: str, branch: str, base: int) -> None:
        try:
            with self._asking("fast-forward", dataset) as spark:
                spark.sql(
                    f"CALL {CATALOG}.system.fast_forward('{_called(dataset)}', 'main', '{branch}')"
                ).collect()
        except StrandlineError as error:
            if self.ancestry(dataset)[:1] != [base]:
                raise MainMoved(dataset) from error
            raise

    def drop(self, dataset: str, branch: str) -> None:
        table = table_name(dataset)
        with self._asking("drop a branch of", dataset) as spark:
            spark.sql(f"ALTER TABLE {table} DROP BRANCH IF EXISTS {quoted(branch)}")

    def snapshots(self, dataset: str) -> list[KnownSnapshot]:
        return snapshots(self._session, self._lake, dataset)

    def expire(self, dataset: str, ids: Iterable[int]) -> None:
        there = {each.id for each in self.snapshots(dataset)}
        with self._asking("expire snapshots of", dataset) as spark:
            expire(spark, dataset, [each for each in ids if each in there])

    def remove_orphans(self, dataset: str) -> int:
        with self._asking("remove orphan files of", dataset) as spark:
            return remove_orphans(spark, dataset)


def stretches_sql(dataset: Dataset, asked: Sequence[Stretch]) -> str:
    """What a row of these stretches satisfies."""
    return " OR ".join(
        f"({_bin_sql(dataset, each)} AND {_order_sql(dataset, each.lo, each.hi)})" for each in asked
    )


def _repeats_sql(dataset: Dataset, base: int, asked: Sequence[Stretch]) -> str:
    """The source and seq of each row that repeats one with a lower seq. A row without an identity equals no
    other: its id is made of its source and seq."""
    seen = [each._replace(hi=min(each.hi, each.visible)) for each in asked]
    looked = " OR ".join(
        f"({_bin_sql(dataset, each, is_all=each.since == 0)} AND {_order_sql(dataset, each.since, each.hi)})"
        for each in seen
    )
    return (
        f"SELECT {SOURCE}, {SEQ} FROM (SELECT {SOURCE}, {SEQ}, {FLUSH}, "
        f"min({SEQ}) OVER (PARTITION BY {SOURCE}, {ROW_ID}) AS lowest "
        f"FROM {table_name(dataset.name)} VERSION AS OF {base:d} WHERE {looked}) "
        f"WHERE {SEQ} > lowest AND ({stretches_sql(dataset, seen)})"
    )


def _bin_sql(dataset: Dataset, each: Stretch, *, is_all: bool = False) -> str:
    """Of the bin; `is_all` takes in those of lower seqs."""
    if dataset.source_buckets:
        place = f"{CATALOG}.system.bucket({dataset.source_buckets}, {SOURCE}) = {each.bin.place:d}"
    else:
        place = f"{SOURCE} = {literal(str(each.bin.place))}"
    first, last = 0 if is_all else each.bin.first, each.bin.first + dataset.seq_bucket
    return f"{place} AND {SEQ} >= {first} AND {SEQ} < {last}"


def _order_sql(dataset: Dataset, lo: int, hi: int) -> str:
    column = FLUSH if dataset.source_buckets else SEQ
    return f"{column} > {lo} AND {column} <= {hi}"


def _called(dataset: str) -> str:
    return f"{NAMESPACE}.{quoted(dataset)}"
