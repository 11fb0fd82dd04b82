"""Named bytes in a folder, in a bucket or in memory. Nothing else in Strandline talks to obstore.

A name appears only when its bytes are whole and durable, and `create` never touches a name that is there. So
a process killed at any instant leaves at most a staged object: `.staged/<random>` in the same folder or
bucket, which `scan` does not show and `leftovers` does. (Of an upload to a bucket that was cut short the
server keeps parts that no listing shows; a lifecycle rule of the bucket, "abort incomplete multipart
uploads", removes those.)

    /var/lib/strandline/content, file:///var/lib/...    a folder; needs nothing installed
    s3://bucket/prefix, gs://bucket/prefix, az://...    a bucket; options, environment as obstore takes them
    memory:                                             this process only

Times are those of the folder's or the bucket's own clock.
"""

import fcntl
import os
import re
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.failpoint import reach

Chunks: TypeAlias = bytes | Iterable[bytes]
Name: TypeAlias = (
    str | Callable[[], str]
)  # a function is called when all chunks are taken: so a digest can name them

STAGED: Final = ".staged"
CHUNK_BYTES: Final = 1024 * 1024
PART_BYTES: Final = 8 * 1024 * 1024  # of a bucket: what is larger goes up in parts, and comes down in ranges
MAX_STREAM_BYTES: Final = 5 * 1024**3  # of a bucket: what S3 copies in one request

_LOCK: Final = ".lock"
_STAGED_NAME: Final = re.compile(r"\.staged/[0-9a-f]{32}")
_TELLS_TOO_MUCH: Final = re.compile(r"<.*|(?<=://)[^/@\s]*@|\?[^\s\"')]*")
_MOST_KNOWN_FOLDERS: Final = 10_000
_RETRIES: Final = 3


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
        strandline.content.sweep.
        """

    def renew(self, name: str) -> bool:
        """Make the name as young as if it were put now; False if it is not there."""


def open_objects(url: str | Path, **options: Any) -> Objects:
    """The objects at a path or URL. Options are obstore's, for a bucket: `endpoint`, `region`…"""
    if isinstance(url, Path):
        url = str(url)
    scheme = urlsplit(url).scheme if "://" in url or url.startswith("memory:") else ""
    if scheme in ("s3", "gs", "az"):
        return BucketObjects(url, **options)
    if options:
        raise UsageError(f"{url!r} takes no options, not {', '.join(options)}", hint="only buckets take them")
    if scheme == "memory":
        return MemoryObjects()
    if scheme in ("", "file"):
        return FolderObjects(_path_of(url))
    raise UsageError(f"no objects at {url!r}", hint="a path, or file:///, s3://, gs://, az:// or memory:")


def check_object_name(name: str) -> str:
    """`name` itself, if it cannot leave the folder or meet what is staged there."""
    parts = name.split("/")
    if all(part and not part.startswith(".") for part in parts) and not set(name) & {"\\", "\0"}:
        return name
    raise UsageError(
        f"object name {name!r:.200}",
        hint="a relative path with '/', no part of it empty or starting with '.'",
    )


def _check_any_name(name: str) -> str:
    return name if _STAGED_NAME.fullmatch(name) else check_object_name(name)


def _path_of(url: str) -> Path:
    if not url.startswith("file:"):
        if not url:
            raise UsageError("the path of the objects is empty", hint="name a folder")
        return Path(url)
    parsed = urlsplit(url)
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise UsageError(f"{url!r} names a host", hint="a file URL has three slashes: file:///folder")
    return Path(unquote(parsed.path))


def _name_of(name: Name) -> str:
    return check_object_name(name if isinstance(name, str) else name())


def _each(chunks: Chunks) -> Iterator[bytes]:
    if not isinstance(chunks, bytes | bytearray | memoryview):
        return iter(chunks)
    view = memoryview(chunks)
    return (bytes(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES))


def _not_found(url: str, name: str) -> NotFoundError:
    return NotFoundError(f"{name!r} is not in {url}", hint="it was never put, or it was removed")


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
                return self._publish(staged, _name_of(name), move)
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
                for chunk in _each(chunks):  # an error of the caller's own iterator passes as it is
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
        return self._root / _check_any_name(name)

    @contextmanager
    def _errors(self, doing: str, name: str, *, is_put: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError) and not is_put:
                raise _not_found(self.url, name) from error
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


