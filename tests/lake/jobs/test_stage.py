"""Landing rows: staged under an id, published once, with the same numbers in every try."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import CorruptionError, NotFoundError, UnavailableError
from strandline.lake.jobs import stage
from strandline.lake.jobs.landing_history import History, Snapshot, find
from strandline.lake.jobs.segment_batches import shares
from strandline.lake.jobs.stage import IcebergTables
from strandline.lake.jobs.table_schema import table_name
from strandline.lake.metadata.iceberg import WarehouseMoved
from strandline.lake.ports.stage import BURNED, LandingSnapshots, Published, Staged
from strandline.lake.spark.session import idle_sessions, start_spark
from strandline.persist import BlobRef
from strandline.rows.dataset import Column, Dataset, Identity
from strandline.state.landing import FlushLanding, SegmentPiece
from strandline.storage import ContentStore, open_content
from strandline.storage.segment import SegmentUnreadable
from tests.lake.landings import AT, Ledgers, land, logs, publish


@pytest.fixture
def content(tmp_path: Path) -> ContentStore:
    return open_content(tmp_path / "content")


@pytest.fixture
def ledgers(content: ContentStore) -> Ledgers:
    return Ledgers(content)


@pytest.fixture
def lake(spark: SparkSession, spark_lake: LakeSettings, content: ContentStore) -> IcebergTables:
    return IcebergTables(spark, content, spark_lake)


@pytest.fixture
def each_lake(
    each_spark: SparkSession, each_spark_lake: LakeSettings, content: ContentStore
) -> IcebergTables:
    return IcebergTables(each_spark, content, each_spark_lake)


@pytest.fixture
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every landing counts as large: Spark's tasks read the segments."""
    monkeypatch.setattr(stage, "SMALL_ROWS", 0)
    monkeypatch.setattr(stage, "TASK_ROWS", 2)


def stored(spark: SparkSession, dataset: Dataset, *columns: str) -> list[tuple[Any, ...]]:
    shown = columns or ("source", "_sl_seq", "level", "n", "_sl_flush")
    rows = spark.table(table_name(dataset.name)).orderBy("source", "_sl_seq").select(*shown)
    return [tuple(row) for row in rows.collect()]


def rows_of(*levels: str) -> list[dict[str, Any]]:
    return [{"level": level, "n": at} for at, level in enumerate(levels)]


def spark_of(tables: IcebergTables) -> SparkSession:
    return tables._spark


# Rows and their numbers


@pytest.mark.parametrize("how", ["here", "by tasks"])
def test_rows_land_with_the_seq_of_their_place_in_the_segment(
    each_lake: IcebergTables, ledgers: Ledgers, how: str, request: pytest.FixtureRequest
) -> None:  # L-STAMP-2, L-STAMP-5, L-STAMP-6, L-FLUSH-3
    if how == "by tasks":
        request.getfixturevalue("by_tasks")
    dataset = logs()
    first = ledgers.pieces(dataset, {"web-1": rows_of("a", "b", "c"), "web-2": rows_of("d")})
    second = ledgers.pieces(dataset, {"web-1": rows_of("e", "f")}, at=AT + 1)
    landing = ledgers.landing(dataset, [*first, *second])

    land(each_lake, landing)

    assert stored(spark_of(each_lake), dataset) == [
        ("web-1", 1, "a", 0, 1),
        ("web-1", 2, "b", 1, 1),
        ("web-1", 3, "c", 2, 1),
        ("web-1", 4, "e", 0, 1),
        ("web-1", 5, "f", 1, 1),
        ("web-2", 1, "d", 0, 1),
    ]
    table = table_name(dataset.name)
    stamps = spark_of(each_lake).sql(
        f"SELECT _sl_seq, unix_micros(_sl_at), length(_sl_row_id) FROM {table} WHERE source = 'web-1'"
    )
    assert sorted(map(tuple, stamps.collect())) == [(s, AT + (s > 3), 64) for s in range(1, 6)]


@pytest.mark.parametrize("tasks", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 7))])
def test_a_plan_cut_inside_a_segment_and_any_number_of_tasks_give_the_same_rows(
    lake: IcebergTables, ledgers: Ledgers, by_tasks: None, tasks: int
) -> None:  # L-STAMP-6, L-FLUSH-6
    dataset = logs()
    (whole,) = ledgers.pieces(dataset, {"web-1": rows_of(*"abcdefghij")})
    lake._slots = tasks
    head = replace(whole, rows=4)
    rest = replace(whole, first_row=4, rows=6, lo=4)

    land(lake, ledgers.landing(dataset, [head]))
    land(lake, ledgers.landing(dataset, [rest]))

    found = stored(spark_of(lake), dataset, "_sl_seq", "level", "_sl_flush")
    assert found == [(seq, level, 1 + (seq > 4)) for seq, level in enumerate("abcdefghij", 1)]


