"""Puts measured ratios into docs/comparison.md; `--check` says whether they are stale.

python tools/comparison.py [--check]
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "comparison.md"
END: Final = "<!-- end of measured -->"
# By question: who of ours, against whom. What was not measured is left out.
WANTED: Final = (
    ("How fast is an append?", "ours, full contract", "eventsourcing"),
    ("How fast is a batch?", "ours, full contract", "eventsourcing"),
    ("How do threads share a store?", "ours full, 64 threads", "eventsourcing, 8 threads"),
    ("How fast is a read?", "ours", "eventsourcing"),
    *(
        ("How fast are rows end to end?", f"ours, append and flush, {unit}", f"{peer}, {unit}")
        for peer in ("Spark Structured Streaming", "dlt", "dlt, by Arrow")
        for unit in ("rows/s", "rows/CPU-s")
    ),
)


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition("<!-- measured")
    note, _, after = rest.partition("-->")
    made = f"{head}<!-- measured{note}-->\n{table()}\n{END}{after.partition(END)[2]}"
    if made == text:
        return 0
    if "--check" in sys.argv:
        print("docs/comparison.md is stale: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


def table() -> str:
    found = json.loads((DOCS / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    lines = ["| question | measured | ours | against | ratio |", "|---|---|---|---|---:|"]
    for question, ours, theirs in WANTED:
        for measured in found["tables"]:
            rows = {row["name"]: row for row in measured["rows"]}
            if measured["question"] == question and ours in rows and theirs in rows:
                said = ratio(rows[ours], rows[theirs])
                lines.append(f"| {question} | {measured['title']} | {ours} | {theirs} | {said:.2f} |")
    return "\n".join(lines)


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """As measured within each round, where it was; else of the medians."""
    name = theirs["name"].removesuffix(", rows/s").removesuffix(", rows/CPU-s")
    within = ours["ratios"].get(name)
    return float(within["median"] if within else ours["measure"]["median"] / theirs["measure"]["median"])


if __name__ == "__main__":
    sys.exit(main())
