"""Many commit at once, on a disk that takes its time: who is told of an outcome is told what is durable.

Threads gather in groups, each a transaction. All of them append to one stream, each expecting the seq that it
saw last, so most meet a conflict with somebody of their own group: also that names a seq, which must be there
if the power goes when it is told.
"""

import json
import shutil
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Final

from strandline.persist import Append, Conflict, ExpectSeq, last_seq
from strandline.persist.backends.sqlite import SqliteBackend
from tests.faults.count import Count, answer
from tests.faults.disk import Disk, Op, Platter, lay_out, scratch_folder

CALLERS: Final = 6
CALLS: Final = 6
SYNC_S: Final = 0.003  # time enough for who is answered too early to say so


def recorded(disk: Disk, folder: Path, count: Count) -> list[Op]:
    """What so many callers do to a disk, and in between, each time that one is answered, with which seq."""

    def call() -> None:
        seen = 0
        for n in range(CALLS):
            outcome = b.commit([ExpectSeq("s", seen)], [Append("s", "t", n, {"n": n})])
            if isinstance(outcome, Conflict):
                assert isinstance(outcome.actual, int)
                seen = outcome.actual
                conflicts.append(seen)
            else:
                seen = outcome[0].seq
            disk.ack(seen)

    conflicts: list[int] = []
    trace = disk.watch()
    with closing(SqliteBackend(folder / "store.db")) as b:
        callers = [threading.Thread(target=call) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    disk.rest()
    count.add("answers", CALLERS * CALLS)
    count.add("of them conflicts", len(conflicts))
    return trace


def faults_in(trace: list[Op], folder: Path) -> list[str]:
    """The answers that a power cut, when they were given, would have made a lie."""
    platter, found, sure = Platter(), list[str](), 0
    for op in trace:
        platter.take(op)
        if op.what == "ack" and op.offset > sure:
            lay_out(platter.lost(), folder)
            with closing(SqliteBackend(folder / "store.db")) as b:
                sure = last_seq(b, "s")
            if op.offset > sure:
                found.append(f"seq {op.offset} was told of, and the power left {sure} of the stream")
    return found


def main(*, times: int) -> Count:
    disk, count, place = Disk(sync_s=SYNC_S), Count("power, of many at once", "the moment"), scratch_folder()
    with count.timed():
        for number in range(times):
            (folder := place / f"{number}").mkdir()
            trace = recorded(disk, folder, count)
            count.add("syncs", sum(op.what == "sync" and op.name.endswith("-wal") for op in trace))
            count.broken += faults_in(trace, place / "cut")
    shutil.rmtree(place)
    return count


if __name__ == "__main__":
    answer(main(**json.loads(sys.argv[1])))