def test_shares_are_in_order_even_and_cut_a_piece_only_if_it_is_larger_than_one() -> None:  # L-STAMP-6
    ref = BlobRef("sha256-" + "0" * 64, 1, "x")
    pieces = [SegmentPiece("s", ref, 0, rows, lo, 0) for lo, rows in ((0, 10), (10, 10), (20, 80))]

    cut = shares(pieces, 4)

    assert [(p.lo, p.rows) for share in cut for p in share] == [
        (0, 10),
        (10, 10),
        (20, 25),
        (45, 25),
        (70, 25),
        (95, 5),
    ]
    assert [sum(p.rows for p in share) for share in cut] == [20, 25, 25, 30]
    assert shares(pieces, 1) == [tuple(pieces)]


def test_files_are_sorted_by_seq_and_carry_the_bounds_of_it(
    lake: IcebergTables, ledgers: Ledgers, by_tasks: None
) -> None:  # L-SCH-1, L-SCH-3
    dataset = replace(logs(), seq_bucket=4)
    pieces = [piece for _ in range(4) for piece in ledgers.pieces(dataset, {"a": rows_of("x", "y", "z")})]

    land(lake, ledgers.landing(dataset, pieces))

    table = table_name(dataset.name)
    placed = spark_of(lake).sql(f"SELECT _file, _pos, _sl_seq FROM {table} ORDER BY _file, _pos").collect()
    by_file: dict[str, list[int]] = {}
    for file, _, seq in placed:
        by_file.setdefault(file, []).append(seq)
    assert all(seqs == sorted(seqs) for seqs in by_file.values())
    files = spark_of(lake).sql(f"SELECT readable_metrics._sl_seq AS seq FROM {table}.files")
    bounds = files.selectExpr("seq.lower_bound", "seq.upper_bound")
    assert {tuple(row) for row in bounds.collect()} == {(min(s), max(s)) for s in by_file.values()}


def test_a_segment_of_an_older_narrower_schema_lands_in_the_grown_table(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # F-5, L-SCH-5, L-SCH-7
    older = Dataset(logs().name, (Column("n", "int"),))
    newer = replace(older, columns=(Column("n", "bigint"), Column("level", "string")), version=1)
    land(lake, ledgers.landing(older, ledgers.pieces(older, {"a": [{"n": 1}]})))
    spooled = ledgers.pieces(older, {"a": [{"n": 2}]})

    land(lake, ledgers.landing(newer, spooled))
    land(lake, ledgers.landing(newer, ledgers.pieces(newer, {"a": [{"n": 2**40, "level": "x"}]})))
    land(lake, ledgers.landing(older, ledgers.pieces(older, {"a": [{"n": 4}]})))

    assert stored(spark_of(lake), newer, "_sl_seq", "n", "level") == [
        (1, 1, None),
        (2, 2, None),
        (3, 2**40, "x"),
        (4, 4, None),
    ]


def test_a_null_in_a_required_column_fails_the_stage(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # L-STAMP-2
    loose = logs()
    strict = replace(loose, columns=(Column("level", "string", required=True),))
    landing = ledgers.landing(strict, ledgers.pieces(loose, {"a": [{"level": None}]}))
    lake.ensure(strict)

    with pytest.raises(UnavailableError):
        lake.stage(landing)

    assert lake.look(strict.name, landing.id) == LandingSnapshots(None, ())


def test_every_type_lands_as_it_was_whatever_the_zone_of_the_session(
    spark: SparkSession,
    spark_lake: LakeSettings,
    content: ContentStore,
    ledgers: Ledgers,
    request: pytest.FixtureRequest,
) -> None:  # L-SCH-4
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "America/New_York")
    lake = IcebergTables(own, content, spark_lake)
    dataset = replace(
        logs(), columns=(Column("at", "timestamp"), Column("x", "double"), Column("b", "binary"))
    )
    rows = [{"at": 1_234_567, "x": float("nan"), "b": b"\x00"}]

    land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows})))
    request.getfixturevalue("by_tasks")
    land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows})))

    found = own.sql(
        f"SELECT unix_micros(at), isnan(x), hex(b), unix_micros(_sl_at) FROM {table_name(dataset.name)}"
    )
    assert [tuple(row) for row in found.collect()] == [(1_234_567, True, "00", AT)] * 2


