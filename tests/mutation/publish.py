"""`python -m tests.mutation.publish`: tries mutants of the rooms that decide, and writes docs/mutants.md.

    python -m tests.mutation.publish                     300 mutants of seed 1, with two workers
    python -m tests.mutation.publish --seed 7 --count 50 others, and fewer
    python -m tests.mutation.publish --minutes 20        what can be tried until then, of all rooms
    python -m tests.mutation.publish --again FILE …      those not caught, once more, with these tests
    python -m tests.mutation.publish --page              only the page, from the counts of the last run

A survivor that changes nothing that anybody may rely on has its reason in `harmless.toml`, by its id. Any
other one needs a test.
"""

import argparse
import json
import platform
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.mutation.mutants import KINDS, Mutant
from tests.mutation.runner import (
    BUDGET_S,
    MOST_S,
    ROOMS,
    ROOT,
    choose_tests,
    chosen,
    files_of_tests,
    first_run,
    tried,
)

PAGE: Final = ROOT / "docs" / "mutants.md"
COUNTS: Final = ROOT / "docs" / "mutants.json"
HARMLESS: Final = Path(__file__).with_name("harmless.toml")
VERDICTS: Final = ("caught", "survived", "not run")
HEAD: Final = """\
<!-- made by `python -m tests.mutation.publish`: never typed -->
# Mutants: small bugs, and the tests that catch them

A mutant is the code with one small bug: a condition the other way round, a number or a bound off by one, a
statement left out, two arguments swapped, an error not raised. A seed chooses them, as many in each room.
Each is tried in a copy of the package against the tests that run the mutated function, the fastest first. It
is *caught* if one of them fails, or does not end.

The tests are those that need neither Spark nor a server and take less than {most_s:.0f} s each; a mutant is
tried with as many of them as take {budget_s:.0f} s. Tests with kills or with real Spark are left out, though
they run the same code, so that they may catch some of the survivors here. *Not run* means that no test of
these runs the function. [Faults](faults.md) has bugs that were planted by hand.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.publish")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--again", nargs="+", metavar="FILE", help="try what is left once more, with these tests"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="stop then, with what was tried")
    parser.add_argument("--page", action="store_true", help="try nothing, write the page of the last run")
    options = parser.parse_args(arguments)
    if options.again:
        try_again(options.again, options.workers)
    elif not options.page:
        began = time.monotonic()
        known = first_run(files_of_tests(), options.workers)
        left_s = options.minutes * 60 - (time.monotonic() - began)
        found = tried(chosen(options.seed, options.count), known, options.workers, left_s)
        keep(found, options.seed, options.count, len(known))
    PAGE.write_text(page(kept()), encoding="utf-8")
    return report(kept())


def try_again(files: Sequence[str], workers: int) -> None:
    """Try the mutants that were not caught once more, with these tests; the others stay caught."""
    facts = kept()
    by_id = {each.id: each for each in chosen(facts["seed"], facts["asked"])}
    found: dict[Mutant, tuple[str, str]] = {by_id[id_]: (how, by) for id_, how, by in facts["mutants"]}
    known = first_run(files, workers)
    left = [each for each, (how, _) in found.items() if how != "caught" and choose_tests(each, known)]
    found |= tried(left, known, workers)
    keep(found, facts["seed"], facts["asked"], facts["tests"])


def keep(found: Mapping[Mutant, tuple[str, str]], seed: int, asked: int, tests: int) -> None:
    """Write what a run has counted."""
    facts = {
        "seed": seed,
        "asked": asked,
        "tests": tests,
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "mutants": sorted([each.id, how, by] for each, (how, by) in found.items()),
    }
    COUNTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return found


def those(facts: Mapping[str, Any], verdict: str) -> list[str]:
    return [id_ for id_, how, _ in facts["mutants"] if how == verdict]


def counts(facts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """By room and by kind: how many were caught, survived, or were not run."""
    table: dict[str, dict[str, int]] = {}
    for id_, how, _ in facts["mutants"]:
        room = next(each for each in ROOMS if id_.startswith(f"{each}/"))
        for key in (room, _kind_of(id_)):
            table.setdefault(key, dict.fromkeys(VERDICTS, 0))[how] += 1
    return table


def _kind_of(id_: str) -> str:
    """What stands before the colon, and before the number of those that read alike."""
    head = id_.partition(":")[0].partition(" #")[0]
    return next(kind for kind in KINDS if head.endswith(f" {kind}"))


def harmless() -> dict[str, str]:
    """Why a survivor is harmless, by its id."""
    found = tomllib.loads(HARMLESS.read_text(encoding="utf-8"))
    return {each["id"]: each["why"] for each in found.get("mutant", [])}


def unexplained(facts: Mapping[str, Any]) -> list[str]:
    """The survivors that neither a test catches nor a reason excuses."""
    reasons = harmless()
    return [id_ for id_ in those(facts, "survived") if id_ not in reasons]


def report(facts: Mapping[str, Any]) -> int:
    for id_ in unexplained(facts):
        print(f"survived, without a reason: {id_}", file=sys.stderr)
    return 1 if unexplained(facts) else 0


def page(facts: Mapping[str, Any]) -> str:
    rows, reasons = counts(facts), harmless()
    kinds = sorted(rows.keys() - set(ROOMS))
    total = {verdict: sum(rows[room][verdict] for room in ROOMS if room in rows) for verdict in VERDICTS}
    lines = [HEAD.format(most_s=MOST_S, budget_s=BUDGET_S)]
    lines += _table("room", {f"`{room}/`": rows[room] for room in ROOMS if room in rows} | {"in all": total})
    lines += _table("kind", {kind: rows[kind] for kind in kinds})
    excused = [(id_, reasons[id_]) for id_ in those(facts, "survived") if id_ in reasons]
    lines += ["## Survivors that are harmless", "", "| mutant | why |", "|---|---|"]
    lines += [f"| {_shown(id_)} | {why} |" for id_, why in excused]
    if open_ := unexplained(facts):
        lines += ["", "## Survivors that nobody has judged yet", ""]
        lines += ["Each needs a test, or a reason in `tests/mutation/harmless.toml`.", ""]
        lines += [f"- {_shown(id_)}" for id_ in open_]
    if left := those(facts, "not run"):
        lines += ["", "## Not run by a fast test", ""]
        lines += [f"- {_shown(id_)}" for id_ in left]
    again = f"python -m tests.mutation.publish --seed {facts['seed']} --count {facts['asked']}"
    if sum(total.values()) < facts["asked"]:
        lines += [
            "",
            f"Of {facts['asked']} mutants {sum(total.values())} were tried, in the time that there was.",
        ]
    counted = f"Counted on {facts['date']} with Python {facts['python']}, with"
    lines += ["", f"{counted} {facts['tests']:,} tests to choose from. Repeat: `{again}`.", ""]
    return "\n".join(lines)


def _table(what: str, rows: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines = [f"| {what} | mutants | caught | survived | not run |", "|---|---:|---:|---:|---:|"]
    for name, row in rows.items():
        numbers = [sum(row.values()), *(row[verdict] for verdict in VERDICTS)]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return [*lines, ""]


def _shown(id_: str) -> str:
    """An id as code in a cell of a table."""
    place, _, change = id_.partition(": ")
    return f"{place}: `{change}`".replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
