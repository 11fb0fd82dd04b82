"""The SQLite store while it is written to: durability, groups, errors of the disk, and its other users."""

import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from strandline.errors import (
    CorruptionError,
    OutcomeUnknown,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.persist import (
    Append,
    Delete,
    Event,
    ExpectSeq,
    Put,
    Redact,
    Truncate,
    append,
    append_batch,
    append_once,
    backup,
    commit,
    consumer,
    events,
    is_conflict,
    kv_get,
    kv_put,
    last_seq,
    poll,
    read,
    read_global,
    restore,
    streams,
    truncate_through,
    verify,
)
from strandline.persist.audit import refuse_unless_empty
from strandline.persist.backend import AtomicBackend, Write
from strandline.persist.backends.sqlite import SqliteBackend, backend, handle, transaction
from strandline.persist.backends.sqlite.transaction import SEQ_MASK
from strandline.persist.core.prepare import prepare
from tests.conftest import as_any
from tests.persist.backends.sqlite.behind import WAIT_S, edit, fill, raw

GROUP = [("old", "old"), ("new", "new"), ("new", "new"), ("other", "new")]


@pytest.mark.parametrize(("level", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_the_durability_level_is_the_one_asked_for(path: Path, level: str, number: int) -> None:  # P-REC-9
    with closing(SqliteBackend(path, synchronous=level)) as b:
        append(b, "s", "t", 1, 1)
        with b._reader() as reader:
            for connection in (b._writer, reader):
                assert connection.pragma("synchronous") == number
                assert connection.pragma("journal_mode") == "wal"
                assert connection.pragma("secure_delete") == 1
                assert connection.pragma("checksum_verification") == "1"
    with closing(SqliteBackend(path)) as b:
        assert b._writer.pragma("synchronous") == 2, "the default survives power loss"


@pytest.mark.parametrize("level", ["OFF", "full", "", None])
def test_another_durability_level_is_refused(path: Path, level: Any) -> None:
    with pytest.raises(UsageError):
        SqliteBackend(path, synchronous=level)

    assert not path.exists()


def test_a_stuck_writer_elsewhere_is_store_unavailable_and_nothing_is_written(path: Path) -> None:  # P-OPS-4
    with closing(SqliteBackend(path, busy_timeout_s=0.05)) as b, raw(path) as other:
        append(b, "s", "t", 1, 1)
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match=r"held the store for over 0\.05 s"):
            append(b, "s", "t", 1, 2)
        assert len(read(b, "s")) == 1, "readers do not wait for a writer"

        other.execute("ROLLBACK")
        assert append(b, "s", "t", 1, 3).seq == 2


def test_a_sweep_that_cannot_run_does_not_hide_that_the_commit_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7; StoreUnavailable says that nothing was written
    with closing(SqliteBackend(path, busy_timeout_s=0.05)) as b, raw(path) as other:
        fill(b, "s", 3)

        def lock(step: str) -> None:
            if step == "commit.acknowledged":
                other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(backend, "reach", lock)
        outcome = b.commit([], [Append("s", "t", 1, {"n": 4}), Truncate("s", 3)])
        other.execute("ROLLBACK")

        assert outcome == [Event("s", 4, "t", 1, {"n": 4})]
        assert [event.seq for event in read(b, "s")] == [4]


def test_a_commit_that_the_disk_cannot_confirm_has_an_unknown_outcome(b: SqliteBackend) -> None:  # P-DUR-9
    append(b, "s", "t", 1, 1)
    writer = b._writer
    b._writer = as_any(FailingCommit(writer, apsw.IOError("disk I/O error")))

    with pytest.raises(OutcomeUnknown) as lost:
        append_once(b, "s", "key", "t", 1, 2)
    assert lost.value.once == ("s", "key")
    b._writer = writer
    with pytest.raises(StoreUnavailable, match="cannot be used any more"):
        append(b, "s", "t", 1, 3)


def test_a_full_disk_writes_nothing_and_the_store_goes_on(b: SqliteBackend) -> None:
    writer = b._writer
    b._writer = as_any(FailingCommit(writer, apsw.FullError("database or disk is full")))

    with pytest.raises(StoreUnavailable, match="disk is full"):
        append(b, "s", "t", 1, 1)

    b._writer = writer
    assert append(b, "s", "t", 1, 2).seq == 1


@pytest.mark.parametrize(
    ("of_now", "ends", "told"),
    [(True, 9, OutcomeUnknown), (True, 0, StoreUnavailable), (False, 9, StoreUnavailable)],
)
def test_a_full_disk_that_took_the_end_of_a_commit_may_have_taken_all_of_it(
    b: SqliteBackend, path: Path, of_now: bool, ends: int, told: type[Exception]
) -> None:  # P-DUR-9: its page may be there from before, so that a recovery takes the commit for done
    append(b, "s", "t", 1, 1)
    log = path.with_name("store.db-wal")
    salts = log.read_bytes()[16:24] if of_now else bytes(8)

    def leave_the_head_of_a_frame() -> None:
        with log.open("ab") as file:
            file.write((1).to_bytes(4) + ends.to_bytes(4) + salts + bytes(8))

    writer = b._writer
    b._writer = as_any(FailingCommit(writer, apsw.FullError("full"), leave_the_head_of_a_frame))
    with pytest.raises(told):
        append(b, "s", "t", 1, 2)
    b._writer = writer

    if told is OutcomeUnknown:
        with pytest.raises(StoreUnavailable, match="cannot be used any more"):
            append(b, "s", "t", 1, 3)
    else:
        assert append(b, "s", "t", 1, 3).seq == 2


class FailingCommit:
    """The writer's connection on a disk that fails when it matters."""

    def __init__(
        self, connection: apsw.Connection, error: Exception, before: Callable[[], None] | None = None
    ) -> None:
        self._connection, self._error, self._before = connection, error, before

    def execute(self, statement: str, *bindings: Any) -> Any:
        if statement == "COMMIT":
            if self._before is not None:
                self._before()
            raise self._error
        return self._connection.execute(statement, *bindings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_an_undone_transaction_leaves_no_names_behind(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # an id that was never committed is given out anew, by another process
    def fail(step: str) -> None:
        if step == "commit.before":
            raise ZeroDivisionError

    with closing(SqliteBackend(path)) as other:
        monkeypatch.setattr(backend, "reach", fail)
        with pytest.raises(ZeroDivisionError):
            append(b, "mine", "my type", 1, "mine")
        monkeypatch.undo()
        append(other, "theirs", "their type", 1, "theirs")
        append(b, "mine", "my type", 1, "mine")

        for each in (b, other):
            assert read(each, "mine") == [Event("mine", 1, "my type", 1, "mine")]
            assert read(each, "theirs") == [Event("theirs", 1, "their type", 1, "theirs")]
    assert verify(b) == []


def test_a_mark_that_another_has_moved_is_read_anew(b: SqliteBackend, path: Path) -> None:  # P-CON-1, P-LOG-2
    """The writer remembers the marks that it has set, as long as nobody else writes."""
    with closing(SqliteBackend(path)) as other:
        for turn in range(1, 10, 3):
            assert append(b, "s", "t", 1, 1, globally=True).seq == turn
            assert append(other, "s", "t", 1, 1, globally=True).seq == turn + 1
            truncate_through(other, "s", turn + 1)
            assert is_conflict(commit(b, [ExpectSeq("s", turn)], [Append("s", "t", 1, 1)]))
            done = commit(b, [ExpectSeq("s", turn + 1)], [Append("s", "t", 1, 1, globally=True)])
            assert done == [Event("s", turn + 2, "t", 1, 1)]

        assert [place for place, _ in other.global_range(1, limit=20)] == list(range(1, 10))
    assert verify(b) == []


def test_a_mark_that_a_restore_has_set_is_read_anew(b: SqliteBackend, tmp_path: Path) -> None:  # P-OPS-1
    fill(b, "s", 5)
    backup(b, tmp_path / "backup.db")

    with closing(SqliteBackend(tmp_path / "restored.db")) as restored:
        assert is_conflict(commit(restored, [ExpectSeq("s", 5)], [Append("s", "t", 1, 1)]))
        restore(restored, tmp_path / "backup.db")

        assert append(restored, "s", "t", 1, 1).seq == 6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 63, 64, 65, 200])
def test_what_a_group_writes_is_there_however_many_it_is_of(b: SqliteBackend, count: int) -> None:  # P-BKD-9
    writes = [Append(f"s{n}", "t", n, n, globally=True) for n in range(count)]
    commit(b, [], [*writes, *(Put(f"k{n}", n) for n in range(count))])
    commit(b, [], [*writes, *(Delete(f"k{n}") for n in range(1, count))])

    assert [[event.data for event in read(b, f"s{n}")] for n in range(count)] == [
        [n] * 2 for n in range(count)
    ]
    assert [as_any(event).data for event in read_global(b)] == [*range(count), *range(count)]
    assert b.kv_keys() == ["k0"]
    assert verify(b) == []


def test_what_undoes_a_group_is_the_matter_of_one_of_them(b: SqliteBackend, path: Path) -> None:  # P-BKD-11
    append(b, "full", "t", 1, 1)
    edit(path, "UPDATE streams SET mark = ? WHERE name = 'full'", SEQ_MASK)
    too_much: list[Write] = [Put("k", 1), Append("full", "t", 1, 1)]  # found after it has written

    first, second, third = b.commit_each(
        [([], [Append("a", "t", 1, 1)], None), ([], too_much, None), ([], [Append("a", "t", 1, 2)], None)]
    )

    assert isinstance(second, StoreUnavailable)
    assert [as_any(first)[0].seq, as_any(third)[0].seq] == [1, 2]
    assert (b.last_seq("a"), b.kv_has("k")) == (2, False)


def test_a_key_that_cannot_be_read_is_the_matter_of_who_asks_for_it(b: SqliteBackend, path: Path) -> None:
    # P-BKD-11, P-INT-2
    append_once(b, "s", "damaged", "t", 1, 1)
    edit(path, "UPDATE keys SET value = '{' WHERE name LIKE '$once/s/%'")

    good, bad = b.commit_each(
        [([], [Append("a", "t", 1, 1)], None), ([], [Append("s", "t", 1, 1)], ("s", "damaged"))]
    )

    assert isinstance(bad, CorruptionError)
    assert as_any(good)[0].seq == 1


def test_names_are_forgotten_when_they_are_many(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-4
    monkeypatch.setattr(transaction, "_MOST_NAMES", 20)
    with closing(SqliteBackend(path)) as other:
        for number in range(100):
            append(other, "theirs", "t", 1, 1)  # so that the marks of the other are forgotten each time
            append(b, f"s-{number}", "t", 1, number)
            assert [event.data for event in b.read(f"s-{number}")] == [number]

    assert len(b._names.streams) <= 21
    assert len(b._seen.streams) <= 21


def test_who_only_reads_notices_that_the_file_was_replaced(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-1
    monkeypatch.setattr(handle, "_LOOK_S", 0)
    append(b, "s", "t", 1, 1)
    with closing(SqliteBackend(path.with_name("new.db"))) as new:
        append(new, "s", "t", 1, 1)
    path.with_name("new.db").rename(path)

    for read_it in (lambda: b.last_seq("s"), lambda: b.read("s"), lambda: b.wait("s", 1, timeout_s=WAIT_S)):
        with pytest.raises(StoreUnavailable, match="replaced"):
            read_it()


def test_a_store_that_is_written_meanwhile_is_not_restored_into(
    b: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-OPS-2
    append(b, "from-backup", "t", 1, 1)
    records = list(b.dump())
    into = tmp_path / "into.db"
    with closing(SqliteBackend(into)) as new, closing(SqliteBackend(into, busy_timeout_s=0)) as other:

        def look(store: AtomicBackend) -> None:
            refuse_unless_empty(store)
            append(other, "meanwhile", "t", 1, 1)

        monkeypatch.setattr(backend, "refuse_unless_empty", look)
        with pytest.raises(StoreUnavailable, match="another process has held"):
            new.load(records)

        assert new.streams() == []


def test_those_of_a_group_who_repeat_what_is_stored_are_told_so(b: SqliteBackend) -> None:  # P-IDM-1, P-IDM-7
    append_once(b, "s", "old", "t", 1, "old")
    twice = [prepare([], [Append("s", "t", 1, data)], ("s", key)) for data, key in GROUP]

    outcomes = b._commit_group(twice)

    assert [as_any(outcome)[0].seq for outcome in outcomes[:3]] == [1, 2, 2]
    assert is_conflict(as_any(outcomes[3]))
    assert [event.data for event in read(b, "s")] == ["old", "new"]


@pytest.mark.parametrize("seed", range(20))
def test_commits_of_many_callers_come_to_what_they_would_one_by_one(
    b: SqliteBackend, tmp_path: Path, seed: int
) -> None:  # P-BKD-11
    chance = random.Random(seed)
    streams, keys = ["a", "b"], ["k", "l"]
    kinds: list[Callable[[], Any]] = [
        lambda: Append(chance.choice(streams), "t", 1, chance.randrange(3), globally=chance.random() < 0.5),
        lambda: Append(chance.choice(streams), "t", 1, {1, 2}),  # which is refused
        lambda: Put(chance.choice(keys), chance.randrange(3)),
        lambda: Delete(chance.choice(keys)),
        lambda: Truncate(chance.choice(streams), chance.randrange(9)),
        lambda: Redact(chance.choice(streams), chance.randrange(1, 5), []),  # which may not be there
    ]

    def some() -> tuple[list[Any], list[Any], tuple[str, str] | None]:
        writes = [chance.choices(kinds, [9, 1, 3, 1, 1, 1])[0]() for _ in range(chance.randrange(1, 4))]
        expected: list[Any] = [ExpectSeq(chance.choice(streams), chance.randrange(4))]
        return (
            chance.choice([[], expected]),
            writes,
            chance.choice([None, ("$commit", f"{chance.randrange(9)}")]),
        )

    def outcome_of(*commit: Any) -> Any:
        try:
            return b.commit(commit[0], commit[1], once=commit[2])
        except StrandlineError as error:
            return repr(error)

    with closing(SqliteBackend(tmp_path / "many.db")) as many:
        for _ in range(10):
            commits = [some() for _ in range(chance.randrange(6))]
            found = [
                repr(each) if isinstance(each, Exception) else each for each in many.commit_each(commits)
            ]

            assert found == [outcome_of(*each) for each in commits]
        assert [*dumped(many)] == [*dumped(b)]
        assert verify(many) == []


def test_what_became_of_commits_is_told_though_the_sweep_after_them_fails(
    b: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-11
    def fail(_: SqliteBackend) -> None:
        raise CorruptionError("a page is damaged")

    fill(b, "x", 3)
    monkeypatch.setattr(SqliteBackend, "_sweep", fail)

    outcomes = b.commit_each([([], [Append("y", "t", 1, 1)], None), ([], [Truncate("x", 2)], None)])

    assert outcomes == [[Event("y", 1, "t", 1, 1)], []]
    assert b.commit([], [Truncate("x", 3)]) == []


def test_appends_go_on_while_much_is_swept(b: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "SWEEP_ROWS", 10)  # P-LOG-7
    append_batch(b, "s", [("t", 1, n) for n in range(3000)])
    sweeping = threading.Thread(target=truncate_through, args=(b, "s", 3000))
    sweeping.start()
    appended = 0
    while sweeping.is_alive():
        append(b, "other", "t", 1, 1)
        appended += 1
    sweeping.join()

    assert appended > 20, "of the 300 steps most leave others a turn"


def dumped(b: SqliteBackend) -> list[Any]:
    return [record for record in b.dump() if record.kind != "meta"]


def test_a_stream_that_is_full_takes_nothing_of_the_commit(b: SqliteBackend, path: Path) -> None:  # P-BKD-9
    append(b, "full", "t", 1, 1)
    edit(path, "UPDATE streams SET mark = ? WHERE name = 'full'", SEQ_MASK)

    with pytest.raises(StoreUnavailable, match="is full"):
        b.commit([], [Append("other", "t", 1, 1), Put("k", 1), Append("full", "t", 1, 1)])

    assert (streams(b), last_seq(b, "full"), kv_get(b, "k")) == (["full"], SEQ_MASK, None)


def test_a_closed_store_is_a_usage_error_and_may_be_closed_again(path: Path) -> None:
    b = SqliteBackend(path)
    append(b, "s", "t", 1, 1)
    pages = events(b, "s")
    b.close()
    b.close()

    for call in (
        lambda: append(b, "s", "t", 1, 1),
        lambda: read(b, "s"),
        lambda: last_seq(b, "s"),
        lambda: kv_get(b, "k"),
        lambda: b.wait("s", 0, timeout_s=0),
        b.info,
        b.verify,
        b.scrub,
        lambda: next(pages),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_close_wakes_those_who_wait(path: Path) -> None:
    b = SqliteBackend(path)
    waiting = threading.Event()
    errors: list[Exception] = []

    def wait() -> None:
        waiting.set()
        try:
            b.wait("s", 0, timeout_s=WAIT_S)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(WAIT_S)
    b.close()
    thread.join(WAIT_S)

    assert len(errors) == 1


def test_a_child_after_a_fork_is_refused_and_does_the_parent_no_harm(b: SqliteBackend) -> None:  # P-API-5
    append(b, "s", "t", 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        os._exit(_refusals(b))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 4
    assert append(b, "s", "t", 1, 2).seq == 2
    assert verify(b) == []


def _refusals(b: SqliteBackend) -> int:
    refused = 0
    for call in (lambda: append(b, "s", "t", 1, 1), lambda: read(b, "s"), b.scrub, lambda: kv_put(b, "k", 1)):
        try:
            call()
        except UsageError:
            refused += 1
    b.close()
    return refused


def test_a_store_that_is_open_for_reading_reads_what_others_write_and_writes_nothing(
    b: SqliteBackend, path: Path
) -> None:
    with closing(SqliteBackend(path, read_only=True)) as reader:
        append(b, "s", "t", 1, 1)

        assert len(read(reader, "s")) == 1
        assert reader.wait("s", 0, timeout_s=WAIT_S) == 1
        assert verify(reader) == []
        for call in (lambda: append(reader, "s", "t", 1, 1), lambda: kv_put(reader, "k", 1), reader.scrub):
            with pytest.raises(StoreUnavailable):
                call()

    assert (last_seq(b, "s"), kv_get(b, "k")) == (1, None)


# Several users of one file


def test_two_backends_in_one_process_are_one_store(b: SqliteBackend, path: Path) -> None:  # P-LOG-11
    with closing(SqliteBackend(path)) as other:
        for n in range(10):
            append(b if n % 2 else other, "s", f"type {n}", n, n)
            kv_put(other if n % 2 else b, "k", n)

        assert read(b, "s") == read(other, "s")
        assert [event.data for event in read(b, "s")] == [*range(10)]
        assert [event.type for event in read(other, "s")] == [f"type {n}" for n in range(10)]
        assert kv_get(b, "k") == kv_get(other, "k") == 9


WRITE_ON_REQUEST = """
import sys
from strandline.persist import append, open_store
b = open_store(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(append(b, line.strip(), "t", 1, {"text": "from another process"}).seq, flush=True)
"""


@contextmanager
def writer_elsewhere(path: Path) -> Iterator[Callable[[str], None]]:
    """Another process with the store open, and how to have it append to a stream without waiting for it."""
    command = [sys.executable, "-c", WRITE_ON_REQUEST, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"

        def request(stream: str) -> None:
            assert child.stdin
            child.stdin.write(stream + "\n")
            child.stdin.flush()

        yield request
        child.stdin.close()
        assert child.wait(WAIT_S) == 0


def test_a_wait_ends_with_the_commit_of_another_process(b: SqliteBackend, path: Path) -> None:  # P-BKD-7
    with writer_elsewhere(path) as append_elsewhere:
        append_elsewhere("s")
        began = time.monotonic()
        assert b.wait("s", 0, timeout_s=WAIT_S) == 1
        c = consumer(b, "c", "s", start=1)
        append_elsewhere("s")

        assert [event.seq for event in poll(c, timeout_s=WAIT_S)] == [2]  # P-SUB-12
        assert time.monotonic() - began < WAIT_S / 2
        assert b.wait("never", 0, timeout_s=0.01) == 0
        append_elsewhere("other")
        assert b.wait("s", 2, timeout_s=0.05) == 2