class ObjectTooLarge(UsageError):
    """More bytes than a bucket takes in one request."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(
            f"{name!r} has {size:,} bytes, and a bucket takes {MAX_STREAM_BYTES:,} in one request",
            hint="cut it into several",
        )
        self.name, self.size = name, size


class BucketObjects:
    """See Objects. What fits in a part is one request; what is larger is staged, then copied there."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ImportError as error:
            raise UsageError(
                f"{url!r} needs obstore, which is not installed", hint='pip install "strandline[objects]"'
            ) from error
        self._url = url
        self._obstore: Any = obstore
        self._is_seen = False
        try:
            self._store = obstore.store.from_url(url, **_bucket_options(url, options))
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            raise UsageError(
                f"cannot open {url!r}: {_first_line(error)}",
                hint="see obstore's options for this kind of bucket",
            ) from error

    @property
    def url(self) -> str:
        return self._url

    def create(self, name: Name, chunks: Chunks) -> bool:
        try:
            self._put(name, chunks, replaces=False)
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def create_whole(self, name: str, data: memoryview, attributes: Mapping[str, str]) -> bool:
        """As `create`, in one request, which carries attributes: a copy of what was staged would lack them,
        and no upload in parts can be made to create only (decision 11).

        Nothing is copied on the way: of a file that is mapped, pages come and go.
        """
        if len(data) > MAX_STREAM_BYTES:
            raise ObjectTooLarge(name, len(data))
        try:
            with self._errors("put", check_object_name(name), missing="the bucket"):
                self._store.put(name, data, mode="create", use_multipart=False, attributes=dict(attributes))
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def attributes(self, name: str) -> Mapping[str, str] | None:
        """What was put beside the bytes, None if the name is not there."""
        try:
            with self._errors("look at", check_object_name(name)):
                found: Mapping[str, str] = self._store.get(name, options={"head": True}).attributes
                return found
        except NotFoundError:
            self._confirm()
            return None

    def replace(self, name: Name, chunks: Chunks) -> None:
        self._put(name, chunks, replaces=True)

    def read(self, name: str) -> bytes:
        with self._errors("read", check_object_name(name)):
            return bytes(self._store.get(name).bytes())

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        info = self.head(name)
        if info is None:
            raise _not_found(self.url, name)
        return self._ranges(name, first, info.size if size is None else min(info.size, first + size))

    def head(self, name: str) -> ObjectInfo | None:
        try:
            with self._errors("look at", check_object_name(name)):
                return _info_of(self._store.head(name))
        except NotFoundError:
            self._confirm()
            return None

    def scan(self, under: str = "") -> Iterator[ObjectInfo]:
        found = self._list(check_object_name(under) if under else None)
        return (info for info in found if not info.name.startswith("."))

    def leftovers(self) -> Iterator[ObjectInfo]:
        return self._list(STAGED)

    def delete(self, name: str) -> None:
        with self._errors("delete", name), suppress(FileNotFoundError):
            self._store.delete(_check_any_name(name))

    def delete_older(self, name: str, than: datetime) -> bool:
        with self._errors("look at", name):
            try:
                info = _info_of(self._store.head(_check_any_name(name)))
            except FileNotFoundError:
                return False
        if info.modified >= than:
            return False
        self.delete(name)
        return True

    def renew(self, name: str) -> bool:
        """By way of a second copy: S3 refuses to copy an object onto itself."""
        staged = f"{STAGED}/{token_hex(16)}"
        try:
            with self._errors("renew", check_object_name(name)):
                self._store.copy(name, staged)
                self._store.copy(staged, name)
        except NotFoundError:
            self._confirm()
            return False
        with suppress(UnavailableError):
            self.delete(staged)
        return True

    def _put(self, name: Name, chunks: Chunks, *, replaces: bool) -> None:
        source = _Source(_each(chunks))
        start = b"".join(source.take(PART_BYTES + 1))
        if len(start) <= PART_BYTES:
            known = _name_of(name)
            with self._errors("put", known, missing="the bucket"):
                self._store.put(known, start, mode="overwrite" if replaces else "create")
            return
        staged = self._stage(chain([start], source), source)
        try:
            known = _name_of(name)
            with self._errors("put", known, missing="its staged object"):
                self._store.copy(staged, known, overwrite=replaces)
            reach("objects.published")
        finally:
            with suppress(
                UnavailableError
            ):  # the put is done or has failed by itself; a sweep removes the rest
                self.delete(staged)

    def _stage(self, chunks: Iterator[bytes], source: "_Source") -> str:
        staged = f"{STAGED}/{token_hex(16)}"
        try:
            with self._errors("stage", staged, missing="the bucket"):
                self._store.put(staged, chunks, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=4)
        except Exception:
            if (
                source.error is not None
            ):  # the caller's own iterator failed, and obstore has aborted the upload
                raise source.error from None
            raise
        reach("objects.staged")
        return staged

    def _ranges(self, name: str, first: int, end: int) -> Iterator[bytes]:
        while first < end:
            with self._errors("read", name):
                chunk = bytes(self._store.get_range(name, start=first, end=min(first + PART_BYTES, end)))
            if not chunk:
                return
            yield chunk
            first += len(chunk)

    def _list(self, under: str | None) -> Iterator[ObjectInfo]:
        with self._errors("list", under or "/"):
            for page in self._store.list(under):
                yield from map(_info_of, page)

    def _confirm(self) -> None:
        """A missing bucket answers like a missing object. Once, a listing of nothing tells them apart."""
        if not self._is_seen:
            for _ in self._list(f"{STAGED}/none"):
                pass
            self._is_seen = True

    @contextmanager
    def _errors(self, doing: str, name: str, *, missing: str | None = None) -> Iterator[None]:
        known = self._obstore.exceptions
        try:
            yield
        except known.AlreadyExistsError:
            raise
        except FileNotFoundError as error:
            if missing is None:
                raise _not_found(self.url, name) from error
            raise UnavailableError(
                f"cannot {doing} {name!r}: {missing} is not in {self.url}",
                hint="make the bucket, or name another",
            ) from error
        except known.NotSupportedError as error:
            raise UsageError(
                f"{self.url} cannot {doing} {name!r}: {_first_line(error)}",
                hint="creating large objects takes a bucket that can copy to a name that must not exist",
            ) from error
        except (known.BaseError, OSError) as error:
            raise UnavailableError(
                f"cannot {doing} {name!r} in {self.url}: {_first_line(error)}",
                hint="look at the endpoint, the credentials and the bucket",
            ) from error


