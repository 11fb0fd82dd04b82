"""Forks, in processes of their own: what a child inherits, and what it and its parent close."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

from strandline.errors import UsageError
from strandline.persist import append, last_seq, open_store, verify
from strandline.persist.backend import Record

# `go` and `done` are pipes: the parent closes while the child has its store open.
_HEAD = """
import multiprocessing, os, subprocess, sys, threading
from strandline.persist import append, last_seq, open_store, read

path = sys.argv[1]
b = open_store(path)
append(b, "s", "t", 1, 1)

def append_some(b):
    for number in range(5):
        event = append(b, "s", "t", 1, number)
    return event.seq

def elsewhere():
    code = "import os, sys; from strandline.persist import append, open_store; b = open_store(sys.argv[1]);"
    code += "[append(b, 's', 't', 1, n) for n in range(5)]; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, path])

opened, closed = os.pipe(), os.pipe()
"""

_WAYS = {
    "a child opens its own, and the parent closes": """
        if os.fork() == 0:
            mine = open_store(path)
            append(mine, "s", "t", 1, 2)
            os.write(opened[1], b"x"), os.read(closed[0], 1)
            append_some(mine)
            os._exit(0)
        os.read(opened[0], 1)
        b.close()
        os.write(closed[1], b"x"), os.wait()
    """,
    "a child opens its own, and the parent ends": """
        if (child := os.fork()) == 0:
            mine = open_store(path)
            append(mine, "s", "t", 1, 2)
            os.write(opened[1], b"x")
            while os.getppid() == parent_of_child:
                pass
            append_some(mine)
            os._exit(0)
        os.read(opened[0], 1)
    """,
    "a process by multiprocessing": """
        def work():
            mine = open_store(path)
            append(mine, "s", "t", 1, 2)
            os.write(opened[1], b"x"), os.read(closed[0], 1)
            append_some(mine)
            mine.close()

        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        os.read(opened[0], 1)
        b.close()
        os.write(closed[1], b"x"), worker.join()
    """,
    "a child that never looks at the store ends while a stranger writes": """
        append(b, "s", "t", 1, 2)
        if os.fork() == 0:
            os.read(closed[0], 1)
            sys.exit()
        b.close()
        elsewhere()
        os.write(closed[1], b"x"), os.wait()
    """,
}


def run(path: Path, body: str) -> "subprocess.CompletedProcess[str]":
    code = _HEAD + "parent_of_child = os.getpid()\n" + dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("way", _WAYS)
def test_what_is_acknowledged_after_a_fork_is_there(path: Path, way: str) -> None:  # P-API-5, P-REC-1
    done = run(path, _WAYS[way])

    assert (done.returncode, done.stderr) == (0, "")
    with closing(open_store(path)) as b:
        assert (last_seq(b, "s"), verify(b)) == (7, [])


def test_a_fork_waits_for_the_end_of_a_transaction(path: Path) -> None:  # P-API-5
    done = run(
        path,
        """
        stop = threading.Event()

        def write():
            while not stop.is_set():
                append(b, "others", "t", 1, 1)

        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        for _ in range(20):
            if (child := os.fork()) == 0:
                append(open_store(path), "s", "t", 1, 1)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
        stop.set()
        for writer in writers:
            writer.join()
        print(last_seq(b, "s"))
        """,
    )

    assert (done.stderr, done.stdout) == ("", "21\n")


def test_a_store_that_was_read_when_the_fork_came_is_refused_in_the_child(path: Path) -> None:  # P-API-5
    done = run(
        path,
        """
        from strandline.persist.backends.sqlite import fork

        fork._left.append(os.path.realpath(path))  # as if another thread had been at work with it
        try:
            open_store(path)
        except ValueError as error:
            print(error.kind, error.hint)
        """,
    )

    assert "usage" in done.stdout, (done.stdout, done.stderr)
    assert "spawn" in done.stdout


def test_a_fork_in_the_middle_of_a_transaction_leaves_it_to_the_parent(path: Path) -> None:  # P-BKD-9
    done = run(
        path,
        """
        from contextlib import closing
        from strandline.persist import append_batch, verify

        for _ in range(30):  # more than the cache holds: some of it is in the log before it is committed
            append_batch(b, "s", [("t", 1, "x" * 2000)] * 1000)

        def records():
            for number, record in enumerate(b.dump()):
                if number == 25_000 and (child := os.fork()) == 0:
                    try:
                        open_store(path + ".copy")
                    except ValueError as error:
                        os._exit(7 if "spawn" in error.hint else 8)
                    os._exit(9)
                if number == 25_000:
                    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                yield record

        with closing(open_store(path + ".copy")) as copy:
            copy.load(records())
        with closing(open_store(path + ".copy")) as copy:
            print(last_seq(copy, "s"), verify(copy))
        """,
    )

    assert (done.stderr, done.stdout) == ("", "7\n30001 []\n")


def test_a_commit_in_the_middle_of_another_of_the_same_thread_is_refused(path: Path) -> None:  # P-BKD-9
    with closing(open_store(path)) as b, closing(open_store(path.with_name("copy.db"))) as copy:
        append(b, "s", "t", 1, 1)

        def records() -> Iterator[Record]:
            for number, record in enumerate(b.dump()):  # type: ignore[attr-defined]  # a local store has it
                if number == 2:
                    append(copy, "meanwhile", "t", 1, 1)
                yield record

        with pytest.raises(UsageError, match="in the middle of another"):
            copy.load(records())  # type: ignore[attr-defined]  # a local store has it

        assert copy.streams() == []
        assert append(copy, "after", "t", 1, 1).seq == 1
        assert verify(copy) == []


def test_a_fork_beside_a_restore_waits_for_it_and_holds_nobody_up(path: Path) -> None:  # P-API-5, P-OPS-2
    done = run(
        path,
        """
        import time
        from strandline.persist import append_batch, restore, backup

        append_batch(b, "s", [("t", 1, n) for n in range(5000)])
        backup(b, path + ".backup")
        restored = []

        def work():
            for number in range(5):
                into = open_store(f"{path}.{number}")
                restore(into, path + ".backup")
                restored.append(last_seq(into, "s"))
                into.close()

        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():
            if (child := os.fork()) == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            append(b, "others", "t", 1, 1)
        print(restored)
        """,
    )

    assert (done.stderr, done.stdout) == ("", f"{[5001] * 5}\n")
