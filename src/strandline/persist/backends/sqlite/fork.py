"""What a fork leaves of open stores.

SQLite keeps a book of its locks in the process. A child inherits the book, and not the locks: a store that it
opened by itself would believe to be locked what is free, and whoever closes last would take the log away from
under it. So before a child opens a store it closes what it has inherited, in a way that leaves every log
alone; until then, and if it opens none, it never touches it. What it cannot close, since it was being written
or read with when the fork came, it may not open again.

The hooks call nothing of SQLite's: a lock of its own may be held, in a child, by a thread that is not there.
"""

import ctypes
import os
import time
from operator import methodcaller
from pathlib import Path
from typing import Any, Final
from weakref import ref

import apsw

from strandline.errors import UsageError

WAIT_S: Final = 5.0  # for the end of what is written just now
_TURN_S: Final = 0.001
_connections: Final[dict[int, tuple["ref[apsw.Connection]", str]]] = {}  # each with its file
_writing: Final[dict[int, "ref[Any]"]] = {}
_held: Final[list[Any]] = []  # by who forks
_inherited: Final[list[tuple[apsw.Connection, str]]] = []
_left: Final[list[str]] = []  # the files of those that could not be closed


def watch(connection: apsw.Connection) -> apsw.Connection:
    """A connection that a child is to close."""
    key, file = id(connection), os.path.realpath(connection.filename)
    _connections[key] = ref(connection, lambda _: _connections.pop(key, None)), file
    return connection


def watch_writing(lock: Any) -> Any:
    """A lock that is held while a store is written: a fork waits for it."""
    key = id(lock)
    _writing[key] = ref(lock, lambda _: _writing.pop(key, None))
    return lock


def settle(path: Path) -> None:
    """Before a store is opened: close what was inherited, or refuse it."""
    for connection, file in tuple(_inherited):  # two threads may open at once
        _close(connection, file)
    _inherited.clear()
    if _left and os.path.realpath(path) in _left:
        raise UsageError(
            f"the store at {path.name} was at work in another thread when this process was forked",
            hint="open it after the fork, or start processes by spawn",
        )


def _close(connection: apsw.Connection, file: str) -> None:
    try:
        if connection.txn_state() != apsw.SQLITE_TXN_WRITE:  # to undo that would reach into the parent's
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)
            return
    except apsw.ConnectionClosedError:
        return
    except apsw.Error:  # a thread is at work with it that is not here
        pass
    _left.append(file)


def _before() -> None:
    """Wait until nobody writes, holding nothing meanwhile; after a while fork all the same."""
    until = time.monotonic() + WAIT_S
    while True:
        locks = [lock for lock in [found() for found in list(_writing.values())] if lock is not None]
        _held.extend(filter(methodcaller("acquire", blocking=False), locks))  # one call: no signal in between
        if len(_held) == len(locks) or time.monotonic() > until:
            return
        _after()
        time.sleep(_TURN_S)


def _after() -> None:
    while _held:
        _held.pop().release()


def _after_in_child() -> None:
    try:
        for found, file in list(_connections.values()):
            if (connection := found()) is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # never freed: that would close it
                _inherited.append((connection, file))
        _connections.clear()
    finally:
        _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
