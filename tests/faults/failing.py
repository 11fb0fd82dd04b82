"""A disk that fails while a store runs: the error is told, nothing pretends, what was promised is kept."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

import apsw

from strandline.errors import OutcomeUnknown, StoreUnavailable, StrandlineError
from strandline.persist import Conflict, append, append_expect
from strandline.persist.backends.sqlite import SqliteBackend
from tests.faults.count import Count, answer
from tests.faults.disk import Disk, Fault, Image, Op, Platter, lay_out, scratch_folder
from tests.faults.workloads import (
    PACES,
    PROBE,
    RUNS,
    WORKLOADS,
    Bench,
    Course,
    course_of,
    seen_in,
    without_probe,
)

NEVER: Final = 10**9
KINDS: Final = {  # of faults, each as the page tells of it
    "eio": "writes that failed",
    "full": "writes to a full disk",
    "short": "writes that took half",
    "sync": "syncs that failed",
    "read": "reads that failed",
    "open": "files that could not be made",
    "cut": "files that could not be cut",
    "delete": "files that could not be deleted",
    "grow": "shared memory that could not grow",
    "dead": "disks that died",
}


@dataclass
class Ending:
    """How a run on a failing disk ended."""

    acked: int = 0
    error: StrandlineError | None = None
    raw: BaseException | None = None
    probe: str = "not tried"  # how the same store answered to another commit after the error
    left_open: int = 0  # connections that nobody has any more
    trace: list[Op] = field(default_factory=list)
    at_error: int = 0  # how much of the trace was there when the error was told


def run(disk: Disk, folder: Path, workload: str, fault: Fault, *, checkpoints: int) -> Ending:
    """Take the steps until one fails; then ask the same store for one more commit."""
    steps = list(WORKLOADS[workload]())
    ending, bench = Ending(trace=disk.watch(fault)), None
    try:
        bench = Bench(folder, checkpoints=checkpoints)
        for step in steps:
            step(bench)
            ending.acked += 1
    except StrandlineError as error:
        ending.error = error
    except Exception as error:  # noqa: BLE001  # what is not ours is what we look for
        ending.raw = error
    ending.at_error = len(ending.trace)
    if bench is not None:
        if ending.error is not None:
            ending.probe = probed(bench)
        try:
            bench.b.close()
        except Exception as error:  # noqa: BLE001
            ending.raw = error
    disk.rest()
    ending.left_open = len(apsw.connections())
    return ending


def probed(bench: Bench) -> str:
    try:
        append(bench.b, PROBE, "t", 0, {"n": 0})
    except OutcomeUnknown:
        return "unknown"
    except StrandlineError:
        return "refused"
    return "acknowledged"


def images(trace: list[Op], chance: Random) -> dict[str, Image]:
    """The program dies, or the power goes too."""
    platter, killed = after(trace)
    return {"killed": killed, "lost": platter.lost(), "torn": platter.torn(chance)}


def after(trace: list[Op]) -> tuple[Platter, Image]:
    """What the disk has, and what is there if only the program dies: that loses nothing that was written, not
    even what a failed sync could not bring to the disk."""
    platter, survivor = Platter(), Platter()
    for op in trace:
        platter.take(op)
        if op.what != "lost":
            survivor.take(op)
    return platter, survivor.kept()


def fault_in(image: Image, folder: Path, course: Course, ending: Ending) -> str | None:
    lay_out(image, folder)
    if wrong := course.fault_of_backups(folder, ending.acked):
        return wrong
    try:
        b = SqliteBackend(folder / "store.db")
    except StrandlineError as error:
        return f"it cannot be opened again: {error}"
    try:
        has_probe = b.last_seq(PROBE) == 1
        if ending.probe == "acknowledged" and not has_probe:
            return "what the store acknowledged after the error is gone"  # no retry that pretends success
        if ending.probe in ("refused", "not tried") and has_probe:
            return "it said of another commit that nothing was written, and it was"
        found = without_probe(seen_in(b)) if has_probe else seen_in(b)
        if not course.allows(found, ending.acked):
            return f"after {ending.acked} acknowledged steps it holds {str(found)[:300]}"
        says_nothing = isinstance(ending.error, StoreUnavailable) and course.is_one_commit(ending.acked)
        if says_nothing and not course.is_after(found, ending.acked):
            return f"it said that nothing was written, and it was: {ending.error}"
        if damage := b.verify():
            return f"it is damaged: {damage[0]}"
        append(b, "s", "t", 0, {"n": 0})
    except StrandlineError as error:
        return f"it cannot be used: {error}"
    finally:
        b.close()
    return None


def faults_of(disk: Disk, ending: Ending, fault: Fault, course: Course, folder: Path, seed: str) -> list[str]:
    found = []
    if not fault.struck:
        found.append("it met nothing: this run is not the one in which the places were counted")
    if ending.raw is not None:
        found.append(f"it raised {type(ending.raw).__name__}, which is not ours: {ending.raw}")
    if ending.left_open:
        found.append(f"it left {ending.left_open} connections open")
    if isinstance(ending.error, OutcomeUnknown) and ending.probe != "refused":
        found.append("it went on after a commit whose outcome it did not know")
    moments = {
        "when the error was told": (ending.trace[: ending.at_error], replace(ending, probe="not tried")),
        "at the end": (ending.trace, ending),
    }
    for when, (trace, known) in moments.items():
        for what, image in images(trace, Random(seed)).items():
            if wrong := fault_in(image, folder, course, known):
                found.append(f"{what} {when}: {wrong}")
    if fault.kind == "sync" and (wrong := fault_after_revival(disk, ending, folder, course)):
        found.append(wrong)
    return found


def fault_after_revival(disk: Disk, ending: Ending, folder: Path, course: Course) -> str | None:
    """Killed when the error was told, opened again and closed; at any op of that the power goes. What the
    failed sync left in the cache alone is lost with it, and what is acknowledged behind that must not be."""
    revivals = {
        "no commit": _revived(disk, ending, folder, course, None),
        "a commit": _revived(disk, ending, folder, course, commit_probe),
        "a conflict": _revived(disk, ending, folder, course, meet_conflict),
        "a scrub": _revived(disk, ending, folder, course, SqliteBackend.scrub),
    }
    return next((f"with {what}: {wrong}" for what, wrong in revivals.items() if wrong), None)


def commit_probe(b: SqliteBackend) -> None:
    append(b, PROBE, "t", 0, {"n": 0})


def meet_conflict(b: SqliteBackend) -> None:
    """Nothing is written, but an answer is given that rests on all that is there."""
    assert isinstance(append_expect(b, PROBE, 9, "t", 0, {"n": 0}), Conflict)


def _revived(
    disk: Disk, ending: Ending, folder: Path, course: Course, call: Callable[[SqliteBackend], None] | None
) -> str | None:
    before, killed = after(ending.trace[: ending.at_error])
    lay_out(killed, folder)
    platter, trace, told, found = before.left_behind(), disk.watch(), NEVER, course
    try:
        with closing(SqliteBackend(folder / "store.db", busy_timeout_s=1)) as b:
            if call is not None:
                seen = seen_in(b)
                call(b)
                told, found = len(trace), Course([seen], [0])  # what was found is what the answer rests on
    except StrandlineError:
        pass  # it is told, and was told by the other images
    finally:
        disk.rest()
    judged = set()
    for place, op in enumerate(trace, 1):
        platter.take(op)
        image, is_told = platter.lost(), told <= place
        mark = (is_told, *((name, hash(content)) for name, content in sorted(image.items())))
        if mark not in judged:
            judged.add(mark)
            probe = "acknowledged" if is_told and call is commit_probe else "unknown"
            known = replace(ending, error=None, probe=probe, acked=0 if is_told else ending.acked)
            if wrong := fault_in(image, folder, found if is_told else course, known):
                return f"killed, opened again, and without power at op {place}: {wrong}"
    return None


def main(*, stride: int = 1, kinds: list[str] | None = None, workloads: list[str] | None = None) -> Count:
    """Fail each op of every run, one at a time, or every `stride`-th."""
    disk, count = Disk(), Count("errors", "each place, its seed")
    place = scratch_folder()
    turn = 0
    with count.timed():
        for workload, checkpoints in RUNS:
            if workloads is not None and workload not in workloads:
                continue
            course = course_of(workload)
            count.add("runs")
            for kind, stays in [
                ("eio", False), ("full", False), ("full", True), ("short", False), ("sync", False),
                ("sync", True), ("read", False), ("open", False), ("cut", False), ("delete", False),
                ("grow", False), ("dead", True),
            ]:  # fmt: skip
                if kinds is not None and kind not in kinds:
                    continue
                clean = Fault(kind, NEVER)
                run(disk, fresh(place / "run"), workload, clean, checkpoints=checkpoints)
                for nth in range(1, clean.met + 1):
                    turn += 1
                    if turn % stride:
                        continue
                    fault = Fault(kind, nth, stays)
                    ending = run(disk, fresh(place / "run"), workload, fault, checkpoints=checkpoints)
                    count.add(f"{KINDS[kind]}{' from then on' if stays else ''}")
                    count.add(told(ending, fault))
                    if kind == "sync":
                        count.add("killed, opened again, then without power")
                    name = f"{workload}, {PACES[checkpoints]}, {kind} {nth}"
                    count.broken += [
                        f"{name}{' and on' if stays else ''}: {wrong}"
                        for wrong in faults_of(disk, ending, fault, course, place / "cut", name)
                    ]
    shutil.rmtree(place)
    return count


def told(ending: Ending, fault: Fault) -> str:
    if ending.error is None:
        return f"got over, unseen, {met_by(fault)}"
    return "told: the outcome is unknown" if isinstance(ending.error, OutcomeUnknown) else "told: refused"


def met_by(fault: Fault) -> str:
    """What the fault met first. Of the file itself, once there is a log, only checkpoints write."""
    what, _, name = next(iter(fault.struck), "nothing").partition(" ")
    if what in ("read", "grow"):
        return {"read": "by a read", "grow": "by shared memory"}[what]
    if name.endswith("-wal"):
        return "by the log"
    return "by a checkpoint" if name == "store.db" else "by another file"


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


if __name__ == "__main__":
    answer(main(**json.loads(sys.argv[1])))
