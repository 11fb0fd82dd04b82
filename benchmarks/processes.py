"""What processes have used, as Linux tells it: processor time and memory."""

import os
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_MIB: Final = 1024 * 1024


def tree_cpu_s(root: int | None = None) -> float:
    """Processor seconds of a process (this one) and all it started, those that have ended included."""
    found: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended, and its parent counts it
            continue
        found[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S
    own = os.getpid() if root is None else root
    return sum(seconds for pid, (_, seconds) in found.items() if _descends(pid, own, found))


def _descends(pid: int, root: int, found: dict[int, tuple[int, float]]) -> bool:
    while pid in found:
        if pid == root:
            return True
        pid = found[pid][0]
    return False


def resident_mib() -> float:
    """How much memory this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB
