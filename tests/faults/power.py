"""The power goes at every write and every sync: what was acknowledged is there, nothing is there by half."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from strandline.errors import StrandlineError
from strandline.persist import append, last_seq
from strandline.persist.backends.sqlite import SqliteBackend
from tests.faults.count import Count, answer
from tests.faults.disk import Disk, Image, Op, Platter, lay_out, scratch_folder
from tests.faults.workloads import (
    PACES,
    PROBE,
    RUNS,
    SETTLING,
    WORKLOADS,
    Bench,
    Course,
    course_of,
    seen_in,
    without_probe,
)


def recorded(disk: Disk, folder: Path, workload: str, **options: Any) -> list[Op]:
    """All that one run does to its disk, from the making of the store to its end."""
    steps = list(WORKLOADS[workload]())
    trace = disk.watch()
    bench = Bench(folder, **options)
    for number, step in enumerate(steps, 1):
        step(bench)
        disk.ack(number, is_settled=step in SETTLING or bench.is_copied())
    bench.b.close()
    disk.ack(len(steps), is_settled=True)
    disk.rest()
    return trace


def fault_of(
    image: Image,
    folder: Path,
    course: Course,
    acked: int,
    *,
    at_least: int | None = None,
    has_probe: bool | None = False,
) -> str | None:
    """What is wrong with the store that such a disk holds; None if nothing is. Where only `at_least` so
    many of the steps that were acknowledged are promised, the others may be gone; where `has_probe` is None
    the probe may be there."""
    lay_out(image, folder)
    if wrong := course.fault_of_backups(folder, acked):
        return wrong  # P-OPS-2
    try:
        with closing(SqliteBackend(folder / "store.db")) as b:
            found, is_probed = seen_in(b), last_seq(b, PROBE) == 1
            if has_probe not in (None, is_probed):
                return f"the commit after the first power cut is {'there' if is_probed else 'gone'}"
            if is_probed:
                found = without_probe(found)
            if not course.allows(found, acked, at_least=at_least):
                sure = "" if at_least is None else f", {at_least} of them for sure,"
                return (
                    f"after {acked} acknowledged steps{sure} it holds {str(found)[:300]}"  # P-REC-1, P-REC-9
                )
            if damage := b.verify():
                return f"it is damaged: {damage[0]}"
            for stream in ("s", "a"):
                if append(b, stream, "t", 0, {"n": 0}).seq != found["streams"].get(stream, (0,))[0] + 1:
                    return f"the mark of {stream} went back"  # P-REC-2, P-DUR-10
                assert last_seq(b, stream)
    except StrandlineError as error:
        return f"it cannot be used: {error}"
    return None


def cuts(trace: list[Op], *, seeds: int, stride: int, name: str) -> Iterator[tuple[int, int, int, Image]]:
    """The different disks that a cut at any op can leave, every `stride`-th of them; what was
    acknowledged by then, and how much of it was settled."""
    platter, seen, turn = Platter(), set(), len(name)
    for place, op in enumerate(trace):
        platter.take(op)
        modes = 1 if platter.is_settled() else 2 + seeds
        for mode in range(modes):
            turn += 1
            if turn % stride:
                continue
            image = image_of(platter, mode, f"{name} {place} {mode}")
            mark = (
                platter.acked,
                platter.settled,
                *((file, hash(content)) for file, content in sorted(image.items())),
            )
            if mark not in seen:
                seen.add(mark)
                yield place, platter.acked, platter.settled, image


def cut_again(disk: Disk, image: Image, folder: Path, course: Course, acked: int) -> Iterator[str | None]:
    """The power comes back, the store is opened for one more commit, and at any op of that it goes again."""
    lay_out(image, folder)
    trace = disk.watch()
    try:
        with closing(SqliteBackend(folder / "store.db")) as b:
            append(b, PROBE, "t", 0, {"n": 0})
            acknowledged = len(trace)
    except StrandlineError as error:
        yield f"it cannot be used: {error}"
        return
    finally:
        disk.rest()
    platter = Platter(image)
    for place, op in enumerate(trace, 1):
        platter.take(op)
        for mode in range(1 if platter.is_settled() else 3):
            left = image_of(platter, mode, f"again {place} {mode}")
            yield fault_of(left, folder, course, acked, has_probe=place >= acknowledged or None)


def image_of(platter: Platter, mode: int, seed: str) -> Image:
    """All of the cache, nothing of it, or any sectors of it."""
    return platter.kept() if mode == 0 else platter.lost() if mode == 1 else platter.torn(Random(seed))


def main(
    *,
    seeds: int,
    stride: int = 1,
    twice: int = 100,
    synchronous: str = "FULL",
    may_lose: bool = False,
    name: str = "power",
    workloads: list[str] | None = None,
) -> Count:
    """Cut the power of every run: at each op, or at every `stride`-th disk that a cut could leave. One in
    `twice` is cut again while its store recovers. What came since the log was last copied into the file is
    what it `may_lose`."""
    disk, count = Disk(), Count(name, f"each place, {seeds} seeds")
    place = scratch_folder()
    with count.timed():
        for number, (workload, checkpoints) in enumerate(RUNS):
            if workloads is not None and workload not in workloads:
                continue
            folder = place / f"{number}"
            folder.mkdir()
            trace = recorded(disk, folder, workload, checkpoints=checkpoints, synchronous=synchronous)
            course = course_of(workload)
            run = f"{workload}, {PACES[checkpoints]}"
            count.add("runs")
            if may_lose:
                count.add("settled steps", sum(op.what == "settled" for op in trace))
            count.add("writes and syncs", sum(op.what in ("write", "sync", "cut") for op in trace))
            for point, acked, settled, image in cuts(trace, seeds=seeds, stride=stride, name=run):
                count.add("disks")
                at_least = settled if may_lose else None
                if fault := fault_of(image, place / "cut", course, acked, at_least=at_least):
                    count.broken.append(f"{run}, cut after op {point} ({trace[point].what}): {fault}")
                if count.tried["disks"] % twice == 0 and not may_lose:
                    for fault in cut_again(disk, image, place / "cut", course, acked):
                        count.add("disks cut twice")
                        if fault:
                            count.broken.append(f"{run}, cut after op {point} and again: {fault}")
    shutil.rmtree(place)
    return count


if __name__ == "__main__":
    answer(main(**json.loads(sys.argv[1])))
