"""The commands over a node that need no Spark: what they print, how they end, and what they leave."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.cli.node_options import note_holder
from strandline.config.config import load_config
from strandline.node.node import open_node
from strandline.read.token import ReadToken
from strandline.state.lease import take_lease
from tests.cli.terminal import on_terminal

CHUNK = 10_000  # rows of one append


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRANDLINE_HOME", raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    run(None, "init", str(folder))
    return folder


def run(home: Path | None, *args: str, stdin: str | bytes = "", expect: int = 0) -> Result:
    options = [] if home is None else ["--home", str(home)]
    done = CliRunner().invoke(cli, [*args, *options], input=stdin)
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    assert "Traceback" not in done.output
    return done


def objects(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def pending(home: Path, dataset: str) -> dict[str, int]:
    """The rows of each source that are stored and not landed."""
    return {each["source"]: each["rows"] for each in objects(run(home, "spool", "list", dataset, "--json"))}


def child(home: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "strandline", *args, "--home", str(home)]
    return subprocess.run(
        command, capture_output=True, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, check=False
    )


# init


def test_init_makes_a_node_and_says_what_next(tmp_path: Path) -> None:  # L-CLI-1
    done = run(None, "init", str(tmp_path / "n"), "--json")
    told = run(None, "init", str(tmp_path / "m"))

    (facts,) = objects(done)
    assert facts["home"] == str(tmp_path / "n")
    assert re.fullmatch("[0-9a-f]{32}", facts["origin"])  # 128 bits
    assert Path(load_config(Path(facts["config"])).store_url).exists()
    assert [verb in told.stderr for verb in ("append", "flush", "sql")] == [True] * 3
    with open_node(tmp_path / "n") as node:
        assert node.origin == facts["origin"]


def test_init_never_overwrites_a_node(home: Path) -> None:
    (home / "strandline.toml").write_text("version = 1\n[spool]\nmax_age_s = 7\n")

    done = run(None, "init", str(home), expect=2)

    assert done.stderr.startswith("strandline init: home_exists: ")
    assert "max_age_s = 7" in (home / "strandline.toml").read_text()


def test_init_takes_its_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_HOME", str(tmp_path / "n"))

    run(None, "init")
    run(None, "append", "events", stdin='{"n": 1}')

    assert pending(tmp_path / "n", "events") == {"unknown": 1}


def test_a_copy_gets_an_origin_of_its_own_and_refuses_old_tokens(home: Path) -> None:  # L-CTL-7, L-READ-6
    run(home, "append", "events", stdin='{"n": 1}')
    with open_node(home) as node:
        former, token = node.origin, node.end("events")

    refused = run(None, "init", str(home), "--new-origin", expect=2)
    (facts,) = objects(run(None, "init", str(home), "--new-origin", "--yes", "--json"))
    read = run(home, "read", "events", "--since", token, "--refresh", "never", expect=2)

    assert "Nobody is there to ask" in refused.stderr
    assert facts["former_origin"] == former
    assert facts["origin"] != former
    assert "invalid_token" in read.stderr


def test_a_command_without_a_node_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CLI-2
    monkeypatch.chdir(tmp_path)

    done = run(None, "spool", "list", expect=1)

    assert done.stderr.startswith("strandline spool list: home_not_found: ")
    assert "hint: `strandline init`" in done.stderr


def test_a_wrong_setting_is_wrong_use(home: Path) -> None:  # L-CLI-2
    (home / "strandline.toml").write_text("version = 1\n[spool]\nmax_ages = 7\n")

    done = run(home, "flush", expect=2)

    assert done.stderr.startswith("strandline flush: config: ")


# append


def test_append_takes_json_lines_from_stdin(home: Path) -> None:  # L-CLI-1, L-SPOOL-1
    rows = [{"n": 1, "source": "a"}, {"n": 2, "source": "b"}, {"n": 3, "source": "a"}]

    (receipt,) = objects(run(home, "append", "events", "--json", stdin=lines(rows)))
    told = run(home, "append", "events", "-", "--source", "c", stdin='{"n": 4}\n\n')

    assert receipt["ranges"] == {"a": [0, 2], "b": [0, 1]}
    assert (receipt["rows"], receipt["quarantined"], receipt["repeat"]) == (3, 0, False)
    assert told.stdout.splitlines()[1].split() == ["stdin", "c", "1", "1-1"]
    assert told.stderr == "1 rows stored\n"


def test_an_empty_pipe_is_nothing_to_do(home: Path) -> None:  # L-CLI-2
    done = run(home, "append", "events", "--json")

    assert done.stdout == ""


def test_append_reads_every_kind_of_file(home: Path, tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["name", "text"], ["x", "two\nlines"], ["y", ""]])
    pq.write_table(pa.table({"name": ["p"] * 3}), tmp_path / "b.parquet")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"name": "z"}\n'))
    (tmp_path / "d").write_text('{"name": "w"}\n')

    names = [str(tmp_path / name) for name in ("a.csv", "b.parquet", "c.jsonl.gz")]
    done = run(home, "append", "things", *names, "--json")
    run(home, "append", "things", str(tmp_path / "d"), "--format", "jsonl")

    assert [(Path(each["file"]).name, each["rows"]) for each in objects(done)] == [
        ("a.csv", 2),
        ("b.parquet", 3),
        ("c.jsonl.gz", 1),
    ]
    assert pending(home, "things") == {"unknown": 7}


def test_a_file_that_nobody_wrote_anew_is_appended_once(
    home: Path, tmp_path: Path
) -> None:  # L-SPOOL-5, F-47
    file = tmp_path / "rows.jsonl"
    file.write_text(lines([{"n": 1}, {"n": 2}]))

    first = run(home, "append", "events", str(file), "--json")
    again = run(home, "append", "events", str(file), "--json")
    assert [each["repeat"] for each in objects(first) + objects(again)] == [False, True]
    assert "were stored by an earlier call" in again.stderr
    assert pending(home, "events") == {"unknown": 2}

    os.utime(file, ns=(1, 1))  # written again, with equal rows: those are other rows
    run(home, "append", "events", str(file))
    run(home, "append", "events", str(file), "--request-id", "once more")
    run(home, "append", "events", str(file), "--source", "elsewhere")
    assert pending(home, "events") == {"elsewhere": 2, "unknown": 6}


def test_equal_rows_that_come_twice_through_a_pipe_are_two_rows(home: Path) -> None:  # F-47, L-SPOOL-5
    run(home, "append", "beats", stdin='{"up": true}')
    run(home, "append", "beats", stdin='{"up": true}')
    run(home, "append", "beats", "--request-id", "one", stdin='{"up": true}')
    run(home, "append", "beats", "--request-id", "one", stdin='{"up": true}')
    other = run(home, "append", "beats", "--request-id", "one", stdin='{"up": false}', expect=2)

    assert pending(home, "beats") == {"unknown": 3}
    assert "request_id_reused" in other.stderr


@pytest.mark.parametrize("failpoint", ["append.segment_stored:2", "append.commit:2", "append.committed:2"])
def test_a_killed_append_is_finished_by_repeating_it(
    home: Path, tmp_path: Path, failpoint: str
) -> None:  # L-SPOOL-3, L-SPOOL-5
    file = tmp_path / "rows.jsonl"
    file.write_text(lines([{"n": n} for n in range(2 * CHUNK + 5)]))

    killed = child(home, "append", "events", str(file), STRANDLINE_FAILPOINT=failpoint)
    assert killed.returncode == -9
    assert 0 < pending(home, "events")["unknown"] < 2 * CHUNK + 5

    run(home, "append", "events", str(file))
    assert pending(home, "events") == {"unknown": 2 * CHUNK + 5}


def test_a_line_that_is_no_row_leaves_nothing_of_any_file(home: Path, tmp_path: Path) -> None:  # L-SPOOL-3
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(lines([{"n": 1}]))
    bad.write_text(lines([{"n": n} for n in range(CHUNK + 1)]) + "{broken\n" + lines([{"n": 9}]))

    done = run(home, "append", "events", str(good), str(bad), expect=2)
    piped = run(home, "append", "events", stdin='{"n": 1}\nnope\n', expect=2)

    assert done.stderr.startswith(f"strandline append: bad_file: {bad}, line {CHUNK + 2}: ")
    assert piped.stderr.startswith("strandline append: bad_file: stdin, line 2: ")
    assert run(home, "spool", "list").stdout == ""


def test_a_refused_row_is_named_by_file_line_and_column(home: Path, tmp_path: Path) -> None:  # L-SPOOL-9
    run(home, "append", "events", stdin='{"n": 1}')
    file, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    file.write_text("\n" + lines([{"n": n} for n in range(CHUNK)]) + "\n" + lines([{"n": "x"}, {"n": True}]))
    table.write_text('note,n\n"two\nlines",7\nfine,seven\n')

    done = run(home, "append", "events", str(file), expect=2)
    from_csv = run(home, "append", "events", str(table), expect=2)

    first, second, hint = done.stderr.splitlines()[1:]
    assert "schema_breaking" in done.stderr.splitlines()[0]
    assert first.strip().startswith(f"{file}, line {CHUNK + 3:,}, column 'n': str 'x' does not fit")
    assert f"line {CHUNK + 4:,}, column 'n'" in second
    assert hint == "hint: correct them, or --on-bad quarantine sets them aside"
    assert f"{table}, line 4, column 'n'" in from_csv.stderr
    assert pending(home, "events") == {"unknown": 1}


def test_a_bad_row_of_a_later_chunk_refuses_what_an_earlier_one_made_of_the_schema(
    home: Path, tmp_path: Path
) -> None:  # L-SCH-8
    file = tmp_path / "rows.jsonl"
    file.write_text(lines([{"n": n} for n in range(CHUNK)]) + lines([{"n": "text"}]))

    done = run(home, "append", "events", str(file), expect=2)
    run(home, "append", "events", stdin='{"n": "text"}')

    assert f"line {CHUNK + 1:,}, column 'n'" in done.stderr
    assert pending(home, "events") == {"unknown": 1}


def test_a_file_that_is_not_there_is_named(home: Path) -> None:  # L-CLI-2
    done = run(home, "append", "events", "/none.jsonl", expect=1)

    assert done.stderr.startswith("strandline append: not_found: /none.jsonl")


def test_a_full_spool_says_how_much_was_stored_and_how_to_go_on(
    home: Path, tmp_path: Path
) -> None:  # L-SPOOL-12
    (home / "strandline.toml").write_text("version = 1\n[spool]\nmax_bytes = 2000\nflush_bytes = 1000\n")
    file = tmp_path / "rows.jsonl"
    file.write_text(lines([{"n": n} for n in range(2 * CHUNK)]))

    done = run(home, "append", "events", str(file), expect=1)
    piped = run(home, "append", "more", stdin='{"n": 1}', expect=1)

    assert "note: 10,000 rows are stored; the same command adds the others" in done.stderr
    assert "strandline append: spool_full: " in done.stderr
    assert piped.stderr.startswith("strandline append: spool_full: ")  # nothing is stored of it


def test_a_bar_shows_on_a_terminal_alone(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(lines([{"n": n} for n in range(3 * CHUNK)]))

    shown = on_terminal("append", "events", str(file), "--home", str(home))
    in_a_pipe = child(home, "append", "events", str(file))

    assert shown.returncode == 0, shown
    assert "━" in shown.stderr
    assert re.search(r"\d/\d.* [kM]?B", shown.stderr)  # of the bytes of the file
    assert b"\x1b" not in in_a_pipe.stderr + in_a_pipe.stdout


# What is started and imported


@pytest.mark.parametrize(
    ("args", "unwanted"),
    [
        (["--help"], ["pyarrow", "pyspark"]),
        (["init", "{tmp}/fresh"], ["pyarrow", "pyspark"]),
        (["spool", "list", "--home", "{home}"], ["pyarrow", "pyspark"]),
        (["spool", "quarantine", "list", "--home", "{home}"], ["pyarrow", "pyspark"]),
        (["append", "events", "{tmp}/rows.jsonl", "--home", "{home}"], ["pyspark"]),
        (["spool", "check", "--home", "{home}"], ["pyspark"]),
        (["flush", "--home", "{home}"], ["pyspark"]),  # nothing is pending
        (["read", "empty", "--explain", "--home", "{home}"], ["pyspark"]),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_a_verb_imports_only_what_it_needs(
    home: Path, tmp_path: Path, args: list[str], unwanted: list[str]
) -> None:  # L-CLI-4, L-COST-1
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n')
    (home / "strandline.toml").write_text('version = 1\n[datasets.empty]\ncolumns = {n = "int"}\n')
    filled = [each.format(tmp=tmp_path, home=home) for each in args]
    code = (
        "import sys; from strandline.cli import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        f"print([name for name in {unwanted} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code, *filled], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_flush_of_nothing_says_so(home: Path) -> None:  # L-CLI-2
    assert run(home, "flush", "--json").stdout == ""

    done = run(home, "flush", "nowhere", expect=1)

    assert done.stderr.startswith("strandline flush nowhere: dataset_unknown: ")


# read, without a row that has landed


def test_a_read_of_nothing_visible_gives_a_token_and_the_age(home: Path) -> None:  # L-READ-4, L-READ-13
    run(home, "append", "events", "--source", "a", stdin='{"n": 1}')

    told = run(home, "read", "events", "--refresh", "never", "--format", "csv")
    (end,) = objects(run(home, "read", "events", "--refresh", "never", "--json"))

    assert told.stdout == "n,source\n"
    assert "note: 1 rows are not flushed, and nothing has landed yet; --refresh always" in told.stderr
    assert re.search(r"^token: slc1\.", told.stderr, re.MULTILINE)
    assert end["end"]["rows"] == 0
    assert (end["end"]["pending_rows"], end["end"]["age_s"]) == (1, None)
    with open_node(home) as node:
        assert end["end"]["token"] == ReadToken(node.origin, "events", None, 0).text()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--json", "--format", "csv"], "two formats"),
        (["--since", "slc1.nonsense"], "invalid_token"),
        (["--columns", ","], "--columns names none"),
        (["--limit", "0"], "--limit"),
        (["--out", "{tmp}"], "is there already"),
    ],
)
def test_a_read_that_makes_no_sense_is_wrong_use(
    home: Path, tmp_path: Path, options: list[str], told: str
) -> None:  # L-CLI-2
    run(home, "append", "events", stdin='{"n": 1}')
    filled = [each.format(tmp=tmp_path) for each in options]

    done = run(home, "read", "events", "--refresh", "never", "--format", "csv", *filled, expect=2)

    assert told in done.stderr


def test_explain_of_what_has_not_landed_opens_nothing(home: Path) -> None:  # L-READ-14
    run(home, "append", "events", stdin='{"n": 1}')

    (facts,) = objects(run(home, "read", "events", "--explain", "--json"))

    assert (facts["snapshot"], facts["files_considered"], facts["files_opened"]) == (None, 0, 0)


# spool


def test_spool_list_shows_what_is_pending(home: Path) -> None:  # L-CLI-1, L-SPOOL-10
    assert run(home, "spool").stderr == "nothing is pending\n"
    run(home, "append", "events", "--source", "a", stdin=lines([{"n": 1}, {"n": 2}]))
    run(home, "append", "others", "--source", "b", stdin='{"n": 1}')

    (line,) = objects(run(home, "spool", "list", "events", "--json"))
    told = run(home, "spool", "list").stdout.splitlines()

    assert (line["source"], line["rows"], line["held"]) == ("a", 2, [])
    assert line["bytes"] > 0
    assert line["oldest"] > 1_600_000_000_000_000
    assert [each.split()[:3] for each in told[1:]] == [["events", "a", "2"], ["others", "b", "1"]]


def test_spool_check_finds_damage_and_changes_nothing(home: Path) -> None:  # L-SPOOL-7, L-SPOOL-10
    (good,) = objects(run(home, "append", "events", "--source", "a", "--json", stdin='{"n": 1}'))
    (bad,) = objects(run(home, "append", "events", "--source", "b", "--json", stdin='{"n": 2}'))
    assert run(home, "spool", "check").stderr == "2 ranges checked, 0 damaged\n"
    segment_file(home, bad["segment"]).write_bytes(b"torn")

    done = run(home, "spool", "check", expect=1)
    found = {
        each["segment"]: each["fault"] for each in objects(run(home, "spool", "check", "--json", expect=1))
    }

    assert done.stdout.startswith(f"events/b  1-1  {bad['segment']}  ")
    assert "2 ranges checked, 1 damaged" in done.stderr
    assert found[good["segment"]] is None
    assert found[bad["segment"]]
    assert pending(home, "events") == {"a": 1, "b": 1}


def test_spool_check_goes_on_where_storage_does_not_answer(home: Path) -> None:  # L-SPOOL-7, L-SPOOL-10
    (down,) = objects(run(home, "append", "events", "--json", stdin='{"n": 1, "source": "a"}\n{"n": 2}'))
    (bad,) = objects(run(home, "append", "events", "--source", "z", "--json", stdin='{"n": 3}'))
    unreadable = segment_file(home, down["segment"])
    unreadable.unlink()
    unreadable.mkdir()
    segment_file(home, bad["segment"]).write_bytes(b"torn")

    done = run(home, "spool", "check", expect=1)
    found = objects(run(home, "spool", "check", "--json", expect=1))

    assert done.stdout.startswith(f"events/z  1-1  {bad['segment']}  ")
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: unavailable: events/")]
    assert len(warned) == 2
    assert "3 ranges checked, 1 damaged, 2 not read" in done.stderr
    assert [(each["source"], bool(each["fault"]), bool(each["unread"])) for each in found] == [
        ("a", False, True),
        ("unknown", False, True),
        ("z", True, False),
    ]


def test_only_a_segment_that_is_held_can_be_given_up(home: Path) -> None:  # L-SPOOL-13
    (receipt,) = objects(run(home, "append", "events", "--json", stdin='{"n": 1}'))

    done = run(home, "spool", "lost", receipt["segment"], "--yes", expect=1)

    assert done.stderr.startswith("strandline spool lost: not_found: ")
    assert pending(home, "events") == {"unknown": 1}


def segment_file(home: Path, cid: str) -> Path:
    digest = cid.rpartition(":")[2]
    (found,) = [path for path in (home / "content").rglob("*") if path.is_file() and digest[8:] in path.name]
    return found


# Quarantine


@pytest.fixture
def quarantined(home: Path) -> Path:
    """A node with two good rows of `events`, and two entries in quarantine."""
    run(home, "append", "events", stdin='{"n": 1}')
    run(home, "append", "events", "--on-bad", "quarantine", stdin=lines([{"n": 2}, {"n": "x"}, {"n": "y"}]))
    run(home, "append", "events", "--on-bad", "quarantine", stdin=lines([{"n": "z"}]))
    return home


def test_bad_rows_go_to_quarantine_with_the_reason(quarantined: Path) -> None:  # L-SPOOL-9
    first, second = objects(run(quarantined, "spool", "quarantine", "list", "events", "--json"))
    shown = run(quarantined, "spool", "quarantine", "show", "events", str(first["entry"]))
    rows = objects(run(quarantined, "spool", "quarantine", "show", "events", str(first["entry"]), "--json"))
    table = run(quarantined, "spool", "quarantine").stdout.splitlines()

    assert pending(quarantined, "events") == {"unknown": 2}
    assert (first["rows"], second["rows"]) == (2, 1)
    assert shown.stdout.splitlines() == ['{"n":"x"}', '{"n":"y"}']
    assert "does not fit" in shown.stderr
    assert [each["row"] for each in rows] == [{"n": "x"}, {"n": "y"}]
    assert all("column 'n'" in each["reason"] for each in rows)
    assert [line.split()[0] for line in table] == ["DATASET", "events", "events"]


def test_rows_leave_quarantine_by_a_retry_or_come_back(quarantined: Path) -> None:  # L-SPOOL-9
    entries = objects(run(quarantined, "spool", "quarantine", "list", "events", "--json"))

    done = run(quarantined, "spool", "quarantine", "retry", "events", "--all", "--json", expect=1)

    after = objects(run(quarantined, "spool", "quarantine", "list", "events", "--json"))
    assert [(each["rows"], each["quarantined"]) for each in objects(done)] == [(0, 2), (0, 1)]
    assert [each["rows"] for each in after] == [2, 1]
    assert {each["entry"] for each in after}.isdisjoint(each["entry"] for each in entries)


def test_dropping_tells_the_count_and_needs_a_yes(quarantined: Path) -> None:  # L-SPOOL-9, L-CLI-3
    drop = ("spool", "quarantine", "drop", "events")
    (counted,) = objects(run(quarantined, *drop, "--all", "--dry-run", "--json"))
    refused = run(quarantined, *drop, "--all", expect=2)
    assert counted["rows"] == 3
    assert "Give up 3 rows of 'events'" in refused.stderr

    first = str(counted["entries"][0])
    assert run(quarantined, *drop, first, "--yes").stdout == "2 rows dropped\n"

    left = objects(run(quarantined, "spool", "quarantine", "list", "events", "--json"))
    assert [each["rows"] for each in left] == [1]
    assert "not_found" in run(quarantined, *drop, first, "--yes", expect=1).stderr
    run(quarantined, *drop, expect=2)


# Leases


def test_a_command_says_for_whom_it_waits(home: Path, capsys: pytest.CaptureFixture[str]) -> None:  # L-CLI-4
    with open_node(home) as node:
        take_lease(node.site.b, node.site.clock, "flush/events")

        note_holder(node.site, "flush/events")
        note_holder(node.site, "flush/others")

    told = capsys.readouterr().err
    assert re.fullmatch(rf"note: waiting for .* pid {os.getpid()}, which holds flush/events\n", told)


def test_a_stack_trace_needs_debug(home: Path) -> None:  # L-CLI-2
    quiet = child(home, "spool", "list", "nowhere")
    loud = child(home, "spool", "list", "nowhere", "--debug")

    assert b"Traceback" not in quiet.stderr
    assert b"dataset_unknown" in quiet.stderr
    assert b"Traceback" in loud.stderr
