"""What goes to the disk past SQLite: the calls of `os` that the store makes itself.

It is there for the whole process, as `Disk` is, which notes these calls and fails them as it does SQLite's.
What is done by other calls than these is not noted, and so is not durable for `Platter` either.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final, Protocol

ERRORS: Final = {"full": errno.ENOSPC}  # all others: EIO


class Noting(Protocol):
    """The disk that these calls go to."""

    @property
    def is_watched(self) -> bool: ...

    def note(
        self, what: str, name: str = "", offset: int = 0, data: bytes = b"", *, with_folder: bool = False
    ) -> None: ...

    def failure(self, what: str, name: str) -> str | None: ...


class Calls:
    """From its making on these calls go to this disk, while it is watched."""

    def __init__(self, disk: Noting) -> None:
        self._disk = disk
        self._names: dict[int, str] = {}  # of the descriptors that are open; of a folder none
        self._really: dict[str, Callable[..., Any]] = {}
        for call in (
            self.open, self.close, self.pread, self.pwrite, self.fsync, self.link, self.unlink, self.rename,
        ):  # fmt: skip
            self._really[call.__name__] = vars(os)[call.__name__]
            vars(os)[call.__name__] = call

    def _sees(self, options: dict[str, Any]) -> bool:
        return self._disk.is_watched and options.get("dir_fd") is None

    def _refuse(self, what: str, name: str) -> None:
        if kind := self._disk.failure(what, name):
            raise failed(kind)

    def open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        if not self._sees(options):
            return int(self._really["open"](path, flags, *more, **options))
        is_new, name = not os.path.lexists(path), Path(path).name
        if is_new and flags & os.O_CREAT:
            self._refuse("create", name)
        descriptor = int(self._really["open"](path, flags, *more, **options))
        self._names[descriptor] = "" if S_ISDIR(os.fstat(descriptor).st_mode) else name
        if is_new:
            self._disk.note("create", name)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._names.pop(descriptor, None)
        self._really["close"](descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        if descriptor in self._names:
            self._refuse("read", self._names[descriptor])
        return bytes(self._really["pread"](descriptor, size, offset))

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        name = self._names.get(descriptor)
        if name is not None and (kind := self._disk.failure("write", name)):
            if kind != "short":
                raise failed(kind)
            data = data[: max(len(data) // 2, 1)]  # which is no error: it says how much
        written = int(self._really["pwrite"](descriptor, data, offset))
        if name is not None:
            self._disk.note("write", name, offset, bytes(data[:written]))
        return written

    def fsync(self, descriptor: int) -> None:
        name = self._names.get(descriptor)
        if name is None:
            self._really["fsync"](descriptor)
        elif kind := self._disk.failure("sync", name):
            if name:
                self._disk.note("lost", name)
            raise failed(kind)
        else:
            self._disk.note("sync" if name else "folder", name, with_folder=not name)

    def link(self, source: Any, target: Any, **options: Any) -> None:
        if not self._sees(options):
            self._really["link"](source, target, **options)
            return
        name = Path(target).name
        self._refuse("create", name)
        self._really["link"](source, target, **options)
        self._disk.note("link", name, data=os.fsencode(Path(source).name))

    def unlink(self, path: Any, **options: Any) -> None:
        if not self._sees(options):
            self._really["unlink"](path, **options)
            return
        name = Path(path).name
        if os.path.lexists(path):
            self._refuse("delete", name)
        self._really["unlink"](path, **options)
        self._disk.note("delete", name)

    def rename(self, source: Any, target: Any, **options: Any) -> None:
        if not self._sees(options):
            self._really["rename"](source, target, **options)
            return
        name = Path(target).name
        self._refuse("create", name)
        self._really["rename"](source, target, **options)
        self._disk.note("link", name, data=os.fsencode(Path(source).name))
        self._disk.note("delete", Path(source).name)


def failed(kind: str) -> OSError:
    number = ERRORS.get(kind, errno.EIO)
    return OSError(number, os.strerror(number))
