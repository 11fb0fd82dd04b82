"""Stage, then publish: the only writer of new rows into tables (load_input.py writes scratch tables alone).

A landing is written under its id as Iceberg's WAP id, in a Spark session of its own, since the id is a
setting of the session. What is staged is invisible until its snapshot is picked, and Iceberg picks an id
once. A crash leaves nothing, a staged snapshot, or a published one; `look` tells which.

Small landings are read here and handed to Spark as one Arrow table; larger ones are read by its tasks. Both
give the same rows: the place of a row in its segment is all that counts.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.config.lake_settings import CATALOG, NAMESPACE, LakeSettings
from strandline.errors import HeldError, NotFoundError, StrandlineError, UnavailableError
from strandline.lake.jobs import landing_history, load_input, segment_batches
from strandline.lake.jobs.keep_highest import keep_highest
from strandline.lake.jobs.landing_history import NUMBER, SETTLE_FAILED, SETTLED, VERSION
from strandline.lake.jobs.stamp import stamped, without_known, without_repeats
from strandline.lake.jobs.table_schema import (
    AT,
    FLUSH,
    ROW_ID,
    SEQ,
    TableUnavailable,
    columns_sql,
    ensure_table,
    literal,
    own_columns,
    quoted,
    spark_errors,
    table_name,
)
from strandline.lake.metadata.iceberg import TableMissing, check_warehouse, load_metadata
from strandline.lake.ports.stage import BURNED, LandingSnapshots
from strandline.lake.spark.python_task import lean
from strandline.lake.spark.session import idle_sessions, is_connect, own_session, slots
from strandline.rows.dataset import SOURCE, Dataset
from strandline.rows.validate import MAX_ROW_BYTES
from strandline.state.landing import FixedInput, FlushLanding, Landing, LoadLanding
from strandline.storage import ContentStore

Settle: TypeAlias = Callable[[DataFrame], DataFrame]

SMALL_ROWS: Final = 50_000
SMALL_BYTES: Final = 16 * 1024 * 1024
TASK_ROWS: Final = 50_000  # a task is worth its start from here on
FEW_IDS: Final = 100
SMALL_LOAD: Final = 250_000  # rows whose ids go to every task; a flush is small by its settings
MANY_SOURCES: Final = 1_000

_PLACE: Final = "_sl_place"
_MOVED: Final = "_sl_moved"
_WAP_ID: Final = "spark.wap.id"
# Times and casts of a stage must not depend on what a user's session says.
_STAGE_CONF: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


class IcebergTables:
    """See Tables. Threads may share one: each stage has a session of its own.

    `content_options` are those that the content store was opened with; tasks open it again by its URL.
    `max_row_bytes` is what a row of a load may have.
    """

    def __init__(
        self,
        spark: SparkSession,
        content: ContentStore,
        lake: LakeSettings,
        *,
        content_options: Mapping[str, Any] | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        self._spark, self._content, self._lake = spark, content, lake
        self._options, self._max_row_bytes = dict(content_options or {}), max_row_bytes
        self._slots: int | None = None
        self._counts: dict[str, int] = {}
        self._reads_metadata = lake.catalog == "jdbc"
        self._ensured: dict[str, tuple[Dataset, object]] = {}

    def table_name(self, dataset: str) -> str:
        return table_name(dataset)

    def ensure(self, dataset: Dataset, *, has_landed: bool = False) -> None:
        shape = self._shape(dataset.name)
        if shape is not None and self._ensured.get(dataset.name) == (dataset, shape):
            return  # nobody has touched the schema since this process made sure of it
        with self._errors("make or grow", dataset.name):
            if has_landed and not self._spark.catalog.tableExists(table_name(dataset.name)):
                raise TableMissing(dataset.name)
            ensure_table(self._spark, dataset, format=self._lake.format)
        self._ensured[dataset.name] = (dataset, self._shape(dataset.name))

    def _shape(self, dataset: str) -> object:
        """What `ensure` looks at, without Spark; None where there is no table or we cannot tell."""
        if not self._reads_metadata:
            return None
        try:
            metadata = load_metadata(self._lake, dataset)
        except (NotFoundError, HeldError, UnavailableError):
            return None
        looked_at = ("table-uuid", "current-schema-id", "default-spec-id", "properties")
        return [metadata.get(name) for name in looked_at]

    def stage(self, landing: Landing, *, settle: Settle | None = None) -> None:
        """See Tables. `settle` is a pure function of the rows (L-FLUSH-7): it gets the producer's columns,
        `source`, and a column `_sl_place` that it must hand on as it is. If it fails, or breaks that, the
        rows pass unchanged; `look` tells what it did."""
        doing, name = "stage rows of", landing.dataset.name
        with self._errors(doing, name), stage_session(self._spark, landing.id) as session:
            try:
                self._write(session, landing, settle)
            except StrandlineError:
                raise
            except Exception as error:
                # A failed job tells too little, and differently on classic and Connect: read again, and have
                # errors come back as rows.
                self._raise_fault(session, landing)
                raise TableUnavailable(doing, table_name(name), error) from error

    def look(self, dataset: str, id: str) -> LandingSnapshots:
        return landing_history.find(self._history(dataset), id)

    def snapshot_count(self, dataset: str) -> int:
        """How many snapshots the table had when this process last looked; 0 if it never did."""
        return self._counts.get(dataset, 0)

    def publish(self, dataset: str, snapshot: int) -> None:
        table = f"{NAMESPACE}.{quoted(dataset)}"
        with self._errors("publish to", dataset):
            self._spark.sql(
                f"CALL {CATALOG}.system.cherrypick_snapshot(table => '{table}', snapshot_id => {snapshot:d})"
            ).collect()

    def keep_highest(self, dataset: str, seq: int, flush: int) -> None:
        with self._errors("keep the highest numbers of", dataset):
            keep_highest(self._spark, self._lake, dataset, seq, flush)

    def burn(self, dataset: str, id: str) -> None:
        if self.look(dataset, id).published:
            return
        table = table_name(dataset)
        with self._errors("burn an id in", dataset), stage_session(self._spark, id) as session:
            _append(session.table(table).where("false"), table, {VERSION: str(BURNED)})
        empty = next(each for each in self.look(dataset, id).staged if each.version == BURNED)
        try:
            self.publish(dataset, empty.snapshot)
        except StrandlineError:
            if self.look(dataset, id).published is None:  # else somebody was faster: the id is used up
                raise

    # Loads

    def fix_input(
        self, df: DataFrame, dataset: Dataset, load_id: str, *, source: str | None
    ) -> tuple[FixedInput, Dataset]:
        """Judge the rows of `df` and write them once; the dataset as it must be for them comes back too.

        Raises BadRows with the first refusals, or SchemaBreaking; nothing is left then.
        """
        doing = "write the input of a load of"
        with self._errors(doing, dataset.name):
            try:
                return load_input.fix_input(
                    self._spark, df, dataset, load_id, source=source, max_row_bytes=self._max_row_bytes
                )
            except StrandlineError:
                raise
            except Exception as error:  # a table that is not there is one of the frame's, not the dataset's
                raise TableUnavailable(doing, table_name(dataset.name), error) from error

    def drop_input(self, load: str) -> None:
        table = load_input.scratch_table(load)
        with spark_errors("drop", table):
            if self._reads_metadata and not is_connect(self._spark):
                load_input.remove_input(self._lake, load)
            else:
                load_input.drop_input(self._spark, table)

    def columns_of(self, df: DataFrame) -> dict[str, str]:
        """The columns of `df` with their types; nothing is computed."""
        return {field.name: field.dataType.simpleString() for field in df.schema.fields}

    def count_of(self, df: DataFrame) -> int:
        return df.count()

    def has_input(self, input: FixedInput) -> bool:
        with spark_errors("look for", input.table):
            return load_input.has_input(self._spark, input)

    # What fails

    @contextmanager
    def _errors(self, doing: str, dataset: str) -> Iterator[None]:
        """Spark's errors as ours. A warehouse that is gone fails in as many ways as there are catalogs, so it
        is looked for, and named."""
        try:
            with spark_errors(doing, table_name(dataset)):
                yield
        except (NotFoundError, UnavailableError):
            check_warehouse(self._lake, dataset)
            raise

    # Staging

    def _write(self, session: SparkSession, landing: Landing, settle: Settle | None) -> None:
        table, dataset = table_name(landing.dataset.name), landing.dataset
        notes = {VERSION: str(landing.version), NUMBER: str(landing.number)}
        placed = self._placed(session, landing)
        if settle is not None:
            placed, settled_notes = self._settled(session, landing, placed, settle)
            notes |= settled_notes
        rows = stamped(placed, dataset)
        if not dataset.collapse:
            _append(rows, table, notes)
            return
        is_kept = isinstance(landing, FlushLanding) and not self._is_small(landing)
        rows = rows.persist() if is_kept else rows  # else each of the three uses below reads all segments
        try:
            _append(self._collapsed(session, landing, rows, table), table, notes)
        finally:
            if is_kept:
                rows.unpersist()

    def _placed(self, session: SparkSession, landing: Landing) -> DataFrame:
        """The rows with `source`, `_sl_seq`, `_sl_at` and `_sl_flush`, each partition in order of source and
        seq."""
        if isinstance(landing, LoadLanding):
            return load_input.placed(session, landing)
        dataset = landing.dataset
        ordered, is_scattered = segment_batches.reading_order(landing.pieces)
        if self._is_small(landing):
            batches = segment_batches.numbered(
                segment_batches.placed_batches(self._content, ordered, dataset), landing.number
            )
            table = pa.Table.from_batches(batches, segment_batches.numbered_schema(dataset))
            if is_scattered:
                table = table.sort_by([(SOURCE, "ascending"), (SEQ, "ascending")])
            return session.createDataFrame(table).coalesce(1)
        cut = segment_batches.shares(ordered, self._tasks(session, landing))
        read = segment_batches.share_reader(self._content.url, self._options, cut, dataset, landing.number)
        numbers = session.range(0, len(cut), 1, len(cut))
        rows = numbers.mapInArrow(lean(read), columns_sql(dataset, (SOURCE, SEQ, AT, FLUSH)))
        return rows.sortWithinPartitions(SOURCE, SEQ) if is_scattered else rows

    def _is_small(self, landing: FlushLanding) -> bool:
        """Whether it is read here; what only this process can read always is."""
        sizes = {piece.segment.cid: piece.segment.size for piece in landing.pieces}
        is_small = _planned(landing) <= SMALL_ROWS and sum(sizes.values()) <= SMALL_BYTES
        return is_small or self._content.url.startswith("memory:")

    def _tasks(self, session: SparkSession, landing: Landing) -> int:
        if self._slots is None:
            self._slots = slots(session)
        return min(self._slots, -(-_planned(landing) // TASK_ROWS))

    def _collapsed(self, session: SparkSession, landing: Landing, rows: DataFrame, table: str) -> DataFrame:
        is_small = isinstance(landing, FlushLanding) or _planned(landing) <= SMALL_LOAD
        once = rows if landing.looked else without_repeats(rows, is_small=is_small)
        if not landing.dataset.dedupe_on_flush:
            return once
        others = session.table(table).where(
            f"{FLUSH} > {landing.looked} and {FLUSH} <> {landing.number} and {_strands(landing)}"
        )
        if landing.looked and others.isEmpty():  # as it mostly is, and then no file of the table is opened
            return once
        is_few = _planned(landing) <= FEW_IDS
        ids = [row[0] for row in rows.select(ROW_ID).distinct().collect()] if is_few else None
        return without_known(once, others, ids=ids, is_small=is_small)

    def _settled(
        self, session: SparkSession, landing: Landing, placed: DataFrame, settle: Settle
    ) -> tuple[DataFrame, dict[str, str]]:
        own = [quoted(column.name) for column in own_columns(landing.dataset)]
        # The hook does not know the id: a place that it made or changed does not carry the right seal.
        seal = f"xxhash64({{0}}{SOURCE}, {{0}}{SEQ}, {{0}}{AT}, {literal(landing.id)})"
        place = f"struct({SOURCE}, {SEQ}, {AT}, {seal.format('')} as seal) as {_PLACE}"
        moved = f"{_PLACE}.seal is distinct from {seal.format(f'{_PLACE}.')} as {_MOVED}"
        back = [f"{_PLACE}.{name} as {name}" for name in (SOURCE, SEQ, AT)]
        back.append(f"cast({landing.number} as bigint) as {FLUSH}")
        lacks = [f"{quoted(c.name)} is null" for c in own_columns(landing.dataset) if c.required]
        try:
            kept = settle(placed.selectExpr(*own, SOURCE, place)).selectExpr(*own, *back, moved)
            rows, places, astray, bad, _ = kept.selectExpr(
                "count(1)",
                f"count(distinct {SOURCE}, {SEQ}, {AT})",
                f"count_if({_MOVED})",
                f"count_if({' or '.join(lacks) or 'false'})",
                f"bit_xor(xxhash64({', '.join([*own, SOURCE])}))",  # has each value fail here, if it will
            ).collect()[0]
        except Exception as error:  # noqa: BLE001  # the hook is not ours; its failure is noted in the snapshot
            self._raise_fault(session, landing)  # unless it was a segment that failed
            said = (str(error).splitlines() or [""])[0][:300]
            return placed, {SETTLE_FAILED: f"{type(error).__name__}: {said}"}
        if rows != places or rows > _planned(landing) or astray or bad:
            broken = f"{rows} rows at {places} places, {astray} astray, {bad} without a required column"
            return placed, {SETTLE_FAILED: broken}
        return kept.drop(_MOVED).sortWithinPartitions(SOURCE, SEQ), {SETTLED: str(_planned(landing) - rows)}

    def _raise_fault(self, session: SparkSession, landing: Landing) -> None:
        """Raise what reading a planned segment raises, if one cannot be read."""
        if not isinstance(landing, FlushLanding):
            return
        if self._is_small(landing):
            found = (
                segment_batches.fault_of(self._content, piece, landing.dataset) for piece in landing.pieces
            )
            faults = [fault for fault in found if fault is not None]
        else:
            cut = segment_batches.shares(landing.pieces, self._tasks(session, landing))
            check = segment_batches.share_checker(self._content.url, self._options, cut, landing.dataset)
            numbers = session.range(0, len(cut), 1, len(cut))
            faults = [
                bytes(row[0])
                for row in numbers.mapInArrow(lean(check), f"{segment_batches.FAULT} binary").collect()
            ]
        for fault in faults[:1]:
            raise pickle.loads(fault)

    def _history(self, dataset: str) -> landing_history.History:
        found = self._read_history(dataset)
        self._counts[dataset] = len(found.snapshots)
        return found

    def _read_history(self, dataset: str) -> landing_history.History:
        """By ourselves where the catalog lets us, else by Spark: its server may reach what we do not."""
        if self._reads_metadata:
            try:
                return landing_history.metadata_history(self._lake, dataset)
            except (HeldError, UnavailableError):
                self._reads_metadata = False
        with self._errors("look at", dataset):
            return landing_history.read_history(self._spark, table_name(dataset))


@contextmanager
def stage_session(spark: SparkSession, id: str) -> Iterator[SparkSession]:
    """A session whose writes are staged under an id."""
    session = _take_session(spark)
    session.conf.set(_WAP_ID, id)
    yield session
    # Only after a success: a session that failed may be the reason, on Connect it may even be gone.
    session.conf.unset(_WAP_ID)
    idle_sessions(spark).append(session)


def _take_session(spark: SparkSession) -> SparkSession:
    try:
        return idle_sessions(spark).pop()
    except IndexError:
        session = own_session(spark)
        for key, value in _STAGE_CONF.items():
            session.conf.set(key, value)
        return session


def _append(rows: DataFrame, table: str, notes: Mapping[str, str]) -> None:
    writer = rows.writeTo(table)
    for key, value in notes.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()


def _planned(landing: Landing) -> int:
    if isinstance(landing, LoadLanding):
        return sum(landing.input.rows.values())
    return sum(piece.rows for piece in landing.pieces)


def _strands(landing: Landing) -> str:
    """The sources of a landing as a predicate, for pruning alone: with very many it is not worth it."""
    found = landing.los if isinstance(landing, LoadLanding) else {piece.source for piece in landing.pieces}
    if not 0 < len(found) <= MANY_SOURCES:
        return "true"
    return f"{SOURCE} in ({', '.join(map(literal, sorted(found)))})"
