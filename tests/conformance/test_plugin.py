"""A backend's author gets every case as a test of pytest."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

CONFTEST = """
import pytest
from {module} import {fixture} as Fixture

@pytest.fixture(scope="session")
def backend_fixture():
    fixture = Fixture()
    yield fixture
    fixture.close()
"""
TEST = """
def test_conformance(conformance_case, backend_fixture):
    conformance_case(backend_fixture)
"""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    is_installed = any(each.name == "strandline_conformance" for each in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "strandline.conformance.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def write_project(folder: Path, module: str, fixture: str) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST.format(module=module, fixture=fixture))
    (folder / "test_mine.py").write_text(TEST)


def test_each_case_is_a_test_that_passes_or_is_skipped(tmp_path: Path) -> None:
    write_project(tmp_path, "strandline.conformance.shipped_fixtures", "MemoryFixture")

    done = pytest_in(tmp_path, "-k", "kv/ or recovery/", "-rs", "-vv")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "22 passed, 12 skipped" in done.stdout
    assert "test_mine.py::test_conformance[kv/put-overwrites] PASSED" in done.stdout
    assert "reopen: the store lives in one process" in done.stdout


def test_a_failure_shows_the_rule_and_both_sides(tmp_path: Path) -> None:
    write_project(tmp_path, "planted", "ForgetsTheMarkFixture")
    (tmp_path / "planted.py").write_text((Path(__file__).parent / "planted.py").read_text())

    done = pytest_in(tmp_path, "-k", "truncating-above-the-last-seq")

    assert done.returncode == 1
    assert "(P-LOG-8, P-BKD-1, P-DUR-10)" in done.stdout
    assert "expected: [[], 0, 3]" in done.stdout
    assert "actual: [[], 0, 0]" in done.stdout


def test_the_plugin_imports_nothing_where_nobody_asks(tmp_path: Path) -> None:
    script = (
        "import strandline.conformance.pytest_plugin, sys; print([m for m in sys.modules if 'persist' in m])"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.strip() == "[]"
