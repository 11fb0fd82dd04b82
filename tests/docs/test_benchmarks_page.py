"""docs/benchmarks: the page is what its results.json gives, and every aim was measured."""

import json
from pathlib import Path

from benchmarks.aims import standings
from benchmarks.report import Report, as_markdown, picture_name, report_of

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"


def published() -> Report:
    return report_of(json.loads((FOLDER / "results.json").read_text("utf-8")))


def test_the_page_is_what_the_results_give() -> None:
    report = published()

    assert (FOLDER / "README.md").read_text("utf-8") == as_markdown(report)
    pictures = {picture_name(table.question) for table in report.tables} | {"aims.svg"}
    assert {path.name for path in FOLDER.glob("*.svg")} == pictures


def test_every_aim_was_measured() -> None:
    assert [each.aim.text for each in standings(published().tables) if each.ours is None] == []
