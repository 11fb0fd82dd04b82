"""A warehouse that was moved, re-pointed and used again (L-CTL-7); a restore, confirmed (L-SEQ-9)."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from click.testing import CliRunner
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.flush.reconcile import SWEEP_PAUSED, confirm_restore, paused
from strandline.lake.metadata.avro import AvroUnreadable, rewritten
from strandline.lake.metadata.iceberg import WarehouseMoved, load_table, table_marks, table_pointers
from strandline.lake.metadata.relocate import relocate
from strandline.node.node import Node
from strandline.persist import kv_put, read
from strandline.state.context import open_site
from tests.node.test_node import numbers, open_here, stored

DEEP = {"n": -1, "t": "ü" * 300}


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:
    """Two flushes, a load and a schema that grew in between."""
    with open_here(tmp_path / "node") as opened:
        opened.append("logs", [*numbers(*range(50)), DEEP], source="a/b c")
        opened.flush("logs")
        opened.append("logs", [{"n": 1, "more": 2.5}], source="z")
        opened.flush("logs")
        opened.load("logs", opened.spark.range(3).selectExpr("id AS n"), source="loaded")
        opened.append("other", numbers(1), source="a")
        opened.flush("other")
        yield opened


def run(home: Path, *args: str, expect: int = 0) -> Any:
    done = CliRunner().invoke(cli, [*args, "--home", str(home)])
    assert done.exit_code == expect, done.output
    return done


def moved(node: Node, to: Path) -> Path:
    """The whole home, as an operator moves it."""
    node.close()
    shutil.move(node.config.home, to)
    return to


def test_a_moved_home_is_refused_until_it_is_re_pointed_and_then_whole(
    node: Node, tmp_path: Path
) -> None:  # L-CTL-7
    rows, end, origin = stored(node, "logs"), node.end("logs"), node.origin
    home = moved(node, tmp_path / "deep" / "elsewhere")

    with open_here(home) as again:
        with pytest.raises(WarehouseMoved) as caught:
            again.append("logs", numbers(100), source="z")
        assert "strandline maintain --relocate" in str(caught.value.hint)
        counted = run(home, "maintain", "--relocate", "--dry-run")
        with pytest.raises(WarehouseMoved):
            again.append("logs", numbers(100), source="z")
        told = [
            json.loads(line) for line in run(home, "maintain", "--relocate", "--json").stdout.splitlines()
        ]

        assert "2 tables would be re-pointed" in counted.stderr
        assert [each["table"] for each in told] == ["datasets.logs", "datasets.other"]
        assert all(str(home) in each["now"] and str(home) not in each["was"] for each in told)
        assert stored(again, "logs") == rows
        assert (again.end("logs"), again.origin) == (end, origin)
        again.append("logs", [{"n": 100, "new": "x"}], source="z")
        again.flush("logs")
        assert len(stored(again, "logs")) == len(rows) + 1
        assert [row["n"] for row, _ in again.scan("logs", since=end).rows()] == [100]
    assert run(home, "maintain", "--relocate").stderr == "0 tables re-pointed\n"


def test_nothing_of_a_re_pointed_table_names_the_old_place(node: Node, tmp_path: Path) -> None:  # L-CTL-7
    old, marks = str(node.config.home), table_marks(node.config.lake_settings(), "logs")
    home = moved(node, tmp_path / "elsewhere")
    with open_here(home) as again:
        lake = again.config.lake_settings()
        relocate(lake)

        table = load_table(lake, "logs")
        assert old not in table.metadata.model_dump_json()
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                assert manifest.manifest_length == Path(manifest.manifest_path).stat().st_size
                for entry in manifest.fetch_manifest_entry(table.io):
                    assert entry.data_file.file_path.startswith(lake.warehouse)
        after = table_marks(lake, "logs")
        assert (after.max_flush, after.max_seqs) == (marks.max_flush, marks.max_seqs)
        assert again.expire_snapshots("logs") == 0
        earlier = table.metadata.snapshots[0].snapshot_id
        old_rows = again.reader.rows(again.site.known("logs").dataset, snapshot=earlier)
        assert old_rows.count() == 51


def test_a_warehouse_that_is_nowhere_is_not_re_pointed(node: Node, tmp_path: Path) -> None:  # L-CTL-7
    home = moved(node, tmp_path / "elsewhere")
    (home / "warehouse" / "datasets" / "other").rename(tmp_path / "lost")
    with open_here(home) as again:
        lake = again.config.lake_settings()
        before = table_pointers(lake)

        with pytest.raises(WarehouseMoved, match="'other' should be at"):
            relocate(lake)

        assert table_pointers(lake) == before


def test_tables_are_taken_over_from_the_catalog_of_before(
    node: Node, tcp_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CTL-7
    rows, url = len(stored(node, "logs")), urlsplit(tcp_postgres)
    home = moved(node, tmp_path / "elsewhere")
    monkeypatch.setenv("PASSWORD", unquote(url.password or ""))
    place = f"postgresql://{url.username}@{url.hostname}:{url.port}/postgres"
    (home / FILE_NAME).write_text(f'version = 1\n[store]\nurl = "{place}"\npassword = "env:PASSWORD"\n')
    lake = load_config(home / FILE_NAME).lake_settings()
    words = ("maintain", "--relocate", "--catalog", str(home / "catalog.db"))

    counted = run(home, *words, "--dry-run")
    assert "2 tables would be re-pointed" in counted.stderr
    assert table_pointers(lake) == {}
    told = [json.loads(line) for line in run(home, *words, "--json").stdout.splitlines()]

    assert [each["table"] for each in told] == ["datasets.logs", "datasets.other"]
    assert all(str(home) in each["now"] for each in told)
    assert load_table(lake, "logs").scan().to_arrow().num_rows == rows
    assert run(home, *words).stderr == "0 tables re-pointed\n"
    places = {name: Path(place) for name, place in table_pointers(lake).items()}
    foreign = places["logs"].with_name("00099-of-another.metadata.json")
    foreign.write_bytes(places["other"].read_bytes())
    with psycopg.connect(lake.uri) as db:
        db.execute(
            "UPDATE iceberg_tables SET metadata_location = %s WHERE table_name = 'logs'", (str(foreign),)
        )
    assert "catalog_taken" in run(home, *words, expect=3).stderr


def test_a_catalog_of_before_is_named_for_a_relocation_only_and_must_be_one(
    tmp_path: Path,
) -> None:  # L-CTL-7
    home, other = tmp_path / "node", tmp_path / "other.db"
    assert CliRunner().invoke(cli, ["init", str(home)]).exit_code == 0
    other.write_bytes(b"no database" * 100)

    assert "add that" in run(home, "maintain", "--catalog", str(other), expect=2).stderr
    assert (
        "catalog_unreadable" in run(home, "maintain", "--relocate", "--catalog", str(other), expect=1).stderr
    )


def test_an_avro_file_of_which_nothing_is_changed_says_the_same(node: Node) -> None:
    table = load_table(node.config.lake_settings(), "logs")
    folder = Path(table.metadata_location).parent
    manifest = next(path for path in folder.glob("*-m0.avro"))
    seen: list[str] = []

    same = rewritten(manifest.read_bytes(), lambda record, _: seen.append(record))

    assert {"manifest_entry", "r2"} <= set(seen)
    again = rewritten(same, lambda _, __: None)
    assert again == same
    before = StaticTable.from_metadata(table.metadata_location).scan().to_arrow()
    manifest.write_bytes(same)
    assert StaticTable.from_metadata(table.metadata_location).scan().to_arrow().equals(before)
    for damaged in (b"", b"no avro", same[:-5], same[:200]):
        with pytest.raises(AvroUnreadable):
            rewritten(damaged, lambda _, __: None)


# Restores


def test_a_restore_is_confirmed_once_and_recorded(tmp_path: Path) -> None:  # L-SEQ-9
    home = tmp_path / "node"
    assert CliRunner().invoke(cli, ["init", str(home)]).exit_code == 0
    why = {"dataset": "logs", "at": 7, "reason": "the store was behind its tables"}
    assert "does not wait" in run(home, "maintain", "--confirm-restore").stderr
    site = open_site(load_config(home / FILE_NAME))
    kv_put(site.b, SWEEP_PAUSED, why)

    assert "--yes" in run(home, "maintain", "--confirm-restore", expect=2).stderr
    assert "would go on" in run(home, "maintain", "--confirm-restore", "--dry-run").stdout
    assert paused(site) == why
    (told,) = run(home, "maintain", "--confirm-restore", "--yes", "--json").stdout.splitlines()

    assert json.loads(told) == {**why, "dry_run": False}
    assert paused(site) is None
    assert [(event.type, event.data) for event in read(site.b, "sweep")] == [("confirmed", why)]
    assert confirm_restore(site) is None
    site.b.close()
