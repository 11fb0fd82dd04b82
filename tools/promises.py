"""Makes docs/promises.md: each promise with the tests that show it; `--check` says whether it is stale.

    python tools/promises.py [--check]

The words stand in promises.toml beside this file and in `strandline.conformance.rules`. The tests are those
that cite a promise by its id, in their text or in the docstring of their file; the most particular, those
that cite the fewest, come first.

A promise that has words must be cited by a test. One that nothing keeps yet has none: promises.toml lists
its id under `not_built`, and the page says so. Giving it words takes it off that list by itself. A test may
cite neither an id of that list nor one that nobody knows.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from strandline.conformance.rules import RULES
from strandline.conformance.sinks import CASES as SINK_CASES
from strandline.conformance.suites import ALL

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "promises.md"
OWN_TEST: Final = Path("tests/docs/test_promises.py")
SHOWN: Final = 3
STORE: Final = {
    "VAL": "Values",
    "EVT": "Events",
    "API": "Opening a store",
    "BKD": "Backends",
    "LOG": "Streams",
    "KV": "Current values",
    "CAS": "Compare and swap",
    "CON": "Expectations",
    "PRJ": "Folds",
    "SUB": "Subscribers",
    "SNP": "Snapshots",
    "CMP": "Compaction of streams",
    "DUR": "The store over HTTP",
    "REC": "Crashes and restarts",
    "BLB": "Large bytes",
    "VIEW": "Views",
    "CAT": "The catalogue",
    "QRY": "Queries",
    "BAT": "Batches",
    "UPC": "Old event shapes",
    "IDM": "Repeats",
    "GLB": "The global order",
    "ACL": "The worked example",
    "ERA": "Erasure",
    "INT": "Damage",
    "OPS": "Upkeep",
}
HEAD: Final = """\
<!-- made by tools/promises.py from tools/promises.toml and the tests: change those, then `make docs` -->
# What Strandline promises, and how it is tested
Every promise has an id, and every test cites those that it shows. This page joins the two, and `make check`
fails when it is stale. Of many tests the most particular are named. A name like `log/…` is a case of the
[conformance kit](conformance/README.md), which runs on all four backends, `sink/…` one that runs on every
kind of sink; a whole file is named where all of it is about the promise.

