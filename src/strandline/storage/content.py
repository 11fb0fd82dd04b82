"""Bytes by digest over objects: a folder, a bucket, or memory.

The bytes of `sha256-ab12…` are the object `sha256/ab/ab12…`. A put writes them whole under that name, also
where the name is there already: so it starts their grace period anew, it repairs bytes that were damaged, and
no removal can come between a look and a write. The mime type is the reference's alone; nothing of it is
stored.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from strandline.errors import BlobCorrupt, NotFoundError, UsageError
from strandline.persist import BlobRef
from strandline.storage.objects import ObjectInfo, Objects, open_objects

_FOLDER: Final = "sha256"
_CID: Final = re.compile(r"sha256-([0-9a-f]{64})")
_NAME: Final = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")


def open_content(url: str | Path, **options: Any) -> "ContentStore":
    """Open the content store at a path or URL. See strandline.storage.objects for both, and for `options`."""
    return ContentStore(open_objects(url, **options))


class ContentStore:
    """A BlobStore, with streams for what is large. It holds no state: another over its objects sees all."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    @property
    def url(self) -> str:
        return self._objects.url

    def put(self, data: bytes, mime: str) -> str:  # noqa: ARG002  # the reference carries it
        """Store the bytes and return their cid. A crash leaves them whole and unnamed, or not at all."""
        digest = sha256(data).hexdigest()
        self._objects.replace(_name(digest), data)
        return f"sha256-{digest}"

    def put_stream(self, chunks: Iterable[bytes], mime: str) -> BlobRef:
        """Store what the chunks join to, holding a few at a time; durable before the reference exists."""
        if not mime:
            raise UsageError("mime is empty", hint="such as 'application/octet-stream'")
        digest, size = sha256(), 0

        def hashed() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        self._objects.replace(lambda: _name(digest.hexdigest()), hashed())
        return BlobRef(f"sha256-{digest.hexdigest()}", size, mime)

    def get(self, cid: str) -> bytes | None:
        """The bytes, None if unknown. Raises BlobCorrupt if they are not those that the cid names."""
        digest = _digest(cid)
        if digest is None:
            return None
        try:
            data = self._objects.read(_name(digest))
        except NotFoundError:
            return None
        if sha256(data).hexdigest() != digest:
            raise BlobCorrupt(cid, f"the digest of its {len(data):,} bytes does not match")
        return data

    def get_stream(self, ref: BlobRef) -> Iterator[bytes]:
        """The bytes in chunks; NotFoundError, at once, if the store does not have them.

        Only its end proves them: exhaust it before you trust what it gave. There it raises BlobCorrupt if
        digest or size is not the reference's.
        """
        digest = _digest(ref.cid)
        if digest is None:
            raise NotFoundError(f"{ref.cid!r:.200} names no blob", hint="a cid is sha256- and 64 hex digits")
        return _checked(self._objects.stream(_name(digest)), ref)

    def has(self, cid: str) -> bool:
        digest = _digest(cid)
        return digest is not None and self._objects.head(_name(digest)) is not None

    def renew(self, cid: str) -> bool:
        """Start the grace period anew without the bytes, before a reference is copied; False if unknown."""
        digest = _digest(cid)
        return digest is not None and self._objects.renew(_name(digest))

    def stored(self) -> Iterator[tuple[str, ObjectInfo]]:
        """Every cid that is stored, lazily and in order. What is not named like a blob is left out."""
        for info in self._objects.scan(_FOLDER):
            if found := _NAME.fullmatch(info.name):
                yield f"sha256-{found[2]}", info

    def remove_older(self, cid: str, than: datetime) -> bool:
        """Remove a blob unless it was put or renewed at `than` or later; whether it was removed."""
        digest = _digest(cid)
        return digest is not None and self._objects.delete_older(_name(digest), than)

    def leftovers(self) -> Iterator[ObjectInfo]:
        """What puts that are under way, or that a crash cut short, have staged."""
        return self._objects.leftovers()

    def remove_leftover(self, name: str, than: datetime) -> bool:
        return self._objects.delete_older(name, than)


def _digest(cid: str) -> str | None:
    found = _CID.fullmatch(cid)
    return found[1] if found else None


def _name(digest: str) -> str:
    return f"{_FOLDER}/{digest[:2]}/{digest}"


def _checked(chunks: Iterator[bytes], ref: BlobRef) -> Iterator[bytes]:
    digest, size = sha256(), 0
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > ref.size:
                break
            yield chunk
    finally:
        if isinstance(chunks, Generator):
            chunks.close()  # where reading stops early it holds a file open
    if size != ref.size:
        more = "more than " if size > ref.size else ""
        raise BlobCorrupt(
            ref.cid, f"it has {more}{min(size, ref.size):,} bytes, the reference says {ref.size:,}"
        )
    if f"sha256-{digest.hexdigest()}" != ref.cid:
        raise BlobCorrupt(ref.cid, "its digest does not match")
