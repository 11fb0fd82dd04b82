"""Signals: what is kept from being done at the worst place, and what must be so all the same."""

import contextlib
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import apsw
import pytest

from strandline.errors import EventCorrupt, StoreUnavailable
from strandline.persist import append, kv_put, last_seq, read, verify
from strandline.persist.backends.sqlite import SqliteBackend, backend, handle, transaction
from tests.persist.backends.sqlite.behind import WAIT_S, edit, fill
from tests.persist.test_interrupts import Interrupt, Strike, traced


class _Interrupts:
    """Stands in for the undoing of a transaction: a signal comes as it begins."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        raise KeyboardInterrupt


def test_a_failed_commit_whose_undoing_is_interrupted_poisons_the_store(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-DUR-9, P-REC-9
    append(b, "s", "t", 1, 1)
    b._writer.set_commit_hook(lambda: True)  # SQLite undoes it, and says so
    interrupts = _Interrupts()
    monkeypatch.setattr(b, "_undo", interrupts)
    with pytest.raises(KeyboardInterrupt):
        append(b, "new", "t", 1, 1)
    monkeypatch.undo()
    b._writer.set_commit_hook(None)

    with pytest.raises(StoreUnavailable, match="cannot be used any more"):
        append(b, "new", "t", 1, 2)

    assert (interrupts.times, b.spent is not None) == (1, True)
    with closing(SqliteBackend(path)) as again:
        assert append(again, "new", "t", 1, 3).seq == 1
        assert verify(again) == []


def test_a_transaction_whose_undoing_is_interrupted_is_undone_by_the_next(
    b: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-REC-9
    def fail(step: str) -> None:
        if step == "commit.before":
            b._writer.execute("ROLLBACK")  # as SQLite does by itself on some errors
            raise apsw.InterruptError("interrupted")

    monkeypatch.setattr(backend, "reach", fail)
    monkeypatch.setattr(b, "_undo", _Interrupts())
    with pytest.raises(KeyboardInterrupt):
        append(b, "new", "t", 1, 1)
    monkeypatch.undo()

    assert append(b, "new", "t", 1, 2).seq == 1
    assert [event.data for event in read(b, "new")] == [2]
    assert verify(b) == []


def test_a_commit_that_was_made_stays_so_when_a_signal_follows(
    b: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-REC-1
    def interrupt(step: str) -> None:
        if step == "commit.after":
            raise KeyboardInterrupt

    monkeypatch.setattr(backend, "reach", interrupt)
    with pytest.raises(KeyboardInterrupt):
        append(b, "s", "t", 1, 1)
    monkeypatch.undo()

    assert append(b, "s", "t", 1, 2).seq == 2
    assert b.spent is None


def test_a_reader_that_was_interrupted_shows_nobody_its_instant(
    b: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-BKD-9
    fill(b, "s", 2000)
    decodes = 0

    def decode(text: str) -> object:
        nonlocal decodes
        decodes += 1
        if decodes == 10:
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr(backend, "decode", decode)
    with pytest.raises(KeyboardInterrupt) as kept:  # and with it the frame, the cursor and its instant
        b.read("s")
    monkeypatch.undo()

    assert append(b, "s", "t", 1, 1).seq == last_seq(b, "s") == 2001
    b.scrub()  # nobody holds the log
    assert kept.value is not None


def test_a_value_that_cannot_be_decoded_is_named(b: SqliteBackend, path: Path) -> None:  # P-INT-2
    for name in "abc":
        kv_put(b, name, 1)
    edit(path, "UPDATE keys SET value = '{damaged' WHERE name = 'b'")

    for read_it in (lambda: b.kv_get("b"), lambda: b.kv_scan("", after="", limit=10)):
        with pytest.raises(EventCorrupt, match="'b'"):
            read_it()
    kv_put(b, "c", 2)
    assert b.kv_get("c") == 2


@pytest.mark.parametrize("is_known", [False, True])
def test_a_signal_at_any_place_of_an_append_leaves_a_store_that_goes_on(
    path: Path, is_known: bool
) -> None:  # P-REC-9, P-LOG-2
    files = [str(each.__file__) for each in (backend, handle, transaction, contextlib)]
    for nth in count(1):
        with closing(SqliteBackend(path.with_name(f"{nth}.db"))) as b:
            if is_known:
                append(b, "s", "t", 1, "before")
            kept = None
            try:
                with traced(Strike(nth, *files)):
                    append(b, "s", "t", 1, "struck")
            except Interrupt as interrupt:
                kept = interrupt  # and with it all frames that it came by
            goes_on_elsewhere(b)
            found = [(event.seq, event.data) for event in b.read("s") if event.data != "struck"]
            seqs = [event.seq for event in b.read("s")]

            assert seqs == [*range(1, len(seqs) + 1)]
            assert [data for _, data in found] == ["before"] * is_known + ["after", "after"]
            assert verify(b) == []
        if kept is None:
            break

    assert nth > 30


def goes_on_elsewhere(b: SqliteBackend) -> None:
    """Another thread appends twice, and nothing keeps it from that."""
    done: list[int] = []

    def go_on() -> None:
        done.extend(append(b, "s", "t", 1, "after").seq for _ in range(2))

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert len(done) == 2, "it waits, or was refused"
