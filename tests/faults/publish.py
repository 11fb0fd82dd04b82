"""`python -m tests.faults.publish`: try the faults, count them, and write docs/faults.md.

    python -m tests.faults.publish                     all of them: hours
    python -m tests.faults.publish power flips         only those; what was counted before stays
    python -m tests.faults.publish power --share 0.1   a tenth of it
    python -m tests.faults.publish --page              only the page, from docs/faults.json

It ends with 1 if a promise was broken.
"""

import argparse
import json
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from tests import conftest
from tests.conftest import KINDS, open_backend, place_of, postgres, scratch_postgres
from tests.crash.child import WRITES
from tests.crash.test_kill import kill_at_random, kill_host_at_random
from tests.faults import flipping, gap, histories, lines, marks, planted, stalls
from tests.faults.count import ROOT, Count, in_another_process

RESULTS: Final = ROOT / "docs" / "faults.json"
PAGE: Final = ROOT / "docs" / "faults.md"
STORE: Final = ROOT / "src" / "strandline" / "persist"
DURABLE: Final = ("sqlite", "postgres", "remote")


class Fault(NamedTuple):
    title: str
    promise: str
    run: Callable[[float], Count | list[Count]]


def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="strandline-faults-"))


def every(share: float) -> int:
    return max(round(1 / share), 1)


def power(share: float) -> list[Count]:
    return [
        in_another_process("power", seeds=30, stride=every(share)),
        in_another_process("crowd", times=max(round(100 * share), 3)),
    ]


def power_normal(share: float) -> Count:
    return in_another_process(
        "power", seeds=8, stride=every(share), synchronous="NORMAL", may_lose=True, name="power at NORMAL"
    )


def errors(share: float) -> Count:
    return in_another_process("failing", stride=every(share))


def flips(share: float) -> Count:
    return flipping.main_file(stride=every(share))


def log_flips(share: float) -> Count:
    return flipping.log_file(stride=every(share))


def kills(share: float) -> Count:
    count, times = Count("kills", "the moment"), max(round(100 * share), 1)
    with count.timed():
        for write in WRITES:
            for kind in DURABLE:
                with told(f"a writer of {kind}, {write}", count):
                    kill_at_random(place_of(kind, folder()), write, times=times)
                    count.add(f"writers of {kind} killed", times)
            with told(f"a host, {write}", count):
                kill_host_at_random(conftest.host_of(folder()), write, times=times)
                count.add("hosts killed", times)
    return count


@contextmanager
def told(what: str, count: Count) -> Iterator[None]:
    """A test's assertion, as a count has it."""
    try:
        yield
    except AssertionError as error:
        count.broken.append(f"{what}: {error}")


def stall(share: float) -> list[Count]:
    times = max(round(200 * share), 5)
    return [
        *(stalls.stalled(kind, times=times) for kind in DURABLE),
        stalls.held_lock(times=max(times, 25)),  # about a third of them meet a lock
        stalls.stopped_host(times=times),
    ]


def cuts(share: float) -> list[Count]:
    schema = place_of("postgres", folder()).options["schema"]
    return [
        lines.remote_cuts(times=max(round(7_000 * share), 10)),
        lines.postgres_cuts(times=max(round(2_000 * share), 10), schema=schema),
    ]


def empties(_: float) -> Count:
    return marks.main(folder())


def orders(share: float) -> list[Count]:
    counts, seeds = [], range(1, max(round(30 * share), 1) + 1)
    for kind in KINDS:
        count = Count(f"orders on {kind}", f"seeds 1 to {seeds[-1]}, and the moment")
        with count.timed():
            for seed in seeds:
                with closing(open_backend(kind, folder())) as b:
                    histories.judge(histories.of_threads(b, threads=6, calls=150, seed=seed), b, count)
                if kind == "memory":
                    continue
                place = place_of(kind, folder())
                with closing(place.open()) as b:
                    calls = histories.of_processes(place, processes=4, calls=250, seed=seed)
                    histories.judge(calls, b, count)
        counts.append(count)
    return counts


