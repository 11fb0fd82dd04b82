"""Every byte of a store flipped once: each flip is noticed or changes nothing, and none is read as data."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from strandline.errors import StrandlineError
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


def fill(b: AtomicBackend, *, times: int = 1) -> None:
    """A little of everything."""
    for n in range(times):
        append(b, "s", "t", n, {"n": n, "text": "abc"}, globally=True)
        append_once(b, "s", f"key {n}", "u", n, {"n": n})
        append_batch(b, "gone", [("t", n, {"n": n})] * 2)
        truncate_through(b, "gone", b.last_seq("gone"))
        commit(b, [], [Append("other", "t", n, {"n": n}), Put("k", n)])
        kv_put(b, f"kept {n}", {"n": n})


def fill_log(b: AtomicBackend) -> None:
    """A few commits, which all stay in the log."""
    append(b, "s", "t", 0, {"n": 0}, globally=True)
    append_once(b, "s", "key", "u", 1, {"n": 1})
    truncate_through(b, "s", 1)
    kv_put(b, "k", 2)


def outcome(path: Path, right: list[dict[str, object]]) -> tuple[str, str]:
    """What comes of opening and reading this store: noticed, harmless, or what is wrong with it."""
    try:
        with closing(SqliteBackend(path, create=True)) as b:
            found = seen_in(b)
            damage = verify(b)
    except StrandlineError as error:
        return "noticed", str(error)
    if found not in right:
        return "wrong", f"it gives {str(found)[:300]}"
    return ("noticed by verify", str(damage[0])) if damage else ("read as it was, or a prefix of it", "")


def main_file(*, stride: int = 1) -> Count:
    """Flip the bytes of a store that was closed."""
    count, place = Count("flips", "each place"), scratch_folder()
    with count.timed():
        with closing(SqliteBackend(place / "sound.db")) as b:
            fill(b, times=2)
            right = [seen_in(b)]
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
        flip_each(place / "sound.db", place, "-wal", reference.states, count, stride)
    shutil.rmtree(place)
    return count


def flip_each(
    sound: Path, place: Path, suffix: str, right: list[dict[str, object]], count: Count, stride: int
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
