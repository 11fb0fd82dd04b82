"""The commands that land and read rows, over a real Spark and real tables."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import Node
from tests.cli.terminal import on_terminal
from tests.spark_sessions import ConnectServer, lake_session


@pytest.fixture
def home(tmp_path: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node, whose commands find Spark started: a session on the run's Connect server, with the catalog of
    this node."""
    folder = tmp_path / "node"
    assert CliRunner().invoke(cli, ["init", str(folder)]).exit_code == 0
    monkeypatch.setenv(CONNECT_MODE, "1")
    conf = catalog_conf(load_config(folder / FILE_NAME).lake_settings())
    with lake_session(connect_server, conf) as opened:
        monkeypatch.setattr(Node, "spark", opened)
        yield folder


DATASET = "events"


def run(home: Path, *args: str, stdin: str | bytes = "", expect: int = 0) -> Result:
    done = CliRunner().invoke(cli, [*args, "--home", str(home)], input=stdin)
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    assert "Traceback" not in done.output
    return done


def objects(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def append(home: Path, dataset: str, *rows: dict[str, Any], options: tuple[str, ...] = ()) -> Any:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return objects(run(home, "append", dataset, "--json", *options, stdin=text))


def token_of(done: Result) -> str:
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("token: ")]
    return line.removeprefix("token: ")


def test_rows_are_appended_flushed_and_read_in_order(home: Path) -> None:  # L-CLI-1, L-READ-2
    append(home, DATASET, *({"n": n, "source": "ba"[n % 2]} for n in range(6)))
    (report,) = objects(run(home, "flush", DATASET, "--json"))
    append(home, DATASET, {"n": 6, "source": "a"})
    told = run(home, "flush")

    everything = run(home, "read", DATASET, "--format", "jsonl")
    of_a = run(home, "read", DATASET, "--source", "a", "--columns", "n", "--format", "csv")

    assert (report["dataset"], report["held"]) == (DATASET, {})
    assert [each["ranges"] for each in report["flushes"]] == [{"a": [[0, 3]], "b": [[0, 3]]}]
    assert told.stdout.splitlines()[1].split()[:2] == [DATASET, "2"]
    rows = [(row["source"], row["n"]) for row in objects(everything)]
    assert rows == [("a", 1), ("a", 3), ("a", 5), ("b", 0), ("b", 2), ("b", 4), ("a", 6)]
    assert of_a.stdout == "n\n1\n3\n5\n6\n"


def test_a_read_goes_on_from_its_token(home: Path) -> None:  # L-READ-3, L-READ-4
    append(home, DATASET, *({"n": n} for n in range(5)), options=("--source", "a"))
    run(home, "flush", DATASET)

    first = run(home, "read", DATASET, "--source", "a", "--limit", "2", "--format", "jsonl")
    rest = run(home, "read", DATASET, "--source", "a", "--since", token_of(first), "--json")
    *rows, end = objects(rest)
    nothing = run(home, "read", DATASET, "--source", "a", "--since", end["end"]["token"], "--format", "jsonl")

    assert [row["n"] for row in objects(first)] == [0, 1]
    assert [row["row"]["n"] for row in rows] == [2, 3, 4]
    assert end["end"]["rows"] == 3
    assert nothing.stdout == ""
    assert token_of(nothing) == end["end"]["token"]


def test_a_limit_inside_a_flush_gives_the_token_in_front_of_it(home: Path) -> None:  # L-READ-2
    append(home, DATASET, {"n": 1}, {"n": 2})
    run(home, "flush", DATASET)
    append(home, DATASET, {"n": 3}, {"n": 4})
    run(home, "flush", DATASET)

    cut = run(home, "read", DATASET, "--limit", "3", "--format", "jsonl")
    again = run(home, "read", DATASET, "--since", token_of(cut), "--format", "jsonl")

    assert [row["n"] for row in objects(cut)] == [1, 2, 3]
    assert "note: the limit ends inside a flush" in cut.stderr
    assert [row["n"] for row in objects(again)] == [3, 4]


def test_refresh_always_flushes_first(home: Path) -> None:  # L-READ-13
    append(home, DATASET, {"n": 1})
    run(home, "flush", DATASET)
    append(home, DATASET, {"n": 2})

    stale = run(home, "read", DATASET, "--format", "jsonl")
    fresh = run(home, "read", DATASET, "--refresh", "always", "--format", "jsonl")

    assert [row["n"] for row in objects(stale)] == [1]
    assert "note: 1 rows are not flushed, and the data is " in stale.stderr
    assert [row["n"] for row in objects(fresh)] == [1, 2]


