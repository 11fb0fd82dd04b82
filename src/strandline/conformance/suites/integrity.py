"""Integrity: what a disk has changed is found, named, never returned as data, and can be set aside."""

from pathlib import Path
from tempfile import TemporaryDirectory

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, seqs, total
from strandline.errors import NotFoundError
from strandline.persist import (
    Backend,
    EventCorrupt,
    HistoryGap,
    ProjectionState,
    ack,
    append,
    append_once,
    backup,
    checkpoint,
    consumer,
    count,
    erase_stream,
    global_trim,
    kv_items,
    kv_put,
    last_seq,
    poll,
    project,
    project_resume,
    quarantine,
    read,
    streams_all,
    truncate_through,
    verify,
)
from strandline.persist.core.lift import atomic

INTEGRITY = Suite("integrity", expected=11)


@INTEGRITY.case("P-INT-3", needs=["verify"])
def a_sound_store_verifies_clean(b: Backend) -> None:
    counted(b, "s", 20, globally=True)
    append_once(b, "s", "k", "t", 1, {})
    kv_put(b, "k", {"n": 1})
    checkpoint(b, "t", "total", total, 0)
    consumer(b, "mailer", "s")
    truncate_through(b, "s", 5)
    global_trim(b, 3)
    erase_stream(b, "t", 1, reason="test")

    equal(verify(b), [])


@INTEGRITY.case("P-INT-1", "P-INT-2", needs=["damage"])
def a_damaged_event_is_never_returned(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 3)

    again = f.damage("s", 2)

    with raises(EventCorrupt):
        read(again, "s")
    with raises(EventCorrupt):
        atomic(again).event_at("s", 2)
    with raises(EventCorrupt):
        project(again, "s", total, 0)


@INTEGRITY.case("P-INT-2", needs=["damage", "verify"])
def verify_names_the_damaged_event_and_no_other(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 5)
    counted(b, "other", 2)

    found = verify(f.damage("s", 4))

    equal([(damage.name, damage.seq) for damage in found if damage.what == "event"], [("s", 4)])


@INTEGRITY.case("P-INT-3", needs=["damage", "verify"])
def a_quarantined_event_is_a_recorded_gap(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 5)
    again = f.damage("s", 3)

    quarantine(again, "s", 3, 77)

    equal((seqs(read(again, "s")), count(again, "s"), last_seq(again, "s")), ([1, 2, 4, 5], 4, 5))
    equal(
        [(event.at, event.data) for event in read(again, "$quarantined")], [(77, {"stream": "s", "seq": 3})]
    )
    equal([(damage.what, damage.name, damage.seq) for damage in verify(again)], [("quarantined", "s", 3)])


@INTEGRITY.case("P-INT-3", "P-PRJ-9", needs=["damage", "verify"])
def a_fold_over_a_quarantined_event_raises_history_gap(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 5)
    again = f.damage("s", 3)
    quarantine(again, "s", 3, 77)

    with raises(HistoryGap):
        project(again, "s", total, 0)
    equal(project(again, "s", total, 0, allow_gap=True), ProjectionState(12, 5))
    equal(project_resume(again, "s", total, ProjectionState(0, 3)), ProjectionState(9, 5))


@INTEGRITY.case("P-INT-3", "P-SUB-13", needs=["damage", "verify"])
def a_consumer_stops_at_a_quarantined_event(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 4)
    again = f.damage("s", 3)
    quarantine(again, "s", 3, 77)
    c = consumer(again, "mailer", "s")

    equal(seqs(poll(c)), [1, 2])
    ack(c, 2)
    with raises(HistoryGap):
        poll(c)
    equal(seqs(poll(consumer(again, "mailer", "s", start=3))), [4])


@INTEGRITY.case("P-INT-3", needs=["damage", "verify"])
def appends_go_on_after_a_quarantine(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 3)
    again = f.damage("s", 3)
    quarantine(again, "s", 3, 77)

    equal(append(again, "s", "t", 1, {}).seq, 4)
    truncate_through(again, "s", 3)
    equal((count(again, "s"), seqs(read(again, "s"))), (1, [4]))


@INTEGRITY.case("P-INT-3", "P-ERA-1", needs=["damage", "verify"])
def erasing_a_stream_takes_what_quarantine_kept(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 3)
    again = f.damage("s", 2)
    quarantine(again, "s", 2, 77)

    erase_stream(again, "s", 78, reason="asked to")

    equal(list(kv_items(again, prefix="$quarantine/", reserved=True)), [])
    equal(verify(again), [])


@INTEGRITY.case("P-INT-3", needs=["verify"])
def what_is_not_stored_cannot_be_quarantined(b: Backend) -> None:
    counted(b, "s", 2)
    truncate_through(b, "s", 1)

    each_raises(
        NotFoundError,
        {
            name: call(quarantine, b, stream, seq, 1)
            for name, stream, seq in (("a", "s", 9), ("b", "s", 1), ("c", "x", 1))
        },
    )
    equal((streams_all(b), verify(b)), (["s"], []))


@INTEGRITY.case("P-INT-2", "P-OPS-2", needs=["damage", "backup"])
def a_damaged_store_is_not_backed_up(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 3)
    again = f.damage("s", 2)

    with TemporaryDirectory() as folder:
        with raises(EventCorrupt):
            backup(again, Path(folder) / "copy.db")
        equal(sorted(path.name for path in Path(folder).iterdir()), [])


@INTEGRITY.case("P-REC-9", "P-INT-2", needs=["damage", "reopen"])
def damage_before_the_tail_is_an_error_after_a_restart(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 4)
    f.damage("s", 1)

    with raises(EventCorrupt):
        read(f.reopen(), "s")