# Staging and publishing


def test_what_is_staged_is_invisible_and_look_names_its_version(
    each_lake: IcebergTables, ledgers: Ledgers
) -> None:  # L-FLUSH-2, L-FLUSH-13
    dataset = logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x", "y")}), version=3)
    each_lake.ensure(dataset)
    before = each_lake.look(dataset.name, landing.id)

    each_lake.stage(landing)
    staged = each_lake.look(dataset.name, landing.id)
    seen = stored(spark_of(each_lake), dataset)
    snapshot = publish(each_lake, landing)

    assert before == LandingSnapshots(None, ())
    assert (staged.published, [each.version for each in staged.staged]) == (None, [3])
    assert seen == []
    found = each_lake.look(dataset.name, landing.id)
    assert found.published is not None
    assert (found.published.snapshot, found.published.version, found.published.rows) == (snapshot, 3, 2)
    assert found.published.files == 1
    assert found.published.bytes > 0
    assert found.staged == ()


def test_look_at_a_table_that_is_not_there_says_so(each_lake: IcebergTables) -> None:  # L-FLUSH-2
    with pytest.raises(NotFoundError):
        each_lake.look("nowhere", "x")


@pytest.mark.parametrize("is_moved", [False, True], ids=["fast-forward", "after another commit"])
def test_an_id_is_published_once_also_from_a_second_staged_copy(
    each_lake: IcebergTables, ledgers: Ledgers, is_moved: bool
) -> None:  # L-SEQ-8, L-FLUSH-2, L-FLUSH-13
    dataset = logs()
    pieces = ledgers.pieces(dataset, {"a": rows_of("x", "y")})
    landing = ledgers.landing(dataset, pieces)
    amended = replace(landing, pieces=(replace(pieces[0], rows=1),), version=1)
    other = ledgers.landing(dataset, ledgers.pieces(dataset, {"b": rows_of("z")}))
    each_lake.ensure(dataset)
    each_lake.stage(landing)
    each_lake.stage(amended)
    if is_moved:
        land(each_lake, other)
    first, second = each_lake.look(dataset.name, landing.id).staged

    each_lake.publish(dataset.name, second.snapshot)
    for snapshot in (first.snapshot, second.snapshot):
        with pytest.raises(UnavailableError):
            each_lake.publish(dataset.name, snapshot)

    found = each_lake.look(dataset.name, landing.id)
    assert found.published is not None
    assert (found.published.version, found.published.rows) == (1, 1)
    assert (found.published.snapshot == second.snapshot) is not is_moved
    assert first in found.staged
    assert (second in found.staged) is is_moved
    assert [row[:3] for row in stored(spark_of(each_lake), dataset)] == [
        ("a", 1, "x"),
        *([("b", 1, "z")] if is_moved else []),
    ]


@pytest.mark.parametrize("is_moved", [False, True], ids=["fast-forward", "after another commit"])
def test_a_burned_id_refuses_what_was_staged_under_it(
    each_lake: IcebergTables, ledgers: Ledgers, is_moved: bool
) -> None:  # L-SEQ-6
    dataset = logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")}))
    other = ledgers.landing(dataset, ledgers.pieces(dataset, {"b": rows_of("z")}))
    each_lake.ensure(dataset)
    each_lake.stage(landing)
    (late,) = each_lake.look(dataset.name, landing.id).staged
    if is_moved:
        land(each_lake, other)

    each_lake.burn(dataset.name, landing.id)
    each_lake.burn(dataset.name, landing.id)  # nothing happens
    with pytest.raises(UnavailableError):
        each_lake.publish(dataset.name, late.snapshot)

    found = each_lake.look(dataset.name, landing.id).published
    assert found is not None
    assert (found.version, found.rows) == (BURNED, 0)
    assert [row[0] for row in stored(spark_of(each_lake), dataset)] == (["b"] if is_moved else [])


def test_a_published_id_is_not_burned(lake: IcebergTables, ledgers: Ledgers) -> None:  # L-SEQ-6
    dataset = logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")}))
    snapshot = land(lake, landing)

    lake.burn(dataset.name, landing.id)

    found = lake.look(dataset.name, landing.id).published
    assert found is not None
    assert (found.snapshot, found.rows) == (snapshot, 1)