ROW = {
    "t": "2026-01-02T03:04:05.000006Z",
    "d": "2026-01-02",
    "m": "1.50",
    "b": "AAE=",
    "f": "NaN",
    "j": {"k": [1, None]},
    "i": 2**53 + 1,
    "s": 'comma, "quote"',
}
COLUMNS = """
columns = {t = "timestamp", d = "date", m = "decimal(9,2)", b = "binary", f = "double", j = "json", \
i = "bigint", s = "string"}
"""


@pytest.fixture
def typed(home: Path) -> str:
    """A dataset with a column of each type, and one row that has landed."""
    config = home / "strandline.toml"
    config.write_text(config.read_text() + f"[datasets.{DATASET}]{COLUMNS}")
    append(home, DATASET, ROW)
    run(home, "flush", DATASET)
    return DATASET


def test_values_leave_in_the_form_in_which_they_came(home: Path, typed: str) -> None:  # L-FWD-5
    (row,) = objects(run(home, "read", typed, "--format", "jsonl"))
    (found,) = objects(run(home, "sql", f"SELECT * FROM {typed}", "--format", "jsonl"))
    table = run(home, "read", typed, "--columns", "t,i,s").stdout.splitlines()

    assert row == {**ROW, "source": "unknown"}
    assert found == {**ROW, "source": "unknown", "j": '{"k":[1,null]}'}  # to SQL a json column is its text
    assert table[0].split() == ["T", "I", "S"]
    assert table[1].split() == ["2026-01-02T03:04:05.000006Z", str(2**53 + 1), "comma,", '"quote"']


def test_csv_and_parquet_can_be_appended_again(home: Path, typed: str, tmp_path: Path) -> None:  # L-FWD-5
    out, parquet = tmp_path / "rows.csv", tmp_path / "rows.parquet"
    run(home, "read", typed, "--format", "csv", "--out", str(out))
    run(home, "read", typed, "--format", "parquet", "--out", str(parquet))
    by_sql = run(home, "sql", f"SELECT t, m, i FROM {typed}", "--format", "parquet")

    append_files = run(home, "append", typed, str(out), "--json")
    rows = pq.read_table(parquet).to_pylist()

    assert [each["rows"] for each in objects(append_files)] == [1]
    assert (rows[0]["m"], rows[0]["j"], rows[0]["i"]) == (Decimal("1.50"), '{"k":[1,null]}', 2**53 + 1)
    again = pq.read_table(pa.BufferReader(by_sql.stdout_bytes)).to_pylist()
    assert again == [{name: rows[0][name] for name in ("t", "m", "i")}]
    taken = run(home, "read", typed, "--format", "csv", "--out", str(out), expect=2)
    assert "output_exists" in taken.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node", "rows.csv", "rows.parquet"]


def test_explain_tells_the_files_that_are_passed_by(home: Path) -> None:  # L-READ-14, L-COST-3
    for n in range(3):
        append(home, DATASET, {"n": n}, options=("--source", "a"))
        run(home, "flush", DATASET)
    since = token_of(run(home, "read", DATASET, "--source", "a", "--limit", "2"))

    (whole,) = objects(run(home, "read", DATASET, "--explain", "--json"))
    (part,) = objects(run(home, "read", DATASET, "--source", "a", "--since", since, "--explain", "--json"))

    assert (whole["files_considered"], whole["files_opened"]) == (3, 3)
    assert (part["files_considered"], part["files_pruned"], part["files_opened"]) == (3, 2, 1)
    assert part["rows_at_most"] == 1
    assert 0 < part["bytes"] < whole["bytes"]


def test_sql_sees_datasets_as_tables(home: Path) -> None:  # L-CLI-1, L-STAMP-9
    append(home, DATASET, {"n": 1}, {"n": 2}, {"n": 3})
    run(home, "flush", DATASET)

    total = run(home, "sql", f"SELECT sum(n) AS total FROM {DATASET}")
    *rows, end = objects(run(home, "sql", "-", "--json", "--limit", "2", stdin=f"SELECT * FROM {DATASET}"))

    assert total.stdout.split() == ["TOTAL", "6"]
    assert all(row["row"].keys() == {"n", "source"} for row in rows)
    assert end == {"end": {"rows": 2, "datasets": {DATASET: {"pending_rows": 0, "age_s": 0}}}}


