"""A node over real Spark and real Iceberg: what a user does, and what must hold of it."""

import shutil
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.base.ranges import Range
from strandline.config.config import FILE_NAME
from strandline.errors import UsageError
from strandline.flush.reconcile import SWEEP_PAUSED, StoreBehindTables
from strandline.lake.jobs.expire_snapshots import snapshots
from strandline.lake.metadata.iceberg import TableMissing, UnstampedRows, WarehouseMoved, table_marks
from strandline.node.node import Node
from strandline.persist import kv_get, read
from strandline.read.token import InvalidToken, ReadToken
from strandline.rows.dataset import SchemaBreaking, Strand
from strandline.rows.validate import BadRows
from strandline.state.dataset_versions import DatasetUnknown

SETTINGS = """version = 1
[spark]
master = "local[2]"
conf = { "spark.driver.memory" = "1g" }
"""


def open_here(home: Path, settings: str = "") -> Node:
    """A node on the Spark of the run, with a lake of its own."""
    home.mkdir(exist_ok=True)
    (home / FILE_NAME).write_text(SETTINGS + settings)
    return strandline.open(home)


@pytest.fixture(scope="module")
def node(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One for all tests of this file that leave it whole: each has a dataset of its own."""
    with open_here(tmp_path_factory.mktemp("nodes") / "node") as opened:
        yield opened


@pytest.fixture
def fresh(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:
    with open_here(tmp_path / "node") as opened:
        yield opened


def stored(node: Node, dataset: str) -> list[tuple[str, int, int, dict[str, Any]]]:
    """Everything in the table: source, seq, flush and row, nulls left out."""
    schema = node.site.known(dataset).dataset
    rows = node.reader.rows(schema, internal=True).collect()
    found = [
        (
            row["source"],
            row["_sl_seq"],
            row["_sl_flush"],
            {
                key: value
                for key, value in row.asDict().items()
                if value is not None and not key.startswith("_sl_")
            },
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each[:3])


def numbers(*values: int) -> list[dict[str, Any]]:
    return [{"n": value} for value in values]


def test_what_is_appended_is_in_the_table_after_a_flush(node: Node) -> None:  # invariant 2
    node.append("logs2", numbers(1, 2), source="a")
    node.append("logs2", numbers(3), source="b/c")

    report = node.flush("logs2")

    assert report.rows == 3
    assert report.flushes[0].files == 2
    assert stored(node, "logs2") == [
        ("a", 1, 1, {"n": 1, "source": "a"}),
        ("a", 2, 1, {"n": 2, "source": "a"}),
        ("b/c", 1, 1, {"n": 3, "source": "b/c"}),
    ]


def test_every_type_comes_back_as_it_was(node: Node) -> None:  # L-SCH-4
    row = {
        "s": "é\n'\"",
        "i": -(2**63),
        "f": 0.1,
        "ok": False,
        "at": datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC),
        "day": date(1969, 12, 31),
        "money": Decimal("-12345.67"),
        "raw": b"\0\xff",
        "open": {"b": [1, 2.5, None], "a": {"deep": "ü"}},
    }
    node.append("types", [row], source="a")
    node.flush("types")

    (page,) = node.scan("types", source="a")

    assert page.rows == ({**row, "source": "a"},)


def test_public_reads_show_no_internal_column(node: Node) -> None:  # L-STAMP-9
    node.append("shown", numbers(1), source="a")
    node.flush("shown")

    assert node.read("shown").columns == ["n", "source"]
    assert node.sql("SELECT * FROM shown").columns == ["n", "source"]
    assert node.read("shown", columns=["n"]).collect()[0].asDict() == {"n": 1}


def test_a_column_that_came_later_reads_as_null_in_old_rows(node: Node) -> None:  # L-SCH-5, L-SCH-7
    node.append("grown", numbers(1), source="a")
    node.flush("grown")
    node.append("grown", [{"n": 2, "more": "x"}], source="a")
    node.flush("grown")
    node.append("grown", numbers(3), source="a")
    node.flush("grown")

    rows = [row for row, _ in node.scan("grown", source="a").rows()]

    assert [(row["n"], row["more"]) for row in rows] == [(1, None), (2, "x"), (3, None)]


def test_a_load_lands_any_dataframe(node: Node) -> None:  # L-SEQ-2
    node.append("loaded", [{"id": -1}], source="s1")
    df = node.spark.range(5000).selectExpr("id", "concat('s', id % 3) AS source")

    result = node.load("loaded", df)
    node.flush("loaded")

    assert result.rows == 5000
    assert result.ranges == {"s0": Range(0, 1667), "s1": Range(1, 1668), "s2": Range(0, 1666)}
    found = stored(node, "loaded")
    assert len({(source, seq) for source, seq, _, _ in found}) == len(found) == 5001
    assert {row["id"] for *_, row in found} == {-1, *range(5000)}
    assert not node.spark.sql("SHOW TABLES IN strandline.scratch").collect()


def test_bad_rows_of_a_load_reserve_nothing(node: Node) -> None:
    node.append("narrow", numbers(1), source="a")

    with pytest.raises((BadRows, SchemaBreaking)):
        node.load("narrow", node.spark.createDataFrame([("x",)], "n string"), source="a")

    assert node.site.standing.numbers("narrow").last == 0
    assert not node.spark.sql("SHOW TABLES IN strandline.scratch").collect()


def test_an_import_brings_rows_in_once(node: Node, tmp_path: Path) -> None:  # L-SCH-12, F-1
    folder = str(tmp_path / "legacy")
    node.spark.range(100).selectExpr("id AS n").repartition(4).write.parquet(folder)

    first = node.import_rows("imported", folder, kind="parquet", source="old")
    again = node.import_rows("imported", folder, kind="parquet", source="old")

    assert (first.rows, again.rows, again.is_repeat) == (100, 100, True)
    found = stored(node, "imported")
    assert [seq for _, seq, _, _ in found] == list(range(1, 101))
    assert {row["n"] for *_, row in found} == set(range(100))


def test_an_iceberg_table_is_imported_as_of_one_snapshot(node: Node) -> None:  # L-SCH-12
    node.spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.legacy")
    node.spark.sql("CREATE TABLE strandline.legacy.old (n BIGINT, source STRING) USING iceberg")
    node.spark.sql("INSERT INTO strandline.legacy.old VALUES (1, 'a'), (2, 'b'), (3, 'a')")

    node.import_rows("from_table", "strandline.legacy.old", kind="iceberg")

    assert [(source, seq, row["n"]) for source, seq, _, row in stored(node, "from_table")] in (
        [("a", 1, 1), ("a", 2, 3), ("b", 1, 2)],
        [("a", 1, 3), ("a", 2, 1), ("b", 1, 2)],
    )


# Reads by token


def test_a_reader_that_follows_by_token_sees_each_row_once_in_order(node: Node) -> None:  # L-READ-2, -4
    token, seen = None, []
    for start in range(0, 30, 10):
        node.append("followed", numbers(*range(start, start + 10)), source="a")
        node.append("followed", numbers(-1), source="other")
        node.flush("followed")
        scan = node.scan("followed", source="a", since=token, max_rows=4)
        for page in scan:
            seen += [row["n"] for row in page.rows]
            token = page.token
        assert token == scan.end

    assert seen == list(range(30))
    assert list(node.scan("followed", source="a", since=token)) == []


def test_over_all_sources_the_order_is_flush_source_seq_and_tokens_stand_between_flushes(node: Node) -> None:
    """L-READ-2."""
    for flush in range(3):
        for source in ("b", "a"):
            node.append("all", [{"at": f"{flush}{source}{i}"} for i in range(3)], source=source)
        node.flush("all")

    rows = list(node.scan("all", max_rows=4).rows())

    assert [row["at"] for row, _ in rows] == [f"{f}{s}{i}" for f in range(3) for s in "ab" for i in range(3)]
    assert [index for index, (_, after) in enumerate(rows) if after is not None] == [5, 11, 17]
    rest = list(node.scan("all", since=rows[5][1], max_rows=100).rows())
    assert [row["at"] for row, _ in rest] == [row["at"] for row, _ in rows[6:]]
    assert rest[-1][1] == node.end("all")


def test_pages_are_bounded_in_bytes_whatever_their_rows(node: Node) -> None:  # L-READ-11
    for source in ("a", "b"):
        node.append("wide", [{"text": f"{i:03}" + "x" * 10_000} for i in range(30)], source=source)
    node.flush("wide")

    for scan in (
        node.scan("wide", source="a", max_bytes=50_000),
        node.scan("wide", source="b", max_bytes=50_000),
        node.scan("wide", max_bytes=50_000),
    ):
        pages = list(scan)
        assert max(len(page.rows) for page in pages) <= 5
        texts = [row["text"][:3] for page in pages for row in page.rows]
        assert texts == [f"{i:03}" for i in range(30)] * (len(texts) // 30)
        assert pages[-1].token == scan.end


def test_a_flush_whose_last_rows_are_gone_is_passed_all_the_same(node: Node) -> None:  # L-READ-4
    node.settle("tail", lambda rows: rows.where("n < 3"))
    node.append("tail", numbers(1, 2, 3), source="a")
    node.append("tail", numbers(4), source="b")
    node.flush("tail")

    scan = node.scan("tail")

    assert [row["n"] for page in scan for row in page.rows] == [1, 2]
    assert [page.token for page in node.scan("tail")][-1] == scan.end
    assert list(node.scan("tail", since=scan.end)) == []


def test_until_is_held_to_what_is_visible(node: Node) -> None:  # L-READ-3
    node.append("clamped", numbers(1, 2), source="a")
    node.flush("clamped")
    end = node.end("clamped", source="a")
    first = next(iter(node.scan("clamped", source="a", max_rows=1, until=end)))
    later = ReadToken(node.origin, "clamped", "a", 99).text()

    assert [row["n"] for row in first.rows] == [1]
    scan = node.scan("clamped", source="a", until=later)
    assert (scan.is_clamped, scan.end) == (True, end)
    assert node.read("clamped", source="a", until=first.token).count() == 1
    assert node.read("clamped", source="a", since=first.token, until=end).collect()[0]["n"] == 2


def test_tokens_of_elsewhere_are_refused(node: Node) -> None:  # L-READ-6
    node.append("tokens", numbers(1), source="a")
    node.flush("tokens")
    token = node.end("tokens", source="a")

    for wrong in (
        lambda: node.read("tokens", since=token),
        lambda: node.read("tokens", source="b", since=token),
        lambda: node.read("tokens", source="a", since=node.end("tokens")),
        lambda: node.scan("tokens", source="a", since=token[:-1]),
    ):
        with pytest.raises(InvalidToken):
            wrong()


def test_an_unknown_dataset_is_an_error_and_an_empty_one_is_empty(node: Node) -> None:  # L-READ-12
    with pytest.raises(DatasetUnknown):
        node.read("never")
    node.append("waiting", numbers(1), source="a")

    assert node.read("waiting", refresh="never").count() == 0
    assert node.read("waiting", refresh="never").columns == ["n", "source"]
    assert list(node.scan("waiting", source="a", refresh="never")) == []


def test_refresh_flushes_when_asked_and_when_the_data_is_old(node: Node) -> None:  # L-READ-13
    node.append("fresh", numbers(1), source="a")
    assert node.read("fresh").count() == 1  # never flushed before: older than any age
    node.append("fresh", numbers(2), source="a")

    assert node.read("fresh", refresh="never").count() == 1
    assert node.read("fresh").count() == 1
    assert node.read("fresh", refresh="always").count() == 2


def test_a_read_that_does_not_flush_tells_the_age_of_its_data(node: Node) -> None:  # L-READ-13
    node.append("aged", numbers(1), source="a")
    never = node.age("aged")
    node.flush("aged")
    whole = node.age("aged")
    node.append("aged", numbers(2, 3), source="a")

    scan = node.scan("aged")
    told = node.age("aged")

    assert (never.pending_rows, never.as_of, never.age_s) == (1, None, None)
    assert (whole.pending_rows, whole.age_s) == (0, 0)
    assert scan.age.pending_rows == told.pending_rows == 2
    assert scan.age.as_of == node.site.standing.numbers("aged").flushed_at
    assert scan.age.age_s is not None
    assert 0 < scan.age.age_s <= (told.age_s or 0) < 120
    assert node.scan("aged", refresh="always").age.pending_rows == 0


def test_a_scan_over_all_sources_names_a_whole_flush_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-READ-2, L-READ-11
    monkeypatch.setattr("strandline.read.read.MOST_PIECES", 3)
    rows = [{"n": n, "source": f"s{n % 7}"} for n in range(40)]
    node.append("crowded", rows[:21])
    node.flush("crowded")
    node.append("crowded", rows[21:])
    node.flush("crowded")

    pages = [list(node.scan("crowded", max_rows=size)) for size in (100, 21, 5, 1)]

    wanted = sorted(rows[:21], key=lambda row: (row["source"], row["n"])) + sorted(
        rows[21:], key=lambda row: (row["source"], row["n"])
    )
    for each in pages:
        assert [row for page in each for row in page.rows] == wanted
        ends = [after for page in each for after in page.afters if after is not None]
        assert len(ends) == 2
    assert len(pages[0]) == 1  # two flushes whole are two pieces


def test_large_rows_after_small_ones_are_bounded_in_bytes_too(node: Node) -> None:  # L-READ-11
    small = [{"t": "x"} for _ in range(10)]
    node.append("uneven", [*small, *({"t": "y" * 1000} for _ in range(10))], source="a")
    node.flush("uneven")

    pages = list(node.scan("uneven", source="a", max_rows=10, max_bytes=3_000))

    assert len(pages[0].rows) == 10
    assert all(sum(len(row["t"]) for row in page.rows) <= 3_000 for page in pages)
    assert sum(len(page.rows) for page in pages) == 20


def test_a_scan_goes_on_though_snapshot_after_snapshot_expires(node: Node) -> None:  # L-READ-7
    for value in (1, 2, 3):
        node.append("fleeting", numbers(value), source="a")
        node.flush("fleeting")
    table = node.reader.rows(node.site.known("fleeting").dataset)
    assert table.count() == 3
    gone = 4711  # a snapshot that is not there any more
    for source in ("a", None):
        scan = node.scan("fleeting", source=source, max_rows=1)
        found = []
        for page in scan:
            found += [row["n"] for row in page.rows]
            scan._snapshot = gone
        assert found == [1, 2, 3]


def test_a_scan_keeps_its_rows_while_the_table_moves_on(node: Node) -> None:  # L-READ-7
    node.append("pinned", numbers(*range(6)), source="a")
    node.flush("pinned")
    pages = iter(node.scan("pinned", source="a", max_rows=2))
    first = next(pages)
    node.append("pinned", [{"n": 99, "younger": "x"}], source="a")
    node.flush("pinned")

    rest = [row["n"] for page in pages for row in page.rows]

    assert [row["n"] for row in first.rows] + rest == list(range(6))


def test_a_released_gap_is_passed_in_one_step(node: Node) -> None:  # L-READ-4
    node.append("gap", numbers(1), source="a")
    node.flush("gap")
    strand = Strand("gap", "a")
    from strandline.state.strand_entries import Raised, append_of

    node.site.b.commit([], [append_of(strand.ledger, Raised(1, 10_000_000, "a test"), 0)])
    node.site.heads.clear()
    node.append("gap", numbers(2), source="a")
    node.flush("gap")

    pages = list(node.scan("gap", source="a", max_rows=1000))

    assert [row["n"] for page in pages for row in page.rows] == [1, 2]
    assert stored(node, "gap")[1][1] == 10_000_001


def test_a_query_is_no_way_into_the_tables(node: Node) -> None:  # L-STAMP-1, F-3
    node.append("guarded", numbers(1), source="a")
    node.flush("guarded")

    for statement in (
        "INSERT INTO strandline.datasets.guarded VALUES (1)",
        "DROP TABLE strandline.datasets.guarded",
        "WITH x AS (SELECT 1) INSERT INTO strandline.datasets.guarded SELECT * FROM x",
        "/* select */ DELETE FROM strandline.datasets.guarded",
        "FROM guarded INSERT INTO strandline.datasets.guarded SELECT *",
    ):
        with pytest.raises(UsageError, match="is no query"):
            node.sql(statement)
    with pytest.raises(UsageError, match="not public"):
        node.sql("SELECT _sl_seq FROM strandline.datasets.guarded")
    assert node.sql("WITH x AS (SELECT n FROM guarded) SELECT ') insert' AS t, n FROM x").count() == 1


def test_a_dataset_that_is_declared_and_has_no_rows_is_a_table_without_rows(
    spark: SparkSession, tmp_path: Path
) -> None:  # L-READ-12
    settings = '[datasets.quiet]\ncolumns = { n = "bigint", text = "string" }\n'
    with open_here(tmp_path / "node", settings) as node:
        found = node.sql("SELECT count(*) AS count, max(n) AS n FROM quiet").collect()

    assert [tuple(row) for row in found] == [(0, None)]


def test_explain_tells_which_files_a_read_opens(node: Node) -> None:  # L-READ-14
    for number in range(4):
        node.append("explained", numbers(number), source="a")
        node.flush("explained")
    token = next(iter(node.scan("explained", source="a", max_rows=3))).token

    plan = node.explain("explained", source="a", since=token)

    assert (plan.files_considered, plan.files_opened, plan.files_pruned) == (4, 1, 3)
    assert plan.bytes > 0


# The store and its tables


def test_a_store_that_knows_its_tables_is_opened_without_looking_into_them(fresh: Node) -> None:  # L-SEQ-9
    fresh.append("known", numbers(1), source="a")
    fresh.flush("known")

    with open_here(fresh.config.home) as again:
        again.append("known", numbers(2), source="a")
        pointer = kv_get(again.site.b, "table/known")

    assert pointer is not None
    assert kv_get(fresh.site.b, SWEEP_PAUSED) is None


def test_a_lost_store_gives_out_no_number_again(fresh: Node, tmp_path: Path) -> None:  # L-SEQ-9, F-7
    fresh.append("kept", numbers(1, 2, 3), source="a")
    fresh.append("kept", numbers(1), source="b")
    fresh.flush("kept")
    fresh.append("kept", numbers(4), source="a")
    fresh.flush("kept")
    home = fresh.config.home
    fresh.close()
    (home / "strandline.db").rename(tmp_path / "lost.db")

    with open_here(home) as anew:
        with pytest.warns(StoreBehindTables, match="kept"):
            receipt = anew.append("kept", numbers(5), source="a")
        other = anew.append("kept", numbers(6), source="c")
        report = anew.flush("kept")

        assert receipt.ranges == {"a": Range(4, 5)}
        assert other.ranges == {"c": Range(0, 1)}
        assert report.flushes[0].number == 3
        assert kv_get(anew.site.b, SWEEP_PAUSED) is not None
        assert sorted(row["n"] for row in anew.read("kept").collect()) == [1, 1, 2, 3, 4, 5, 6]
        # The plans of the old flushes are lost with the store; their rows are found in the table.
        everything = list(anew.scan("kept", max_rows=2).rows())
        assert [row["n"] for row, _ in everything] == [1, 2, 3, 1, 4, 5, 6]
        assert [index for index, (_, after) in enumerate(everything) if after] == [3, 4, 6]
        seqs = [(source, seq) for source, seq, _, _ in stored(anew, "kept")]
        assert len(seqs) == len(set(seqs)) == 7


def test_a_restored_store_is_raised_above_its_tables(fresh: Node, tmp_path: Path) -> None:  # L-SEQ-9, F-7
    fresh.append("restored", numbers(1), source="a")
    fresh.flush("restored")
    home = fresh.config.home
    fresh.close()
    shutil.copy(home / "strandline.db", tmp_path / "copy.db")
    with open_here(home) as later:
        later.append("restored", numbers(2, 3), source="a")
        later.flush("restored")
    for file in home.glob("strandline.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy.db", home / "strandline.db")

    with open_here(home) as old:
        with pytest.warns(StoreBehindTables):
            receipt = old.append("restored", numbers(4), source="a")
        old.flush("restored")

        assert receipt.ranges == {"a": Range(3, 4)}
        assert [row["n"] for row, _ in old.scan("restored", source="a").rows()] == [1, 2, 3, 4]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            open_here(home).append("restored", numbers(5), source="a")


def test_rows_pending_in_a_backup_and_landed_since_do_not_land_again(fresh: Node, tmp_path: Path) -> None:
    """L-SEQ-9, invariant 1."""
    fresh.append("again", numbers(1), source="a")
    fresh.flush("again")
    fresh.append("again", numbers(2, 3), source="a")
    home = fresh.config.home
    fresh.close()
    shutil.copy(home / "strandline.db", tmp_path / "copy.db")
    with open_here(home) as later:
        later.flush("again")
    for file in home.glob("strandline.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy.db", home / "strandline.db")

    with open_here(home) as old:
        with pytest.warns(StoreBehindTables):
            old.append("again", numbers(4), source="a")
        old.flush("again")

        assert [(seq, row["n"]) for _, seq, _, row in stored(old, "again")] == [
            (1, 1),
            (2, 2),
            (3, 3),
            (4, 4),
        ]
        assert old.site.standing.strand_state(Strand("again", "a")).visible_through == 4


def test_a_writer_compares_the_store_with_its_tables_too(fresh: Node, tmp_path: Path) -> None:  # F-7
    fresh.append("written", numbers(1, 2), source="a")
    fresh.flush("written")
    home = fresh.config.home
    fresh.close()
    (home / "strandline.db").rename(tmp_path / "lost.db")

    with (
        open_here(home) as anew,
        pytest.warns(StoreBehindTables),
        anew.writer("written", source="a") as writer,
    ):
        assert writer.write({"n": 3}).result(30).seq == 3


def test_a_table_that_is_lost_is_not_made_anew(fresh: Node, tmp_path: Path) -> None:  # G-3, L-CTL-7
    fresh.append("lost", numbers(1), source="a")
    fresh.flush("lost")
    fresh.spark.sql("DROP TABLE strandline.datasets.lost")
    fresh.append("lost", numbers(2), source="a")

    with pytest.raises(TableMissing):
        fresh.flush("lost")
    assert fresh.site.standing.strand_state(Strand("lost", "a")).pending_rows == 1


def test_a_flush_of_many_sources_needs_one_open_file_a_task(node: Node) -> None:  # L-COST-5
    node.append("crowd", [{"n": i, "source": f"s{i:04}"} for i in range(600)])

    assert node.flush("crowd").rows == 600
    assert node.read("crowd").select("source").distinct().count() == 600


def test_a_warehouse_that_moved_is_never_taken_for_an_empty_one(
    fresh: Node, tmp_path: Path
) -> None:  # L-CTL-7
    fresh.append("moved", numbers(1), source="a")
    fresh.flush("moved")
    home = fresh.config.home
    with open_here(home) as other:
        other.append("moved", numbers(2), source="a")
    assert (
        kv_get(fresh.site.b, "table/moved") is not None
    )  # compared: the catalog goes on naming that metadata
    (home / "warehouse").rename(tmp_path / "elsewhere")

    with open_here(home) as again:
        for write in (
            lambda: again.append("moved", numbers(3), source="a"),
            lambda: again.writer("moved", source="a"),
            lambda: again.flush("moved"),
            lambda: again.load("moved", again.spark.range(1)),
        ):
            with pytest.raises(WarehouseMoved):
                write()
        with pytest.raises(WarehouseMoved):
            again.read("moved", refresh="never")
        with pytest.raises(WarehouseMoved):
            list(again.scan("moved", source="a", refresh="never"))
    with pytest.raises(WarehouseMoved):
        fresh.flush("moved")  # which was opened, and compared, before it moved
    assert fresh.site.standing.strand_state(Strand("moved", "a")).pending_rows == 1


def test_a_table_that_something_else_made_is_not_written_to(fresh: Node) -> None:  # L-SCH-12
    fresh.spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.datasets")
    fresh.spark.sql("CREATE TABLE strandline.datasets.foreign_ (n BIGINT, source STRING) USING iceberg")
    with pytest.raises(UnstampedRows):
        table_marks(fresh.config.lake_settings(), "foreign_")
    fresh.append("foreign_", numbers(1), source="a")

    with pytest.raises(UsageError):
        fresh.flush("foreign_")
    assert fresh.site.standing.strand_state(Strand("foreign_", "a")).pending_rows == 1


# Housekeeping


def test_old_snapshots_go_and_flushes_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:  # L-CMP-6, L-FLUSH-5
    settings = "[compaction]\nmax_snapshots = 5\nmin_snapshots = 2\n"
    with open_here(tmp_path / "node", settings) as node:
        for number in range(9):
            node.append("many", numbers(number), source="a")
            node.flush("many")

        assert len(snapshots(lambda: node.spark, node.config.lake_settings(), "many")) <= 6
        assert [row["n"] for row, _ in node.scan("many", source="a").rows()] == list(range(9))


def test_two_nodes_of_one_process_have_lakes_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    with open_here(tmp_path / "one") as one, open_here(tmp_path / "two") as two:
        one.append("same", numbers(1), source="a")
        two.append("same", numbers(2), source="a")

        one.flush("same")
        two.flush("same")

        assert [row["n"] for row in one.read("same").collect()] == [1]
        assert [row["n"] for row in two.read("same").collect()] == [2]


def test_threads_flush_datasets_side_by_side(node: Node) -> None:  # L-FLUSH-10
    for name in ("side_a", "side_b"):
        node.append(name, numbers(1, 2), source="a")
    threads = [threading.Thread(target=node.flush, args=(name,)) for name in ("side_a", "side_b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(stored(node, name)) for name in ("side_a", "side_b")] == [2, 2]


def test_a_settle_hook_drops_rows_and_a_failing_one_is_passed_over(node: Node) -> None:  # L-FLUSH-7
    node.settle("settled", lambda rows: rows.where("n > 1"))
    node.append("settled", numbers(1, 2, 3), source="a")
    first = node.flush("settled").flushes[0]
    node.settle("settled", lambda rows: rows.where("no_such_column > 1"))
    node.append("settled", numbers(0), source="a")
    second = node.flush("settled").flushes[0]

    assert (first.rows, first.dropped, first.duplicates) == (2, 1, 0)
    assert (second.rows, second.dropped) == (1, 0)
    assert second.settle_failure is not None
    assert [seq for _, seq, _, _ in stored(node, "settled")] == [2, 3, 4]
    assert node.site.standing.strand_state(Strand("settled", "a")).visible_through == 4
    committed = [event.data for event in read(node.site.b, "flush/settled") if event.type == "committed"]
    assert [each["dropped"] for each in committed] == [1, 0]
