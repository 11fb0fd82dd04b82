"""Recovery: what was acknowledged is there after a restart, and everything goes on where it was."""

from time import monotonic
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import at_most, different, equal, raises
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, seqs, total
from strandline.persist import (
    Backend,
    HistoryGap,
    Hub,
    ProjectionState,
    ack,
    append,
    append_once,
    blob_fetch,
    blob_store,
    checkpoint,
    compact,
    consumer,
    count,
    gappend,
    global_pos,
    hold,
    holds,
    kv_delete,
    kv_get,
    kv_items,
    kv_keys,
    kv_put,
    last_seq,
    poll,
    project,
    publish,
    read,
    read_global,
    replay,
    snapshot_load,
    streams,
    streams_all,
    subscribe,
    total_events,
    truncate_through,
)
from strandline.persist.core.lift import atomic

RECOVERY = Suite("recovery", expected=12, floor=6)


@RECOVERY.case("P-REC-1", needs=["reopen"])
def every_event_is_readable_and_folds_give_the_same(b: Backend, f: BackendFixture) -> None:
    stored = counted(b, "cart-1", 5)
    before = project(b, "cart-1", total, 0)

    again = f.crash()

    equal((read(again, "cart-1"), project(again, "cart-1", total, 0)), (stored, before))


@RECOVERY.case("P-REC-2", needs=["reopen"])
def numbering_goes_on(b: Backend, f: BackendFixture) -> None:
    counted(b, "cart-1", 5)

    equal(append(f.crash(), "cart-1", "added", 6, {}).seq, 6)


@RECOVERY.case("P-REC-3", needs=["reopen"])
def values_and_read_models_are_there(b: Backend, f: BackendFixture) -> None:
    kv_put(b, "theme", {"dark": True})
    kv_put(b, "gone", 1)
    kv_delete(b, "gone")
    hub = Hub(b)
    subscribe(hub, "cart-1", lambda backend, _, event: kv_put(backend, "latest", event.data["n"]))
    publish(hub, "cart-1", "added", 1, {"n": 9})

    again = f.crash()

    equal((kv_get(again, "theme"), kv_get(again, "latest")), ({"dark": True}, 9))
    equal(kv_keys(again), ["latest", "theme"])


@RECOVERY.case("P-REC-4", needs=["reopen"])
def a_snapshot_drives_the_replay(b: Backend, f: BackendFixture) -> None:
    counted(b, "cart-1", 3)
    checkpoint(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 2, start=4)

    again = f.crash()

    equal(snapshot_load(again, "total", 0), ProjectionState(6, 3))
    equal(replay(again, "cart-1", "total", total, 0), project(again, "cart-1", total, 0))


@RECOVERY.case("P-REC-5", needs=["reopen"])
def a_compacted_stream_replays_to_the_right_value(b: Backend, f: BackendFixture) -> None:
    counted(b, "cart-1", 4)
    compact(b, "cart-1", "total", total, 0)
    counted(b, "cart-1", 1, start=5)

    again = f.crash()

    equal(replay(again, "cart-1", "total", total, 0), ProjectionState(15, 5))
    equal((last_seq(again, "cart-1"), count(again, "cart-1"), streams(again)), (5, 1, ["cart-1"]))


@RECOVERY.case("P-REC-6", "P-BLB-9", needs=["reopen"])
def a_reference_still_fetches_its_bytes(b: Backend, f: BackendFixture) -> None:
    ref = blob_store(f.content_store(), b"kept bytes", "a/b")
    append(b, "files", "stored", 1, {"file": ref})
    kv_put(b, "file", ref)

    again = f.crash()

    equal(blob_fetch(f.content_store(), read(again, "files")[0].data["file"]), b"kept bytes")
    equal(blob_fetch(f.content_store(), kv_get(again, "file")), b"kept bytes")


@RECOVERY.case("P-REC-7", "P-IDM-4", needs=["reopen"])
def markers_still_suppress_repeats(b: Backend, f: BackendFixture) -> None:
    first = append_once(b, "cart-1", "k", "added", 1, {"n": 1})
    gone = append_once(b, "cart-2", "k", "added", 1, {"n": 2})
    truncate_through(b, "cart-2", 1)

    again = f.crash()

    equal(append_once(again, "cart-1", "k", "added", 2, {"n": 1}), first)
    equal(append_once(again, "cart-2", "k", "added", 2, {"n": 2}), gone)
    equal((count(again, "cart-1"), count(again, "cart-2")), (1, 0))


@RECOVERY.case("P-REC-7", "P-GLB-7", needs=["reopen"])
def the_global_order_and_the_catalogue_are_unchanged(b: Backend, f: BackendFixture) -> None:
    for i, stream in enumerate("cabca"):
        gappend(b, stream, "added", i, {})
    before = read_global(b), streams_all(b), total_events(b), global_pos(b)

    again = f.crash()

    equal((read_global(again), streams_all(again), total_events(again), global_pos(again)), before)
    gappend(again, "a", "added", 9, {})
    equal(global_pos(again), 6)


@RECOVERY.case("P-REC-8", needs=["reopen"])
def any_number_of_restarts_see_the_same(b: Backend, f: BackendFixture) -> None:
    counted(b, "cart-1", 4, globally=True)
    truncate_through(b, "cart-1", 1)
    kv_put(b, "k", [1])

    def state(store: Backend) -> Any:
        return read(store, "cart-1"), last_seq(store, "cart-1"), list(kv_items(store)), read_global(store)

    before = state(b)
    for _ in range(3):
        equal(state(f.crash()), before)
        equal(state(f.reopen()), before)


@RECOVERY.case("P-REC-5", "P-CMP-10", needs=["reopen"])
def holds_cursors_and_truncation_points_are_there(b: Backend, f: BackendFixture) -> None:
    counted(b, "cart-1", 6)
    hold(b, "cart-1", "exporter", 4)
    c = consumer(b, "mailer", "cart-1")
    ack(c, 5)
    truncate_through(b, "cart-1", 3)

    again = f.crash()

    equal(
        [(each.name, each.seq) for each in holds(again, "cart-1") if each.name == "exporter"],
        [("exporter", 4)],
    )
    equal(seqs(poll(consumer(again, "mailer", "cart-1"))), [6])
    with raises(HistoryGap):
        project(again, "cart-1", total, 0)


@RECOVERY.case("P-OPS-1", needs=["reopen"])
def the_lineage_stays_through_a_restart(b: Backend, f: BackendFixture) -> None:
    before = atomic(b).info()["lineage"]

    equal(atomic(f.crash()).info()["lineage"], before)
    different(atomic(f.fresh()).info()["lineage"], before)


@RECOVERY.case("P-REC-10", level="durable")
def reopening_a_long_history_is_quick_and_needs_no_step(b: Backend, f: BackendFixture) -> None:
    for start in range(0, 20_000, 2_000):
        counted(b, "long", 2_000, start=start)

    def reopened_within() -> float:
        before = monotonic()
        equal(last_seq(f.reopen(), "long"), 20_000)
        return monotonic() - before

    at_most(min(reopened_within() for _ in range(3)), 5.0, "seconds to reopen")