def test_reads_and_queries_tell_the_age_of_the_data(home: Path) -> None:  # L-READ-13
    append(home, DATASET, {"n": 1})
    run(home, "flush", DATASET)
    append(home, DATASET, {"n": 2}, {"n": 3})

    read = run(home, "read", DATASET)
    query = run(home, "sql", f"SELECT n FROM {DATASET}")
    *_, end = objects(run(home, "sql", f"SELECT n FROM {DATASET}", "--json"))

    told = r"2 rows are not flushed, and the data is \d+ s old; --refresh always flushes first"
    assert re.search(f"^note: {told}$", read.stderr, re.MULTILINE)
    assert re.search(f"^note: {DATASET}: {told}$", query.stderr, re.MULTILINE)
    assert end["end"]["datasets"][DATASET]["pending_rows"] == 2
    assert 0 <= end["end"]["datasets"][DATASET]["age_s"] < 120


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM nowhere_at_all", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELEC 1", "is no query"),
        ("SELECT 1 +", "PARSE_SYNTAX_ERROR"),
        ("SELECT 1 AS a, 2 AS a", "gives a twice"),
    ],
)
def test_a_query_that_makes_no_sense_is_wrong_use(
    home: Path, query: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:  # L-CLI-2
    done = run(home, "sql", query, expect=2)

    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 2  # the error and its hint, and no log of Spark's
    assert capfd.readouterr().err == ""


def test_load_lands_what_spark_reads(home: Path, tmp_path: Path) -> None:  # L-CLI-1, L-SEQ-2
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("n;s\n4;x\n")
    request = ("--request-id", "r1")

    (first,) = objects(
        run(home, "load", DATASET, str(tmp_path / "a.parquet"), "--source", "a", *request, "--json")
    )
    (again,) = objects(
        run(home, "load", DATASET, str(tmp_path / "a.parquet"), "--source", "a", *request, "--json")
    )
    csv = (str(tmp_path / "b.txt"), "--format", "csv", "--option", "sep=;", "--option", "inferSchema=true")
    told = run(home, "load", f"{DATASET}_csv", *csv)

    assert (first["rows"], first["ranges"], first["repeat"]) == (3, {"a": [0, 3]}, False)
    assert (again["rows"], again["repeat"], again["number"]) == (3, True, first["number"])
    assert dict(line.split(None, 1) for line in told.stdout.splitlines())["rows"] == "1"
    rows = objects(run(home, "read", DATASET, "--format", "jsonl"))
    assert [row["n"] for row in rows] == [1, 2, 3]
    (row,) = objects(run(home, "read", f"{DATASET}_csv", "--format", "jsonl"))
    assert row == {"n": 4, "s": "x", "source": "unknown"}


def test_an_input_that_spark_cannot_read_is_wrong_use(home: Path, tmp_path: Path) -> None:
    gone = run(home, "load", DATASET, str(tmp_path / "none.parquet"), expect=2)
    untold = run(home, "load", DATASET, str(tmp_path / "none"), expect=2)
    secret = run(home, "load", DATASET, "--format", "jdbc", "--option", "password=hunter2", expect=2)

    assert "input_unreadable" in gone.stderr
    assert "hint: --format" in untold.stderr
    assert "password=env:NAME" in secret.stderr
    assert "hunter2" not in secret.output


def test_a_damaged_segment_is_held_until_it_is_given_up(home: Path) -> None:  # L-SPOOL-13, L-CLI-2
    (bad,) = append(home, DATASET, {"n": 1}, {"n": 2}, options=("--source", "a"))
    append(home, DATASET, {"n": 3}, options=("--source", "a"))
    append(home, DATASET, {"n": 4}, options=("--source", "b"))
    digest = bad["segment"].rpartition(":")[2]
    (file,) = [path for path in (home / "content").rglob("*") if path.is_file() and digest[8:] in path.name]
    file.write_bytes(b"torn")

    held = run(home, "flush", DATASET, expect=3)
    listed = objects(run(home, "spool", "list", DATASET, "--json"))
    counted = run(home, "spool", "lost", bad["segment"][:-4], "--dry-run")
    refused = run(home, "spool", "lost", bad["segment"], expect=2)

    assert f"strandline flush {DATASET}: held: 2 rows of 1 strands" in held.stderr
    assert [hold["segment"] for each in listed for hold in each["held"]] == [bad["segment"]]
    assert counted.stdout.splitlines()[1].split() == ["a", "1-2", "2"]
    assert f"2 rows of {DATASET} in segment {bad['segment']} would be given up" in counted.stderr
    assert f"Give up 2 rows of '{DATASET}' (a 1-2) in segment {bad['segment']}" in refused.stderr
    assert [row["n"] for row in objects(run(home, "read", DATASET, "--format", "jsonl"))] == [4]

    (lost,) = objects(run(home, "spool", "lost", bad["segment"], "--yes", "--json"))
    run(home, "flush", DATASET)

    assert (lost["rows"], lost["ranges"]) == (2, {"a": [0, 2]})
    assert [row["n"] for row in objects(run(home, "read", DATASET, "--format", "jsonl"))] == [4, 3]


def test_one_dataset_that_fails_stops_no_other(home: Path) -> None:  # L-FLUSH-10, L-CLI-2, L-SCH-10
    append(home, "bad", {"n": 1})
    run(home, "flush")
    spark: Any = Node.spark
    spark.sql("ALTER TABLE strandline.datasets.bad ADD PARTITION FIELD n")  # by somebody else
    append(home, "bad", {"n": 2})
    append(home, "good", {"n": 1})

    done = run(home, "flush", "--json", expect=1)

    first, second = objects(done)
    assert (first["dataset"], first["error"]["kind"]) == ("bad", "partition_drift")
    assert (second["dataset"], len(second["flushes"])) == ("good", 1)
    assert "strandline flush bad: partition_drift: " in done.stderr


def test_a_store_that_lost_what_its_tables_hold_is_told_of(home: Path) -> None:  # L-SEQ-9
    append(home, DATASET, {"n": 1}, {"n": 2}, options=("--source", "a"))
    run(home, "flush")
    for path in home.glob("strandline.db*"):
        path.unlink()

    done = run(home, "append", DATASET, "--source", "a", "--json", stdin='{"n": 3}')

    assert objects(done)[0]["ranges"] == {"a": [2, 3]}
    assert done.stderr.startswith(f"note: the store knew less of dataset '{DATASET}' than its table holds")


def test_a_sync_shows_on_a_terminal_how_much_of_what_is_owed_is_delivered(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    CliRunner().invoke(cli, ["init", str(folder)])
    (folder / "strandline.toml").write_text(
        'version = 1\n[spark]\nmaster = "local[2]"\nconf = {"spark.driver.memory" = "1g"}\n'
        '[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "archive"\n'
    )
    run(folder, "append", "logs", stdin='{"n": 1}\n{"n": 2}\n{"n": 3}\n')

    done = on_terminal("sync", "--json", "--home", str(folder))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 3
    assert "0 of 3" in done.stderr
    assert "3 of 3" in done.stderr


@pytest.mark.slow
def test_a_process_of_its_own_starts_spark_and_says_so_on_a_terminal(tmp_path: Path) -> None:  # L-CLI-4
    folder = tmp_path / "node"
    CliRunner().invoke(cli, ["init", str(folder)])
    (folder / "strandline.toml").write_text(
        'version = 1\n[spark]\nmaster = "local[2]"\nconf = {"spark.driver.memory" = "1g"}\n'
    )
    run(folder, "append", "logs", stdin='{"message": "hello"}')

    query = ("SELECT message FROM logs", "--refresh", "always", "--json")
    done = on_terminal("sql", *query, "--home", str(folder))

    assert done.returncode == 0, done.stderr
    row, end = (json.loads(line) for line in done.stdout.splitlines())
    assert row == {"row": {"message": "hello"}}
    assert end["end"]["rows"] == 1
    assert end["end"]["datasets"]["logs"]["pending_rows"] == 0
    assert "starting Spark …" in done.stderr
    assert all(line.endswith(" …") for line in done.stderr.splitlines()), (
        done.stderr
    )  # and nothing of Spark's


def test_a_folder_of_parquet_is_imported_once(home: Path, tmp_path: Path) -> None:  # L-CLI-1, L-SCH-12
    folder = tmp_path / "legacy"
    folder.mkdir()
    for part in range(3):
        pq.write_table(pa.table({"n": range(part * 10, part * 10 + 10)}), folder / f"part-{part}.parquet")

    (first,) = objects(run(home, "import", DATASET, str(folder), "--source", "old", "--json"))
    (again,) = objects(run(home, "import", DATASET, str(folder), "--source", "old", "--json"))

    assert (first["rows"], first["repeat"], first["ranges"]) == (30, False, {"old": [0, 30]})
    assert (again["rows"], again["repeat"]) == (30, True)
    assert "not_found" in run(home, "import", DATASET, str(tmp_path / "nowhere"), expect=1).stderr