def gaps(share: float) -> list[Count]:
    counts = []
    with scratch_postgres() as server:  # which syncs, whatever that of the run does: else no writer is slow
        for number, name in enumerate(gap.WAYS):
            # One of the writers is killed halfway: at least a million are stored.
            events = round((1_100_000 if name == "ours" else 110_000) * share)
            count = gap.measure(name, server.url, f"gap_{number}", events=events)
            if name != "ours":
                count.broken = []  # theirs to mend; the count says it
            if name == "naive" and not count.tried["never delivered"]:
                count.broken = ["a reader of a serial column lost nothing: these counts prove nothing"]
            counts.append(count)
    return counts


def bugs(_: float) -> Count:
    return planted.main()


FAULTS: Final = {
    "power": Fault(
        "The power goes at any write or sync; unsynced sectors are lost, reordered or torn",
        "what was acknowledged is there, nothing is there by half, no mark goes back",
        power,
    ),
    "power-normal": Fault(
        'The same with `synchronous="NORMAL"`',
        "a prefix of the commits is there, with all that the log was copied into the file with",
        power_normal,
    ),
    "errors": Fault(
        "A write, sync, read, truncation, creation or deletion fails, or the disk fills up or dies",
        "it is told; after a failed sync of a commit the store refuses to go on; nothing pretends",
        errors,
    ),
    "flips": Fault(
        "Each byte of a closed store flipped",
        "it is told, by verify too where the store opens, and never read as data",
        flips,
    ),
    "log-flips": Fault(
        "Each byte flipped of the log that a killed process left",
        "a prefix of the commits is read",
        log_flips,
    ),
    "kills": Fault(
        "SIGKILL of writers and hosts, at random",
        "nothing acknowledged is lost, nothing is there twice",
        kills,
    ),
    "stalls": Fault(
        "SIGSTOP and SIGKILL of writers, and of a host past the client's timeout",
        "nothing acknowledged is lost, nothing is there twice",
        stall,
    ),
    "cuts": Fault(
        "The line is cut between a commit and its answer",
        "one effect, or the outcome is called unknown",
        cuts,
    ),
    "marks": Fault(
        "A stream is emptied; then a kill and a restart, a rewrite, a restore or a move to another backend",
        "the next seq is the mark + 1",
        empties,
    ),
    "orders": Fault(
        "Threads and processes append, swap and read at once",
        "every key and stream has an order that one thread could have made, and holds what was acknowledged",
        orders,
    ),
    "gap": Fault(
        "Six processes write to Postgres, some give up, one is killed; two readers follow the global order",
        "what was acknowledged is stored, and delivered to both in one order (never delivered: their sum)",
        gaps,
    ),
    "bugs": Fault("Bugs planted in a copy of the tree", "the tests go red", bugs),
}

TOTALS: Final = {  # of which faults, and which of their counts
    "disks after a power cut": (("power", "power-normal"), r"disks.*"),
    "writes, syncs and other calls of the disk that failed": (
        ("errors",),
        r"(?!runs|told|got over|killed).*",
    ),
    "bytes flipped": (("flips", "log-flips"), r"bytes flipped"),
    "processes killed": (("kills", "stalls", "gap"), r".*killed"),
    "processes stopped": (("stalls",), r"stopped"),
    "lines cut": (("cuts",), r"(answers|requests).* cut.*|answers cut.*|without a key.*"),
    "emptied streams, restarted, rewritten, restored or moved": (("marks",), r"cells"),
    "calls that raced, their order judged": (("orders",), r"calls"),
    "events that two readers followed": (("gap",), r"events"),
    "planted bugs, caught": (("bugs",), r"caught"),
}

INTRODUCTION: Final = """\
Each count below was made by a run, none was typed. *Broken* counts the cases in which the promise did not
hold. *Made of* says what a case comes from: one of a seed or of its place can be run again as it was; where
the moment matters too, processes race, and a repeat tries as many others. *Code* is the first of a digest of
the store's sources: what has the same was counted on the same. A part of each runs with the other tests
(`tests/faults`), the whole with `make test-slow`, and with `make faults`, which writes this page.

Bugs that a program plants everywhere are on the page of [mutants](mutants.md)."""


def counted(name: str, share: float) -> list[dict[str, Any]]:
    found = FAULTS[name].run(share)
    command = f"python -m tests.faults.publish {name}" + ("" if share == 1 else f" --share {share:g}")
    more = {"command": command, "date": datetime.now(UTC).date().isoformat(), "code": code()}
    return [{**asdict(count), **more} for count in (found if isinstance(found, list) else [found])]


