"""Blob references: bytes stay in a content store, the log and kv hold their names."""

from dataclasses import fields
from functools import partial
from hashlib import sha256
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, different, each_raises, equal, raises, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.persist import (
    Backend,
    BlobCorrupt,
    NotStorable,
    ProtocolError,
    UnknownOp,
    UsageError,
    append,
    blob_cid,
    blob_exists,
    blob_fetch,
    blob_io,
    blob_mime,
    blob_ref,
    blob_serve,
    blob_size,
    blob_store,
    is_blob_ref,
    kv_get,
    kv_keys,
    kv_put,
    last_seq,
    mem_blob_store,
    read,
)

BLOB = Suite("blob", expected=20, floor=14)


@BLOB.case("P-BLB-1")
def a_reference_holds_cid_size_and_mime() -> None:
    ref = blob_ref("sha256-00", 12, "text/plain")

    equal((blob_cid(ref), blob_size(ref), blob_mime(ref)), ("sha256-00", 12, "text/plain"))
    equal([field.name for field in fields(ref)], ["cid", "size", "mime"])


@BLOB.case("P-BLB-2")
def is_blob_ref_knows_references_and_no_other_mappings() -> None:
    others: list[Any] = [
        {"cid": "x", "size": 1, "mime": "a/b"},
        {"$blob": ["x", 1, "a/b"]},
        {},
        None,
        "sha256-0",
    ]

    equal(is_blob_ref(blob_ref("sha256-00", 1, "a/b")), True)
    equal([is_blob_ref(other) for other in others], [False] * len(others))


@BLOB.case("P-BLB-2")
def a_reference_is_one_after_the_log_and_kv(b: Backend) -> None:
    ref = blob_ref("sha256-00", 1, "a/b")
    append(b, "files", "stored", 1, {"file": ref})
    kv_put(b, "file", ref)

    equal((read(b, "files")[0].data["file"], kv_get(b, "file")), (ref, ref))
    equal(is_blob_ref(kv_get(b, "file")), True)


@BLOB.case("P-BLB-2", "P-VAL-6")
def a_mapping_that_looks_like_a_stored_reference_stays_a_mapping(b: Backend) -> None:
    looks = {"$blob": ["sha256-00", 1, "a/b"]}
    kv_put(b, "k", looks)

    equal((kv_get(b, "k"), is_blob_ref(kv_get(b, "k"))), (looks, False))


@BLOB.case("P-BLB-4")
def storing_gives_a_reference_with_the_length(f: BackendFixture) -> None:
    ref = blob_store(f.content_store(), "grün".encode(), "text/plain")

    equal((is_blob_ref(ref), ref.size, ref.mime), (True, 5, "text/plain"))


@BLOB.case("P-BLB-5")
def fetching_gives_the_bytes(f: BackendFixture) -> None:
    content = f.content_store()
    data = bytes(range(256)) * 5

    equal(blob_fetch(content, blob_store(content, data, "a/b")), data)


@BLOB.case("P-BLB-5")
def an_unknown_blob_is_none(f: BackendFixture) -> None:
    unknown = blob_ref("sha256-" + "0" * 64, 3, "a/b")

    equal((blob_fetch(f.content_store(), unknown), blob_exists(f.content_store(), unknown)), (None, False))


@BLOB.case("P-BLB-5")
def a_stored_blob_exists(f: BackendFixture) -> None:
    content = f.content_store()

    equal(blob_exists(content, blob_store(content, b"x", "a/b")), True)


@BLOB.case("P-BLB-6")
def equal_bytes_have_equal_cids_whatever_their_mime(f: BackendFixture) -> None:
    content = f.content_store()

    first = blob_store(content, b"same", "text/plain")
    second = blob_store(content, b"same", "text/html")

    equal((first.cid == second.cid, second.mime), (True, "text/html"))


@BLOB.case("P-BLB-6")
def different_bytes_have_different_cids(f: BackendFixture) -> None:
    content = f.content_store()

    different(blob_store(content, b"a", "a/b").cid, blob_store(content, b"b", "a/b").cid)


