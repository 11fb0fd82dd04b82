"""Upkeep: backup and restore, lineage, limits, what an operator can see."""

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, different, equal, raises, truthy
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, kept_keys, seqs, total
from strandline.persist import (
    Append,
    Backend,
    BlobRef,
    ProjectionState,
    Put,
    UsageError,
    ack,
    append,
    append_expect,
    append_once,
    backup,
    checkpoint,
    commit,
    consumer,
    erase_stream,
    gappend,
    global_events,
    global_pos,
    global_trim,
    hold,
    kv_cas,
    kv_get,
    kv_put,
    last_seq,
    mem_backend,
    open_store,
    read,
    restore,
    stats,
    streams_all,
    truncate_through,
)
from strandline.persist.backend import Portable
from strandline.persist.core.lift import atomic

UPKEEP = Suite("upkeep", expected=11)


def furnished(b: Backend) -> None:
    """A store with some of everything."""
    counted(b, "a", 30, globally=True)
    counted(b, "b", 5)
    append_once(b, "a", "k", "added", 31, {"n": 31})
    append(
        b, "é/ü", "odd", "text time", {"special": [ProjectionState(1, 2), BlobRef("c", 1, "m"), 2**80, "\0"]}
    )
    gappend(b, "b", "added", 1.5, {"n": 6})
    checkpoint(b, "b", "total", total, 0)
    hold(b, "a", "exporter", 20)
    kv_put(b, "k", {"n": [None, True, 1.0]})
    truncate_through(b, "a", 10)
    global_trim(b, 5)
    erase_stream(b, "gone", 9, reason="test")


def whole(b: Backend) -> Any:
    """All that a reader can see."""
    return {
        "streams": [(name, last_seq(b, name), read(b, name)) for name in streams_all(b)],
        "keys": kept_keys(b),
        "global": list(global_events(b, first=6)),
        "truncated": [atomic(b).truncated_through(name) for name in streams_all(b)],
    }


@UPKEEP.case("P-OPS-2", needs=["backup"])
def a_backup_restores_to_the_same_store(b: Backend, f: BackendFixture) -> None:
    furnished(b)
    before = whole(b)

    with TemporaryDirectory() as folder:
        made = backup(b, Path(folder) / "copy.db")
        restored = f.fresh()
        again = restore(restored, Path(folder) / "copy.db")
        for kind in ("key", "stream", "event", "pointer"):
            equal(again[kind], made[kind], kind)

    equal(whole(restored), before)
    equal(append(restored, "a", "added", 1, {}).seq, 32)
    equal(append_once(restored, "a", "k", "added", 99, {"n": 31}).at, 31)  # type: ignore[union-attr]  # an Event
    gappend(restored, "a", "added", 1, {})
    equal(global_pos(restored), 32)


@UPKEEP.case("P-OPS-2", needs=["backup"])
def a_backup_opens_as_a_store_and_moves_between_backends(b: Backend) -> None:
    furnished(b)
    before = whole(b)
    middle = mem_backend()

    with TemporaryDirectory() as folder:
        backup(b, Path(folder) / "first.db")
        restore(middle, Path(folder) / "first.db")
        backup(middle, Path(folder) / "second.db")
        opened = open_store(Path(folder) / "second.db", create=False)
        try:
            equal(whole(opened), before)
        finally:
            opened.close()

    equal(whole(middle), before)


@UPKEEP.case("P-OPS-1", "P-OPS-2", needs=["backup"])
def a_restored_store_has_a_lineage_of_its_own(b: Backend, f: BackendFixture) -> None:
    counted(b, "s", 2)
    before = atomic(b).info()["lineage"]

    with TemporaryDirectory() as folder:
        backup(b, Path(folder) / "copy.db")
        restored = f.fresh()
        restore(restored, Path(folder) / "copy.db")

    different(atomic(restored).info()["lineage"], before)


@UPKEEP.case("P-OPS-2", needs=["backup"])
def a_store_that_is_not_empty_takes_no_restore(b: Backend) -> None:
    counted(b, "s", 2)

    with TemporaryDirectory() as folder:
        backup(b, Path(folder) / "copy.db")
        counted(b, "s", 1, start=3)
        with raises(UsageError):
            restore(b, Path(folder) / "copy.db")

    equal(seqs(read(b, "s")), [1, 2, 3])


