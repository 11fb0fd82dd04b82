"""Objects in memory."""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from datetime import UTC, datetime

from strandline.storage.objects.object import (
    Chunks,
    Name,
    ObjectInfo,
    check_object_name,
    chunks_of,
    name_of,
    not_found,
)


class MemoryObjects:
    """See Objects; nothing outlives the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[str, tuple[bytes, datetime]] = {}
        self._names: list[str] = []

    @property
    def url(self) -> str:
        return "memory:"

    def create(self, name: Name, chunks: Chunks) -> bool:
        data, known = b"".join(chunks_of(chunks)), name_of(name)
        with self._lock:
            if known in self._stored:
                return False
            self._keep(known, data)
        return True

    def replace(self, name: Name, chunks: Chunks) -> None:
        data, known = b"".join(chunks_of(chunks)), name_of(name)
        with self._lock:
            self._keep(known, data)

    def read(self, name: str) -> bytes:
        with self._lock:
            found = self._stored.get(check_object_name(name))
        if found is None:
            raise not_found(self.url, name)
        return found[0]

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        data = self.read(name)
        return chunks_of(data[first:] if size is None else data[first : first + size])

    def head(self, name: str) -> ObjectInfo | None:
        with self._lock:
            found = self._stored.get(check_object_name(name))
        return None if found is None else ObjectInfo(name, len(found[0]), found[1])

    def scan(self, under: str = "") -> Iterator[ObjectInfo]:
        prefix = check_object_name(under) + "/" if under else ""
        with self._lock:
            names = self._names[bisect_left(self._names, prefix) :]
        for name in names:
            if not name.startswith(prefix):
                return
            if info := self.head(name):
                yield info

    def leftovers(self) -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, name: str) -> None:
        self.delete_older(name, datetime.max.replace(tzinfo=UTC))

    def delete_older(self, name: str, than: datetime) -> bool:
        with self._lock:
            found = self._stored.get(check_object_name(name))
            if found is None or found[1] >= than:
                return False
            del self._stored[name]
            self._names.remove(name)
        return True

    def renew(self, name: str) -> bool:
        with self._lock:
            found = self._stored.get(check_object_name(name))
            if found is not None:
                self._keep(name, found[0])
        return found is not None

    def _keep(self, name: str, data: bytes) -> None:
        if name not in self._stored:
            insort(self._names, name)
        self._stored[name] = data, datetime.now(UTC)
