"""The pages of a store file as they are, each with the checksum at its end.

The checksum is put on a page when the log is copied into the file. Another SQLite program does not know of
it. If such a program copies the log, a new page ends with zeros, and an older one with the checksum of what
it held before.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

CHECKSUM_BYTES: Final = 8
_HEAD_BYTES: Final = 100
_LARGEST: Final = 65_536
_NONE: Final = bytes(CHECKSUM_BYTES)


def has_unchecked(path: Path) -> bool:
    """Whether another SQLite program has written a page of the file; False if the file cannot be read."""
    try:
        return any(_is_unchecked(content) for _, content in _pages(path, only_unchecked=True))
    except (apsw.Error, OSError):
        return False


def wrong_pages(path: Path, connection: apsw.Connection) -> list[int]:
    """The numbers of the pages that do not match their checksums. The connection knows how to check one."""
    check = "SELECT verify_checksum(?)"
    return [n for n, content in _pages(path) if not connection.execute(check, (content,)).get]


def _pages(path: Path, *, only_unchecked: bool = False) -> Iterator[tuple[int, bytes]]:
    # SQLite opens and closes the file: if Python did, this process would lose its locks on it.
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY
    file = apsw.VFSFile("", str(path), [flags, 0])
    try:
        if file.xFileSize() < _HEAD_BYTES:
            return
        size = int.from_bytes(file.xRead(_HEAD_BYTES, 0)[16:18])
        size = _LARGEST if size < 2 else size  # a header of two bytes says it as 1
        for number in range(1, file.xFileSize() // size + 1):
            end = number * size
            if only_unchecked and file.xRead(CHECKSUM_BYTES, end - CHECKSUM_BYTES) != _NONE:
                continue
            yield number, file.xRead(size, end - size)
    finally:
        file.xClose()


def _is_unchecked(content: bytes) -> bool:
    """A page of zeros is its own checksum."""
    return content[-CHECKSUM_BYTES:] == _NONE and any(content)