@pytest.mark.parametrize("reader", ["by ourselves", "by Spark"])
def test_another_process_sees_what_is_staged_and_may_publish_it(
    spark: SparkSession, spark_lake: LakeSettings, content: ContentStore, ledgers: Ledgers, reader: str
) -> None:  # L-FLUSH-2: read fresh
    settings = spark_lake if reader == "by ourselves" else LakeSettings(warehouse="unused", catalog="rest")
    one = IcebergTables(spark, content, settings)
    other = IcebergTables(spark.newSession(), content, settings)
    dataset = logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")}))
    one.ensure(dataset)
    other.look(dataset.name, landing.id)
    one.stage(landing)

    snapshot = publish(other, landing)

    found = one.look(dataset.name, landing.id).published
    assert found is not None
    assert found.snapshot == snapshot


def test_the_session_of_the_caller_never_gets_the_id(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # L-FLUSH-1: the id is a setting of the session
    dataset = logs()

    land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")})))

    assert spark_of(lake).conf.get("spark.wap.id", None) is None
    assert all(session.conf.get("spark.wap.id", None) is None for session in idle_sessions(spark_of(lake)))


def test_find_walks_parents_and_never_takes_a_staged_snapshot_for_an_ancestor() -> None:  # L-FLUSH-2
    snapshots = (
        Snapshot(1, None, wap="a", version="0", rows="5", bytes="7", files="1"),
        Snapshot(2, 1, wap="b", version="1"),
        Snapshot(3, 1),
        Snapshot(4, 3, published="b", copy_of="2", rows="9"),
        Snapshot(5, 4, wap="c", version="2"),
        Snapshot(6, 1, wap="c", version="3"),
    )
    history = History(4, {each.id: each for each in snapshots})

    assert find(history, "a") == LandingSnapshots(Published(1, 0, 5, 7, 1), ())
    assert find(history, "b") == LandingSnapshots(Published(4, 1, 9, 0, 0), (Staged(2, 1),))
    assert find(history, "c") == LandingSnapshots(None, (Staged(5, 2), Staged(6, 3)))
    assert find(history, "d") == LandingSnapshots(None, ())
    assert find(History(None, {2: snapshots[1]}), "b") == LandingSnapshots(None, (Staged(2, 1),))


def test_a_copy_whose_original_is_gone_is_damage_and_no_version_is_guessed() -> None:  # L-FLUSH-5, L-FLUSH-13
    history = History(4, {4: Snapshot(4, None, published="b", copy_of="2")})

    with pytest.raises(CorruptionError):
        find(history, "b")


# Segments that cannot be read


def damage(content: ContentStore, landing: FlushLanding) -> str:
    """Cut the bytes of the last segment short."""
    cid = landing.pieces[-1].segment.cid
    digest = cid.removeprefix("sha256-")
    path = Path(content.url) / "sha256" / digest[:2] / digest
    path.write_bytes(path.read_bytes()[:-10])
    return cid


@pytest.mark.parametrize("how", ["here", "by tasks"])
def test_an_unreadable_segment_is_named_and_nothing_is_staged(
    each_lake: IcebergTables, ledgers: Ledgers, how: str, request: pytest.FixtureRequest
) -> None:  # L-FLUSH-13
    if how == "by tasks":
        request.getfixturevalue("by_tasks")
    dataset = logs()
    pieces = [
        *ledgers.pieces(dataset, {"a": rows_of(*"vwx")}),
        *ledgers.pieces(dataset, {"b": rows_of(*"yz")}),
    ]
    landing = ledgers.landing(dataset, pieces)
    cid = damage(ledgers.content, landing)
    each_lake.ensure(dataset)

    with pytest.raises(SegmentUnreadable) as caught:
        each_lake.stage(landing)

    assert caught.value.segment == cid
    assert each_lake.look(dataset.name, landing.id) == LandingSnapshots(None, ())
    good = replace(landing, pieces=landing.pieces[:1], version=1)
    each_lake.stage(good)
    publish(each_lake, good)
    assert [row[:2] for row in stored(spark_of(each_lake), dataset)] == [("a", 1), ("a", 2), ("a", 3)]


# Repeats


def keyed(**settings: Any) -> Dataset:
    return logs(identity=Identity("level"), collapse=True, **settings)


@pytest.mark.parametrize("how", ["here", "by tasks"])
def test_repeats_inside_a_flush_keep_the_lowest_seq_of_each_strand(
    each_lake: IcebergTables, ledgers: Ledgers, how: str, request: pytest.FixtureRequest
) -> None:  # L-STAMP-7
    if how == "by tasks":
        request.getfixturevalue("by_tasks")
    dataset = keyed()
    nameless: list[dict[str, Any]] = [{"level": None}, {"level": None}]
    pieces = [
        *ledgers.pieces(dataset, {"a": rows_of("x", "y", "x"), "b": rows_of("x")}),
        *ledgers.pieces(dataset, {"a": [*rows_of("y", "z"), *nameless]}),
    ]

    land(each_lake, ledgers.landing(dataset, pieces))

    found = stored(spark_of(each_lake), dataset, "source", "_sl_seq", "level")
    assert found == [
        ("a", 1, "x"),
        ("a", 2, "y"),
        ("a", 5, "z"),
        ("a", 6, None),
        ("a", 7, None),
        ("b", 1, "x"),
    ]


def test_without_an_identity_the_whole_content_is_what_collapses(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # L-STAMP-4
    dataset, kept = logs(collapse=True), logs()
    rows = [{"level": "x", "n": 1}, {"level": "x", "n": 2}, {"level": "x", "n": 1}]

    land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows})))
    land(lake, ledgers.landing(kept, ledgers.pieces(kept, {"b": rows})))

    assert stored(spark_of(lake), dataset, "_sl_seq") == [(1,), (2,)]
    assert stored(spark_of(lake), kept, "_sl_seq") == [(1,), (2,), (3,)]


