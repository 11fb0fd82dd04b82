"""`python -m strandline.conformance.publish`: the scoreboards of our own backends, in docs/conformance.

    python -m strandline.conformance.publish            run all four and write their scoreboards
    python -m strandline.conformance.publish sqlite     only that one
    python -m strandline.conformance.publish --check    say which are stale, without running anything

A scoreboard is stale where its fingerprint is not that of the cases and the library version of today.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from strandline.conformance.fixture import FixtureFactory
from strandline.conformance.hosts import local_postgres, local_remote, local_sqlite
from strandline.conformance.runner import certify
from strandline.conformance.scoreboard import Scoreboard, compare, fingerprint
from strandline.conformance.shipped_fixtures import MemoryFixture
from strandline.conformance.suites import ALL

INTRODUCTION: Final = """\
Every rule of the store is a case, the same on each backend. *Skipped* is a capability that a backend
declares not to have, with its reason on the scoreboard; a case never passes by not running. The level says
how much was shown: basic (ten operations), atomic (threads), shared (processes), durable (SIGKILL)."""


@contextmanager
def local_memory() -> Iterator[FixtureFactory]:
    yield MemoryFixture


BACKENDS: Final[dict[str, Callable[[], AbstractContextManager[FixtureFactory]]]] = {
    "memory": local_memory,
    "sqlite": local_sqlite,
    "postgres": local_postgres,
    "remote": local_remote,
}


def publish(names: Sequence[str], out: Path) -> list[Scoreboard]:
    """Certify each and write its scoreboard."""
    boards = []
    for name in names:
        with BACKENDS[name]() as factory:
            board = certify(factory)
        board.write(out / name)
        boards.append(board)
        print(
            f"{name}: {board.count('pass')} of {board.total} passed, level {board.level or 'none'}",
            file=sys.stderr,
        )
    return boards


def write_index(out: Path) -> None:
    """The page that leads to the scoreboards, made of what they say."""
    lines = [
        "<!-- made by `python -m strandline.conformance.publish`: never typed -->",
        "# The conformance kit on our own backends",
        "",
        INTRODUCTION,
        "",
        "| backend | level | passed | failed | skipped | cases |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name in BACKENDS:
        path = out / name / "scoreboard.json"
        if path.exists():
            board = json.loads(path.read_text(encoding="utf-8"))
            failed = board["total_expected"] - board["total_pass"] - board["total_skipped"]
            counts = (
                f"{board['total_pass']} | {failed} | {board['total_skipped']} | {board['total_expected']}"
            )
            lines.append(f"| [{name}]({name}/scoreboard.md) | {board['level']} | {counts} |")
    lines += [
        "",
        "Certify a backend of your own: [how to write a backend](../how-to/write-a-backend.md).",
        "Sinks have a kit too, `strandline.conformance.sinks`, which our tests run on forward, blob and one",
        "of someone else's: [how to write a sink](../how-to/write-a-sink.md).",
        "Repeat these: `python -m strandline.conformance.publish`.",
        "",
    ]
    (out / "README.md").write_text("\n".join(lines), encoding="utf-8")


def stale(names: Sequence[str], out: Path) -> list[str]:
    """What is wrong with the scoreboards that are there; empty if they are of today's cases and all green."""
    today, found = fingerprint(ALL), []
    for name in names:
        path = out / name / "scoreboard.json"
        if not path.exists():
            found.append(f"{path} is not there")
            continue
        board = json.loads(path.read_text(encoding="utf-8"))
        if board["fingerprint"] != today:
            found.append(f"{path} is of cases {board['fingerprint']}, today's are {today}")
        elif board["total_pass"] + board["total_skipped"] != board["total_expected"]:
            found.append(f"{path} has cases that did not pass, or did not run")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m strandline.conformance.publish", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "backends", nargs="*", metavar="BACKEND", help=f"of {', '.join(BACKENDS)}; all if none is named"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/conformance"), help="default: docs/conformance"
    )
    parser.add_argument("--check", action="store_true", help="only say which scoreboards are stale")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.backends) - set(BACKENDS)):
        parser.error(f"there is no backend {unknown[0]!r}: there are {', '.join(BACKENDS)}")
    names = options.backends or list(BACKENDS)
    if options.check:
        faults = stale(names, options.out)
    else:
        boards = publish(names, options.out)
        write_index(options.out)
        faults = [f"{board.backend}: {fault}" for board in boards for fault in board.faults] + compare(boards)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
