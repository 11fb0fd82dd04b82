"""The commands of sinks: what they deliver, print and refuse, and how they end."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import Node, open_node
from strandline.rows.dataset import Column, Dataset
from strandline.state.lease import take_lease
from tests.server.receivers import Sender, receiving
from tests.spark_sessions import ConnectServer, free_port, lake_session

ARCHIVE = '[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "archive"\nencoder = "jsonl"\n'


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node, for commands that start no Spark."""
    monkeypatch.delenv("STRANDLINE_HOME", raising=False)
    folder = tmp_path / "node"
    assert CliRunner().invoke(cli, ["init", str(folder)]).exit_code == 0
    return folder


@pytest.fixture
def home(bare: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node, whose commands find Spark started."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    conf = catalog_conf(load_config(bare / FILE_NAME).lake_settings())
    with lake_session(connect_server, conf) as opened:
        monkeypatch.setattr(Node, "spark", opened)
        yield bare


def configure(home: Path, *sections: str) -> None:
    (home / FILE_NAME).write_text("version = 1\n" + "".join(sections))


def centre(url: str, *more: str) -> str:
    keys = [f'url = "{url}"', 'token = "env:CENTRE_TOKEN"', "inline_wait_s = 0.1", *more]
    return "[sinks.centre]\ntype = 'forward'\n" + "".join(f"{key}\n" for key in keys)


def run(home: Path, *args: str, stdin: str = "", expect: int = 0) -> Result:
    done = CliRunner().invoke(cli, [*args, "--home", str(home)], input=stdin)
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    assert "Traceback" not in done.output
    return done


def objects(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def append(home: Path, *rows: dict[str, Any]) -> None:
    run(home, "append", "logs", "--source", "web-1", stdin="".join(json.dumps(row) + "\n" for row in rows))


def archived(home: Path) -> Counter[Any]:
    files = sorted((home / "archive").rglob("*.jsonl"))
    return Counter(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


def received(receiver: Sender) -> int:
    return sum(each.hi for each in receiver.site.standing.strand_states("logs").values())


# Without Spark


def test_what_is_not_there_is_said(bare: Path) -> None:
    """L-CLI-2."""
    assert "no sink is configured" in run(bare, "sync").stderr
    assert "no sink is configured" in run(bare, "sink", "list").stderr
    assert "no dead letter waits" in run(bare, "dlq").stderr
    configure(bare, ARCHIVE)
    done = run(bare, "sync", "nowhere", expect=1)
    assert done.stderr.startswith("strandline sync: sink_not_configured: no sink 'nowhere' is configured; ")
    assert "letter_unknown" in run(bare, "dlq", "show", "archive/logs/web-1:7", expect=1).stderr
    assert "nothing_there" in run(bare, "sink", "forget", "archive", "--yes", expect=1).stderr
    (facts,) = objects(run(bare, "sink", "list", "--json"))
    assert (facts["sink"], facts["type"], facts["state"], facts["owed"]) == ("archive", "blob", "new", 0)
    configure(bare, ARCHIVE, "enabled = false\n")
    assert "sink_disabled" in run(bare, "sync", "archive", expect=2).stderr


def test_a_dry_run_tells_what_waits_and_sends_nothing(bare: Path) -> None:
    """L-CLI-3."""
    configure(bare, ARCHIVE)
    append(bare, {"n": 1}, {"n": 2})
    (facts,) = objects(run(bare, "sync", "--dry-run", "--json"))
    assert (facts["sink"], facts["dataset"], facts["source"]) == ("archive", "logs", "web-1")
    assert (facts["ranges"], facts["rows"], facts["pending"], facts["held"]) == ([], 0, 2, None)
    assert run(bare, "sync", "--dry-run").stdout.splitlines()[1].split() == [
        "archive",
        "logs",
        "web-1",
        "0",
        "0",
        "2",
    ]
    assert not (bare / "archive").exists()


@pytest.mark.parametrize(
    "args",
    [
        ["sink", "rewind", "archive"],
        ["sink", "skip", "archive"],
        ["sink", "forget", "archive"],
        ["sink", "bind", "archive", "--reset"],
        ["sink", "bind", "archive", "--yes"],
        ["sink", "rewind", "archive", "--source", "web-1"],
        ["dlq", "drop"],
        ["dlq", "retry"],
    ],
    ids=" ".join,
)
def test_what_deletes_or_sends_again_asks_first(bare: Path, args: list[str]) -> None:
    """L-CLI-3, L-CLI-2."""
    configure(bare, ARCHIVE)
    done = run(bare, *args, expect=2)
    assert ": usage: " in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["sync"],
        ["sync", "--dry-run"],
        ["sink", "list"],
        ["sink", "history", "archive"],
        ["sink", "rewind", "archive", "--yes"],
        ["sink", "skip", "archive", "--yes"],
        ["dlq", "list"],
    ],
    ids=" ".join,
)
def test_a_verb_that_needs_no_spark_imports_none(bare: Path, args: list[str]) -> None:
    """L-CLI-4, L-COST-1."""
    configure(bare, ARCHIVE)
    code = (
        "import sys; from strandline.cli import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'pyspark' not in sys.modules"
    )
    command = [sys.executable, "-c", code, *args, "--home", str(bare)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_says_who_it_waits_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-CLI-4."""
    monkeypatch.setattr("strandline.delivery.operate_sink.WAIT_S", 0.0)
    configure(bare, ARCHIVE)
    with open_node(bare) as node:
        take_lease(node.site.b, node.site.clock, "sink/archive")
    done = run(bare, "sink", "skip", "archive", "--yes", expect=3)
    assert "note: waiting for " in done.stderr
    assert "strandline sink skip: lease_held: 'sink/archive' is held by " in done.stderr


# With Spark


def test_sync_flushes_and_delivers_to_a_folder_and_to_another_node(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-CLI-1, L-FLUSH-11, L-DRV-3, L-SRV-9: and a second one has nothing to do."""
    with receiving(tmp_path / "other") as receiver:
        monkeypatch.setenv("CENTRE_TOKEN", receiver.token)
        configure(home, ARCHIVE, centre(receiver.url))
        append(home, *({"n": n} for n in range(10)))

        results = {each["sink"]: each for each in objects(run(home, "sync", "--json"))}
        again = run(home, "sync")
        verified = objects(run(home, "sink", "verify", "archive", "--json"))
        verified += objects(run(home, "sink", "verify", "centre", "--json"))

        assert {name: (each["status"], each["rows"]) for name, each in results.items()} == {
            "archive": ("exported", 10),
            "centre": ("exported", 10),
        }
        assert results["centre"]["requests"] == 1
        assert results["archive"]["files_opened"] == 1
        assert archived(home) == Counter(range(10))
        assert received(receiver) == 10
        assert [line.split()[:3] for line in again.stdout.splitlines()[1:]] == [
            ["archive", "idle", "0"],
            ["centre", "idle", "0"],
        ]
        assert [each["status"] for each in verified] == ["ok", "ok"]
        assert "nothing is owed" in run(home, "sync", "--dry-run").stderr
        listed = {each["sink"]: each for each in objects(run(home, "sink", "list", "--json"))}
        assert (listed["centre"]["state"], listed["centre"]["rows"]) == ("idle", 10)
        assert "10 rows in 1 units" in run(home, "sink", "history", "archive").stdout


def test_a_dead_destination_fails_and_delays_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-33, L-DRV-3, L-DRV-7, L-CLI-2: what never arrived is `failed`, and the command ends with 1."""
    monkeypatch.setenv("CENTRE_TOKEN", "t")
    (home / "file").write_text("no folder")
    broken = ARCHIVE.replace("sinks.archive", "sinks.broken").replace(
        'dir = "archive"', 'dir = "file/inside"'
    )
    configure(home, ARCHIVE, broken, centre(f"http://127.0.0.1:{free_port()}"))
    append(home, {"n": 1}, {"n": 2})

    done = run(home, "sync", "--json", expect=1)

    found = {each["sink"]: each for each in objects(done)}
    assert {name: each["status"] for name, each in found.items()} == {
        "archive": "exported",
        "broken": "failed",
        "centre": "failed",
    }
    assert archived(home) == Counter([1, 2])
    assert found["centre"]["troubles"][0]["not_before"] > 0
    assert "strandline sync centre: " in done.stderr
    assert "strandline sync broken: bucket_missing: logs/web-1: " in done.stderr
    assert "hint: it is held: put right what that says, then `strandline sync broken`" in done.stderr
    assert "hint: nothing is lost; it is tried again from " in done.stderr
    (owed,) = objects(run(home, "sync", "broken", "--dry-run", "--json"))
    assert (owed["ranges"], owed["rows"]) == ([[0, 2]], 2)
    assert owed["bytes"] > 0


def test_withheld_rows_are_released_and_lines_moved_by_hand(home: Path) -> None:
    """F-46, L-POL-1, L-WM-13, L-WM-5."""
    policy = (
        "[policy]\nwithhold = [{datasets = ['logs'], where = \"level = 'secret'\", missing = 'export'}]\n"
    )
    configure(home, policy, ARCHIVE)
    append(home, {"n": 1, "level": "info"}, {"n": 2, "level": "secret"}, {"n": 3})
    assert objects(run(home, "sync", "--json"))[0]["withheld"] == 1
    assert archived(home) == Counter([1, 3])

    (still,) = objects(run(home, "sink", "release", "archive", "--yes", "--json"))
    assert (still["looked_at"], still["rows"], still["still_withheld"]) == (1, 0, 1)
    configure(home, ARCHIVE)
    (released,) = objects(run(home, "sink", "release", "archive", "--yes", "--json"))
    assert (released["looked_at"], released["rows"], released["still_withheld"]) == (1, 1, 0)
    assert archived(home) == Counter([1, 2, 3])
    assert "is withheld" in run(home, "sink", "release", "archive", "--yes").stderr

    (moved,) = objects(run(home, "sink", "rewind", "archive", "logs", "--to", "2", "--yes", "--json"))
    assert (moved["was"], moved["mark"]) == (3, 2)
    run(home, "sync")
    assert archived(home) == Counter([1, 2, 3, 3])
    append(home, {"n": 4}, {"n": 5})
    run(home, "flush")
    run(home, "sink", "skip", "archive", "logs", "--source", "web-1", "--to", "4", "--yes", "--reason", "bad")
    configure(home, ARCHIVE.replace('dir = "archive"', 'dir = "archive/new"'))
    changed = run(home, "sync", expect=3)
    assert "destination_changed" in changed.stderr
    assert "hint: `strandline sink bind archive --keep`" in changed.stderr
    run(home, "sink", "bind", "archive", "--keep", "--yes")
    run(home, "sync")
    assert archived(home) == Counter([1, 2, 3, 3, 5])
    assert "line put at 4 in epoch 3: bad" in run(home, "sink", "history", "archive", "logs").stdout


def test_rows_that_another_node_refuses_are_dead_letters(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-28, F-29, L-FWD-14: listed, shown, sent once more, dropped."""
    strict = Dataset("logs", (Column("n", "bigint"),))
    with receiving(tmp_path / "one", datasets=[strict]) as first, receiving(tmp_path / "two") as second:
        monkeypatch.setenv("CENTRE_TOKEN", first.token)
        configure(
            home, "[datasets.logs]\ncolumns = {n = 'string'}\n", centre(first.url, "poison_attempts = 1")
        )
        append(home, {"n": "one"}, {"n": "two"})
        failed = run(home, "sync", "--json", expect=1)
        (result,) = objects(failed)
        assert (result["status"], received(first)) == ("failed", 0)
        assert "hint: `strandline dlq list centre` shows them" in failed.stderr
        letters = objects(run(home, "dlq", "list", "--json"))
        assert sum(each["rows"] for each in letters) == 2
        names = [each["letter"] for each in letters]
        shown = run(home, "dlq", "show", names[0])
        assert json.loads(shown.stdout.splitlines()[0]) == {"n": "one"}
        assert f"HTTP {letters[0]['http_status']}" in shown.stderr
        refused = run(home, "dlq", "retry", "--all", "centre", expect=1)
        assert "hint: put right what that says and try again" in refused.stderr
        assert objects(run(home, "dlq", "list", "--json")) == letters

        monkeypatch.setenv("CENTRE_TOKEN", second.token)
        configure(home, "[datasets.logs]\ncolumns = {n = 'string'}\n", centre(second.url))
        run(home, "sink", "bind", "centre", "--keep", "--yes")
        (sent, *_) = objects(run(home, "dlq", "retry", names[0], "--json"))
        assert (sent["sent"], sent["rows"], sent["requests"]) == (True, letters[0]["rows"], 1)
        assert received(second) == letters[0]["hi"]
        assert second.site.standing.strand_states("logs").keys()
        run(home, "dlq", "drop", "--all", "centre", "--yes")
        assert objects(run(home, "dlq", "list", "--json")) == []
        assert run(home, "sync").exit_code == 0
