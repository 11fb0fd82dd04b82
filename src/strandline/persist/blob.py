"""Blob references, and the contract of a content store: large bytes stay out of the log and kv, named by
digest.

A content store is injected on its own. Its requests hold bytes, so they stay in the process: a content
store that many machines share is an object store (see strandline.storage).
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

from strandline.errors import BlobCorrupt, NotStorable, ProtocolError, UnknownOp, UsageError
from strandline.persist.event import BlobRef, Event, ProjectionState

Request: TypeAlias = dict[str, Any]
Transport: TypeAlias = Callable[[Request], Any]


class BlobStore(Protocol):
    """Bytes by cid. `put` returns when they are durable; equal bytes are stored once."""

    def put(self, data: bytes, mime: str) -> str:
        """Store the bytes and return their cid, `sha256-<hex>`."""

    def get(self, cid: str) -> bytes | None:
        """The bytes as they are stored, None if unknown."""

    def has(self, cid: str) -> bool:
        """Whether the cid is stored."""


def cid_of(data: bytes) -> str:
    return "sha256-" + sha256(data).hexdigest()


def blob_ref(cid: str, size: int, mime: str) -> BlobRef:
    return BlobRef(cid, size, mime)


def blob_cid(ref: BlobRef) -> str:
    return ref.cid


def blob_size(ref: BlobRef) -> int:
    return ref.size


def blob_mime(ref: BlobRef) -> str:
    return ref.mime


def is_blob_ref(x: object) -> bool:
    return isinstance(x, BlobRef)


class MemoryBlobStore:
    """An empty content store in memory."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes, mime: str) -> str:  # noqa: ARG002  # the reference carries it
        cid = cid_of(data)
        self._blobs[cid] = bytes(data)
        return cid

    def get(self, cid: str) -> bytes | None:
        return self._blobs.get(cid)

    def has(self, cid: str) -> bool:
        return cid in self._blobs


def mem_blob_store() -> MemoryBlobStore:
    return MemoryBlobStore()


def blob_serve(store: BlobStore, request: Request) -> Any:
    """The reference host: runs one request on a content store. An unknown op raises, it never returns a
    default."""
    match request:
        case {"op": "blob/put", "args": [data, mime]}:
            return store.put(data, mime)
        case {"op": "blob/get", "args": [cid]}:
            return store.get(cid)
        case {"op": "blob/has?", "args": [cid]}:
            return store.has(cid)
    raise UnknownOp(request.get("op"))


class BlobClient:
    """The client of a content store: each method is one request; it holds no state."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, data: bytes, mime: str) -> str:
        cid = self._transport({"op": "blob/put", "args": [data, mime]})
        if not isinstance(cid, str):
            raise ProtocolError(f"blob/put was answered with {cid!r:.80}", hint="the bytes may not be stored")
        return cid

    def get(self, cid: str) -> bytes | None:
        data = self._transport({"op": "blob/get", "args": [cid]})
        if data is not None and not isinstance(data, bytes):
            raise ProtocolError(f"blob/get was answered with {type(data).__name__}")
        return data

    def has(self, cid: str) -> bool:
        found = self._transport({"op": "blob/has?", "args": [cid]})
        if not isinstance(found, bool):
            raise ProtocolError(f"blob/has? was answered with {found!r:.80}")
        return found


def blob_io(transport: Transport) -> BlobClient:
    return BlobClient(transport)


def blob_store_backend(store: BlobStore) -> BlobClient:
    """The production client, over a content store that this process opened (see strandline.storage)."""
    return BlobClient(lambda request: blob_serve(store, request))


def mock_blob(store: BlobStore) -> BlobClient:
    """The same over a store in memory, for tests."""
    return blob_store_backend(store)


def blob_store(blob: BlobStore, data: bytes, mime: str) -> BlobRef:
    """Put the bytes and return only their reference; they are durable before it exists."""
    if not isinstance(data, bytes):
        raise NotStorable(f"a blob is bytes, not {type(data).__name__}", hint="encode it first")
    if not isinstance(mime, str) or not mime:
        raise UsageError(f"mime is {mime!r:.80}", hint="such as 'application/octet-stream'")
    cid = blob.put(data, mime)
    if cid != cid_of(data):
        raise ProtocolError(
            f"the content store named {len(data)} bytes {cid}, their digest is {cid_of(data)}"
        )
    return BlobRef(cid, len(data), mime)


def blob_fetch(blob: BlobStore, ref: BlobRef) -> bytes | None:
    """The bytes, checked against digest and size; None if the store does not have them."""
    data = blob.get(ref.cid)
    if data is None:
        return None
    if len(data) != ref.size:
        raise BlobCorrupt(ref.cid, f"it has {len(data):,} bytes, the reference says {ref.size:,}")
    if cid_of(data) != ref.cid:
        raise BlobCorrupt(ref.cid, "its digest does not match")
    return data


def blob_exists(blob: BlobStore, ref: BlobRef) -> bool:
    return blob.has(ref.cid)


def refs_in(value: Any) -> Iterator[BlobRef]:
    """Every reference inside a stored value."""
    if isinstance(value, BlobRef):
        yield value
    elif isinstance(value, dict):
        yield from _refs_of(value.values())
    elif isinstance(value, list):
        yield from _refs_of(value)
    elif isinstance(value, Event):
        yield from refs_in(value.data)
    elif isinstance(value, ProjectionState):
        yield from refs_in(value.value)


def _refs_of(values: Iterable[Any]) -> Iterator[BlobRef]:
    for value in values:
        yield from refs_in(value)
