"""A stream that was emptied keeps its mark, whatever is done to the store: the matrix of that.

python -m tests.faults.marks TARGET OPTIONS HOW    empties one and is killed
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from strandline.persist import (
    append,
    append_batch,
    append_once,
    backup,
    compact,
    count,
    erase_stream,
    global_pos,
    last_seq,
    restore,
    streams,
    truncate_through,
)
from strandline.persist.backend import AtomicBackend
from tests.conftest import Place, host_of, open_backend, place_of, postgres
from tests.faults.count import ROOT, Count

EVENTS: Final = 7
STREAM: Final = "s"
LOCAL_KINDS: Final = ("memory", "sqlite", "postgres")


def truncate(b: AtomicBackend) -> None:
    truncate_through(b, STREAM, EVENTS)


def compact_all(b: AtomicBackend) -> None:
    compact(b, STREAM, "snap", lambda value, _: value + 1, 0)


def erase(b: AtomicBackend) -> None:
    erase_stream(b, STREAM, 1, reason="asked to")


EMPTYINGS: Final[dict[str, Callable[[AtomicBackend], None]]] = {
    "truncation": truncate,
    "compaction": compact_all,
    "erasure": erase,
}


def emptied(b: AtomicBackend, how: str) -> AtomicBackend:
    append_batch(b, STREAM, [("t", n, {"n": n}) for n in range(EVENTS - 1)], globally=True)
    append_once(b, STREAM, "key", "t", 1, {"n": 1}, globally=True)
    EMPTYINGS[how](b)
    left = [last_seq(b, STREAM), count(b, STREAM)]
    assert left == [EVENTS, 0], f"after {how} the mark and the events are {left}"
    return b


def restarted(kind: str, folder: Path, how: str) -> AtomicBackend:
    """The process that emptied it is killed, and so is the server or the host, which starts again."""
    if kind == "remote":
        host = host_of(folder)
        emptied(Place(host.url).open(), how).close()
        host.kill()
        host.start()
        return Place(host.url).open()
    place = place_of(kind, folder)
    command = [sys.executable, "-m", "tests.faults.marks", place.target, json.dumps(place.options), how]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, f"it ended with {killed.returncode}: {killed.stderr[-900:]}"
    if kind == "postgres":
        postgres().kill()
        postgres().start()
    return place.open()


def rewritten(kind: str, folder: Path, how: str) -> AtomicBackend:
    b = emptied(open_backend(kind, folder), how)
    b.scrub(rewrite=True)
    return b


def restored_into(other: str, kind: str, folder: Path, how: str) -> AtomicBackend:
    """A backup of one kind, restored into another: also the way of a migration."""
    (folder / "from").mkdir()
    (folder / "to").mkdir()
    with closing(emptied(open_backend(kind, folder / "from"), how)) as b:
        backup(b, folder / "copy.db")
    target = open_backend(other, folder / "to")
    restore(target, folder / "copy.db")
    return target


def fault_of(b: AtomicBackend) -> str | None:
    """What is wrong with a store whose stream was emptied; it is closed."""
    with closing(b):
        found = (last_seq(b, STREAM), b.truncated_through(STREAM), streams(b), global_pos(b))
        if found != (EVENTS, EVENTS, [STREAM], EVENTS):
            return f"mark, truncation, catalogue and position are {found}"
        repeat = append_once(b, STREAM, "key", "t", 9, {"n": 1}, globally=True)
        if last_seq(b, STREAM) != EVENTS:
            return f"a repeat was appended: {repeat}"
        seq = append(b, STREAM, "t", 2, {"n": 2}, globally=True).seq
        if (seq, global_pos(b)) != (EVENTS + 1, EVENTS + 1):
            return f"the next event has seq {seq} and position {global_pos(b)}"
    return None


def cells() -> dict[str, Callable[[Path, str], AtomicBackend]]:
    """What may be done to a store after a stream of it was emptied."""
    found: dict[str, Callable[[Path, str], AtomicBackend]] = {}
    for kind in ("sqlite", "postgres", "remote"):
        found[f"{kind}, restarted"] = lambda folder, how, kind=kind: restarted(kind, folder, how)  # type: ignore[misc]
        found[f"{kind}, rewritten"] = lambda folder, how, kind=kind: rewritten(kind, folder, how)  # type: ignore[misc]
    for kind in LOCAL_KINDS:
        for other in LOCAL_KINDS:
            found[f"{kind}, restored into {other}"] = (
                lambda folder, how, kind=kind, other=other: restored_into(other, kind, folder, how)  # type: ignore[misc]
            )
    return found


def quick_cells() -> list[tuple[str, str]]:
    """Each cell once, and those of one kind of store in every way."""
    return [
        (cell, how)
        for cell in cells()
        for how in EMPTYINGS
        if how == "truncation" or cell.startswith("sqlite")
    ]


def main(folder: Path) -> Count:
    tally = Count("marks", "each cell")
    with tally.timed():
        for cell, run in cells().items():
            for how in EMPTYINGS:
                place = folder / f"{cell} {how}".replace(" ", "-").replace(",", "")
                place.mkdir()
                tally.add("cells")
                if wrong := fault_of(run(place, how)):
                    tally.broken.append(f"{cell} after {how}: {wrong}")
    return tally


if __name__ == "__main__":
    emptied(Place(sys.argv[1], json.loads(sys.argv[2])).open(), sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)
