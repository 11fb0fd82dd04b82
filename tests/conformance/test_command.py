"""`strandline conformance run` and published scoreboards: what is refused, what is written, how it ends."""

import json
from functools import partial
from pathlib import Path

import pytest

from strandline.conformance import publish
from strandline.conformance.command import fixture_for, run_cli
from strandline.conformance.runner import certify
from strandline.conformance.shipped_fixtures import (
    MemoryFixture,
    PostgresFixture,
    RemoteFixture,
    SqliteFixture,
)
from strandline.conformance.suites import ALL
from strandline.errors import UsageError


def test_a_run_writes_its_scoreboard_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(store_url="memory:", out_dir=tmp_path, suites=["event"]) == 0

    assert "event" in capsys.readouterr().out
    assert json.loads((tmp_path / "scoreboard.json").read_text())["total_pass"] == 9
    assert (tmp_path / "scoreboard.md").read_text().startswith("# Conformance of memory")


def test_a_run_that_fails_ends_with_1_and_names_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_cli(fixture="tests.conformance.planted:ForgetsTheMarkFixture", suites=["log"])

    shown = capsys.readouterr()
    assert code == 1
    assert "log/truncating-above-the-last-seq-empties-the-stream-and-leaves-its-mark" in shown.out
    assert "fail: log/" in shown.err


def test_json_is_data_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(store_url="memory:", suites=["event"], json=True)

    found = json.loads(capsys.readouterr().out)
    assert (found["backend"], found["total"], found["level"]) == ("memory", 9, None)


def test_a_sqlite_folder_is_used_for_stores_of_our_own_making(tmp_path: Path) -> None:
    (tmp_path / "precious.db").write_text("precious")

    assert run_cli(store_url=str(tmp_path), suites=["event"]) == 0

    assert [path.name for path in tmp_path.iterdir()] == ["precious.db"]
    assert (tmp_path / "precious.db").read_text() == "precious"


def test_an_existing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("precious")

    for url in (str(tmp_path / "store.db"), f"sqlite:///{tmp_path}/store.db"):
        with pytest.raises(UsageError, match="never touched"):
            run_cli(store_url=url)


def test_each_url_has_its_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_TOKEN", "secret")

    def made_by(url: str) -> object:
        factory = fixture_for(url)
        return factory.func if isinstance(factory, partial) else factory

    assert made_by("memory:") is MemoryFixture
    assert made_by(f"sqlite:///{tmp_path}") is SqliteFixture
    assert made_by("postgresql://somewhere/db") is PostgresFixture
    assert made_by("https://somewhere") is RemoteFixture


@pytest.mark.parametrize("url", ["gopher://x", "sqlite:///", "."])
def test_an_odd_store_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        run_cli(store_url=url)


@pytest.mark.parametrize("name", ["nocolon", "no.such.module:x", "strandline.errors:Nothing", "os:name"])
def test_an_odd_fixture_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        run_cli(fixture=name)


def test_one_of_store_and_fixture_is_needed_and_suites_must_exist() -> None:
    with pytest.raises(UsageError):
        run_cli()
    with pytest.raises(UsageError, match="no suite 'frobnicate'"):
        run_cli(store_url="memory:", suites=["frobnicate"])


def test_published_scoreboards_are_stale_when_the_cases_changed(tmp_path: Path) -> None:
    assert publish.stale(["memory"], tmp_path) == [f"{tmp_path}/memory/scoreboard.json is not there"]

    certify(MemoryFixture, [suite for suite in ALL if suite.name == "event"]).write(tmp_path / "memory")

    (found,) = publish.stale(["memory"], tmp_path)
    assert "today's are" in found
    assert publish.main(["--check", "--out", str(tmp_path), "memory"]) == 1


def test_publishing_writes_a_scoreboard_that_is_not_stale(tmp_path: Path) -> None:
    assert publish.main(["--out", str(tmp_path), "memory"]) == 0

    assert publish.main(["--check", "--out", str(tmp_path), "memory"]) == 0
    assert json.loads((tmp_path / "memory" / "scoreboard.json").read_text())["level"] == "atomic"
