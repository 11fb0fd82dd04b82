"""What a fork leaves of open stores.

SQLite keeps a book of its locks in the process. A child inherits the book, and not the locks: a store that it
opened by itself would believe to be locked what is free, and whoever closes last would take the log away from
under it. So a child closes all that it has inherited, before it does anything else. What it cannot close,
since another thread was at work with it when the fork came, it may not open again.
"""

import os
import threading
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import apsw

from strandline.errors import UsageError

_gate: Final = threading.Lock()
_connections: Final[WeakSet[apsw.Connection]] = WeakSet()
_writing: Final[WeakSet[Any]] = WeakSet()
_held: Final[list[Any]] = []  # by who forks
_left: Final[list[apsw.Connection]] = []  # kept, so that nothing closes them later


def watch(connection: apsw.Connection) -> apsw.Connection:
    """A connection that a child is to close."""
    with _gate:
        _connections.add(connection)
    return connection


def watch_writing(lock: Any) -> Any:
    """A lock that is held while a store is written: no fork comes meanwhile."""
    with _gate:
        _writing.add(lock)
    return lock


def refuse_if_left(path: Path) -> None:
    """No store is opened beside a connection to it that was inherited and could not be closed."""
    if any(os.path.realpath(path) == os.path.realpath(each.filename) for each in _left):
        raise UsageError(
            f"the store at {path.name} was read by another thread when this process was forked",
            hint="fork before the store is opened, or start processes by spawn",
        )


def _before() -> None:
    _gate.acquire()
    for lock in list(_writing):
        lock.acquire()
        _held.append(lock)


def _after() -> None:
    while _held:
        _held.pop().release()
    _gate.release()


def _after_in_child() -> None:
    for connection in list(_connections):
        try:
            connection.close(True)
        except apsw.Error:  # it was at work: its own lock is held by a thread that is not here
            _left.append(connection)
    _connections.clear()
    _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
