"""Mark and sweep over live references, with a grace period (P-BLB-9)."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import EventCorrupt, UsageError
from strandline.persist import (
    BlobRef,
    ProjectionState,
    append,
    append_batch,
    append_once,
    blob_store,
    erase_stream,
    gappend,
    kv_delete,
    kv_put,
    mem_backend,
    open_store,
    quarantine,
    redact,
    snapshot_save,
    truncate_through,
)
from strandline.persist.backends.memory import MemoryBackend
from strandline.storage import ContentStore, SweepReport, live_cids, sweep
from strandline.storage.objects import Objects
from tests.storage.places import Place, renew_later

GRACE_S = 3600
LATER = timedelta(seconds=GRACE_S, minutes=10)  # what is stored now is old by then


def later() -> datetime:
    return datetime.now(UTC) + LATER


def put(content: ContentStore, data: bytes) -> BlobRef:
    return blob_store(content, data, "a/b")


def cids(content: ContentStore) -> set[str]:
    return {cid for cid, _ in content.stored()}


def test_what_is_named_stays_and_what_is_not_goes(content: ContentStore) -> None:
    first, second = mem_backend(), mem_backend()
    live = [put(content, bytes([number])) for number in range(6)]
    append(first, "s", "whole", 1, live[0])
    append(first, "s", "inside", 2, {"deep": [{"er": live[1]}]})
    kv_put(first, "k", [live[2]])
    snapshot_save(first, "snap", ProjectionState({"image": live[3]}, 2), stream="s")
    gappend(second, "g", "t", 1, live[4])
    append_once(second, "o", "key", "t", 1, live[5])
    put(content, b"dead")
    put(content, b"dead too")

    report = sweep(content, [first, second], grace_s=GRACE_S, now=later())

    assert report == SweepReport(examined=8, live=6, removed=2, removed_bytes=12)
    assert cids(content) == {ref.cid for ref in live}
    assert all(content.get(ref.cid) is not None for ref in live)


def test_within_the_grace_period_nothing_goes(content: ContentStore) -> None:
    put(content, b"orphan")

    report = sweep(content, [mem_backend()], grace_s=GRACE_S, now=datetime.now(UTC))

    assert report == SweepReport(examined=1, young=1)
    assert len(cids(content)) == 1


def test_a_dry_run_tells_the_same_and_removes_nothing(content: ContentStore) -> None:
    put(content, b"orphan")

    told = sweep(content, [mem_backend()], grace_s=GRACE_S, now=later(), dry_run=True)
    assert len(cids(content)) == 1
    done = sweep(content, [mem_backend()], grace_s=GRACE_S, now=later())

    assert told == done == SweepReport(examined=1, removed=1, removed_bytes=6)
    assert cids(content) == set()


def test_a_reference_that_is_gone_frees_its_blob(content: ContentStore) -> None:  # P-ERA-1, P-ERA-2
    b = mem_backend()
    refs = [put(content, bytes([number])) for number in range(4)]
    append(b, "truncated", "t", 1, refs[0])
    append(b, "erased", "t", 1, refs[1])
    append(b, "redacted", "t", 1, {"file": refs[2]})
    kv_put(b, "k", refs[3])

    truncate_through(b, "truncated", 1)
    erase_stream(b, "erased", 2, reason="asked")
    redact(b, "redacted", 1, ["file"], 2, reason="asked")
    kv_delete(b, "k")
    report = sweep(content, [b], grace_s=GRACE_S, now=later())

    assert report.removed == 4
    assert cids(content) == set()


def test_an_event_that_was_set_aside_keeps_its_blob(content: ContentStore) -> None:  # P-INT-3
    b = mem_backend()
    ref = put(content, b"x")
    append(b, "s", "t", 1, {"file": ref})

    quarantine(b, "s", 1, 2)

    assert ref.cid in set(live_cids(b))
    assert sweep(content, [b], grace_s=GRACE_S, now=later()).live == 1


def test_a_store_that_cannot_be_read_stops_the_sweep_before_any_removal(content: ContentStore) -> None:
    class Damaged(MemoryBackend):
        def read_range(self, stream: str, first: int, last: int, **options: Any) -> Iterator[Any]:
            raise EventCorrupt(stream, 1, "its checksum does not match")

    damaged = Damaged()
    append(damaged, "s", "t", 1, {})
    put(content, b"orphan")

    for stores in ([damaged], [mem_backend(), damaged], [damaged, mem_backend()]):
        with pytest.raises(EventCorrupt):
            sweep(content, stores, grace_s=GRACE_S, now=later())
    assert len(cids(content)) == 1


class During(MemoryBackend):
    """Runs something once, when the walk reaches the stream `z`: the last place that it reads."""

    def __init__(self, act: Callable[["During"], object]) -> None:
        super().__init__()
        self._act: Callable[[During], object] | None = None
        append(self, "a", "t", 1, {})
        append(self, "z", "t", 1, {})
        self._act = act

    def read_range(self, stream: str, first: int, last: int, **options: Any) -> Iterator[Any]:
        if stream == "z" and self._act is not None:
            act, self._act = self._act, None
            act(self)
        return super().read_range(stream, first, last, **options)


def test_bytes_put_again_while_the_sweep_runs_are_kept(objects: Objects, content: ContentStore) -> None:
    """Also if their reference is committed only after the sweep has walked past its place."""
    ref = put(content, b"orphan")
    name = f"sha256/{ref.cid[7:9]}/{ref.cid[7:]}"
    stored = objects.head(name)
    assert stored is not None

    b = During(lambda _: renew_later(objects, name, lambda: content.put(b"orphan", "a/b")))
    now = stored.modified + timedelta(seconds=GRACE_S, microseconds=1)
    report = sweep(content, [b], grace_s=GRACE_S, now=now)

    assert report == SweepReport(examined=1, renewed=1)
    assert content.get(ref.cid) == b"orphan"


def test_a_reference_moved_behind_the_walk_is_found(content: ContentStore) -> None:
    ref = put(content, b"x")

    def move(b: During) -> None:
        append(b, "a", "moved", 2, ref)  # the walk has read "a"
        truncate_through(b, "z", 1)  # and not yet "z"

    b = During(move)
    report = sweep(content, [b], grace_s=GRACE_S, now=later())

    assert report == SweepReport(examined=1, live=1)


def test_a_truncation_that_overtakes_the_walk_does_not_stop_it(content: ContentStore) -> None:
    b = mem_backend()
    first, last = put(content, b"x"), put(content, b"y")
    append_batch(b, "s", [("t", 0, first), *[("t", 0, {})] * 800, ("t", 0, last)])

    walk = live_cids(b)
    assert next(walk) == first.cid
    truncate_through(b, "s", 700)

    assert list(walk) == [last.cid]


def test_many_blobs_are_swept_in_bounded_batches(content: ContentStore) -> None:
    b = mem_backend()
    live = {put(content, bytes([number])).cid for number in range(7)}
    append(b, "s", "t", 1, [BlobRef(cid, 1, "a/b") for cid in live])
    for number in range(7):
        put(content, bytes([number]) * 2)

    report = sweep(content, [b], grace_s=GRACE_S, now=later(), batch=3)

    assert report == SweepReport(examined=14, live=7, removed=7, removed_bytes=14)
    assert cids(content) == live


def test_wrong_arguments_remove_nothing(content: ContentStore) -> None:
    put(content, b"orphan")

    with pytest.raises(UsageError, match="no stores"):
        sweep(content, [], grace_s=GRACE_S, now=later())
    with pytest.raises(UsageError, match="time zone"):
        sweep(content, [mem_backend()], grace_s=GRACE_S, now=later().replace(tzinfo=None))
    for grace_s in (-1, float("nan")):
        with pytest.raises(UsageError, match="grace_s"):
            sweep(content, [mem_backend()], grace_s=grace_s, now=later())
    assert len(cids(content)) == 1


def test_leftovers_go_after_the_grace_period_and_puts_under_way_stay(tmp_path: Path) -> None:
    content = Place(str(tmp_path)).content()
    content.put(b"x", "a/b")
    old, young = tmp_path / ".staged" / ("0" * 32), tmp_path / ".staged" / ("1" * 32)
    old.write_bytes(b"half a bl")
    young.write_bytes(b"half")
    now = datetime.now(UTC)
    os.utime(old, times=(now.timestamp() - GRACE_S - 1,) * 2)

    report = sweep(content, [mem_backend()], grace_s=GRACE_S, now=now)

    assert report == SweepReport(examined=1, young=1, leftovers=1, leftover_bytes=9)
    assert [info.name for info in content.leftovers()] == [f".staged/{young.name}"]


def test_a_sqlite_store_is_walked_like_any_other(content: ContentStore, tmp_path: Path) -> None:
    b = open_store(tmp_path / "store.db")
    ref = put(content, b"x")
    append(b, "s", "t", 1, ref)
    put(content, b"dead")

    report = sweep(content, [b], grace_s=GRACE_S, now=later())

    assert (report.live, report.removed) == (1, 1)
    b.close()
