"""What is not installed is named with the extra that brings it; the doctor looks for what [observe] needs."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.cli import cli
from strandline.cli.missing_extras import _EXTRA_OF as EXTRA_OF
from strandline.cli.missing_extras import remedy_of
from strandline.config.config import FILE_NAME, load_config
from strandline.node.doctor import examine
from tests.observe.collector import collecting

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "src").rglob("*.py")]
BROUGHT_BY = {"opentelemetry": "opentelemetry_sdk", "py4j": "pyspark"}
OF_THE_CALLER = {"pytest", "typing_extensions"}  # who loads the plugin; who checks types


def test_a_verb_that_lacks_a_package_names_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-CLI-2: wrong use, with a remedy, and no stack trace."""
    monkeypatch.setitem(sys.modules, "strandline.node.node", None)
    monkeypatch.setattr("strandline.cli.missing_extras._EXTRA_OF", {"strandline": "lake"})
    monkeypatch.setattr("strandline.cli.missing_extras.find_spec", lambda _: None)
    (tmp_path / FILE_NAME).write_text("version = 1\n")

    ended = CliRunner().invoke(cli, ["flush", "logs", "--home", str(tmp_path)])

    assert ended.exit_code == 2
    assert ended.stderr == (
        "strandline flush: not_installed: this needs strandline, which is not installed\n"
        'hint: pip install "strandline[lake]"\n'
    )


def test_a_module_that_is_missing_for_another_reason_is_no_missing_extra() -> None:
    assert remedy_of(ImportError("cannot import name 'x'", name="pyarrow")) is None
    assert remedy_of(ModuleNotFoundError("No module named 'y'", name="y")) is None


def test_the_doctor_looks_for_the_collector_and_for_what_metrics_need(tmp_path: Path) -> None:
    """A collector that is down is a warning: nothing waits for it."""
    with collecting() as collector:
        text = f'version = 1\n[observe]\nmetrics = true\ntraces = "{collector.url}"\n'
        (tmp_path / FILE_NAME).write_text(text)
        config = load_config(tmp_path / FILE_NAME)
        up = {each.what: each.level for each in examine(config)}
    down = {each.what: each for each in examine(config)}

    assert (up["metrics"], up["traces"]) == ("ok", "ok")
    assert down["traces"].level == "warning"
    assert "spans are lost" in down["traces"].text


def test_every_package_that_is_imported_is_one_that_an_extra_brings() -> None:
    """What is here by chance, since a tool of the developers needs it, is not there for a user."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: _packages(wanted) for name, wanted in project["optional-dependencies"].items()}
    always = _packages(project["dependencies"])

    found = (
        {module for path in SOURCES for module in imported(path)} - sys.stdlib_module_names - {"strandline"}
    )

    lacking = {
        each
        for each in found - OF_THE_CALLER - always
        if each not in EXTRA_OF or BROUGHT_BY.get(each, each) not in extras[EXTRA_OF[each]]
    }
    assert lacking == set()


def _packages(wanted: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", each)[0].replace("-", "_") for each in wanted}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_a_node_is_made_and_its_state_is_told_without_any_extra(tmp_path: Path) -> None:
    """L-OBS-1: state comes from the store alone. In a process of its own: here all is imported already."""
    absent = f"sys.modules.update(dict.fromkeys({sorted(EXTRA_OF)!r}))"
    program = f"import sys; {absent}; from strandline.cli import main; main()"
    for verb in ("init", "status --home"):
        done = subprocess.run(
            [sys.executable, "-c", program, *verb.split(), str(tmp_path / "node")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
