"""The code in README and tutorial runs, top to bottom, as a reader would type it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_python_blocks_of_a_page_run_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    scope: dict[str, object] = {}

    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page} block {number}", "exec"), scope)  # our own pages

    assert blocks, f"{page} has no example"
    assert list(tmp_path.iterdir()), "the example made its store"


def test_the_tutorial_of_rows_runs_top_to_bottom_with_a_spark_of_its_own(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial-rows.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks))

    ended = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert "does not fit bigint" in ended.stdout
    assert ended.stderr == ""


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], ids=str)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())

    missing = [link for link in links if not (page.parent / link).exists()]

    assert missing == []
