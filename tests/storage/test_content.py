"""The content store: P-BLB-1 to P-BLB-9 in memory, in a folder and in a bucket."""

import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from strandline.errors import BlobCorrupt, NotFoundError, NotStorable, UnknownOp, UsageError
from strandline.persist import (
    BlobRef,
    append,
    blob_cid,
    blob_exists,
    blob_fetch,
    blob_mime,
    blob_ref,
    blob_serve,
    blob_size,
    blob_store,
    blob_store_backend,
    is_blob_ref,
    kv_get,
    kv_put,
    mem_backend,
    mem_blob_store,
    open_store,
    read,
)
from strandline.persist.value import encode
from strandline.storage import ContentStore
from strandline.storage.objects import PART_BYTES, Objects
from tests.storage.places import Place, info_of, renew_later

DATA = b"\x00\xffthe content itself"
CID = "sha256-" + sha256(DATA).hexdigest()
NAME = f"sha256/{CID[7:9]}/{CID[7:]}"
LARGE = 2 * PART_BYTES + 777
UNKNOWN = "sha256-" + "0" * 64


def large_chunks() -> Iterator[bytes]:
    yield from (bytes([number % 251]) * 65_536 for number in range(LARGE // 65_536))
    yield b"z" * (LARGE % 65_536)


def test_a_reference_holds_three_things(content: ContentStore) -> None:  # P-BLB-1, P-BLB-4
    ref = blob_store(content, DATA, "image/png")

    assert (blob_cid(ref), blob_size(ref), blob_mime(ref)) == (CID, len(DATA), "image/png")
    assert ref == blob_ref(CID, len(DATA), "image/png")


def test_a_reference_is_one_also_when_read_back_and_no_other_mapping_is(  # P-BLB-2
    content: ContentStore,
) -> None:
    b, ref = mem_backend(), blob_store(content, DATA, "a/b")
    append(b, "s", "whole", 1, ref)
    append(b, "s", "inside", 2, {"image": [ref]})
    kv_put(b, "k", ref)

    whole, inside = read(b, "s")

    assert is_blob_ref(whole.data)
    assert is_blob_ref(inside.data["image"][0])
    assert is_blob_ref(kv_get(b, "k"))
    assert not is_blob_ref({"cid": CID, "size": len(DATA), "mime": "a/b"})


def test_the_production_client_is_injected_on_its_own_and_holds_no_state(  # P-BLB-3
    objects: Objects,
) -> None:
    first, second = (blob_store_backend(ContentStore(objects)) for _ in range(2))

    ref = blob_store(first, DATA, "a/b")

    assert blob_fetch(second, ref) == DATA
    assert blob_exists(second, ref)
    assert blob_serve(ContentStore(objects), {"op": "blob/has?", "args": [CID]}) is True
    with pytest.raises(UnknownOp):
        blob_serve(ContentStore(objects), {"op": "blob/list", "args": []})


def test_what_is_unknown_is_none_and_not_there(content: ContentStore) -> None:  # P-BLB-5
    for cid in (UNKNOWN, "nope", "sha256-../../x", "md5-" + "0" * 32):
        assert content.get(cid) is None
        assert not content.has(cid)
        assert not content.renew(cid)
        assert blob_fetch(content, blob_ref(cid, 1, "a/b")) is None
        with pytest.raises(NotFoundError):
            content.get_stream(blob_ref(cid, 1, "a/b"))


def test_equal_bytes_are_stored_once_whatever_their_mime(content: ContentStore) -> None:  # P-BLB-6
    first = blob_store(content, DATA, "image/png")
    second = blob_store(content, DATA, "text/plain")
    third = content.put_stream([DATA[:3], b"", DATA[3:]], "image/png")
    other = blob_store(content, DATA + b"!", "image/png")

    assert first.cid == second.cid == third.cid != other.cid
    assert sorted(cid for cid, _ in content.stored()) == sorted([first.cid, other.cid])


def test_log_and_kv_never_carry_the_content(content: ContentStore) -> None:  # P-BLB-7, P-BLB-8
    b = mem_backend()
    append(b, "s", "t", 1, blob_store(content, b"secret content", "text/plain"))
    append(b, "s", "t", 2, {"file": blob_store(content, b"secret content", "text/plain")})

    assert all(b"secret" not in encode(event.data) for event in read(b, "s"))
    with pytest.raises(NotStorable):
        append(b, "s", "t", 3, b"secret content")


@pytest.mark.parametrize("damaged", [DATA[:-1] + b"X", DATA[:-1], DATA + b"!", b""])
def test_damage_is_found_by_each_way_of_reading(  # P-BLB-8
    objects: Objects, content: ContentStore, damaged: bytes
) -> None:
    ref = blob_store(content, DATA, "a/b")
    objects.replace(NAME, damaged)

    with pytest.raises(BlobCorrupt, match=CID):
        content.get(CID)
    with pytest.raises(BlobCorrupt, match=CID):
        blob_fetch(content, ref)
    with pytest.raises(BlobCorrupt, match=CID):
        list(content.get_stream(ref))


def test_a_reference_with_another_size_is_refused(content: ContentStore) -> None:  # P-BLB-8
    content.put(DATA, "a/b")

    for size in (len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(BlobCorrupt):
            list(content.get_stream(BlobRef(CID, size, "a/b")))
        with pytest.raises(BlobCorrupt):
            blob_fetch(content, BlobRef(CID, size, "a/b"))


def test_storing_damaged_bytes_anew_repairs_them(objects: Objects, content: ContentStore) -> None:  # P-BLB-8
    large = content.put_stream(large_chunks(), "a/b")
    content.put(DATA, "a/b")
    for name in (NAME, f"sha256/{large.cid[7:9]}/{large.cid[7:]}"):
        objects.replace(name, b"damaged")

    content.put(DATA, "a/b")
    content.put_stream(large_chunks(), "a/b")

    assert content.get(CID) == DATA
    assert sum(map(len, content.get_stream(large))) == LARGE


def test_a_repeated_put_starts_the_grace_period_anew(
    objects: Objects, content: ContentStore
) -> None:  # P-BLB-9
    content.put(DATA, "a/b")

    renew_later(objects, NAME, lambda: content.put(DATA, "a/b"))
    renew_later(objects, NAME, lambda: content.put_stream([DATA], "a/b"))
    renew_later(objects, NAME, lambda: content.renew(CID))

    assert content.get(CID) == DATA


def test_a_large_blob_streams_in_and_out(content: ContentStore) -> None:  # P-BLB-9
    ref = content.put_stream(large_chunks(), "a/b")

    digest, size = sha256(), 0
    for chunk in content.get_stream(ref):
        digest.update(chunk)
        size += len(chunk)

    assert ref == BlobRef(f"sha256-{digest.hexdigest()}", size, "a/b")
    assert size == LARGE
    assert content.put(b"".join(large_chunks()), "a/b") == ref.cid
    assert list(content.leftovers()) == []


def test_an_empty_blob_is_a_blob(content: ContentStore) -> None:  # P-BLB-5
    ref = content.put_stream([], "a/b")

    assert ref == blob_store(content, b"", "a/b")
    assert content.get(ref.cid) == b""
    assert list(content.get_stream(ref)) == []
    assert content.has(ref.cid)


def test_wrong_arguments_are_refused_before_anything_is_stored(content: ContentStore) -> None:
    with pytest.raises(UsageError):
        content.put_stream([b"x"], "")
    with pytest.raises(NotStorable):
        blob_store(content, "text", "text/plain")  # type: ignore[arg-type]  # wrong on purpose

    assert list(content.stored()) == []


def test_a_stream_cut_short_by_its_producer_stores_nothing(content: ContentStore) -> None:  # P-BLB-9
    def chunks() -> Iterator[bytes]:
        yield from large_chunks()
        raise TimeoutError("the producer went away")

    with pytest.raises(TimeoutError, match="went away"):
        content.put_stream(chunks(), "a/b")

    assert list(content.stored()) == []
    assert list(content.leftovers()) == []


def test_a_file_that_is_no_blob_is_neither_listed_nor_read(tmp_path: Path) -> None:
    content = Place(str(tmp_path)).content()
    content.put(DATA, "a/b")
    (tmp_path / "sha256" / "notes.txt").write_text("mine")
    (tmp_path / "sha256" / CID[7:9] / ("0" * 64)).write_text("in the folder of another digest")

    assert [cid for cid, _ in content.stored()] == [CID]


def test_after_a_restart_references_in_log_and_kv_still_fetch_their_bytes(  # P-REC-6
    durable_place: Place, tmp_path: Path
) -> None:
    code = (
        "from strandline.storage import open_content\n"
        "from strandline.persist import append, blob_store, kv_put, open_store\n"
        f"content = open_content({durable_place.url!r}, **{durable_place.options!r})\n"
        f"b = open_store({str(tmp_path / 'store.db')!r})\n"
        f"append(b, 's', 't', 1, blob_store(content, {DATA!r}, 'a/b'))\n"
        "kv_put(b, 'k', {'file': content.put_stream([b'in', b' kv'], 'a/b')})\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)

    b, content = open_store(tmp_path / "store.db"), durable_place.content()

    assert blob_fetch(content, read(b, "s")[0].data) == DATA
    assert blob_fetch(content, kv_get(b, "k")["file"]) == b"in kv"
    assert blob_fetch(blob_store_backend(content), read(b, "s")[0].data) == DATA
    b.close()


def test_the_memory_store_of_persist_and_the_content_store_name_bytes_alike(content: ContentStore) -> None:
    assert mem_blob_store().put(DATA, "a/b") == content.put(DATA, "a/b")  # P-BLB-6


def test_persist_needs_neither_obstore_nor_the_content_store() -> None:
    code = (
        "import sys, strandline.persist\n"
        "print([name for name in sys.modules if name.startswith(('obstore', 'strandline.storage'))])\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_the_place_of_a_blob_is_its_digest(objects: Objects, content: ContentStore) -> None:
    content.put(DATA, "a/b")

    assert info_of(objects, NAME).size == len(DATA)
