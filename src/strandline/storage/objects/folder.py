"""Objects as files of a folder."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import Any, Final

from strandline.base.failpoint import reach
from strandline.errors import NotFoundError, UnavailableError
from strandline.storage.objects.object import (
    CHUNK_BYTES,
    STAGED,
    Chunks,
    Name,
    ObjectInfo,
    check_any_name,
    chunks_of,
    name_of,
    not_found,
)

_LOCK: Final = ".lock"
_MOST_KNOWN_FOLDERS: Final = 10_000


class FolderObjects:
    """See Objects. Each object is a file.

    A put writes `.staged/<random>`, syncs it, links or renames it to its name and syncs the folder. A crash
    before the link leaves the staged file; after it, at most that file as a second link.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._known: set[Path] = set()  # folders whose entries in their parents are on disk

    @property
    def url(self) -> str:
        return str(self._root)

    def create(self, name: Name, chunks: Chunks) -> bool:
        return self._put(name, chunks, os.link)

    def replace(self, name: Name, chunks: Chunks) -> None:
        self._put(name, chunks, os.rename)

    def read(self, name: str) -> bytes:
        with self._errors("read", name):
            return self._path(name).read_bytes()

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        with self._errors("read", name):
            file = self._path(name).open("rb", buffering=0)
        return self._chunks(file, name, first, size)

    def head(self, name: str) -> ObjectInfo | None:
        return self._info(name, self._path(name))

    def scan(self, under: str = "") -> Iterator[ObjectInfo]:
        return self._walk(self._path(under) if under else self._root, under)

    def leftovers(self) -> Iterator[ObjectInfo]:
        return self._walk(self._root / STAGED, STAGED)

    def delete(self, name: str) -> None:
        with self._errors("delete", name), suppress(FileNotFoundError):
            self._path(name).unlink()

    def delete_older(self, name: str, than: datetime) -> bool:
        path = self._path(name)
        if self._info(name, path) is None:
            return False
        with self._locked(fcntl.LOCK_EX):  # a put of it in this instant waits, and then stores it anew
            info = self._info(name, path)
            if info is None or info.modified >= than:
                return False
            self.delete(name)
        return True

    def renew(self, name: str) -> bool:
        path = self._path(name)
        if self._info(name, path) is None:
            return False
        try:
            with self._locked(fcntl.LOCK_SH), self._errors("renew", name):
                os.utime(path)
                _sync(path)
        except NotFoundError:
            return False
        return True

    def _put(self, name: Name, chunks: Chunks, move: Callable[[Path, Path], None]) -> bool:
        staged = self._stage(chunks)
        try:
            with self._locked(fcntl.LOCK_SH):
                return self._publish(staged, name_of(name), move)
        finally:
            staged.unlink(missing_ok=True)

    def _stage(self, chunks: Chunks) -> Path:
        staged = self._root / STAGED / token_hex(16)
        with self._errors("stage", staged.name, is_put=True):
            self._make(staged.parent)
            file = staged.open("xb", buffering=0)
        try:
            with file:
                reach("objects.staged")
                for chunk in chunks_of(chunks):  # an error of the caller's own iterator passes as it is
                    with self._errors("write", staged.name):
                        left = memoryview(chunk)
                        while left:
                            left = left[file.write(left) :]
                reach("objects.written")
                with self._errors("write", staged.name):
                    os.fsync(file.fileno())
            reach("objects.synced")
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        return staged

    def _publish(self, staged: Path, name: str, move: Callable[[Path, Path], None]) -> bool:
        path, is_new = self._path(name), True
        with self._errors("put", name, is_put=True):
            self._make(path.parent)
            try:
                move(staged, path)
            except FileExistsError:
                is_new = False  # perhaps since a moment ago, by another that has not come to sync it
            reach("objects.published")
            _sync(path.parent)
        reach("objects.durable")
        return is_new

    def _make(self, folder: Path) -> None:
        """Make a folder that survives a power loss. Known ones cost nothing, others a sync for each level."""
        if folder in self._known:
            return
        above = self._root.parent if self._root.exists() else None  # who made the root has synced its entry
        folder.mkdir(parents=True, exist_ok=True)
        for parent in folder.parents:
            if parent == above:
                break
            with suppress(PermissionError):  # a folder that we may not read, we did not make
                _sync(parent)
        if len(self._known) >= _MOST_KNOWN_FOLDERS:
            self._known.clear()
        self._known.add(folder)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Puts share the folder's lock, a removal by age has it alone. It ends with the process."""
        with self._errors("lock", _LOCK):
            descriptor = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with self._errors("lock", _LOCK):
                fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def _chunks(self, file: Any, name: str, first: int, size: int | None) -> Iterator[bytes]:
        with file, self._errors("read", name):
            file.seek(first)
            left = size
            while chunk := file.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES)):
                yield chunk
                left = None if left is None else left - len(chunk)

    def _walk(self, folder: Path, under: str) -> Iterator[ObjectInfo]:
        with self._errors("list", under or "/"):
            try:
                with os.scandir(folder) as found:
                    entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
            except FileNotFoundError:
                return
        for entry, is_folder in sorted(entries, key=lambda each: each[0] + "/" * each[1]):
            if entry.startswith("."):
                continue
            name = f"{under}/{entry}" if under else entry
            if is_folder:
                yield from self._walk(folder / entry, name)
            elif info := self._info(name, folder / entry):
                yield info

    def _info(self, name: str, path: Path) -> ObjectInfo | None:
        with self._errors("look at", name):
            try:
                found = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not S_ISREG(found.st_mode):
            return None
        return ObjectInfo(name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def _path(self, name: str) -> Path:
        return self._root / check_any_name(name)

    @contextmanager
    def _errors(self, doing: str, name: str, *, is_put: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError) and not is_put:
                raise not_found(self.url, name) from error
            self._known.clear()  # someone may have removed a folder: the next put makes it again
            raise UnavailableError(
                f"cannot {doing} {name!r} in {self.url}: {error.strerror or error}",
                hint="look at the disk: is it mounted, full, or not yours to write?",
            ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
