"""A process with a disk whose syncs take longer, for what depends on that; the real sync is still done.

    python -m benchmarks.slow_disk FOLDER EACH

It reads lines, `ours 2.5` or `raw 2.5`: who appends, and by how many ms each sync is made longer. To each it
answers with the appends that were acknowledged per second: by 64 threads with the full contract, or by one
to the raw table. Its delay sits in SQLite's own table of functions, in the whole process and for good.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import apsw

from benchmarks import ours, raw_sqlite
from benchmarks.how_do_threads_share import THREADS, together
from benchmarks.payload import feed
from strandline.persist import open_store

POINTER, INT = ctypes.c_void_p, ctypes.c_int
OPEN = ctypes.CFUNCTYPE(INT, POINTER, POINTER, POINTER, INT, POINTER)
SYNC = ctypes.CFUNCTYPE(INT, POINTER, INT)


class Vfs(ctypes.Structure):
    """The head of SQLite's `sqlite3_vfs`."""

    _fields_: ClassVar = [("before", POINTER * 5), ("open", POINTER)]


class Methods(ctypes.Structure):
    """SQLite's `sqlite3_io_methods`, of which all but `sync` are handed on."""

    _fields_: ClassVar = [("before", POINTER * 5), ("sync", POINTER), ("after", POINTER * 13)]


class SlowDisk:
    """Every sync of a file that is opened from now on sleeps for `added_s` first."""

    def __init__(self, folder: Path) -> None:
        self.added_s = 0.0
        self._tables: dict[int, Methods] = {}
        found = POINTER()
        with closing(apsw.Connection(str(folder / "any"), vfs="unix")) as connection:
            connection.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(found))
        assert found.value is not None
        vfs = Vfs.from_address(found.value)
        self._really_open = OPEN(vfs.open)
        self._kept: list[Any] = [OPEN(self._open)]
        vfs.open = ctypes.cast(self._kept[0], POINTER).value

    def _open(self, vfs: int, path: int | None, file: int, flags: int, out: int) -> int:
        result = int(self._really_open(vfs, path, file, flags, out))
        slot = ctypes.cast(file, ctypes.POINTER(POINTER))
        if not result and slot[0]:
            slot[0] = ctypes.addressof(self._methods(slot[0]))
        return result

    def _methods(self, address: int) -> Methods:
        if address not in self._tables:
            real = Methods.from_address(address)
            slow = SYNC(self._slowed(SYNC(real.sync)))
            self._kept.append(slow)
            self._tables[address] = Methods(real.before, ctypes.cast(slow, POINTER).value, real.after)
        return self._tables[address]

    def _slowed(self, sync: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def run(file: int, flags: int) -> int:
            if self.added_s:
                time.sleep(self.added_s)
            return int(sync(file, flags))

        return run


def main(folder: Path, each: int) -> None:
    disk = SlowDisk(folder)
    with closing(open_store(folder / "ours.db")) as b, closing(raw_sqlite.RawTable(folder / "raw.db")) as raw:
        acts = {
            "ours": together(THREADS, each, lambda number: ours.FullContract(b, f"order-{number}").append),
            "raw": feed(each * 10, raw.append),
        }
        for line in sys.stdin:
            who, added_ms = line.split()
            disk.added_s = float(added_ms) / 1000
            print(acts[who](), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
