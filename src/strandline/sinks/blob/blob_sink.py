"""A folder or a bucket as a sink: one object a unit, named by its range, never overwritten.

    <prefix>/logs/source=web-1/00000000000000000000-00000000000000001000.parquet

The name of a unit follows from its intent alone, and an object appears whole or not at all. So a repeat, also
one at the same time, finds the object of the first and takes it for its own: by its intent, by its digest, or
by its rows. What is there and is none of these stays as it is, and holds the strand (`key_conflict`).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import quote, urlsplit

import pyarrow as pa

from strandline.base.failpoint import reach
from strandline.errors import StrandlineError, UsageError
from strandline.sinks.blob.aws_profile import profile_options
from strandline.sinks.blob.destinations import BucketStore, FolderStore, ObjectStore, There, highest_above
from strandline.sinks.blob.encode import EXTENSIONS, Encoding
from strandline.sinks.blob.faults import fault, outcome_of
from strandline.sinks.blob.object_names import folder_of, name_of
from strandline.sinks.sink import (
    Delivery,
    FoundAhead,
    Holdings,
    Limits,
    Outcome,
    Patience,
    Shipment,
    Sink,
    Unit,
)
from strandline.storage.objects import BucketObjects, check_object_name

Destination = Literal["local", "s3", "gcs", "azure"]

_SCHEMES: Final = {"s3": "s3", "gcs": "gs", "azure": "az"}
_ENDPOINT: Final = {"s3": "endpoint", "gcs": "base_url", "azure": "endpoint"}
_LEAST_PUT_S: Final = 600  # of one request: an object goes up in one (decision 11)
_SLOWEST_LINE: Final = 512 * 1024  # bytes a second that an upload may go at, at least


@dataclass(frozen=True, slots=True)
class BlobSink(Sink):
    """Where objects go, and what they are made of.

    `credentials` are obstore's options for the kind of bucket, keys and all; without any, those of `profile`,
    else what the environment or the machine's role gives.
    """

    destination: Destination
    dir: str = ""  # of "local"
    bucket: str = ""  # of "azure": the container
    prefix: str = ""
    region: str = ""
    profile: str = ""
    endpoint: str = ""
    path_style: bool = True
    storage_class: str = ""
    sse: str = ""  # "AES256", "aws:kms", "aws:kms:dsse", "aws:kms:<id of a key>"
    encoder: str = "parquet"  # or "jsonl", "jsonl.gz"
    codec: str = "snappy"  # or "zstd"; of Parquet alone
    max_object_rows: int = 1_000_000
    max_object_bytes: int = 128 * 1024 * 1024
    min_object_bytes: int = 0
    max_delay_s: float = 0
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    home: str = ""  # the node's: a dir inside it is the same destination wherever the two are moved

    def __post_init__(self) -> None:
        _check(self)

    @property
    def patience(self) -> Patience:
        return Patience(min_bytes=self.min_object_bytes, max_delay_s=self.max_delay_s)

    @property
    def fingerprint(self) -> str:
        if self.destination == "local":
            return f"local:{_inside(self.dir, self.home) or Path(self.dir).absolute()}"
        host = urlsplit(self.endpoint).netloc.rpartition("@")[2] or self.credentials.get("account_name", "")
        return f"{self.destination}://{host}/{self.bucket}/{self.prefix}".rstrip("/")

    def is_at(self, fingerprint: str) -> bool:
        """A dir inside the home was recorded by its whole path once."""
        is_same_path = self.destination == "local" and fingerprint == f"local:{Path(self.dir).absolute()}"
        return is_same_path or fingerprint == self.fingerprint

    def limits(self, mean_row_bytes: float) -> Limits:
        rows = int(self.max_object_bytes // max(mean_row_bytes, 1))
        encoder = f"parquet:{self.codec}" if self.encoder == "parquet" else self.encoder
        return Limits(min(self.max_object_rows, max(rows, 1)), encoder=encoder)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        yield _Delivery(self)

    def holdings(self, shipment: Shipment, source: str, epoch: int) -> Holdings:
        """In a bucket by one request for each object; in a folder all of them are read."""
        return self.store().holdings(shipment.dataset.name, source, epoch)

    def ahead(self, shipment: Shipment, source: str, epoch: int, after: int, through: int) -> FoundAhead:
        """By one listing, which in a bucket begins behind the newest object of this node."""
        store = self.store()
        found = highest_above(store, folder_of(shipment.dataset.name, source, epoch), after, through)
        return FoundAhead(found, store.requests)

    def renewed(self) -> Self:
        return replace(self, credentials=profile_options(self.profile)) if self.profile else self

    def store(self) -> ObjectStore:
        if self.destination == "local":
            return FolderStore(Path(self.dir))
        url = f"{_SCHEMES[self.destination]}://{self.bucket}/{quote(self.prefix)}".rstrip("/")
        return BucketStore(BucketObjects(url, **_options(self)), self.prefix, self.storage_class)


class _Delivery:
    """The store is opened for the first unit: what is wrong with it is that unit's outcome."""

    def __init__(self, sink: BlobSink) -> None:
        self._sink = sink
        self._store: ObjectStore | None = None

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        before = self._store.requests if self._store else 0
        try:
            outcome = _deliver(self._opened(), unit, rows)
        except StrandlineError as error:
            outcome = outcome_of(unit, error)
        yield replace(outcome, requests=self._store.requests - before if self._store else 0)

    def _opened(self) -> ObjectStore:
        if self._store is None:
            self._store = self._sink.store()
            if isinstance(self._store, FolderStore):
                self._store.sweep(datetime.now(UTC))
        return self._store