def code() -> str:
    """The store's code, in eight digits."""
    files = sorted(path for path in STORE.rglob("*") if path.suffix in (".py", ".sql"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def kept() -> dict[str, Any]:
    found: dict[str, Any] = {"about": "", "counts": {}}
    if RESULTS.exists():
        found = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def keep(name: str, counts: list[dict[str, Any]]) -> None:
    """Beside what others have counted, perhaps meanwhile."""
    results = kept()
    results["about"] = about()
    results["counts"][name] = counts
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def page(results: dict[str, Any]) -> str:
    text = [
        "<!-- made by `python -m tests.faults.publish`: never typed -->",
        "# Faults, tried and counted",
        "",
        INTRODUCTION,
        "",
        f"Run on {results['about']}.",
        "",
    ]
    text += total_table(results["counts"])
    for name, fault in FAULTS.items():
        text += [f"## {fault.title}", "", f"Promise: {fault.promise}.", ""]
        counts = results["counts"].get(name)
        if counts is None:
            text += [f"Not counted yet: `python -m tests.faults.publish {name}`.", ""]
            continue
        text += ["| what | tried | made of | broken | seconds |", "|---|---|---|---:|---:|"]
        text += [
            f"| {count['name']} | {tried(count)} | {count['made_of']} | {broken_in(count)} |"
            f" {count['seconds']:,.0f} |"
            for count in counts
        ]
        cases = [case for count in counts for case in count["cases"]]
        text += ["", *(bug_table(cases) if cases else [])]
        text += [
            f"Counted on {counts[0]['date']}, code {counts[0]['code']}. Repeat: `{counts[0]['command']}`.",
            "",
        ]
    return "\n".join(text)


def total_table(counts: dict[str, list[dict[str, Any]]]) -> list[str]:
    """All of ours in a few lines."""
    rows = ["| in all | tried | broken |", "|---|---:|---:|"]
    for what, (names, keys) in TOTALS.items():
        ours = [count for name in names for count in counts.get(name, []) if not is_theirs(count)]
        tried = sum(n for count in ours for key, n in count["tried"].items() if re.fullmatch(keys, key))
        rows.append(f"| {what} | {tried:,} | {sum(len(count['broken']) for count in ours)} |")
    return [*rows, ""]


def is_theirs(count: dict[str, Any]) -> bool:
    """Of those that we compare with nothing was promised here; what they never delivered is in their row."""
    name: str = count["name"]
    return name.startswith("gap, ") and name != "gap, ours"


def broken_in(count: dict[str, Any]) -> str:
    return "not ours" if is_theirs(count) else str(len(count["broken"]))


def tried(count: dict[str, Any]) -> str:
    return ", ".join(f"{times:,} {what}" for what, times in count["tried"].items())


def bug_table(cases: list[list[str]]) -> list[str]:
    rows = [
        f"| {number} | {name} | `{caught_by}` | {f'`{quoted(said)}`' if said else ''} |"
        for number, (name, caught_by, said) in enumerate(cases, 1)
    ]
    return ["| | bug | caught by | which said |", "|---:|---|---|---|", *rows, ""]


def quoted(said: str) -> str:
    return said.replace("`", "'").replace("|", "/")


def about() -> str:
    try:
        import psycopg

        with psycopg.connect(postgres().url) as connection:
            server = f", Postgres {connection.info.server_version // 10_000}"
    except ImportError:
        server = ""
    return (
        f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}{server}, {platform.system()}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.publish", description=__doc__.split("\n")[0]
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; all if none")
    parser.add_argument("--share", type=float, default=1, help="how much of it, 1 is all")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.faults) - set(FAULTS)):
        parser.error(f"there is no fault {unknown[0]!r}: there are {', '.join(FAULTS)}")
    broken = []
    try:
        postgres({})  # which syncs, as that of users does
        for name in [] if options.page else options.faults or list(FAULTS):
            counts = counted(name, options.share)
            keep(name, counts)
            broken += [f"{name}: {fault}" for count in counts for fault in count["broken"]]
            print(f"{name}: {'; '.join(tried(count) for count in counts)}", file=sys.stderr, flush=True)
    finally:
        conftest.pytest_sessionfinish()
        while conftest._hosts:
            conftest._hosts.popitem()[1].kill()
    PAGE.write_text(page(kept()), encoding="utf-8")
    for fault in broken:
        print(fault, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
