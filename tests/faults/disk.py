"""A disk that can die, lie and lose its cache: it stands below the page checksums of the SQLite backend.

It notes every create, write, sync, truncation and deletion, so that `Platter` can say what a power cut at
any of them would have left; and it can fail one of them while a program runs. It is there for the whole
process, so what uses it runs in a process of its own.
"""

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, NamedTuple

import apsw

from strandline.persist.backends.sqlite import file
from tests.faults.calls import Calls

SECTORS: Final = (512, 4096)
JOURNALS: Final = ("-journal", "-wal")
REWRITTEN_BYTES: Final = 7_000  # at a time, of a log that was left: in several writes, as a large one is


class Op(NamedTuple):
    """One thing done to a file; `what` is create, link, write, cut, sync, delete, folder or lost. Or a step
    that was acknowledged: ack, or settled if it copied the log into the file."""

    what: str
    name: str = ""
    offset: int = 0  # of a write; of a cut the size that is left; of a step its number
    data: bytes = b""  # of a link the name that the file had
    with_folder: bool = False  # a sync or a deletion after which the names in the folder are durable too


STRIKES: Final = {  # the kinds of faults, by what they are about
    "create": ("open", "dead"),
    "write": ("eio", "full", "short", "dead"),
    "cut": ("cut", "dead"),
    "sync": ("sync", "dead"),
    "read": ("read",),
    "delete": ("delete", "dead"),
    "grow": ("grow", "dead"),  # of the memory that the processes share
}


@dataclass
class Fault:
    """What goes wrong: at the `nth` op that the kind is about, and from then on if it `stays`."""

    kind: str
    nth: int
    stays: bool = False
    met: int = 0
    struck: list[str] = field(default_factory=list)  # the ops that it met, each with its file

    def strikes(self, what: str, name: str) -> bool:
        """Whether this op goes wrong."""
        if self.kind not in STRIKES[what]:
            return False
        self.met += 1
        hits = self.met == self.nth or (self.stays and self.met > self.nth)
        if hits:
            self.struck.append(f"{what} {name}")
        return hits


WRITE_ERRORS: Final = {
    "eio": apsw.SQLITE_IOERR_WRITE,
    "full": apsw.SQLITE_FULL,
    "short": apsw.SQLITE_FULL,
    "dead": apsw.SQLITE_IOERR_WRITE,
}
PTR, INT, LONG, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
OPEN = ctypes.CFUNCTYPE(INT, PTR, PTR, PTR, INT, PTR)
DELETE = ctypes.CFUNCTYPE(INT, PTR, TEXT, INT)
CLOSE = ctypes.CFUNCTYPE(INT, PTR)
MOVE = ctypes.CFUNCTYPE(INT, PTR, PTR, INT, LONG)  # a read or a write
TRUNCATE = ctypes.CFUNCTYPE(INT, PTR, LONG)
SYNC = ctypes.CFUNCTYPE(INT, PTR, INT)
SHARE = ctypes.CFUNCTYPE(INT, PTR, INT, INT, INT, PTR)
SHARE_PLACE: Final = 7  # among the last thirteen methods


class Vfs(ctypes.Structure):
    """The head of SQLite's `sqlite3_vfs`."""

    _fields_: ClassVar = [
        ("version", INT), ("file_bytes", INT), ("most_path", INT), ("next", PTR), ("name", TEXT),
        ("data", PTR), ("open", PTR), ("delete", PTR),
    ]  # fmt: skip


class Methods(ctypes.Structure):
    """SQLite's `sqlite3_io_methods`; of the last thirteen all but one are handed on as they are."""

    _fields_: ClassVar = [
        ("version", INT), ("close", PTR), ("read", PTR), ("write", PTR), ("truncate", PTR), ("sync", PTR),
        ("others", PTR * 13),
    ]  # fmt: skip


