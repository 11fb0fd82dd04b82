"""Blobs that nothing names, markers and fences that have served (L-SPOOL-5, L-SPOOL-14, L-CTL-1, F-44)."""

from typing import Any

import pytest

from strandline.flush.reconcile import SWEEP_PAUSED, confirm_restore
from strandline.ingest.append import (
    RequestIdReused,
    append,
    drop_quarantined,
    retry_quarantined,
    segment_key,
)
from strandline.ingest.load import load
from strandline.persist import BlobRef, blob_store, kv_put
from strandline.persist import append as append_event
from strandline.rows.dataset import Strand
from strandline.rows.validate import accept
from strandline.state.sink_progress import event_of, sink_stream
from strandline.storage.segment import write_segment
from tests.maintenance.calm import Calm, Crash, crash_at, open_letter
from tests.simulation import DATASET


@pytest.fixture
def calm() -> Calm:
    made = Calm()
    made.append(1)
    made.flush()
    made.after_grace()
    assert made.blobs() == set()
    return made


def orphan(calm: Calm) -> str:
    """What an append leaves that dies between its two steps."""
    judged = accept(calm.site.schema(DATASET).dataset, [{"key": "lost"}], source="web-1")
    made = write_segment(calm.site.content, judged.dataset, judged.table, append_id=calm.site.random_hex())
    return made.ref.cid


def test_an_orphan_goes_after_the_grace_period_and_its_key_after_another(calm: Calm) -> None:  # L-SPOOL-14
    cid = orphan(calm)
    calm.forward(hours=1)
    calm.tidy()
    assert calm.blobs() == {cid}

    calm.forward(hours=25)
    done = calm.tidy()
    assert (done.strays.blobs, calm.blobs()) == (1, set())
    assert calm.site.b.kv_get(segment_key(cid)) == "dead"

    calm.forward(hours=25)
    calm.tidy()
    assert calm.keys("segment/") == []