def _deliver(store: ObjectStore, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Outcome:
    encoder = unit.limits.encoder
    name = name_of(unit, EXTENSIONS.get(encoder, f".{encoder}"))
    there = store.look(name)
    if there is not None:
        is_ours = there.intent == unit.intent or store.is_same(unit, name, there, rows)
        return _known(store, unit, name, there) if is_ours else _conflict(store, unit, name)

    encoding = store.encoding(unit, rows)
    reach("blob.put")
    if store.create(unit, name, encoding):
        reach("blob.stored")  # a crash here loses what we know, and the next try finds the object
        return _stored(store, unit, name, encoding)
    return _outrun(store, unit, name, encoding)


def _outrun(store: ObjectStore, unit: Unit, name: str, encoding: Encoding) -> Outcome:
    """Another has made the object since we looked, or an answer was lost and it is our own."""
    there = store.look(name)
    if there is not None and (there.intent == unit.intent or there.digest == encoding.digest):
        return _known(store, unit, name, there)
    text = f"{store.target(name)!r} was written by another meanwhile; the next try compares them"
    return fault(unit, "put_failed", text, target=store.target(name))


def _stored(store: ObjectStore, unit: Unit, name: str, encoding: Encoding) -> Outcome:
    return Outcome(
        unit.lo,
        unit.hi,
        "stored",
        rows=encoding.rows,
        bytes=encoding.size,
        digest=encoding.digest,
        target=store.target(name),
    )


def _known(store: ObjectStore, unit: Unit, name: str, there: There) -> Outcome:
    return Outcome(
        unit.lo,
        unit.hi,
        "known",
        rows=there.rows or 0,
        digest=there.digest or "",
        target=store.target(name),
    )


def _conflict(store: ObjectStore, unit: Unit, name: str) -> Outcome:
    text = (
        f"{store.target(name)!r} is there, and is not this unit's; move it away, or start a new chain: "
        "rewind the sink"
    )
    return fault(unit, "key_conflict", text, target=store.target(name))


# Configuration


def _inside(folder: str, home: str) -> str | None:
    """The path of a folder from the home that it is in; None if it is in none."""
    if not home:
        return None
    path = Path(os.path.relpath(folder, home))  # by names alone: no link is followed
    return None if os.pardir in path.parts else path.as_posix()


def _check(sink: BlobSink) -> None:
    place = "dir" if sink.destination == "local" else "bucket"
    faults = {
        f"destination {sink.destination!r}": sink.destination not in get_args(Destination),
        f"no {place}": not getattr(sink, place),
        f"a dir of {sink.destination!r}": sink.destination != "local" and sink.dir != "",
        f"a bucket of {sink.destination!r}": sink.destination == "local" and sink.bucket != "",
        f"encoder {sink.encoder!r}": sink.encoder not in ("parquet", "jsonl", "jsonl.gz"),
        f"codec {sink.codec!r}": sink.codec not in ("snappy", "zstd"),
        f"sse of {sink.destination!r}": sink.destination != "s3" and sink.sse != "",
        f"a profile of {sink.destination!r}": sink.destination != "s3" and sink.profile != "",
        "max_object_rows and max_object_bytes": min(sink.max_object_rows, sink.max_object_bytes) < 1,
    }
    for found, is_wrong in faults.items():
        if is_wrong:
            raise UsageError(f"a blob sink with {found}", hint="see the keys of [sinks.<instance>]")
    if sink.prefix:
        check_object_name(sink.prefix)


def _options(sink: BlobSink) -> dict[str, Any]:
    """What obstore is told. What stands in the configuration goes before what a profile says."""
    is_plain = sink.endpoint.startswith("http://")  # asked for in so many words
    options: dict[str, Any] = {"client_options": {"timeout": f"{put_s(sink)}s", "allow_http": is_plain}}
    if sink.destination == "s3":
        options |= {"checksum_algorithm": "sha256", **_encryption(sink.sse)}
        options |= {"virtual_hosted_style_request": not sink.path_style}
        options |= {} if sink.credentials or not sink.profile else profile_options(sink.profile)
    options |= sink.credentials
    if sink.region:
        options["region"] = sink.region
    if sink.endpoint:
        options[_ENDPOINT[sink.destination]] = _endpoint(sink)
    return options


def put_s(sink: BlobSink) -> int:
    """How long one request may take. Objects are cut by the mean size of rows, and may be somewhat larger."""
    return max(_LEAST_PUT_S, 2 * sink.max_object_bytes // _SLOWEST_LINE)


def _endpoint(sink: BlobSink) -> str:
    """With hosts for buckets, obstore wants the bucket's own."""
    if sink.destination != "s3" or sink.path_style:
        return sink.endpoint
    scheme, _, host = sink.endpoint.partition("://")
    return f"{scheme}://{sink.bucket}.{host}"


def _encryption(sse: str) -> dict[str, str]:
    if not sse.startswith("aws:kms:") or sse == "aws:kms:dsse":
        return {"server_side_encryption": sse} if sse else {}
    return {"server_side_encryption": "aws:kms", "sse_kms_key_id": sse.removeprefix("aws:kms:")}