def test_a_repeat_in_a_later_flush_is_a_row_of_its_own_with_the_same_stored_row_id(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # F-4, L-STAMP-4
    dataset = keyed(dedupe_on_flush=False)

    for _ in range(2):
        land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")})))

    (first, second) = stored(spark_of(lake), dataset, "_sl_seq", "_sl_row_id", "_sl_flush")
    assert (first[0], first[2], second[0], second[2]) == (1, 1, 2, 2)
    assert first[1] == second[1]


@pytest.mark.parametrize("how", ["by list", "by join", "by tasks"])
def test_rows_that_are_committed_in_their_strand_are_left_out_at_the_door(
    each_lake: IcebergTables,
    ledgers: Ledgers,
    how: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # L-FLUSH-9
    if how != "by list":
        monkeypatch.setattr(stage, "FEW_IDS", 0)
    if how == "by tasks":
        request.getfixturevalue("by_tasks")
    dataset = keyed(dedupe_on_flush=True)
    land(
        each_lake,
        ledgers.landing(dataset, ledgers.pieces(dataset, {"a'": rows_of("x", "y"), "b": rows_of("z")})),
    )
    again = ledgers.pieces(
        dataset, {"a'": rows_of("y", "z", "z", "x"), "b": [*rows_of("y"), {"level": None}]}
    )

    landing = ledgers.landing(dataset, again)
    land(each_lake, landing)

    assert stored(spark_of(each_lake), dataset, "source", "_sl_seq", "level", "_sl_flush") == [
        ("a'", 1, "x", 1),
        ("a'", 2, "y", 1),
        ("a'", 4, "z", 2),
        ("b", 1, "z", 1),
        ("b", 2, "y", 2),
        ("b", 3, None, 2),
    ]
    found = each_lake.look(dataset.name, landing.id).published
    assert found is not None
    assert found.rows == 3


def test_a_flush_of_nothing_but_repeats_is_published_empty(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # L-FLUSH-9, L-FLUSH-2
    dataset = keyed(dedupe_on_flush=True)
    land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")})))

    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x")}))
    land(lake, landing)

    found = lake.look(dataset.name, landing.id).published
    assert found is not None
    assert (found.rows, found.version) == (0, 0)


def test_a_flush_that_is_staged_again_after_it_was_published_does_not_remove_itself(
    lake: IcebergTables, ledgers: Ledgers
) -> None:  # L-FLUSH-9, F-26
    dataset = keyed(dedupe_on_flush=True)
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x", "y")}))
    land(lake, landing)

    lake.stage(landing)

    (copy,) = lake.look(dataset.name, landing.id).staged
    counted = spark_of(lake).sql(
        f"SELECT summary['added-records'] FROM {table_name(dataset.name)}.snapshots "
        f"WHERE snapshot_id = {copy.snapshot}"
    )
    assert counted.collect()[0][0] == "2"


# Settle hooks


def drop_debug(rows: DataFrame) -> DataFrame:
    return rows.where("level <> 'debug'").selectExpr("upper(level) as level", "n", "source", "_sl_place")


@pytest.mark.parametrize("how", ["here", "by tasks"])
def test_a_settle_hook_changes_and_drops_rows_before_their_ids_are_made(
    each_lake: IcebergTables, ledgers: Ledgers, how: str, request: pytest.FixtureRequest
) -> None:  # L-FLUSH-7
    if how == "by tasks":
        request.getfixturevalue("by_tasks")
    dataset, plain = logs(), logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x", "debug", "y")}))
    twin = Ledgers(ledgers.content)
    land(each_lake, twin.landing(plain, twin.pieces(plain, {"a": rows_of("X", "debug", "Y")})))

    land(each_lake, landing, settle=drop_debug)

    columns = ("_sl_seq", "level", "_sl_row_id")
    kept = stored(spark_of(each_lake), dataset, *columns)
    assert [row[:2] for row in kept] == [(1, "X"), (3, "Y")]
    assert kept == stored(spark_of(each_lake), plain, *columns)[::2]
    published = each_lake.look(dataset.name, landing.id).published
    assert published is not None
    assert (published.settled_drop, published.settle_failure) == (1, None)


def raises(_: DataFrame) -> DataFrame:
    raise RuntimeError("no policy")


def fails_later(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("cast(raise_error('late') as string) as level", "n", "source", "_sl_place")


def loses_the_place(rows: DataFrame) -> DataFrame:
    return rows.select("level", "n", "source")


def doubles(rows: DataFrame) -> DataFrame:
    return rows.unionAll(rows)


def moves(rows: DataFrame) -> DataFrame:
    place = "named_struct('source', source, '_sl_seq', 1L, '_sl_at', _sl_place._sl_at) as _sl_place"
    return rows.selectExpr("level", "n", "source", place)


def shifts(rows: DataFrame) -> DataFrame:
    """Every place is another's, and none is doubled."""
    seq = rows["_sl_place"].getField("_sl_seq") + 7
    return rows.withColumn("_sl_place", rows["_sl_place"].withField("_sl_seq", seq))


def moves_elsewhere(rows: DataFrame) -> DataFrame:
    return rows.withColumn("_sl_place", rows["_sl_place"].withField("source", lit("b")))


@pytest.mark.parametrize(
    "hook", [raises, fails_later, loses_the_place, doubles, moves, shifts, moves_elsewhere]
)
def test_rows_pass_unchanged_where_a_settle_hook_fails_and_the_failure_is_told(
    lake: IcebergTables, ledgers: Ledgers, hook: Callable[[DataFrame], DataFrame]
) -> None:  # L-FLUSH-7
    dataset = logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x", "debug")}))

    land(lake, landing, settle=hook)

    assert stored(spark_of(lake), dataset, "_sl_seq", "level") == [(1, "x"), (2, "debug")]
    published = lake.look(dataset.name, landing.id).published
    assert published is not None
    assert published.settled_drop == 0
    assert published.settle_failure


def test_a_segment_that_fails_under_a_settle_hook_is_not_taken_for_its_failure(
    lake: IcebergTables, ledgers: Ledgers, by_tasks: None
) -> None:  # L-FLUSH-7, L-FLUSH-13
    dataset = logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": rows_of("x", "debug")}))
    damage(ledgers.content, landing)
    lake.ensure(dataset)

    with pytest.raises(SegmentUnreadable):
        lake.stage(landing, settle=drop_debug)


def test_a_write_that_fails_because_the_warehouse_moved_says_so(
    spark_settings: SparkSettings,
    spark: SparkSession,
    content: ContentStore,
    ledgers: Ledgers,
    tmp_path: Path,
) -> None:  # L-CTL-7
    moving = LakeSettings(warehouse=str(tmp_path / "warehouse"), uri=str(tmp_path / "catalog.db"))
    session = start_spark(moving, spark_settings)
    tables, dataset = IcebergTables(session, content, moving), logs()
    landing = ledgers.landing(dataset, ledgers.pieces(dataset, {"a": [{"level": "x"}]}))
    snapshot = land(tables, landing)
    Path(moving.warehouse).rename(tmp_path / "elsewhere")

    acts: list[Callable[[], None]] = [
        lambda: tables.ensure(replace(dataset, columns=(Column("new", "int"), *dataset.columns))),
        lambda: tables.stage(replace(landing, id="another")),
        lambda: tables.publish(dataset.name, snapshot),
    ]
    for act in acts:
        with pytest.raises(WarehouseMoved, match=re.escape(moving.warehouse)):
            act()
