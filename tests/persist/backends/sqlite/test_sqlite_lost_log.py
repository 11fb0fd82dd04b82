"""The log of a store that vanishes under the process that has it open: no commit goes into a deleted file."""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from strandline.persist import StoreUnavailable, append, last_seq, read, verify
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.backends.sqlite.pages import has_unchecked
from strandline.persist.backends.sqlite.repair import damage_of, repair

_OTHER = """
import os, signal, sys
from strandline.persist import append
from strandline.persist.backends.sqlite import SqliteBackend

b = SqliteBackend(sys.argv[1])
for n in range(3):
    append(b, "other", "t", n, n)
if sys.argv[2] == "close":
    b.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def copy_tree(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.with_name("copied"))


def make_tar(path: Path) -> None:
    with tarfile.open(path.parent.with_name("copied.tar"), "w") as archive:
        archive.add(path.parent)


def let_another_append(path: Path, *, end: str) -> None:
    subprocess.run([sys.executable, "-c", _OTHER, str(path), end], timeout=120, check=end == "close")


@contextmanager
def copied_and_closed(path: Path, copy: Callable[[Path], None]) -> Iterator[SqliteBackend]:
    """A store whose files this process has copied, after which another process was the last to close it."""
    path.parent.mkdir()
    with closing(SqliteBackend(path)) as b:
        for n in range(5):
            append(b, "mine", "t", n, n)
        copy(path)
        let_another_append(path, end="close")
        assert not path.with_name("store.db-wal").exists()
        yield b


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.db"


@pytest.mark.parametrize("copy", [copy_tree, make_tar])
def test_an_append_raises_once_the_log_is_gone_and_loses_nothing(
    copy: Callable[[Path], None], path: Path
) -> None:  # P-REC-1, P-DUR-10
    with copied_and_closed(path, copy) as b:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="log") as caught:
                append(b, "mine", "t", 6, 6)

    assert "persist backup" in str(caught.value.hint)
    with closing(SqliteBackend(path, create=False)) as b:
        assert [event.data for event in read(b, "mine")] == [0, 1, 2, 3, 4]
        assert [event.data for event in read(b, "other")] == [0, 1, 2]
        assert verify(b) == []
        assert append(b, "mine", "t", 6, 6).seq == 6


def test_an_append_raises_once_another_log_stands_in_its_place(path: Path) -> None:  # P-REC-1, P-DUR-10
    with copied_and_closed(path, copy_tree) as b:
        let_another_append(path, end="kill")

        with pytest.raises(StoreUnavailable, match="log"):
            append(b, "mine", "t", 6, 6)


def test_a_close_does_not_delete_the_log_of_another(path: Path) -> None:  # P-REC-1
    with copied_and_closed(path, copy_tree):
        let_another_append(path, end="kill")

    with closing(SqliteBackend(path, create=False)) as b:
        assert last_seq(b, "other") == 6
        assert verify(b) == []


@pytest.mark.parametrize("look", [has_unchecked, damage_of, repair])
def test_a_look_at_the_pages_leaves_the_locks_of_the_process_alone(
    look: Callable[[Path], object], path: Path
) -> None:  # P-REC-1
    path.parent.mkdir()
    with closing(SqliteBackend(path)) as b:
        append(b, "mine", "t", 1, 1)

        look(path)
        let_another_append(path, end="close")

        assert append(b, "mine", "t", 2, 2).seq == 2


def test_a_store_that_was_sealed_and_is_written_again_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(SqliteBackend(path)) as b:
        append(b, "s", "t", 1, 1)
        b.seal()
    with closing(SqliteBackend(path)) as b:
        append(b, "s", "t", 2, 2)
        b.seal()
        append(b, "s", "t", 3, 3)

    with closing(SqliteBackend(path)) as b, closing(SqliteBackend(path)) as beside:
        append(b, "s", "t", 4, 4)
        append(beside, "s", "t", 5, 5)
        beside.close()
        append(b, "s", "t", 6, 6)
        assert last_seq(b, "s") == 6
