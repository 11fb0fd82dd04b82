"""`strandline doctor` asks the bucket of a sink whether it lets us in, and tells what a probe has found."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.cli import cli
from strandline.config.config import load_config
from strandline.flush.catalog_check import CatalogUnfit, check_catalog
from strandline.lake.ports.probe import STAGED
from strandline.state.context import open_site
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


class Unfit:
    """A catalog that publishes what is staged at once."""

    def missing(self, table: str) -> list[str]:
        return [STAGED]

    def drop(self, table: str) -> None: ...


def test_what_the_probe_of_a_catalog_has_found_is_told(tmp_path: Path) -> None:  # L-FLUSH-14, L-CLI-1
    lake = '[lake]\ncatalog = "rest"\nwarehouse = "rows"\nconf = { uri = "http://127.0.0.1:1" }\n'
    (tmp_path / "strandline.toml").write_text(f"version = 1\n{lake}", "utf-8")
    config = load_config(tmp_path / "strandline.toml")

    untried = promises_in(tmp_path)
    site = open_site(config)
    with closing(site.b), pytest.raises(CatalogUnfit):
        check_catalog(site, config.lake_settings(), Unfit())
    refused = promises_in(tmp_path)

    assert (untried["level"], untried["remedy"]) == ("warning", "the first flush or load tries it")
    assert refused["level"] == "fault"
    assert STAGED in refused["text"]
    assert "supported catalog" in refused["remedy"]


def promises_in(home: Path) -> dict[str, str]:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--home", str(home)])
    found = (json.loads(line) for line in done.stdout.splitlines())
    return next(each for each in found if each["what"] == "catalog's promises")