def test_an_append_slower_than_the_sweep_writes_its_segment_anew(
    calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-14, F-44
    stored: list[str] = []

    def reach(name: str) -> None:
        if name == "append.segment_stored" and not stored:
            stored.extend(calm.blobs())
            calm.forward(hours=25)
            calm.tidy()
            assert calm.blobs() == set()

    with monkeypatch.context() as patched:
        patched.setattr("strandline.ingest.append.reach", reach)
        receipt = calm.append(1)

    assert receipt.segment not in stored
    assert calm.blobs() == {receipt.segment}
    calm.flush()
    assert len(calm.world.table.rows) == 2


def test_an_append_that_names_its_segment_first_keeps_it(
    calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-14, F-44
    cid = orphan(calm)
    calm.forward(hours=25)

    def reach(name: str) -> None:
        if name == "sweep.marked":
            calm.site.b.kv_put(segment_key(cid), "named")

    with monkeypatch.context() as patched:
        patched.setattr("strandline.maintenance.sweeps.orphan_blobs.reach", reach)
        done = calm.tidy()

    assert (done.strays.blobs, calm.blobs()) == (0, {cid})


def test_rows_in_quarantine_stay_until_they_are_retried_or_dropped(calm: Calm) -> None:  # L-SPOOL-9, L-CTL-1
    for key in (1, 2):
        append(calm.site, DATASET, [{"key": {"not": key}}, {"key": "fine"}], on_bad="quarantine", source="s")
    calm.flush()
    calm.after_grace()
    held = calm.blobs()
    assert len(held) == 2

    drop_quarantined(calm.site, DATASET, 1, reason="known")
    calm.after_grace()
    assert len(calm.blobs()) == 1

    retry_quarantined(calm.site, DATASET, 2)  # it does not fit: it is an entry again, with bytes of its own
    calm.after_grace()
    assert len(calm.blobs()) == 1
    assert not calm.blobs() & held


def test_a_dead_letter_keeps_its_body_until_it_is_settled(calm: Calm) -> None:  # L-CTL-1
    body = blob_store(calm.site.content, b"{}", "application/x-ndjson")
    stream = sink_stream("centre", DATASET, "web-1")
    open_letter(calm.site, DATASET, body)
    calm.after_grace()
    assert calm.blobs() == {body.cid}

    settled: dict[str, Any] = {"letter": 2, "how": "dropped", "reason": "no", "units": []}
    calm.site.b.commit([], [event_of(stream, "settled", calm.world.now_us, **settled)])
    assert not calm.site.standing.lines().line("centre", Strand(DATASET, "web-1")).letters
    calm.after_grace()
    assert calm.blobs() == set()


def test_what_anything_else_in_the_store_names_stays(calm: Calm) -> None:  # P-BLB-9
    refs = [blob_store(calm.site.content, bytes([each]), "a/b") for each in range(3)]
    append_event(calm.site.b, "mine", "made", 1, {"image": refs[0]})
    kv_put(calm.site.b, "mine", [refs[1]])

    calm.after_grace()

    assert calm.blobs() == {refs[0].cid, refs[1].cid}


def test_pending_rows_keep_their_bytes_though_the_key_is_lost(calm: Calm) -> None:  # L-SPOOL-6
    cid = calm.append(1).segment
    calm.site.b.kv_delete(segment_key(str(cid)))

    calm.after_grace()

    assert calm.blobs() == {cid}


def test_after_a_restore_orphans_wait_for_an_operator(calm: Calm) -> None:  # L-SEQ-9
    cid = orphan(calm)
    calm.site.b.kv_put(SWEEP_PAUSED, {"dataset": DATASET, "at": 1, "reason": "restored"})

    assert calm.after_grace().strays.is_paused
    assert calm.blobs() == {cid}

    confirm_restore(calm.site)
    assert calm.tidy().strays.blobs == 1


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_crash_anywhere_leaves_orphans_to_the_next_sweep(
    calm: Calm, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:  # L-SPOOL-14
    orphan(calm), orphan(calm)
    calm.forward(hours=25)

    with crash_at(monkeypatch, "strandline.maintenance.sweeps.orphan_blobs", nth), pytest.raises(Crash):
        calm.tidy()

    calm.restarted()
    calm.after_grace()
    assert calm.blobs() == set()
    calm.forward(hours=25)
    calm.tidy()
    assert calm.keys("segment/") == []


def test_bytes_that_were_put_anew_after_they_were_doomed_stay(
    calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BLB-9
    ref = blob_store(calm.site.content, b"rows", "a/b")
    calm.forward(hours=25)
    with crash_at(monkeypatch, "strandline.maintenance.sweeps.orphan_blobs", 2), pytest.raises(Crash):
        calm.tidy()
    again = _put_later(calm, ref)
    kv_put(calm.site.b, "mine", ref)

    calm.restarted()
    calm.tidy()

    assert calm.blobs() == {again}


def _put_later(calm: Calm, ref: BlobRef) -> str:
    """Put at the time of the test's clock, which is ahead of the disk's."""
    from datetime import UTC, datetime, timedelta

    name = f"sha256/{ref.cid[7:9]}/{ref.cid[7:]}"
    data, _ = calm.world.disk._stored[name]
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=calm.world.now_us)
    calm.world.disk._stored[name] = (data, at)
    return ref.cid


# Markers and fences


def test_the_marker_of_an_append_goes_after_a_day_and_not_before(calm: Calm) -> None:  # L-SPOOL-5
    append(calm.site, DATASET, [{"key": "a"}], source="s", request_id="r1")
    calm.forward(hours=23)
    calm.tidy()
    assert append(calm.site, DATASET, [{"key": "a"}], source="s", request_id="r1").is_repeat
    with pytest.raises(RequestIdReused):
        append(calm.site, DATASET, [{"key": "b"}], source="s", request_id="r1")

    calm.forward(hours=7)
    assert calm.tidy().markers.requests == 1
    assert calm.keys("request/") == []


@pytest.mark.parametrize("id_", ["backfill-1", "import-1"])
def test_the_markers_of_backfill_and_import_stay(calm: Calm, id_: str) -> None:  # L-SPOOL-5, L-BF-11
    append(calm.site, DATASET, [{"key": "a"}], source="s", request_id=id_)
    calm.flush()

    for _ in range(40):
        calm.forward(hours=25)
        calm.tidy()

    assert append(calm.site, DATASET, [{"key": "a"}], source="s", request_id=id_).is_repeat


def test_marker_and_fence_of_a_load_go_when_it_is_done(calm: Calm) -> None:  # L-SPOOL-5, L-CTL-5
    load(calm.site, calm.world.table, DATASET, [{"key": "l"}], source="s", request_id="l1")  # type: ignore[arg-type]
    assert len(calm.keys("fence/load/")) == 1
    calm.after_grace()

    assert (calm.keys("loaded/"), calm.keys("fence/load/"), calm.keys("lease/load/")) == ([], [], [])
    assert calm.keys("fence/flush/") == [f"fence/flush/{DATASET}"]


def test_the_fence_of_a_load_that_is_open_stays(
    calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SEQ-6
    def reach(name: str) -> None:
        if name == "load.reserved":
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("strandline.ingest.load.reach", reach)
        with pytest.raises(Crash):
            load(calm.site, calm.world.table, DATASET, [{"key": "l"}], source="s", request_id="l1")  # type: ignore[arg-type]

    calm.restarted()
    calm.after_grace()
    assert (len(calm.keys("loaded/")), len(calm.keys("fence/load/"))) == (1, 1)

    calm.flush()
    calm.after_grace()
    calm.after_grace()
    assert (calm.keys("loaded/"), calm.keys("fence/load/")) == ([], [])
