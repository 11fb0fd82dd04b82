"""Where objects of a sink are kept: a folder, or a bucket. Each is create-only, and can tell what is there.

A folder keeps no metadata: there an object is known by the intent in its footer, else by its rows. A bucket
keeps these beside each object, sent in the request that makes it:

    intent  01JD…   lo  0   hi  1000   rows  998   sha256  9f86d0…

An object goes to a bucket by way of a file without a name, which ends with the process: its digest and its
number of rows are known before the one request that stores it, and memory holds none of it.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Protocol

import pyarrow as pa

from strandline.errors import UnavailableError
from strandline.sinks.blob.encode import Encoding
from strandline.sinks.blob.object_names import folder_of, is_of_epoch, range_in
from strandline.sinks.blob.read_back import Unreadable, digest_in, holds, intent_in, rows_in
from strandline.sinks.sink import Holdings, Stored, Unit
from strandline.storage.objects import BucketObjects, FolderObjects, Objects

STALE: Final = timedelta(hours=24)

_LOOKS_AT_ONCE: Final = 16
_MIME: Final = {
    ".parquet": "application/vnd.apache.parquet",
    ".jsonl": "application/x-ndjson",
    ".gz": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class There:
    """An object that is there. What it does not tell is None or empty."""

    intent: str = ""
    rows: int | None = None
    digest: str | None = None


class ObjectStore(Protocol):
    """A folder or a bucket."""

    requests: int  # so far, where requests are counted

    def target(self, name: str) -> str:
        """The whole key of an object."""

    def look(self, name: str) -> There | None:
        """What is under a name, None if nothing is."""

    def encoding(self, unit: Unit, batches: Iterable[pa.RecordBatch]) -> Encoding: ...

    def create(self, unit: Unit, name: str, encoding: Encoding) -> bool:
        """Store an object, durable once it returns; False, and nothing is changed, if the name is there."""

    def is_same(self, unit: Unit, name: str, there: There, batches: Iterable[pa.RecordBatch]) -> bool:
        """Whether an object of another intent, or of none, holds these rows."""

    def holdings(self, dataset: str, source: str, epoch: int) -> Holdings: ...

    def names(self, folder: str, after: str) -> Iterator[str]:
        """The names of objects in a folder, without it. Those before `after` may be left out."""
        ...


class FolderStore:
    """An ObjectStore. Staged files stand in the folder itself, hidden as strandline.storage.objects says."""

    requests = 0

    def __init__(self, folder: Path) -> None:
        self._root, self._objects = folder, FolderObjects(folder)

    def target(self, name: str) -> str:
        return name

    def look(self, name: str) -> There | None:
        if self._objects.head(name) is None:
            return None
        with self._errors(name):
            return self._told(name)

    def encoding(self, unit: Unit, batches: Iterable[pa.RecordBatch]) -> Encoding:
        facts = {"intent": unit.intent, "lo": str(unit.after), "hi": str(unit.hi)}
        return Encoding(unit.limits.encoder, unit.shipment.dataset, batches, facts)

    def create(self, unit: Unit, name: str, encoding: Encoding) -> bool:  # noqa: ARG002
        return self._objects.create(name, encoding)

    def is_same(self, unit: Unit, name: str, there: There, batches: Iterable[pa.RecordBatch]) -> bool:  # noqa: ARG002
        with self._errors(name):
            try:
                return holds(self._root / name, unit.shipment.dataset, batches)
            except Unreadable:
                return False

    def holdings(self, dataset: str, source: str, epoch: int) -> Holdings:
        return _holdings(self._objects, folder_of(dataset, source, epoch), self)

    def names(self, folder: str, after: str) -> Iterator[str]:  # noqa: ARG002
        with self._errors(folder):
            try:
                with os.scandir(self._root / folder) as entries:
                    yield from (entry.name for entry in entries)
            except FileNotFoundError:
                return  # nothing was delivered yet

    def sweep(self, now: datetime) -> None:
        """Remove what writers that were killed have left. What cannot be removed stands in nobody's way."""
        with suppress(UnavailableError):
            for left in self._objects.leftovers():
                if left.modified < now - STALE:
                    self._objects.delete_older(left.name, now - STALE)

    def _told(self, name: str) -> There:
        path = self._root / name
        digest = digest_in(path)
        try:
            return There(intent_in(path), rows_in(path), digest)
        except Unreadable:
            return There(digest=digest)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"cannot read {name!r} in {self._root}: {error.strerror or error}", hint="look at the disk"
            ) from error


