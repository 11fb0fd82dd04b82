"""`strandline doctor` asks the bucket of a sink whether it lets us in."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.cli import cli
from tests.storage.places import BUCKET


@pytest.fixture
def home(tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    settings = "".join(
        f'[sinks.{name}]\ntype = "blob"\ndestination = "s3"\nbucket = "{bucket}"\n'
        f'endpoint = "{s3_endpoint}"\nregion = "us-east-1"\n'
        for name, bucket in (("here", BUCKET), ("nowhere", "no-such-bucket"))
    )
    (tmp_path / "strandline.toml").write_text(f"version = 1\n{settings}", "utf-8")
    return tmp_path


def test_a_bucket_that_is_there_is_told_from_one_that_is_not(home: Path) -> None:  # L-CLI-1
    done = CliRunner().invoke(cli, ["doctor", "--json", "--home", str(home)])

    found = {each["what"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (found["sink here"]["level"], found["sink nowhere"]["level"]) == ("ok", "fault")
    assert "bucket" in found["sink nowhere"]["remedy"]
    assert done.exit_code == 1
