"""The code in README and tutorial runs, top to bottom, as a reader would type it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/tutorial-rows.md"])
def test_the_python_blocks_of_a_page_run_top_to_bottom(page: str, tmp_path: Path) -> None:
    """In a process of its own: a page may start Spark."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))

    ended = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert len(list(tmp_path.iterdir())) > 1, "the example made its store"


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], ids=str)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())

    missing = [link for link in links if not (page.parent / link).exists()]

    assert missing == []
