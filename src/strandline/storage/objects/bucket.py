"""Objects of a bucket, through obstore."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import chain
from secrets import token_hex
from typing import Any, Final

from strandline.base.failpoint import reach
from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.storage.objects.object import (
    PART_BYTES,
    STAGED,
    Chunks,
    Name,
    ObjectInfo,
    check_any_name,
    check_object_name,
    chunks_of,
    name_of,
    not_found,
)

MAX_STREAM_BYTES: Final = 5 * 1024**3  # of a bucket: what S3 copies in one request

_TELLS_TOO_MUCH: Final = re.compile(r"<.*|(?<=://)[^/@\s]*@|\?[^\s\"')]*")
_RETRIES: Final = 3


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
            raise not_found(self.url, name)
        return self._ranges(name, first, info.size if size is None else min(info.size, first + size))

    def head(self, name: str) -> ObjectInfo | None:
        try:
            with self._errors("look at", check_object_name(name)):
                return _info_of(self._store.head(name))
        except NotFoundError:
            self._confirm()
            return None

    def scan(self, under: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """As Objects promises; with `after` only names behind it, which costs no more than they are many."""
        found = self._list(check_object_name(under) if under else None, after)
        return (info for info in found if not info.name.startswith("."))

    def leftovers(self) -> Iterator[ObjectInfo]:
        return self._list(STAGED)

    def delete(self, name: str) -> None:
        with self._errors("delete", name), suppress(FileNotFoundError):
            self._store.delete(check_any_name(name))

    def delete_older(self, name: str, than: datetime) -> bool:
        with self._errors("look at", name):
            try:
                info = _info_of(self._store.head(check_any_name(name)))
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
        source = _Source(chunks_of(chunks))
        start = b"".join(source.take(PART_BYTES + 1))
        if len(start) <= PART_BYTES:
            known = name_of(name)
            with self._errors("put", known, missing="the bucket"):
                self._store.put(known, start, mode="overwrite" if replaces else "create")
            return
        staged = self._stage(chain([start], source), source)
        try:
            known = name_of(name)
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

    def _list(self, under: str | None, after: str = "") -> Iterator[ObjectInfo]:
        with self._errors("list", under or "/"):
            for page in self._store.list(under, offset=after or None):
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
                raise not_found(self.url, name) from error
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