@BLOB.case("P-BLB-3")
def a_client_sends_requests_and_keeps_nothing(f: BackendFixture) -> None:
    store, asked = f.content_store(), []

    def transport(request: dict[str, Any]) -> Any:
        asked.append((request["op"], sorted(request)))
        return blob_serve(store, request)

    ref = blob_store(blob_io(transport), b"bytes", "a/b")
    other = blob_io(transport)

    equal((blob_fetch(other, ref), blob_exists(other, ref)), (b"bytes", True))
    equal(asked, [(op, ["args", "op"]) for op in ("blob/put", "blob/get", "blob/has?")])


@BLOB.case("P-BLB-3")
def a_content_host_refuses_what_it_does_not_know() -> None:
    for request in ({"op": "blob/drop", "args": []}, {"op": "persist/read", "args": ["x"]}):
        with raises(UnknownOp) as caught:
            blob_serve(mem_blob_store(), request)
        truthy(repr(request["op"]) in str(caught.error), "a message that names the op")


@BLOB.case("P-BLB-7")
def a_reference_in_an_event_holds_no_content(b: Backend, f: BackendFixture) -> None:
    ref = blob_store(f.content_store(), b"secret-content", "a/b")

    append(b, "files", "stored", 1, {"file": ref})
    append(b, "files", "stored", 2, ref)
    kv_put(b, "file", ref)

    stored = [read(b, "files")[0].data["file"], read(b, "files")[1].data, kv_get(b, "file")]
    equal(stored, [ref, ref, ref])
    truthy("secret-content" not in repr(stored), "no content in a stored reference")


@BLOB.case("P-BLB-3", "P-BLB-7", "P-VAL-3")
def the_store_itself_takes_no_bytes(b: Backend) -> None:
    with raises(NotStorable):
        kv_put(b, "file", b"bytes")
    with raises(NotStorable):
        append(b, "files", "stored", 1, {"file": b"bytes"})

    equal((kv_keys(b), last_seq(b, "files")), ([], 0))


@BLOB.case("P-BLB-8")
def a_cid_is_a_named_digest_of_the_content(f: BackendFixture) -> None:
    data = b"an address, not the content"

    equal(blob_store(f.content_store(), data, "a/b").cid, "sha256-" + sha256(data).hexdigest())


def _answers(answer: Any, _request: dict[str, Any]) -> Any:
    return answer


@BLOB.case("P-BLB-8")
def changed_bytes_are_found_and_never_returned(f: BackendFixture) -> None:
    content = f.content_store()
    ref = blob_store(content, b"original", "a/b")

    for answer in (b"originaX", b"origin", b""):
        changed = blob_io(partial(_answers, answer))
        with raises(BlobCorrupt) as caught:
            blob_fetch(changed, ref)
        equal(caught.error.cid, ref.cid)


@BLOB.case("P-BLB-8")
def a_content_store_that_misnames_is_found_out() -> None:
    with raises(ProtocolError):
        blob_store(blob_io(lambda _: "sha256-" + "0" * 64), b"bytes", "a/b")
    with raises(ProtocolError):
        blob_store(blob_io(lambda _: None), b"bytes", "a/b")


@BLOB.case("P-BLB-9")
def storing_what_is_there_is_harmless(f: BackendFixture) -> None:
    content = f.content_store()
    first = blob_store(content, b"twice", "a/b")

    equal(blob_store(content, b"twice", "a/b"), first)
    equal(blob_fetch(content, first), b"twice")


@BLOB.case("P-BLB-5")
def an_empty_blob_is_a_blob(f: BackendFixture) -> None:
    content = f.content_store()
    ref = blob_store(content, b"", "a/b")

    equal((ref.size, blob_fetch(content, ref), blob_exists(content, ref)), (0, b"", True))


@BLOB.case("P-BLB-4")
def only_bytes_can_be_a_blob(f: BackendFixture) -> None:
    content: Any = f.content_store()
    odd: list[Any] = ["text", None, [1], 5]

    each_raises(NotStorable, {repr(data): call(blob_store, content, data, "a/b") for data in odd})
    each_raises(UsageError, {"mime": call(blob_store, content, b"x", "")})