class Disk:
    """Stands between SQLite and its files, in the whole process and for good.

    What was done to them is in `trace`; `fault` is what goes wrong. It sits in SQLite's own tables of
    functions: an exception out of a VFS in Python would come out of a commit that SQLite calls done. A sync
    takes `sync_s`.
    """

    def __init__(self, *, sync_s: float = 0) -> None:
        self.sync_s = sync_s
        self.trace: list[Op] | None = None
        self.fault: Fault | None = None
        self._files: dict[int, str] = {}
        self._fresh: set[int] = set()  # journals that have not been synced
        self._tables: dict[int, Methods] = {}
        self._vfs = unix_vfs()
        self._really_open = OPEN(self._vfs.open)
        self._really_delete = DELETE(self._vfs.delete)
        self._kept: list[Any] = [OPEN(self._open), DELETE(self._delete)]
        self._vfs.open, self._vfs.delete = (ctypes.cast(each, PTR).value for each in self._kept)
        vars(file)["_REWRITTEN_BYTES"] = REWRITTEN_BYTES
        Calls(self)

    @property
    def is_watched(self) -> bool:
        return self.trace is not None

    def watch(self, fault: Fault | None = None) -> list[Op]:
        self.trace, self.fault = [], fault
        return self.trace

    def rest(self) -> None:
        """A sound disk again, that notes nothing."""
        self.trace = self.fault = None

    def ack(self, number: int, *, is_settled: bool = False) -> None:
        self.note("settled" if is_settled else "ack", offset=number)

    def note(
        self, what: str, name: str = "", offset: int = 0, data: bytes = b"", *, with_folder: bool = False
    ) -> None:
        if self.trace is not None:
            self.trace.append(Op(what, name, offset, data, with_folder))

    def failure(self, what: str, name: str) -> str | None:
        """The kind of the fault that this op meets, if it meets one."""
        if self.fault is None or not self.fault.strikes(what, name):
            return None
        return self.fault.kind

    def _open(self, vfs: int, text: int | None, file: int, flags: int, out: int) -> int:
        path = None if text is None else Path(ctypes.string_at(text).decode())
        is_new = path is not None and not path.exists()
        slot = ctypes.cast(file, ctypes.POINTER(PTR))
        if path is not None and is_new and self.failure("create", path.name):
            slot[0] = None
            return apsw.SQLITE_CANTOPEN
        result = int(self._really_open(vfs, text, file, flags, out))  # it keeps the text, not a copy
        if result or path is None or not slot[0]:
            return result
        self._files[file] = name = path.name
        slot[0] = ctypes.addressof(self._methods(slot[0]))
        if is_new:
            self.note("create", name)
            if name.endswith(JOURNALS):
                self._fresh.add(file)
        return result

    def _methods(self, address: int) -> Methods:
        """A table like the one at this address, with our functions in front."""
        if address not in self._tables:
            real = Methods.from_address(address)
            close, read, write = CLOSE(real.close), MOVE(real.read), MOVE(real.write)
            cut, sync, share = TRUNCATE(real.truncate), SYNC(real.sync), SHARE(real.others[SHARE_PLACE] or 0)
            ours = [
                CLOSE(lambda file: self._close(file, close)),
                MOVE(lambda *all_: self._read(read, *all_)),
                MOVE(lambda *all_: self._write(write, *all_)),
                TRUNCATE(lambda file, size: self._truncate(cut, file, size)),
                SYNC(lambda file, _: self._sync(file)),
                SHARE(lambda *all_: self._share(share, *all_)),
            ]
            self._kept += [*ours, close, read, write, cut, sync, share]
            *entries, shares = (ctypes.cast(each, PTR).value for each in ours)
            table = self._tables[address] = Methods(real.version, *entries, real.others)
            if real.others[SHARE_PLACE]:  # files that nobody shares have none
                table.others[SHARE_PLACE] = shares
        return self._tables[address]

    def _close(self, file: int, close: Any) -> int:
        self._files.pop(file, None)
        self._fresh.discard(file)
        return int(close(file))

    def _read(self, read: Any, file: int, buffer: int, size: int, offset: int) -> int:
        if self.failure("read", self._files[file]):
            return apsw.SQLITE_IOERR_READ
        return int(read(file, buffer, size, offset))

    def _write(self, write: Any, file: int, buffer: int, size: int, offset: int) -> int:
        kind = self.failure("write", self._files[file])
        if kind is not None:
            size = size // 2 if kind == "short" else 0
        result = int(write(file, buffer, size, offset)) if size else 0
        if self.is_watched and size:
            self.note("write", self._files[file], offset, ctypes.string_at(buffer, size))
        return result if kind is None else WRITE_ERRORS[kind]

    def _truncate(self, truncate: Any, file: int, size: int) -> int:
        if self.failure("cut", self._files[file]):
            return apsw.SQLITE_IOERR_TRUNCATE
        self.note("cut", self._files[file], size)
        return int(truncate(file, size))

    def _sync(self, file: int) -> int:
        if self.failure("sync", self._files[file]):
            # The kernel has dropped what it could not write, and the next sync will not say so again.
            self.note("lost", self._files[file])
            return apsw.SQLITE_IOERR_FSYNC
        if self.sync_s:
            time.sleep(self.sync_s)
        # What a sync makes durable is for Platter to say; the real disk is not asked, which would take long.
        # The first sync of a new journal or log syncs its folder too, as SQLite does on Unix.
        self.note("sync", self._files[file], with_folder=file in self._fresh)
        self._fresh.discard(file)
        return apsw.SQLITE_OK

    def _share(self, share: Any, file: int, region: int, size: int, may_grow: int, out: int) -> int:
        if may_grow and self.failure("grow", self._files[file]):
            ctypes.cast(out, ctypes.POINTER(PTR))[0] = None
            return apsw.SQLITE_IOERR_SHMSIZE
        return int(share(file, region, size, may_grow, out))

    def _delete(self, vfs: int, path: bytes, sync_folder: int) -> int:
        name = Path(path.decode()).name
        if self.failure("delete", name):
            return apsw.SQLITE_IOERR_DELETE
        result = int(self._really_delete(vfs, path, 0))
        if result == apsw.SQLITE_OK:
            self.note("delete", name, with_folder=bool(sync_folder))
        return result


