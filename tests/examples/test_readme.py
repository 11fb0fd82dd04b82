"""examples/README.md names every example, and all that it links to is there."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "README.md"


def links() -> set[str]:
    return set(re.findall(r"\]\(([^)#]+)\)", PAGE.read_text()))


def test_every_example_is_in_the_table() -> None:
    there = {path.name for path in EXAMPLES.glob("[!._]*")} - {"README.md"}

    assert {link.split("/")[0] for link in links() if not link.startswith("..")} == there


def test_every_link_of_the_page_leads_somewhere() -> None:
    assert [link for link in links() if not (EXAMPLES / link).exists()] == []
