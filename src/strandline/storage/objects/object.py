"""What an object is, a name and its bytes, and what any place that keeps objects promises."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from strandline.errors import NotFoundError, UsageError

Chunks: TypeAlias = bytes | Iterable[bytes]
# A function is called when all chunks are taken: so a digest can name them.
Name: TypeAlias = str | Callable[[], str]

STAGED: Final = ".staged"
CHUNK_BYTES: Final = 1024 * 1024
PART_BYTES: Final = 8 * 1024 * 1024  # of a bucket: what is larger goes up in parts, and comes down in ranges

_STAGED_NAME: Final = re.compile(r"\.staged/[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing tells of an object."""

    name: str
    size: int
    modified: datetime


class Objects(Protocol):
    """One folder, bucket or memory. It serves many threads; all errors are Strandline's own.

    Names are relative paths with `/`, none of whose parts starts with a dot.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages."""

    def create(self, name: Name, chunks: Chunks) -> bool:
        """Store under a new name; False, and nothing is changed, if the name is there. Durable once it
        returns.

        Where an answer of a bucket was lost and the request repeated, False may also stand for a name that
        this call itself has made: compare what is there.
        """

    def replace(self, name: Name, chunks: Chunks) -> None:
        """Store under a name, in place of what it had: a reader sees the old bytes or the new, no mixture."""

    def read(self, name: str) -> bytes:
        """All bytes; NotFoundError if the name is not there."""

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Chunks of the bytes from offset `first` on, at most `size` bytes. The name is looked up at once."""

    def head(self, name: str) -> ObjectInfo | None:
        """Size and time, None if the name is not there."""

    def scan(self, under: str = "") -> Iterator[ObjectInfo]:
        """What is stored below the folder `under`, lazily and by pages, in order of code points."""

    def leftovers(self) -> Iterator[ObjectInfo]:
        """What is staged: puts that are under way, and those that a crash cut short."""

    def delete(self, name: str) -> None:
        """Remove the name; it need not be there."""

    def delete_older(self, name: str, than: datetime) -> bool:
        """Remove the name if it was last put or renewed before `than`, looking just before it removes it.

        In a folder and in memory no put comes between the two. In a bucket one may: see
        strandline.storage.blob_sweep.
        """

    def renew(self, name: str) -> bool:
        """Make the name as young as if it were put now; False if it is not there."""


def check_object_name(name: str) -> str:
    """`name` itself, if it cannot leave the folder or meet what is staged there."""
    parts = name.split("/")
    if all(part and not part.startswith(".") for part in parts) and not set(name) & {"\\", "\0"}:
        return name
    raise UsageError(
        f"object name {name!r:.200}",
        hint="a relative path with '/', no part of it empty or starting with '.'",
    )


def check_any_name(name: str) -> str:
    return name if _STAGED_NAME.fullmatch(name) else check_object_name(name)


def name_of(name: Name) -> str:
    return check_object_name(name if isinstance(name, str) else name())


def chunks_of(chunks: Chunks) -> Iterator[bytes]:
    if not isinstance(chunks, bytes | bytearray | memoryview):
        return iter(chunks)
    view = memoryview(chunks)
    return (bytes(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES))


def not_found(url: str, name: str) -> NotFoundError:
    return NotFoundError(f"{name!r} is not in {url}", hint="it was never put, or it was removed")