class BucketStore:
    """An ObjectStore."""

    def __init__(self, objects: BucketObjects, prefix: str, storage_class: str) -> None:
        self._objects, self._prefix, self._storage_class = objects, prefix, storage_class
        self._is_found = False
        self.requests = 0

    def target(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def look(self, name: str) -> There | None:
        self.requests += 1
        found = self._objects.attributes(name)
        if found is None and not self._is_found:
            self._is_found = True
            self.requests += 1  # the listing that told a name that is not there from a bucket that is not
        return None if found is None else _there(found)

    def encoding(self, unit: Unit, batches: Iterable[pa.RecordBatch]) -> Encoding:
        """Without the intent: the bytes are those of the rows, whichever intent brings them."""
        return Encoding(unit.limits.encoder, unit.shipment.dataset, batches)

    def create(self, unit: Unit, name: str, encoding: Encoding) -> bool:
        with TemporaryFile() as file:
            for chunk in encoding:
                with _spooling():
                    file.write(chunk)
            with _spooling():
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.requests += 1
            return self._objects.create_whole(
                name, memoryview(mapped), self._attributes(unit, name, encoding)
            )

    def is_same(self, unit: Unit, name: str, there: There, batches: Iterable[pa.RecordBatch]) -> bool:  # noqa: ARG002
        encoding = self.encoding(unit, batches)
        for _ in encoding:
            pass
        return there.digest == encoding.digest

    def holdings(self, dataset: str, source: str, epoch: int) -> Holdings:
        return _holdings(self._objects, folder_of(dataset, source, epoch), self)

    def names(self, folder: str, after: str) -> Iterator[str]:
        self.requests += 1
        found = self._objects.scan(folder, after=f"{folder}/{after}")
        return (info.name.removeprefix(f"{folder}/") for info in found)

    def _attributes(self, unit: Unit, name: str, encoding: Encoding) -> dict[str, str]:
        attributes = {
            "intent": unit.intent,
            "lo": str(unit.after),
            "hi": str(unit.hi),
            "rows": str(encoding.rows),
            "sha256": encoding.digest,
            "Content-Type": _MIME[Path(name).suffix],
        }
        return {**attributes, "Storage-Class": self._storage_class} if self._storage_class else attributes


def _there(attributes: Mapping[str, Any]) -> There:
    rows = str(attributes.get("rows", ""))
    return There(
        attributes.get("intent", ""),
        int(rows) if rows.isascii() and rows.isdigit() else None,
        attributes.get("sha256"),
    )


@contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"no file for an object on its way: {error.strerror or error}",
            hint="make room in the folder for temporary files, or name another in TMPDIR",
        ) from error


def highest_above(store: ObjectStore, folder: str, after: int, through: int) -> int | None:
    """Return the highest seq above `through` in names of objects that begin at `after` or later, or None."""
    ranges = (range_in(name) for name in store.names(folder, f"{max(after - 1, 0):020}"))
    return max((each.hi for each in ranges if each is not None and each.hi > through), default=None)


def _holdings(objects: Objects, folder: str, store: ObjectStore) -> Holdings:
    names = [info.name.removeprefix(f"{folder}/") for info in objects.scan(folder)]
    known = [(name, found) for name in names if (found := range_in(name)) is not None]
    strangers = [name for name in names if range_in(name) is None and not is_of_epoch(name)]
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        looked = pool.map(lambda each: store.look(f"{folder}/{each[0]}"), known)
        stored = [
            Stored(found.lo, found.hi, there.rows, there.digest, store.target(f"{folder}/{name}"))
            for (name, found), there in zip(known, looked, strict=True)
            if there is not None  # removed since it was listed
        ]
    return Holdings(tuple(stored), tuple(store.target(f"{folder}/{name}") for name in strangers))
