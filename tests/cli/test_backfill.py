"""`strandline backfill` over a real node, on Connect (L-CLI-1 to L-CLI-4, L-BF-11, L-BF-12)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import Node
from tests.backfill.rig import parquet_of
from tests.spark_sessions import ConnectServer, lake_session

SAMPLES = Path(__file__).parents[1] / "sources" / "transcripts"
SETTINGS = f"""version = 1
[datasets.sales]
identity = {{ key = "id" }}
[backfill.claude-code]
path = "{SAMPLES}/claude-code/projects"
quiesce_s = 0
[backfill.large]
type = "files"
path = "large"
dataset = "sales"
source = "a"
frame_bytes = 1
quiesce_s = 0
[backfill.gone]
type = "files"
path = "nowhere"
dataset = "sales"
enabled = false
"""


@pytest.fixture
def home(tmp_path: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node whose commands find Spark started: a session on the run's Connect server."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / FILE_NAME).write_text(SETTINGS)
    monkeypatch.setenv(CONNECT_MODE, "1")
    conf = catalog_conf(load_config(folder / FILE_NAME).lake_settings())
    with lake_session(connect_server, conf) as opened:
        monkeypatch.setattr(Node, "spark", opened)
        yield folder


def run(home: Path, *args: str, expect: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["backfill", *args, "--home", str(home)])
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    assert "Traceback" not in done.output
    return done


def objects(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_transcripts_and_frames_are_planned_run_and_listed(home: Path) -> None:
    (home / "large").mkdir()
    parquet_of(home / "large" / "x.parquet", [1, 2, 2])

    planned = objects(run(home, "plan", "claude-code", "--json"))[0]
    ran = {each["provider"]: each for each in objects(run(home, "run", "--json"))}
    again = run(home, "run")

    assert (planned["written"], planned["dry_run"], planned["left_out"]["in_chunk"]) == (11, True, 1)
    assert (ran["claude-code"]["written"], ran["claude-code"]["skipped"]["broken line"]) == (11, 1)
    assert (ran["large"]["written"], ran["large"]["left_out"]["in_chunk"]) == (2, 1)
    assert [line.split()[:5] for line in again.stdout.splitlines()[1:]] == [
        ["claude-code", "done", "1", "0", "0"],
        ["large", "done", "1", "0", "0"],
    ]
    listed = {each["provider"]: each for each in objects(run(home, "list", "--json"))}
    assert (listed["large"]["last"]["left_out"]["chunk_known"], listed["large"]["enabled"]) == (3, True)
    assert (listed["codex"]["configured"], listed["codex"]["can_run"]) == (False, True)
    assert (listed["spark"]["can_run"], listed["gone"]["enabled"]) == (False, False)


def test_what_fails_ends_with_1_and_says_why(home: Path) -> None:  # L-BF-12, L-CLI-2
    done = run(home, "run", "gone", expect=1)
    assert "strandline backfill gone: not_found: there is no folder" in done.stderr

    unknown = run(home, "run", "nobody", expect=1)
    assert "strandline backfill run: provider_not_configured: no provider 'nobody'" in unknown.stderr


def test_a_bad_file_is_named_and_the_others_come_in(home: Path) -> None:  # L-BF-8
    (home / "large").mkdir()
    parquet_of(home / "large" / "good.parquet", [1])
    (home / "large" / "bad.parquet").write_bytes(b"no parquet at all")

    (facts,) = objects(run(home, "run", "large", "--json", expect=1))

    assert (facts["status"], facts["written"], facts["failed"]) == ("partial", 1, 1)
    assert facts["failures"][0]["item"] == "bad.parquet"


@pytest.mark.parametrize(
    "args",
    [("run", "--since", "2026-02-01", "--until", "2026-01-01", "large"), ("plan", "--since", "last tuesday")],
)
def test_a_window_that_is_none_is_wrong_use(home: Path, args: tuple[str, ...]) -> None:  # L-BF-11
    run(home, *args, expect=2)
