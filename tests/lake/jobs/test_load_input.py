"""Loads: an outside DataFrame is judged and written once, and its places number its rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.config.lake_settings import CATALOG, SCRATCH, LakeSettings
from strandline.errors import StrandlineError, UnavailableError, UsageError
from strandline.lake.jobs import load_input
from strandline.lake.jobs.stage import IcebergTables
from strandline.lake.jobs.table_schema import TableUnavailable, table_name
from strandline.rows.dataset import Column, Dataset, Identity, SchemaBreaking
from strandline.rows.validate import BadRows, RowTooLarge, accept
from strandline.state.landing import FixedInput, LoadLanding
from strandline.storage import open_content
from tests.lake.landings import AT, Ledgers, fresh_name, land, logs


@pytest.fixture
def lake(spark: SparkSession, spark_lake: LakeSettings, tmp_path: Path) -> IcebergTables:
    return IcebergTables(spark, open_content(tmp_path / "content"), spark_lake)


@pytest.fixture
def each_lake(each_spark: SparkSession, each_spark_lake: LakeSettings, tmp_path: Path) -> IcebergTables:
    return IcebergTables(each_spark, open_content(tmp_path / "content"), each_spark_lake)


def rows_in(spark: SparkSession, rows: int, *, sources: int = 3, tasks: int = 4) -> DataFrame:
    return spark.range(0, rows, 1, tasks).selectExpr(
        "concat('level-', id) as level", "id as n", f"concat('web-', id % {sources}) as source"
    )


def load_of(dataset: Dataset, input: FixedInput, *, number: int = 1, lo: int = 0, **rest: Any) -> LoadLanding:
    return LoadLanding(
        dataset, number, f"load-{fresh_name()}", input, dict.fromkeys(input.rows, lo), AT, **rest
    )


def stored(spark: SparkSession, dataset: Dataset) -> list[tuple[Any, ...]]:
    found = spark.table(table_name(dataset.name)).orderBy("source", "_sl_seq")
    return [tuple(row) for row in found.select("source", "_sl_seq", "level", "n", "_sl_flush").collect()]


def scratch_tables(spark: SparkSession) -> set[str]:
    return {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {CATALOG}.{SCRATCH}").collect()}


def test_a_load_numbers_each_source_densely_and_stages_the_same_again(
    each_lake: IcebergTables,
) -> None:  # L-SEQ-2, L-STAMP-6
    spark = each_lake._spark
    dataset = logs()
    fixed, grown = each_lake.fix_input(rows_in(spark, 1000), dataset, fresh_name("load"), source=None)
    landing = load_of(grown, fixed, number=7, lo=100)

    land(each_lake, landing)
    first = stored(spark, dataset)
    again = replace(landing, dataset=replace(grown, name=logs().name))
    land(each_lake, again)

    assert fixed.rows == {"web-0": 334, "web-1": 333, "web-2": 333}
    assert grown == dataset
    assert [row[1] for row in first if row[0] == "web-0"] == list(range(101, 435))
    assert [row[1] for row in first if row[0] == "web-2"] == list(range(101, 434))
    assert sorted(row[3] for row in first) == list(range(1000))
    assert {row[4] for row in first} == {7}
    assert stored(spark, again.dataset) == first


@pytest.mark.parametrize("file_rows", [1, load_input.FILE_ROWS])
def test_the_files_of_a_load_are_sorted_by_seq(
    lake: IcebergTables, file_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SCH-1
    monkeypatch.setattr(load_input, "FILE_ROWS", file_rows)  # with 1 each file of the input has its own task
    dataset = logs()
    fixed, _ = lake.fix_input(rows_in(lake._spark, 300), dataset, fresh_name("load"), source=None)

    land(lake, load_of(dataset, fixed))

    placed = lake._spark.sql(f"SELECT _file, _sl_seq FROM {table_name(dataset.name)} ORDER BY _file, _pos")
    by_file: dict[str, list[int]] = {}
    for file, seq in placed.collect():
        by_file.setdefault(file, []).append(seq)
    assert all(seqs == sorted(seqs) for seqs in by_file.values())
    assert sum(map(len, by_file.values())) == 300


def test_a_load_grows_its_dataset_from_the_types_of_the_frame(
    lake: IcebergTables,
) -> None:  # L-SCH-5, L-SCH-4
    dataset = Dataset(fresh_name(), (Column("n", "int"), Column("when", "timestamp")))
    df = lake._spark.sql(
        "SELECT 5000000000L AS n, named_struct('b', 1, 'a', array(1, 2)) AS labels, "
        "'2026-01-02T03:04:05Z' AS when, cast(1.5 AS decimal(6,2)) AS d, cast(3 AS tinyint) AS t, null AS no"
    )

    fixed, grown = lake.fix_input(df, dataset, fresh_name("load"), source="it's")
    land(lake, load_of(grown, fixed))

    assert [(c.name, c.type) for c in grown.columns] == [
        ("n", "bigint"),
        ("when", "timestamp"),
        ("labels", "json"),
        ("d", "decimal(6,2)"),
        ("t", "int"),
    ]
    assert grown.version == dataset.version + 1
    found = lake._spark.sql(
        f"SELECT source, n, labels, unix_micros(when), cast(d AS string), t FROM {table_name(dataset.name)}"
    )
    assert tuple(found.collect()[0]) == (
        "it's",
        5_000_000_000,
        '{"a":[1,2],"b":1}',
        1767323045000000,
        "1.50",
        3,
    )


def test_a_value_that_only_a_wider_column_holds_is_kept_exactly_and_widens_it(
    lake: IcebergTables,
) -> None:  # L-SPOOL-8, L-SCH-5
    columns = tuple(Column(name, "float") for name in "fg") + tuple(
        Column(name, "decimal(5,2)") for name in "de"
    )
    dataset = Dataset(fresh_name(), columns)
    df = lake._spark.sql(
        "SELECT 16777217 AS f, 3 AS g, cast(12345.670 AS decimal(8,3)) AS d, cast(1.5 AS decimal(8,3)) AS e"
    )

    fixed, grown = lake.fix_input(df, dataset, fresh_name("load"), source="a")
    land(lake, load_of(grown, fixed))

    types = {column.name: column.type for column in grown.columns}
    assert types == {"f": "double", "g": "float", "d": "decimal(38,2)", "e": "decimal(5,2)"}
    found = lake._spark.table(table_name(dataset.name)).select("f", "g", "d", "e").collect()
    assert [tuple(map(str, row)) for row in found] == [("16777217.0", "3.0", "12345.67", "1.50")]


def test_a_row_over_the_limit_refuses_the_load(
    spark: SparkSession, spark_lake: LakeSettings, tmp_path: Path
) -> None:  # L-SPOOL-8
    lake = IcebergTables(spark, open_content(tmp_path / "content"), spark_lake, max_row_bytes=100)
    df = spark.sql("SELECT repeat('é', if(id = 7, 47, 46)) AS level, id AS n FROM range(10)")

    with pytest.raises(RowTooLarge, match="102 bytes"):
        lake.fix_input(df, logs(), fresh_name("load"), source="a")
    fixed, _ = lake.fix_input(df.where("n <> 7"), logs(), fresh_name("load"), source="a")

    assert fixed.rows == {"a": 9}


ODD = {
    "no UTF-8": "cast(X'80' AS string) AS level",
    "beyond the year 9999": "timestamp_micros(253402300800000000) AS at",
    "before the year 1": "date_sub(date'0001-01-01', 1) AS day",
    "a contradicting source": "'b' AS source",
    "a source that cannot be stored": "concat('x', char(0)) AS host",
    "a source of the wrong type": "1.5D AS host",
}


@pytest.mark.parametrize("odd", ODD)
def test_spark_judges_the_rows_of_a_load_as_the_door_does(lake: IcebergTables, odd: str) -> None:  # L-SPOOL-8
    dataset = replace(logs(), source_columns=("host",))
    source = "a" if "source" in ODD[odd] else None
    df = lake._spark.sql(f"SELECT {ODD[odd]}")
    wanted = accept(dataset, df.toArrow(), source=source).refusals

    with pytest.raises(UsageError) as caught:
        lake.fix_input(df, dataset, fresh_name("load"), source=source)

    error: Any = caught.value
    assert [*error.refusals] == wanted
    assert wanted


def test_a_load_finds_its_sources_as_an_append_does(lake: IcebergTables) -> None:  # L-SPOOL-8
    dataset = replace(logs(), source_columns=("host", "port"))
    df = lake._spark.sql(
        "SELECT * FROM VALUES ('own', 'h', 1), ('', 'h', 1), (null, '', 1), (null, null, null) "
        "AS t(source, host, port)"
    )
    judged = accept(dataset, df.toArrow()).table["source"].to_pylist()

    fixed, _ = lake.fix_input(df, dataset, fresh_name("load"), source=None)

    assert fixed.rows == {"own": 1, "h": 1, "1": 1, "unknown": 1}
    assert sorted(judged) == sorted(fixed.rows)


def test_plain_columns_need_no_python(lake: IcebergTables) -> None:  # L-COST-5
    spark, dataset = lake._spark, logs()
    alike = spark.sql("SELECT 'x' AS level, 1 AS n, 'a' AS source, 2.5D AS new, now() AS at")

    plain = load_input.plain_rows(alike, load_input.grown_for(dataset, alike.schema), None)

    assert plain is not None
    assert plain.columns == ["_sl_refusal", "level", "n", "new", "at", "source"]
    assert load_input.plain_rows(spark.sql("SELECT 1.5D AS n"), dataset, None) is None


@pytest.mark.parametrize("type_", ["timestamp_ntz", "interval day to second", "variant"])
def test_a_type_that_no_dataset_holds_is_refused_by_name(lake: IcebergTables, type_: str) -> None:  # L-SCH-6
    values = {"variant": "parse_json('1')", "timestamp_ntz": "timestamp_ntz'2026-01-01'"}
    df = lake._spark.sql(f"SELECT {values.get(type_, 'interval 1 day')} AS odd")

    with pytest.raises(UsageError, match="'odd'"):
        lake.fix_input(df, logs(), fresh_name("load"), source="a")


def test_reserved_names_are_refused(lake: IcebergTables) -> None:  # L-STAMP-8
    with pytest.raises(UsageError, match="reserved"):
        load_input.grown_for(logs(), lake._spark.sql("SELECT 1 AS _sl_seq").schema)


def test_bad_rows_refuse_the_load_and_leave_nothing_behind(
    each_lake: IcebergTables,
) -> None:  # L-SPOOL-8, L-SPOOL-9
    spark = each_lake._spark
    dataset = replace(logs(), columns=(Column("n", "bigint"), Column("level", "int")))
    load_id = fresh_name("load")

    with pytest.raises((BadRows, SchemaBreaking)) as caught:
        each_lake.fix_input(rows_in(spark, 1000), dataset, load_id, source=None)

    error: Any = caught.value
    assert 1 <= len(error.refusals) <= 100
    assert {refusal.column for refusal in error.refusals} == {"level"}
    assert load_id not in scratch_tables(spark)


def test_a_single_bad_row_among_good_ones_refuses_the_load(lake: IcebergTables) -> None:  # L-SPOOL-9
    dataset = Dataset(fresh_name(), (Column("x", "double", required=True),))
    df = lake._spark.sql("SELECT if(id = 7, null, double(id)) AS x FROM range(0, 100, 1, 2)")

    with pytest.raises(StrandlineError) as caught:
        lake.fix_input(df, dataset, fresh_name("load"), source="a")

    error: Any = caught.value
    assert [refusal.column for refusal in error.refusals] == ["x"]


def test_an_input_is_there_until_it_is_dropped_and_its_files_go_with_it(
    each_lake: IcebergTables,
) -> None:  # L-SEQ-2, L-SEQ-6
    spark = each_lake._spark
    rows = rows_in(spark, 10).drop("source")
    load_id = fresh_name("load")
    fixed, _ = each_lake.fix_input(rows, logs(), load_id, source="a'\\b")
    (file, *_) = (row[0] for row in spark.sql(f"SELECT file_path FROM {fixed.table}.files").collect())

    assert fixed.rows == {"a'\\b": 10}
    assert each_lake.has_input(fixed)
    assert not each_lake.has_input(replace(fixed, snapshot=fixed.snapshot + 1))
    each_lake.drop_input(load_id)
    each_lake.drop_input(load_id)
    assert not each_lake.has_input(fixed)
    folder = Path(file.removeprefix("file:")).parent.parent
    assert [path for path in folder.glob("*/*") if not path.name.startswith(".")] == []


def test_a_removal_of_an_input_that_was_cut_short_is_done_again(
    lake: IcebergTables, spark_lake: LakeSettings
) -> None:  # L-SEQ-2
    load_id = fresh_name("load")
    fixed, _ = lake.fix_input(rows_in(lake._spark, 10), logs(), load_id, source=None)
    shown = lake._spark.sql(f"SELECT path FROM {fixed.table}.manifests").collect()
    named = [
        row[0] for row in lake._spark.sql(f"SELECT manifest_list FROM {fixed.table}.snapshots").collect()
    ]
    for path in (shown[0][0], named[0]):
        Path(path.removeprefix("file:")).unlink()

    load_input.remove_input(spark_lake, load_id)

    assert load_id not in scratch_tables(lake._spark)


def test_a_fixing_that_a_crash_cut_short_is_done_anew(lake: IcebergTables) -> None:  # L-SEQ-2
    load_id = fresh_name("load")
    lake.fix_input(rows_in(lake._spark, 10), logs(), load_id, source=None)

    fixed, _ = lake.fix_input(rows_in(lake._spark, 20), logs(), load_id, source=None)

    assert sum(fixed.rows.values()) == 20
    assert lake.has_input(fixed)


def test_an_input_without_rows_is_fixed_too(lake: IcebergTables) -> None:  # L-SEQ-2
    fixed, _ = lake.fix_input(rows_in(lake._spark, 0), logs(), fresh_name("load"), source=None)

    assert fixed.rows == {}
    assert lake.has_input(fixed)


def test_a_source_without_a_number_fails_the_stage_instead_of_losing_rows(
    lake: IcebergTables,
) -> None:  # L-SEQ-2
    dataset = logs()
    fixed, _ = lake.fix_input(rows_in(lake._spark, 10), dataset, fresh_name("load"), source=None)
    landing = load_of(dataset, fixed)
    lake.ensure(dataset)

    with pytest.raises(UnavailableError, match="has no number"):
        lake.stage(replace(landing, los={"web-0": 0, "web-1": 0}))


def test_rows_of_a_source_that_do_not_stand_together_fail_the_stage(lake: IcebergTables) -> None:  # L-SEQ-2
    dataset = logs()
    fixed, _ = lake.fix_input(rows_in(lake._spark, 4), dataset, fresh_name("load"), source=None)
    mixed = lake._spark.sql(
        "SELECT 'x' AS level, id AS n, concat('s', id % 2) AS source FROM range(0, 10, 1, 1)"
    )
    mixed.writeTo(fixed.table).overwrite(_true())
    shown = lake._spark.sql(f"SHOW TBLPROPERTIES {fixed.table} ('current-snapshot-id')").collect()[0][1]
    input = FixedInput(fixed.table, int(shown), {"s0": 5, "s1": 5})
    lake.ensure(dataset)

    with pytest.raises(UnavailableError, match="do not stand together"):
        lake.stage(load_of(dataset, input))


def _true() -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(True)


def test_a_load_leaves_out_what_is_committed_and_its_own_repeats(lake: IcebergTables) -> None:  # L-FLUSH-9
    spark = lake._spark
    dataset = logs(identity=Identity("level"), collapse=True, dedupe_on_flush=True)
    ledgers = Ledgers(lake._content)
    land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"web-0": [{"level": "level-0"}]})))
    twice = rows_in(spark, 300).unionAll(rows_in(spark, 150))
    fixed, grown = lake.fix_input(twice, dataset, fresh_name("load"), source=None)

    land(lake, load_of(grown, fixed, number=2, lo=1))

    found = stored(spark, dataset)
    assert sorted(row[2] for row in found) == sorted(f"level-{at}" for at in range(300))
    assert ("web-0", 1, "level-0", None, 1) in found


def test_a_load_that_was_looked_for_leaves_out_what_has_come_since_alone(lake: IcebergTables) -> None:
    """L-FLUSH-9: what is older nobody looks for again, here it would be found."""
    spark = lake._spark
    dataset = logs(identity=Identity("level"), collapse=True, dedupe_on_flush=True)
    ledgers = Ledgers(lake._content)
    for level in ("level-0", "level-3"):
        land(lake, ledgers.landing(dataset, ledgers.pieces(dataset, {"web-0": [{"level": level}]})))
    fixed, grown = lake.fix_input(rows_in(spark, 9), dataset, fresh_name("load"), source=None)

    land(lake, load_of(grown, fixed, number=3, lo=2, looked=1))

    brought = {row[2] for row in stored(spark, dataset) if row[4] == 3}
    assert brought == {f"level-{at}" for at in range(9)} - {"level-3"}


def test_a_column_that_the_dataset_gained_after_the_input_was_fixed_is_null(
    lake: IcebergTables,
) -> None:  # L-SCH-5
    dataset = logs()
    fixed, grown = lake.fix_input(rows_in(lake._spark, 2), dataset, fresh_name("load"), source=None)
    later = replace(grown, columns=(*grown.columns, Column("added", "json")))

    land(lake, load_of(later, fixed))

    assert lake._spark.table(table_name(dataset.name)).where("added is null").count() == 2


def test_an_error_of_the_frame_itself_is_the_callers_and_leaves_nothing(
    lake: IcebergTables,
) -> None:  # L-SEQ-2
    load_id = fresh_name("load")
    df = lake._spark.sql("SELECT raise_error('mine') AS level FROM range(3)")

    with pytest.raises(TableUnavailable, match="mine"):
        lake.fix_input(df.selectExpr("cast(level as string) level"), logs(), load_id, source="a")

    assert load_id not in scratch_tables(lake._spark)
