"""The code in README and tutorial runs, top to bottom, as a reader would type it."""

import re
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


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], ids=str)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())

    missing = [link for link in links if not (page.parent / link).exists()]

    assert missing == []
