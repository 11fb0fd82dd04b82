"""Bugs that were planted on purpose, one at a time, in a copy of the tree: the tests must go red.

    python -m tests.faults.planted             plant each, and say which were not caught
    python -m tests.faults.planted 3 7         only those

The same tests are run without it first: a test that is red anyway catches nothing. Nor does one that is red
and says nothing, or does not say what the bug breaks.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.faults.bugs import BUGS, Bug
from tests.faults.count import ROOT, Count

COPIED: Final = ("src", "tests", "pyproject.toml")
TIMEOUT_S: Final = 600
_MOST_TOLD: Final = 140


def copy_of(tree: Path, to: Path) -> None:
    for name in COPIED:
        if (tree / name).is_dir():
            shutil.copytree(tree / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(tree / name, to / name)


def plant(bug: Bug, tree: Path) -> None:
    path = tree / bug.file
    source = path.read_text(encoding="utf-8")
    assert source.count(bug.text) == 1, f"{bug.file} has {source.count(bug.text)} times {bug.text!r}"
    path.write_text(source.replace(bug.text, bug.instead), encoding="utf-8")


def command_of(bug: Bug) -> list[str]:
    kind, _, rest = bug.caught_by.partition(" ")
    if kind == "conformance":
        return ["-m", "strandline", "conformance", "run", "--store", "memory:", "--suite", rest]
    path, _, chosen = bug.caught_by.partition(" -k ")
    return ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", path, *chosen_tests(chosen)]


def chosen_tests(chosen: str) -> list[str]:
    """`-k` takes no brackets: a test of one kind is two words."""
    return ["-k", " and ".join(chosen.rstrip("]").split("["))]


def run_in(tree: Path, bug: Bug) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    return subprocess.run(
        [sys.executable, *command_of(bug)],
        cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip


def seen_by(said: str, says: str) -> str:
    """What was red: the first line with `says` of those that pytest marks, or that the conformance suite
    failed; nothing if there is none, as where the test was red for another reason, or names none."""
    for line in said.splitlines():
        found = re.match(r"E\s+(\S.*)|fail: (\S.*)", line)
        if found and says in line:
            told = re.sub(r"(?<![\w.])/[\w./-]+/", "", found[1] or found[2])  # no folders of this machine
            if told != "AssertionError":
                return around(told, says)
    return ""


def around(told: str, says: str) -> str:
    """The piece of a long line that has `says`."""
    first = max(told.find(says) + len(says) - _MOST_TOLD, 0)
    piece = told[first : first + _MOST_TOLD]
    return f"{'…' if first else ''}{piece}{'…' if len(told) > first + _MOST_TOLD else ''}"


def main(chosen: list[int] | None = None, *, control: bool = True) -> Count:
    """Plant each bug in a copy and run the tests that should catch it; first the same tests without it."""
    count = Count("planted bugs", "the list")
    with count.timed(), tempfile.TemporaryDirectory(prefix="strandline-planted-") as folder:
        clean = Path(folder) / "clean"
        clean.mkdir()
        sound: set[str] = set()
        copy_of(ROOT, clean)
        for number, bug in enumerate(BUGS, 1):
            if chosen and number not in chosen:
                continue
            count.add("planted")
            if control and bug.caught_by not in sound:
                green = run_in(clean, bug)
                assert green.returncode == 0, f"{bug.caught_by} is red as it is: {green.stdout[-2000:]}"
                sound.add(bug.caught_by)
            tree = Path(folder) / f"{number}"
            tree.mkdir()
            copy_of(ROOT, tree)
            plant(bug, tree)
            found = run_in(tree, bug)
            said = seen_by(found.stdout, bug.says)
            caught = found.returncode == 1 and said != ""
            count.add("caught", int(caught))
            count.cases.append([bug.name, bug.caught_by if caught else "nothing", said])
            print(
                f"{number:2} {'caught' if caught else 'NOT CAUGHT'}: {bug.name}: {said}",
                file=sys.stderr,
                flush=True,
            )
            if not caught:
                tail = (found.stdout + found.stderr)[-600:]
                count.broken.append(f"{number} {bug.name}: ended with {found.returncode}: {tail}")
            shutil.rmtree(tree)
    return count


if __name__ == "__main__":
    done = main([int(each) for each in sys.argv[1:]])
    for fault in done.broken:
        print(fault)
    print(done.tried, f"{done.seconds} s")
    sys.exit(1 if done.broken else 0)