def unix_vfs() -> Vfs:
    """SQLite's own table of the functions that open and delete files."""
    folder, found = scratch_folder(), PTR()
    connection = apsw.Connection(str(folder / "any"), vfs="unix")
    connection.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(found))
    connection.close()
    shutil.rmtree(folder)
    assert found.value is not None
    return Vfs.from_address(found.value)


Image = dict[str, bytes]


class Platter:
    """What is on the disk for certain, and what is only in a cache: one op after another.

    A file is known by a number, so that one that was deleted and made again is two. It begins with the files
    of `image`.
    """

    def __init__(self, image: Image | None = None) -> None:
        files = image or {}
        self.durable = dict(enumerate(files.values()))
        self.cached: dict[int, list[Op]] = {number: [] for number in self.durable}
        self.now = {name: number for number, name in enumerate(files)}
        self.names = dict(self.now)
        self.names_cached: list[tuple[str, int | None]] = []
        self.acked = self.settled = 0

    def left_behind(self) -> "Platter":
        """The same for who comes after the program died. What is not durable is in the cache, and a sync that
        failed has called it clean: no other sync brings it to the disk. Names are as they were."""
        left = Platter({name: self.durable[number] for name, number in self.now.items()})
        certain = {name for name, number in self.now.items() if self.names.get(name) == number}
        left.names = {name: number for name, number in left.now.items() if name in certain}
        left.names_cached = [(name, number) for name, number in left.now.items() if name not in certain]
        return left

    def take(self, op: Op) -> None:
        if op.what in ("ack", "settled"):
            self.acked = op.offset
            self.settled = op.offset if op.what == "settled" else self.settled
        elif op.what == "create":
            self.now[op.name] = number = len(self.durable)
            self.durable[number], self.cached[number] = b"", []
            self.names_cached.append((op.name, number))
        elif op.what == "link":
            self.now[op.name] = self.now[os.fsdecode(op.data)]
            self.names_cached.append((op.name, self.now[op.name]))
        elif op.what == "delete":
            self.now.pop(op.name, None)
            self.names_cached.append((op.name, None))
        elif op.what in ("sync", "lost"):
            number = self.now[op.name]
            if op.what == "sync":
                self.durable[number] = settled(self.durable[number], self.cached[number], whole)
            self.cached[number] = []
        elif op.what != "folder":
            self.cached[self.now[op.name]].append(op)
        if op.with_folder:
            self.names = named(self.names, self.names_cached)
            self.names_cached = []

    def is_settled(self) -> bool:
        """Whether a power cut loses nothing at this moment."""
        return not self.names_cached and not any(self.cached.values())

    def kept(self) -> Image:
        """What is there if only the program dies: all that was written."""
        return {name: settled(self.durable[n], self.cached[n], whole) for name, n in self.now.items()}

    def lost(self) -> Image:
        """What is there if nothing came out of the cache."""
        return {name: self.durable[n] for name, n in self.names.items()}

    def torn(self, chance: Random) -> Image:
        """Any sector of any write may have come out of the cache, whatever was written before or after it."""
        sector, share = chance.choice(SECTORS), chance.choice((0.1, 0.5, 0.9))
        names = named(self.names, self.names_cached[: chance.randint(0, len(self.names_cached))])

        def pieces(op: Op) -> list[Op]:
            if op.what == "cut":
                return [op] if chance.random() < share else []
            ends = range(op.offset - op.offset % sector, op.offset + len(op.data), sector)
            spans = [(max(end, op.offset), min(end + sector, op.offset + len(op.data))) for end in ends]
            return [
                Op("write", op.name, first, op.data[first - op.offset : last - op.offset])
                for first, last in spans
                if chance.random() < share
            ]

        return {name: settled(self.durable[n], self.cached[n], pieces) for name, n in names.items()}


def whole(op: Op) -> list[Op]:
    return [op]


def named(names: dict[str, int], changes: list[tuple[str, int | None]]) -> dict[str, int]:
    result = dict(names)
    for name, number in changes:
        if number is None:
            result.pop(name, None)
        else:
            result[name] = number
    return result


def settled(content: bytes, ops: list[Op], pieces: Callable[[Op], list[Op]]) -> bytes:
    """The content after what came out of the cache; a hole in it reads as zeros."""
    if not ops:
        return content
    result = bytearray(content)
    for op in ops:
        for piece in pieces(op):
            if piece.what == "cut":
                del result[piece.offset :]
                continue
            result.extend(bytes(max(piece.offset + len(piece.data) - len(result), 0)))
            result[piece.offset : piece.offset + len(piece.data)] = piece.data
    return bytes(result)


def scratch_folder() -> Path:
    """A new folder, in memory where that can be: what a cut leaves is for Platter to say, not the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="strandline-faults-", dir=memory if memory.is_dir() else None))


def lay_out(image: Image, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in image.items():
        (folder / name).write_bytes(content)
