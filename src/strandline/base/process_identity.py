"""Which process of which kernel this is, in a text that others can compare, and whether such a one has ended.

    <boot id>/<namespace of process ids>/<process id>/<when it started>

A process that was killed cannot let go of its leases. Where one can tell for certain that it is gone, nobody
has to wait for them: same boot, same namespace, and no process of that id and start. Elsewhere, and on
systems without /proc, nobody can tell, and the text is empty.
"""

import os
from functools import cache
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_STARTED: Final = 19  # of the fields behind the name, counted from 0


def place_of_this_process() -> str:
    """Empty where it cannot be told."""
    try:
        return _here()
    except OSError:
        return ""


def is_gone(place: str) -> bool:
    """Whether the process of that place has certainly ended."""
    here = place_of_this_process()
    kernel, pid, started = _parts(place)
    if not kernel or place == here or not pid.isdecimal() or kernel != _parts(here)[0]:
        return False
    return _started(int(pid)) != started


def _parts(place: str) -> tuple[str, str, str]:
    """The kernel with its namespace, the process id and when it started."""
    process, _, started = place.rpartition("/")
    kernel, _, pid = process.rpartition("/")
    return kernel, pid, started


@cache
def _here() -> str:
    """It stays as it is for as long as the process lives; what could not be read is tried again."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    pid = os.getpid()
    if not (started := _started(pid)):
        raise FileNotFoundError(f"no process {pid} in {_PROC}")
    return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}/{pid}/{started}"


os.register_at_fork(after_in_child=_here.cache_clear)


def _started(pid: int) -> str:
    """In ticks since boot; empty if there is no such process, or only what is left of one."""
    try:
        behind_name = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if behind_name[0] in ("Z", "X") else behind_name[_STARTED]
