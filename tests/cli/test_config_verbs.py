"""`strandline config` and `strandline doctor`: what a node is told, and whether all it needs is there."""

import json
import socket
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema_rs import Draft202012Validator

from strandline.cli import cli
from strandline.config.config import load_config
from strandline.config.json_schema import config_schema
from strandline.config.keys import default_text, keys

SINK = """
[sinks.archive]
type = "blob"
destination = "local"
dir = "archive"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "strandline.toml").write_text(
        f'version = 1\n[spool]\nflush_bytes = "64MiB"\n[store]\nurl = "s.db"\n{SINK}', "utf-8"
    )
    return tmp_path


def run(home: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--home", str(home)])


# config show


def test_every_setting_is_shown_with_where_it_comes_from(home: Path) -> None:  # L-CFG-1
    found = json.loads(run(home, "config", "show", "--json").stdout)

    settings = {each["key"]: each for each in found["settings"]}
    assert settings["spool.flush_bytes"] == {
        "key": "spool.flush_bytes",
        "value": "64MiB",
        "is_default": False,
    }
    assert settings["spool.max_age_s"] == {"key": "spool.max_age_s", "value": 120, "is_default": True}
    assert settings["compaction.tier_bytes"]["value"] == ["1MiB", "32MiB"]
    assert found["sinks"]["archive"]["dir"] == "archive"
    documented = {f"{doc.section}.{doc.key}" for doc in keys() if "<" not in doc.section}
    assert set(settings) == documented


def test_settings_are_shown_in_words_and_without_a_command(home: Path) -> None:  # L-CLI-3
    shown = run(home, "config")

    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["spool.flush_bytes", '"64MiB"'] in lines
    assert ["spool.max_age_s", "120", "default"] in lines
    assert ["sinks.archive.dir", '"archive"'] in lines


# config validate


def test_faults_are_told_with_line_and_key_and_exit_1(home: Path) -> None:  # L-CFG-1
    file = home / "strandline.toml"
    file.write_text("version = 1\n[spool]\nmax_age = 1\nflush_bytes = -1\n", "utf-8")
    before = sorted(home.iterdir())

    told = run(home, "config", "validate")
    found = json.loads(run(home, "config", "validate", "--json").stdout)

    assert told.exit_code == 1
    assert "line 3: spool.max_age: no such key; did you mean max_age_s?" in told.stderr
    assert [(each["line"], each["key"]) for each in found["problems"]] == [
        (3, "spool.max_age"),
        (4, "spool.flush_bytes"),
    ]
    assert sorted(home.iterdir()) == before  # read-only


def test_a_file_without_faults_is_fine_and_may_be_named(home: Path, tmp_path: Path) -> None:  # L-CFG-1
    assert run(home, "config", "validate").exit_code == 0
    other = tmp_path / "other.toml"
    other.write_text("version = 1\nnonsense = 1\n", "utf-8")
    assert run(home, "config", "validate", str(other)).exit_code == 1


# config schema


def test_the_schema_takes_what_is_right_and_refuses_what_is_not(home: Path) -> None:  # L-CFG-1
    schema = config_schema()
    assert json.loads(CliRunner().invoke(cli, ["config", "schema"]).stdout) == schema

    validator = Draft202012Validator(schema)
    for right in ((home / "strandline.toml").read_text("utf-8"), default_text()):
        validator.validate(tomllib.loads(right))
    for wrong in (
        {"version": 2},
        {"version": 1, "spool": {"max_age": 1}},
        {"version": 1, "spool": {"flush_bytes": "64 megabytes"}},
        {"version": 1, "sinks": {"a": {"type": "blob", "destination": "ftp"}}},
        {"version": 1, "lake": {"format": 5}},
    ):
        assert not validator.is_valid(wrong), wrong


def test_the_schema_says_what_each_key_is_about() -> None:  # L-CFG-1
    properties = config_schema()["properties"]
    for doc in keys():
        if "<" not in doc.section:
            assert properties[doc.section]["properties"][doc.key]["description"] == doc.about


# doctor


def test_a_node_whose_needs_are_met_is_fine(home: Path) -> None:  # L-CLI-1
    load_config(home / "strandline.toml")
    CliRunner().invoke(cli, ["append", "logs", "--source", "a", "--home", str(home)], input='{"n": 1}\n')

    done = run(home, "doctor", "--json")

    found = {each["what"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (done.exit_code, {each["level"] for each in found.values()} <= {"ok", "warning"}) == (0, True)
    assert {"Python", "Spark", "Java", "jars", "content", "catalog", "store", "clock"} <= set(found)
    assert found["store"]["text"].startswith("1 datasets")
    assert found["sink archive"]["text"].startswith("the folder will be made")
    assert not (home / "archive").exists(), "a look makes nothing"


def test_what_is_wrong_is_named_with_its_remedy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-CLI-1, L-CLI-2: no Java, a destination that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with (home / "strandline.toml").open("a", encoding="utf-8") as file:
        file.write(f'[sinks.centre]\ntype = "forward"\nurl = "http://127.0.0.1:{port}"\n')
        file.write('[sinks.files]\ntype = "blob"\ndestination = "local"\ndir = "strandline.toml/below"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr("strandline.lake.spark.java.FOLDERS", ())
    monkeypatch.setattr("strandline.lake.spark.java.find_spec", lambda _: None)

    done = run(home, "doctor")

    assert done.exit_code == 1
    assert "fault    Java: Spark needs Java 17 or 21" in done.stdout
    assert "remedy: install OpenJDK 21" in done.stdout
    assert f"fault    sink centre: nobody answers at 127.0.0.1 port {port}" in done.stdout
    assert "strandline.toml is no folder that this user may write to\n         remedy: make" in done.stdout
    assert "ok       store: " in done.stdout