Run one of them: `make test PYTEST_ARGS="-k a_part_of_its_name"`.
"""

# L-SEQ-1, P-LOG-1, D-OTLP-3, S-SQL-2, W-UI-1; F-1, C-1, G-1, M-1, R-1; MT-1, MG-1, RA-1. Not SHA-256.
_ID = r"(?:[DLPSW]-[A-Z]+|[CFGMR]|M[GT]|RA)-"
NOT_BUILT: Final = """\
## Not built yet
These parts are designed. Nothing keeps their promises yet, and no test cites them.
"""
_CITED = re.compile(rf"\b({_ID})(\d+)\b(?: to (?:\1|-)(\d+)\b)?((?:, -\d+\b)*)")


@dataclass(frozen=True, slots=True)
class Subject:
    """Promises that belong together, by id."""

    title: str
    text: str
    rules: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """A part that is designed and not built, with the ids of its promises."""

    title: str
    text: str
    ids: Sequence[str]


@dataclass(slots=True)
class Shown:
    """Who cites what, by name of the test; what it is about comes first."""

    by_name: dict[str, list[str]] = field(default_factory=dict)

    def of(self, rule: str) -> list[str]:
        """The most particular first: a test before a file, and before one that cites others first."""

        def rank(name: str) -> tuple[bool, int, int, str]:
            rules = self.by_name[name]
            return name.endswith(".py"), rules.index(rule), len(rules), name

        return sorted((name for name, rules in self.by_name.items() if rule in rules), key=rank)


def main() -> int:
    subjects = [*read_subjects(), *store_subjects()]
    shown = citations()
    text = page(subjects, shown, not_built(subjects))
    for rule in (rule for subject in subjects for rule in subject.rules if not shown.of(rule)):
        print(f"no test cites {rule}, so docs/promises.md leaves it out", file=sys.stderr)
    if unknown := without_words(subjects, shown):
        print(
            *(f"{name} cites {rule}, which has no words" for name, rule in unknown), sep="\n", file=sys.stderr
        )
        return 1
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv:
        print("docs/promises.md is stale: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def without_words(subjects: Sequence[Subject], shown: Shown) -> list[tuple[str, str]]:
    """Citations of ids that nobody knows, or of promises that are not built: the test and the id."""
    worded = {rule for subject in subjects for rule in subject.rules}
    cited_ids = [(name, rule) for name, rules in shown.by_name.items() for rule in rules]
    return [(name, rule) for name, rule in cited_ids if rule not in worded]


def read_subjects() -> list[Subject]:
    return [Subject(each["title"], each["text"].strip(), each["rules"]) for each in _words()["subject"]]


def not_built(subjects: Sequence[Subject]) -> list[NotBuilt]:
    """The parts of which some promise has no words yet, each with those promises."""
    worded = {rule for subject in subjects for rule in subject.rules}
    parts = [
        NotBuilt(each["title"], each["text"], [id_ for id_ in cited(each["ids"]) if id_ not in worded])
        for each in _words()["not_built"]
    ]
    return [part for part in parts if part.ids]


def _words() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def store_subjects() -> list[Subject]:
    """The rules of the event store, a subject for each of its rooms."""
    rooms: dict[str, dict[str, str]] = {}
    for rule, words in RULES.items():
        rooms.setdefault(rule.split("-")[1], {})[rule] = words
    return [Subject(f"Store: {STORE[room]}", "", rules) for room, rules in rooms.items()]


def citations() -> Shown:
    shown = Shown({case.id: [*case.rules] for suite in ALL for case in suite.cases})
    shown.by_name.update({case.id: [*case.rules] for case in SINK_CASES})
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.relative_to(ROOT) == OWN_TEST:  # ids in it are examples
            continue
        place, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for name, words in tests_of(text):
            if rules := cited(words):
                shown.by_name[f"{place}::{name}" if name else place] = rules
    return shown


def tests_of(text: str) -> Iterator[tuple[str, str]]:
    """Each test of a file with its text and the comment before it; its docstring under no name."""
    tree, lines = ast.parse(text), text.splitlines()
    yield "", ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            while first > 0 and lines[first - 1].lstrip().startswith("#"):
                first -= 1
            yield node.name, "\n".join(lines[first : node.end_lineno])


def cited(text: str) -> list[str]:
    """Ids in a text: `L-SEQ-1, -3` and `L-SEQ-1 to L-SEQ-3` too."""
    found: list[str] = []
    for family, first, last, others in _CITED.findall(text):
        found += [f"{family}{n}" for n in range(int(first), int(last or first) + 1)]
        found += [f"{family}{n}" for n in re.findall(r"\d+", others)]
    return [*dict.fromkeys(found)]


def page(subjects: Sequence[Subject], shown: Shown, missing: Sequence[NotBuilt]) -> str:
    lines = [HEAD]
    for subject in subjects:
        rows = [row(rule, words, shown.of(rule)) for rule, words in subject.rules.items() if shown.of(rule)]
        lines += [f"## {subject.title}", *filter(None, [subject.text]), ""]
        lines += ["| id | promise | shown by |", "|---|---|---|", *rows, ""]
    if missing:
        lines += [NOT_BUILT, "| part | what it will be | ids |", "|---|---|---|"]
        lines += [f"| {part.title} | {part.text} | {spans(part.ids)} |" for part in missing]
        lines.append("")
    return "\n".join(lines)


def spans(ids: Sequence[str]) -> str:
    """`M-7, M-9 to M-16`: ids in their order, with neighbours drawn together."""
    drawn: list[list[tuple[str, int]]] = []
    for id_ in ids:
        family, _, number = id_.rpartition("-")
        if drawn and drawn[-1][-1] == (family, int(number) - 1):
            drawn[-1].append((family, int(number)))
        else:
            drawn.append([(family, int(number))])
    texts = [[f"{family}-{number}" for family, number in (each[0], each[-1])] for each in drawn]
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in texts)


def row(rule: str, words: str, names: Sequence[str]) -> str:
    more = " and others" if len(names) > SHOWN else ""
    return f"| {rule} | {words} | {', '.join(f'`{name}`' for name in names[:SHOWN])}{more} |"


if __name__ == "__main__":
    sys.exit(main())
