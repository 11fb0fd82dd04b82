"""Another SQLite program on the file of a store: Python's own, which knows nothing of page checksums."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from strandline.errors import CorruptionError
from strandline.persist import UsageError, append, kv_put, open_store, read, repair, verify
from strandline.persist.backends.sqlite import SqliteBackend
from tests.persist.backends.sqlite.behind import fill, flip, mark_of

N = 60
_KILLED = """
import os, signal, sys
from strandline.persist import append
from strandline.persist.backends.sqlite import SqliteBackend

b = SqliteBackend(sys.argv[1])
for n in range(1, int(sys.argv[2]) + 1):
    append(b, "s", "t", n, {"n": n, "text": "x" * 200}, globally=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
_LOOK = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('select * from meta').fetchall()"
_VIEWER = f"{_LOOK}; print('open', flush=True); sys.stdin.read(); c.close()"


def run(program: str, *args: object) -> int:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, args)], timeout=120, check=False
    ).returncode


def cli(*args: object) -> tuple[int, str, str]:
    command = [str(Path(sys.executable).with_name("strandline")), "persist", *map(str, args)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def looked_into(path: Path) -> Path:
    """A store whose writer was killed, and into which another SQLite has looked then."""
    assert run(_KILLED, path, N) == -signal.SIGKILL
    assert run(_LOOK, path) == 0
    return path


def assert_sound(path: Path, n: int = N) -> None:
    with closing(SqliteBackend(path, create=False)) as b:
        assert [event.data["n"] for event in read(b, "s")] == list(range(1, n + 1))
        assert verify(b) == []
        assert append(b, "s", "t", 1, {"n": n + 1}).seq == n + 1


def test_a_look_after_a_kill_is_named_and_can_be_repaired(looked_into: Path) -> None:  # P-INT-2, P-INT-3
    with pytest.raises(CorruptionError, match="another SQLite program has written pages") as refused:
        open_store(looked_into)
    assert "strandline persist repair" in str(refused.value.hint)

    code, out, _ = cli("verify", "--store", looked_into, "--json")
    found = [damage["found"] for damage in json.loads(out)["damage"]]
    assert (code, len(found)) == (1, 1)
    assert "another SQLite program has written" in found[0]
    assert cli("repair", "--store", looked_into)[::2] == (0, "")

    assert_sound(looked_into)
    assert cli("repair", "--store", looked_into, "--json")[:2] == (0, '{"pages":0}\n')


def test_a_viewer_that_closes_last_is_named_and_can_be_repaired(path: Path) -> None:  # P-INT-2, P-INT-3
    b = SqliteBackend(path)
    fill(b, "s", N)
    viewer = subprocess.Popen(
        [sys.executable, "-c", _VIEWER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert viewer.stdout is not None
    viewer.stdout.readline()
    b.close()
    viewer.communicate(timeout=60)

    with pytest.raises(CorruptionError), closing(SqliteBackend(path)) as b:
        read(b, "s")
    assert repair(path) > 0

    assert_sound(path)


def test_a_vacuum_by_another_program_can_be_repaired(path: Path) -> None:  # P-INT-3
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", N)
        kv_put(b, "k", {"v": 1})
    with closing(sqlite3.connect(path)) as other:
        other.execute("VACUUM")

    assert repair(path) > 0

    assert_sound(path)


def test_a_store_is_repaired_beside_a_process_that_has_it_open(looked_into: Path) -> None:  # P-INT-3
    repair(looked_into)
    with closing(SqliteBackend(looked_into)) as b:
        append(b, "s", "t", 1, {"n": N + 1})

        assert repair(looked_into) == 0
        assert append(b, "s", "t", 1, {"n": N + 2}).seq == N + 2

    assert_sound(looked_into, N + 2)


def test_a_row_that_another_program_has_changed_is_not_repaired(looked_into: Path) -> None:  # P-INT-2
    with closing(sqlite3.connect(looked_into, isolation_level=None)) as other:
        other.execute("UPDATE events SET data = '{\"n\":4}' WHERE id % (1 << 36) = 3")
    before = looked_into.read_bytes()

    with pytest.raises(CorruptionError, match="event s 3: its checksum does not match"):
        repair(looked_into)

    assert looked_into.read_bytes() == before
    code, out, _ = cli("verify", "--store", looked_into, "--json")
    named = [(damage["what"], damage["name"], damage["seq"]) for damage in json.loads(out)["damage"]]
    assert (code, ("event", "s", 3) in named) == (1, True)


def test_a_page_that_the_disk_has_changed_is_not_repaired(path: Path) -> None:  # P-INT-2
    with closing(SqliteBackend(path)) as b:
        fill(b, "s", N)
    flip(path, mark_of("s", 7))
    before = path.read_bytes()

    with pytest.raises(CorruptionError, match="event s 7: its checksum does not match"):
        repair(path)

    assert path.read_bytes() == before


def test_a_file_that_is_not_such_a_store_is_not_repaired(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE t (x)")
    text = tmp_path / "text.db"
    text.write_text("no database" * 100)

    for file in (path, text):
        with pytest.raises(UsageError):
            repair(file)
    code, _, err = cli("repair", "--store", "memory:")
    assert (code, "is not in SQLite" in err) == (2, True)
    assert cli("repair", "--store", tmp_path / "none.db")[0] != 0
