"""The providers that ship, by configuration: files of every kind, anything that Spark reads, frames (L-BF-1,
L-BF-4, L-BF-9 to L-BF-13)."""

import gzip
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.backfill.run_history import backfill_stream
from strandline.config.sources import ProviderNotConfigured
from strandline.lake.jobs.table_schema import table_name
from strandline.node.node import Node
from strandline.persist import read
from strandline.sources.provider import Item
from strandline.state.lease import LeaseHeld, held
from tests.backfill.rig import hook, left_out, open_here, parquet_of

CONFIG = """
[datasets.orders]
columns = { id = "bigint", shop = "string", at = "timestamp" }
identity = { key = "id" }
source = ["shop"]
[datasets.sales]
columns = { id = "bigint", shop = "string" }
identity = { key = "id" }
duplicates = "keep"
source = ["shop"]
[datasets.seen]
columns = { id = "bigint", shop = "string" }
identity = { key = "id" }
duplicates = "keep"

[backfill.archive]
type = "files"
path = "archive"
dataset = "logs2"
source = "old"
quiesce_s = 0
[backfill.large]
type = "files"
path = "large"
dataset = "sales"
frame_bytes = 1
quiesce_s = 0
[backfill.large-seen]
type = "files"
path = "large-seen"
dataset = "seen"
source = "a"
frame_bytes = 1
quiesce_s = 0
[backfill.large-plain]
type = "files"
path = "large-plain"
dataset = "plain"
frame_bytes = 1
quiesce_s = 0
[backfill.shop]
type = "spark"
format = "jdbc"
options = { url = "jdbc:sqlite:%s/shop.db", dbtable = "orders", driver = "org.sqlite.JDBC" }
dataset = "orders"
select = ["id", "shop", "timestamp_seconds(at) as at"]
[backfill.days]
type = "spark"
format = "parquet"
load = "%s/days"
dataset = "daily"
source = "d"
time_column = "day"
"""