@UPKEEP.case("P-OPS-2", needs=["backup"])
def a_backup_overwrites_nothing(b: Backend) -> None:
    with TemporaryDirectory() as folder:
        target = Path(folder) / "kept"
        target.write_text("precious")
        with raises(UsageError):
            backup(b, target)
        equal(target.read_text(), "precious")
        equal([path.name for path in Path(folder).iterdir()], ["kept"])


@UPKEEP.case("P-OPS-2", level="atomic", needs=["backup"])
def a_backup_in_use_is_of_one_instant(b: Backend, f: BackendFixture) -> None:
    ready, stop = threading.Event(), threading.Event()

    def write() -> None:
        for i in range(1, 100_000):
            commit(b, [], [Append("left", "t", i, {}), Append("right", "t", i, {}), Put("n", i)])
            ready.set()
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        truthy(ready.wait(30), "a first commit")
        with TemporaryDirectory() as folder:
            backup(b, Path(folder) / "copy.db")
            stop.set()
            writer.join(30)
            restored = f.fresh()
            restore(restored, Path(folder) / "copy.db")
    finally:
        stop.set()
        writer.join(30)

    marks = last_seq(restored, "left"), last_seq(restored, "right"), kv_get(restored, "n")
    equal(len(set(marks)), 1, f"one instant, not {marks}")


@UPKEEP.case("P-OPS-2")
def a_backend_away_from_its_data_refuses_backups_with_a_hint(b: Backend) -> None:
    if isinstance(b, Portable):
        return  # it stands beside its data: the cases above are about it

    with TemporaryDirectory() as folder:
        for each in (call(backup, b, Path(folder) / "x.db"), call(restore, b, Path(folder) / "x.db")):
            with raises(UsageError) as caught:
                each()
            truthy(caught.error.hint, "a hint")
        equal(list(Path(folder).iterdir()), [])


@UPKEEP.case("P-OPS-1")
def the_lineage_is_128_bits_and_stays(b: Backend) -> None:
    lineage = atomic(b).info()["lineage"]
    counted(b, "s", 2)

    equal((len(bytes.fromhex(lineage)), atomic(b).info()["lineage"]), (16, lineage))


@UPKEEP.case("P-OPS-5")
def stats_show_sizes_tails_and_lags(b: Backend) -> None:
    counted(b, "long", 9, globally=True)
    counted(b, "short", 2)
    truncate_through(b, "long", 2)
    checkpoint(b, "short", "total", total, 0)
    counted(b, "short", 1, start=3)
    hold(b, "long", "exporter", 4)
    ack(consumer(b, "mailer", "long", start=3), 6)
    append_once(b, "short", "k", "added", 1, {"n": 1})
    global_trim(b, 4)

    found = stats(b)

    equal((found["streams"], found["events"]), (2, 13))
    equal(found["longest_tails"][0], {"stream": "long", "events": 7})
    equal([(each["name"], each["lag"]) for each in found["snapshots"]], [("total", 2)])
    equal([each["lag"] for each in found["holds"] if each["name"] == "exporter"], [5])
    equal([(each["name"], each["lag"]) for each in found["consumers"]], [("mailer", 3)])
    equal(found["pointers"], 5)
    truthy(found["markers"] >= 1, "the marker, and those of clients that draw keys of their own")


@UPKEEP.case("P-OPS-5", level="atomic")
def stats_count_commits_and_conflicts(b: Backend) -> None:
    before = stats(b)
    counted(b, "s", 3)
    append_expect(b, "s", 0, "t", 1, {})
    kv_cas(b, "k", 1, 2)

    found = stats(b)

    truthy(found["commits"] > before["commits"], "more commits than before")
    truthy(found["conflicts"] >= before["conflicts"] + 2, "two conflicts more")


@UPKEEP.case("P-OPS-3", level="atomic")
def the_format_has_a_version(b: Backend) -> None:
    truthy(atomic(b).info()["format"] >= 1, "a format version")
