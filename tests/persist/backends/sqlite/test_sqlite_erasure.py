"""What leaves the file of the SQLite store: truncation, sweeping, erasure and scrubbing."""

from contextlib import closing
from pathlib import Path

import pytest

from strandline.errors import (
    StoreUnavailable,
)
from strandline.persist import (
    Event,
    append,
    append_once,
    checkpoint,
    count,
    erase_stream,
    events,
    global_events,
    global_trim,
    last_seq,
    quarantine,
    read,
    redact,
    truncate_through,
    verify,
)
from strandline.persist.backends.sqlite import SqliteBackend, backend
from tests.persist.backends.sqlite.behind import fill, raw, rows_of


def test_a_truncation_commits_first_and_sweeps_in_steps_between_which_others_write(
    b: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7
    fill(b, "s", 95)
    monkeypatch.setattr(backend, "SWEEP_ROWS", 10)
    seen_at: list[tuple[str, int, int]] = []
    with closing(SqliteBackend(path)) as other:

        def look(step: str) -> None:
            if step in ("commit.acknowledged", "truncate.swept") and not looking:
                looking.append(True)
                seen_at.append((step, count(other, "s"), rows_of(path)))
                append(other, "other", "t", 1, 1)
                looking.pop()

        looking: list[bool] = []
        monkeypatch.setattr(backend, "reach", look)
        truncate_through(b, "s", 90)

    assert seen_at[0] == ("commit.acknowledged", 5, 95), "hidden at once, and still there"
    assert [step for step, _, _ in seen_at[1:]] == ["truncate.swept"] * 9
    assert {stored for _, stored, _ in seen_at} == {5}
    assert rows_of(path) == 5 + len(seen_at)
    assert last_seq(b, "other") == len(seen_at)
    assert verify(b) == []


def test_what_a_crash_leaves_unswept_is_hidden_and_the_next_truncation_sweeps_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-LOG-7, P-REC-9
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", 50)
        append(b, "g", "t", 1, {"n": 1}, globally=True)
        append(b, "g", "t", 1, {"n": 2}, globally=True)
        monkeypatch.setattr(SqliteBackend, "_sweep", lambda _: None)
        truncate_through(b, "s", 40)
        global_trim(b, 1)
    monkeypatch.undo()

    with closing(SqliteBackend(path)) as b:
        assert (rows_of(path), rows_of(path, "pointers")) == (52, 2)
        assert (count(b, "s"), [event.seq for event in read(b, "s")]) == (10, [*range(41, 51)])
        assert list(events(b, "s", start=1, end=40)) == []
        assert list(events(b, "s", type="added", last=40)) == []
        assert [position for position, _ in global_events(b, first=2)] == [2]
        assert verify(b) == []
        append(b, "t", "t", 1, 1)
        truncate_through(b, "t", 1)

        assert (rows_of(path), rows_of(path, "pointers")) == (12, 1)


SECRET = "tell-nobody-7f3a"


def files_with(folder: Path, text: str) -> list[str]:
    return [entry.name for entry in folder.iterdir() if text.encode() in entry.read_bytes()]


@pytest.mark.parametrize("size", [0, 20_000], ids=["in a page", "over many pages"])
def test_erased_bytes_are_in_none_of_the_files(b: SqliteBackend, path: Path, size: int) -> None:  # P-ERA-3
    for n in range(50):
        append(b, "kept", "t", n, {"n": n, "text": "y" * size})
        append(b, "s", "t", n, {"n": n, "text": SECRET + "x" * size})
    append_once(b, "s", "key", "t", 1, {"n": 1, "text": SECRET})
    checkpoint(b, "s", "snap", lambda value, event: [*value, event.data["text"][:20]], [])
    quarantine(b, "s", 7, 1)
    assert files_with(path.parent, SECRET)

    erase_stream(b, "s", 1, reason="asked to")

    assert files_with(path.parent, SECRET) == []
    assert (len(read(b, "kept")), read(b, "s"), last_seq(b, "s")) == (50, [], 51)
    assert verify(b) == []


@pytest.mark.parametrize("size", [0, 20_000], ids=["in a page", "over many pages"])
def test_redacted_bytes_are_in_none_of_the_files(b: SqliteBackend, path: Path, size: int) -> None:  # P-ERA-3
    for n in range(1, 21):
        append(b, "s", "t", n, {"n": n, "text": f"{SECRET}-{n:02}" + "x" * size})
    assert files_with(path.parent, f"{SECRET}-07")

    redact(b, "s", 7, ["text"], 1, reason="asked to")

    assert files_with(path.parent, f"{SECRET}-07") == []
    assert b.event_at("s", 7) == Event("s", 7, "t", 7, {"n": 7, "text": None})
    assert files_with(path.parent, f"{SECRET}-08")
    assert verify(b) == []


def test_bytes_that_moved_while_they_were_stored_are_gone_too(
    b: SqliteBackend, path: Path
) -> None:  # P-ERA-3
    for n in range(
        200
    ):  # pages split under way, other rows are deleted, and the log is checkpointed in between
        append(b, "s", "t", n, {"text": f"{SECRET}-{n}" + "x" * (n * 37 % 900)})
        append(b, f"other {n % 7}", "t", n, {"text": "y" * (n * 53 % 1500)})
        if n % 20 == 0:
            truncate_through(b, f"other {n % 7}", n)
    erase_stream(b, "s", 1, reason="asked to")

    assert files_with(path.parent, SECRET) == []


def test_a_reader_that_holds_the_log_is_named_and_a_repeat_finishes(path: Path) -> None:  # P-ERA-1, P-ERA-3
    with closing(SqliteBackend(path, busy_timeout_s=0.05)) as b, raw(path) as reader:
        append(b, "s", "t", 1, {"text": SECRET})
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").get == 1

        with pytest.raises(StoreUnavailable, match="a reader holds the log") as held:
            erase_stream(b, "s", 1, reason="asked to")
        assert held.value.hint
        assert read(b, "s") == []

        reader.execute("COMMIT")
        erase_stream(b, "s", 2, reason="asked to")

    assert files_with(path.parent, SECRET) == []


def test_scrub_can_rewrite_the_whole_file(b: SqliteBackend, path: Path) -> None:  # P-ERA-3
    fill(b, "s", 500, size=1000)
    truncate_through(b, "s", 495)

    b.scrub(rewrite=True)

    assert path.stat().st_size < 100_000
    assert [event.seq for event in read(b, "s")] == [*range(496, 501)]
    assert verify(b) == []