class _Source:
    """The caller's chunks on their way into obstore: bounded, and their own error kept for what it is."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._size = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._chunks)
            self._size += len(chunk)
            if self._size > MAX_STREAM_BYTES:
                raise UsageError(
                    f"a stream of over {MAX_STREAM_BYTES:,} bytes into a bucket", hint="cut it into several"
                )
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        return chunk

    def take(self, size: int) -> Iterator[bytes]:
        """Chunks until there are `size` bytes of them."""
        while self._size < size:
            try:
                yield next(self)
            except StopIteration:
                return


def _bucket_options(url: str, options: dict[str, Any]) -> dict[str, Any]:
    retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=60)}
    chosen = {"retry_config": retries, **options}
    if url.startswith("s3:") and "AWS_COPY_IF_NOT_EXISTS" not in os.environ:
        chosen.setdefault("copy_if_not_exists", "multipart")
    if str(options.get("endpoint", "")).startswith("http://"):  # asked for in so many words
        chosen["client_options"] = {"allow_http": True, **options.get("client_options", {})}
    return chosen


def _info_of(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])


def _first_line(error: BaseException) -> str:
    """Below it obstore prints its own structures; behind it stands an answer, or the query of a URL, where
    keys and signatures may be."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return _TELLS_TOO_MUCH.sub("", line)[:300]


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
        data, known = b"".join(_each(chunks)), _name_of(name)
        with self._lock:
            if known in self._stored:
                return False
            self._keep(known, data)
        return True

    def replace(self, name: Name, chunks: Chunks) -> None:
        data, known = b"".join(_each(chunks)), _name_of(name)
        with self._lock:
            self._keep(known, data)

    def read(self, name: str) -> bytes:
        with self._lock:
            found = self._stored.get(check_object_name(name))
        if found is None:
            raise _not_found(self.url, name)
        return found[0]

    def stream(self, name: str, *, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        data = self.read(name)
        return _each(data[first:] if size is None else data[first : first + size])

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