@pytest.fixture(scope="module")
def node(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One for all tests of this file: each has a dataset of its own."""
    home = tmp_path_factory.mktemp("providers")
    with open_here(home, CONFIG % (home, home)) as opened:
        yield opened


def column(node: Node, dataset: str, name: str = "id") -> list[Any]:
    node.flush(dataset)
    return sorted(row[0] for row in node.spark.sql(f"SELECT {name} FROM {table_name(dataset)}").collect())


def folder(node: Node, name: str) -> Path:
    made = node.config.home / name
    made.mkdir(exist_ok=True)
    return made


def test_files_of_every_kind_below_a_folder_come_in(node: Node) -> None:  # L-BF-1
    here = folder(node, "archive")
    (here / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (here / "deep").mkdir()
    (here / "deep" / "b.csv.gz").write_bytes(gzip.compress(b"n,text\n3,x\n"))
    pq.write_table(pa.table({"n": [4]}), here / "c.parquet")
    (here / "notes.txt").write_text("not rows")
    node.append("logs2", [{"n": 0, "text": "t"}], source="live")

    result = node.backfills.run("archive")

    assert (result.status, result.tally.items, result.tally.written) == ("done", 3, 4)
    (here / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 5}\n')
    again = node.backfills.run("archive")
    assert (again.tally.written, again.tally.chunk_known) == (1, 4)
    assert column(node, "logs2", "n") == [0, 1, 2, 3, 4, 5]
    events = [event.type for event in read(node.site.b, backfill_stream("archive"))]
    assert events == ["began", "ended"] * 2


def test_a_frame_goes_through_spark_and_what_is_known_is_left_out(node: Node) -> None:  # L-BF-4, L-BF-12
    node.append("sales", [{"id": 1}, {"id": 2}], source="a")
    node.flush("sales")
    node.append("sales", [{"id": 3}], source="a")
    parquet_of(folder(node, "large") / "x.parquet", [1, 2, 3, 4, 5, 5])

    planned = node.backfills.run("large", is_dry=True)
    result = node.backfills.run("large")
    again = node.backfills.run("large")

    assert (planned.tally.written, left_out(planned)) == (2, (2, 1, 1, 0))
    assert (result.tally.written, left_out(result)) == (2, (2, 1, 1, 0))
    assert (again.tally.written, left_out(again)) == (0, (0, 0, 0, 6))
    assert column(node, "sales") == [1, 2, 3, 4, 5]
    parquet_of(folder(node, "large") / "x.parquet", [1, 2, 3, 4, 5, 6, 7], shop="b")  # another strand
    assert node.backfills.run("large").tally.written == 7


@pytest.mark.parametrize("place", ["ledgers", "spooled", "committed", "append"])
def test_a_row_that_comes_while_a_frame_is_on_its_way_is_one_row(
    node: Node, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:  # F-24, L-BF-4: the reservation expects the ledgers; the second net is off
    number = 100 * (1 + ["ledgers", "spooled", "committed", "append"].index(place))
    parquet_of(folder(node, "large-seen") / f"{place}.parquet", [number, number + 1, number + 2])
    rows = [{"id": number + 1}, {"id": number + 9}]
    hook(monkeypatch, f"backfill.{place}", lambda: node.append("seen", rows, source="a"))

    result = node.backfills.run("large-seen")

    assert (result.status, result.tally.written) == ("done", 2)
    found = [each for each in column(node, "seen") if number <= each < number + 100]
    assert found == [number, number + 1, number + 2, number + 9]


def test_a_frame_without_identity_is_written_once_and_refused_when_it_has_changed(node: Node) -> None:
    """L-BF-10"""
    parquet_of(folder(node, "large-plain") / "x.parquet", [1, 1])

    first, again = node.backfills.run("large-plain"), node.backfills.run("large-plain")
    parquet_of(folder(node, "large-plain") / "x.parquet", [1, 1, 2])
    changed = node.backfills.run("large-plain")

    assert (first.tally.written, again.tally.chunk_known) == (2, 2)
    assert [each.kind for each in changed.tally.failures] == ["item_changed"]
    assert column(node, "plain") == [1, 1]


def test_a_database_comes_in_over_jdbc(node: Node) -> None:  # L-BF-1
    with sqlite3.connect(node.config.home / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER, shop TEXT, at INTEGER)")
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(1, "a", 0), (2, "b", 60), (3, "b", 61)])
    shop.close()
    node.append("orders", [{"id": 2, "shop": "b"}])

    first = node.backfills.run("shop")
    with sqlite3.connect(node.config.home / "shop.db") as shop:
        shop.execute("INSERT INTO orders VALUES (4, 'a', 62)")
    shop.close()
    second = node.backfills.run("shop")

    assert (first.status, first.tally.written, first.tally.spooled) == ("done", 2, 1)
    assert (second.tally.written, second.tally.committed + second.tally.spooled) == (1, 3)
    assert node.backfills.run("shop").tally.chunk_known == 4
    assert column(node, "orders") == [1, 2, 3, 4]


def test_a_time_column_cuts_a_source_into_days_that_stay(node: Node) -> None:  # L-BF-10, L-BF-11
    now = datetime.now(UTC)
    days = [(now + timedelta(days=off)).date() for off in (-5, -4, -4, 1)]
    node.spark.createDataFrame([(day, n) for n, day in enumerate(days)], "day date, n int").write.parquet(
        str(node.config.home / "days")
    )
    until = now - timedelta(days=3)

    first = node.backfills.run("days", since=now - timedelta(days=4), until=until)
    again = node.backfills.run("days", since=now - timedelta(days=5), until=until)
    tomorrow = node.backfills.run("days", since=now + timedelta(days=1), until=now + timedelta(days=1))

    assert (first.tally.items, first.tally.waiting, first.tally.written) == (2, 0, 2)
    assert (again.tally.items, again.tally.written, again.tally.chunk_known) == (3, 1, 2)
    assert (tomorrow.tally.items, tomorrow.tally.waiting) == (0, 1)  # it is not over, whatever it has
    assert column(node, "daily", "n") == [0, 1, 2]


def test_one_provider_runs_once_at_a_time(node: Node) -> None:  # L-BF-13
    site = node.site
    with held(site.b, site.clock, "backfill/archive"), pytest.raises(LeaseHeld):
        node.backfills.run("archive")


def test_a_provider_that_is_not_configured_is_named(node: Node) -> None:  # L-BF-12
    with pytest.raises(
        ProviderNotConfigured, match=r"no provider 'nowhere' is configured; there are archive"
    ):
        node.backfills.run("nowhere")


def test_the_window_is_that_of_retention_if_nothing_else_is_said(node: Node) -> None:  # L-BF-11
    since = node.backfills.window("archive").since

    assert since is not None
    assert abs(datetime.now(UTC) - timedelta(days=90) - since) < timedelta(minutes=5)


def test_items_are_frames_from_a_size_on(node: Node) -> None:
    parquet_of(folder(node, "large") / "x.parquet", [1])
    window = node.backfills.window("large")

    (item,) = node.backfills.provider("large").items(window)

    assert isinstance(item, Item)
    assert item.is_frame
    assert item.version is not None
