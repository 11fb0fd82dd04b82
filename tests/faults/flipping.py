"""Every byte of a store flipped once: each flip is noticed or changes nothing, and none is read as data.

A flip is told by who opens the store, or by a read, or by verify, which must name all that a read has told.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

from strandline.errors import CorruptionError, StrandlineError
from strandline.persist import (
    Append,
    Put,
    append,
    append_batch,
    append_once,
    commit,
    kv_put,
    truncate_through,
    verify,
)
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends.sqlite import SqliteBackend
from tests.faults.count import ROOT, Count
from tests.faults.disk import scratch_folder
from tests.faults.workloads import Reference, seen_in

FLIPS: Final = (0x01, 0x80, 0xFF, 0x20)  # one of these, by the place
LARGE: Final = "w" * 9_000  # more than a page

Question: TypeAlias = Callable[[AtomicBackend], object]


def fill(b: AtomicBackend, *, times: int = 1) -> None:
    """A little of everything."""
    for n in range(times):
        append(b, "s", "t", n, {"n": n, "text": "abc"}, globally=True)
        repeat(b, n)
        append(b, "large", "t", n, LARGE)
        append_batch(b, "gone", [("t", n, {"n": n})] * 2)
        truncate_through(b, "gone", b.last_seq("gone"))
        commit(b, [], [Append("other", "t", n, {"n": n}), Put("k", n)])
        kv_put(b, f"kept {n}", {"n": n})


def repeat(b: AtomicBackend, n: int = 0) -> object:
    return append_once(b, "s", f"key {n}", "u", n, {"n": n})


# What is asked of a store: all there is by stream, by position and by key; then what goes by an index, or by
# a marker, which nobody may take for absent.
QUESTIONS: Final[dict[str, Question]] = {
    "all": seen_in,
    "by type": lambda b: list(b.read_range("s", 1, 9, limit=9, type="u")),
    "by time": lambda b: list(b.read_range("s", 1, 9, limit=9, start=1, end=1)),
    "large": lambda b: b.read("large"),
    "repeat": repeat,
}


def fill_log(b: AtomicBackend) -> None:
    """A few commits, which all stay in the log."""
    append(b, "s", "t", 0, {"n": 0}, globally=True)
    append_once(b, "s", "key", "u", 1, {"n": 1})
    truncate_through(b, "s", 1)
    kv_put(b, "k", 2)


def outcome(path: Path, right: Mapping[str, list[object]]) -> tuple[str, str]:
    """Who tells of the damage to this store, or what is wrong with what it says. `right` is what may be
    answered to each question."""
    try:
        b = SqliteBackend(path, create=True)
    except StrandlineError as error:
        return f"refused to open: {error.kind}", str(error)
    with closing(b):
        told, wrong = asked(b, right)
        damage = verified(b)
    if wrong:
        return "wrong", wrong
    if told and not damage:
        return "wrong", f"a read tells {told} and verify nothing"
    if damage:
        return ("told by reads and verify" if told else "told by verify alone"), damage
    return "read as it was, or a prefix of it", ""


def asked(b: AtomicBackend, right: Mapping[str, list[object]]) -> tuple[str, str]:
    """What reads tell of damage; and what one gives that was never there, or does that tells nobody."""
    told, wrong = "", ""
    for name, answers in right.items():
        try:
            found = QUESTIONS[name](b)
        except CorruptionError as error:
            told = told or f"{name}: {error}"
        except Exception as error:  # noqa: BLE001  # whatever it is, it does not tell of damage
            wrong = wrong or f"{name} ends with {type(error).__name__}: {error}"
        else:
            if found not in answers:
                wrong = wrong or f"{name} gives {str(found)[:300]}"
    return told, wrong


def verified(b: AtomicBackend) -> str:
    try:
        damage = verify(b)
    except CorruptionError as error:
        return str(error)
    return str(damage[0]) if damage else ""


def main_file(*, stride: int = 1) -> Count:
    """Flip the bytes of a store that was closed."""
    count, place = Count("flips", "each place"), scratch_folder()
    with count.timed():
        with closing(SqliteBackend(place / "sound.db")) as b:
            fill(b, times=2)
            right = {name: [ask(b)] for name, ask in QUESTIONS.items()}
        flip_each(place / "sound.db", place, "", right, count, stride)
    shutil.rmtree(place)
    return count


def log_file(*, stride: int = 1) -> Count:
    """Flip the bytes of the log that a killed process left beside its store."""
    count, place = Count("flips of a log", "each place"), scratch_folder()
    with count.timed():
        reference = Reference()
        fill_log(reference)
        command = [sys.executable, "-m", "tests.faults.flipping", str(place / "sound.db")]
        killed = subprocess.run(command, cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL
        flip_each(place / "sound.db", place, "-wal", {"all": [*reference.states]}, count, stride)
    shutil.rmtree(place)
    return count


def flip_each(
    sound: Path, place: Path, suffix: str, right: Mapping[str, list[object]], count: Count, stride: int
) -> None:
    contents = {
        name: Path(f"{sound}{name}").read_bytes() for name in ("", "-wal") if Path(f"{sound}{name}").exists()
    }
    target = place / "flipped.db"
    for offset in range(0, len(contents[suffix]), stride):
        text = bytearray(contents[suffix])
        text[offset] ^= FLIPS[offset % len(FLIPS)]
        for name in ("", "-wal", "-shm"):
            Path(f"{target}{name}").unlink(missing_ok=True)
        for name, content in contents.items():
            Path(f"{target}{name}").write_bytes(text if name == suffix else content)
        what, why = outcome(target, right)
        count.add("bytes flipped")
        count.add(what)
        if what == "wrong":
            count.broken.append(f"byte {offset} of the {'log' if suffix else 'file'}: {why}")


if __name__ == "__main__":
    fill_log(SqliteBackend(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGKILL)
