"""An open store file: one connection that writes, some that read, and what stops all of them."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Final

import apsw

from strandline.errors import OutcomeUnknown, StoreUnavailable, StrandlineError, UsageError
from strandline.persist.backends.sqlite.file import (
    FileIdentity,
    connect,
    damaged_file,
    has_log,
    has_moved,
    has_unfinished_commit,
    identity_of,
    log_of,
    open_file,
    write_log_again,
)
from strandline.persist.backends.sqlite.fork import watch_writing
from strandline.persist.backends.sqlite.read import UNREADABLE, is_damage

_LOOK_S: Final = 1.0
_OPEN_AGAIN: Final = "open it again"
_LOST_LOG: Final = (
    "open it again; copy a store with `strandline persist backup`, and do not open its files with another"
    " library in a process that has it open"
)


class Handle:
    """What a backend has of its file. It is used by the process that opened it, until it is closed, a commit
    has an unknown outcome, or another file is seen under its name."""

    def __init__(
        self, path: str | Path, *, create: bool, read_only: bool, synchronous: str, busy_timeout_s: float
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise UsageError(
                f"synchronous is {synchronous!r:.80}", hint="FULL, or NORMAL with its loss bound"
            )
        if type(busy_timeout_s) not in (int, float) or not isfinite(busy_timeout_s) or busy_timeout_s < 0:
            raise UsageError(
                f"busy_timeout_s is {busy_timeout_s!r:.80}", hint="a number of seconds, 0 or more"
            )
        self._path = Path(path).absolute()
        self._has_old_log = has_log(self._path)
        self._options = {"synchronous": synchronous, "busy_timeout_s": busy_timeout_s, "read_only": read_only}
        self._writer = open_file(
            self._path,
            create=create,
            synchronous=synchronous,
            busy_timeout_s=busy_timeout_s,
            read_only=read_only,
        )
        self._writing = watch_writing(threading.RLock())
        self._idle: list[apsw.Connection] = []
        self._pid = os.getpid()
        self._poisoned: str | None = None
        self._poison_hint = _OPEN_AGAIN
        self._log_path = str(log_of(self._path))
        self._log: FileIdentity | None = None  # of the log that the writer has open, once that is known
        self._is_closed = False
        self._looked_at = time.monotonic()
        try:
            if not self._has_old_log:
                _let_go_of_log(self._writer)
            found = identity_of(self._path)
            self._identity = None if has_moved(self._writer) else found  # moved before we looked
            if not read_only:
                self._open_log()
        except BaseException:
            self._writer.close()
            raise

    @property
    def spent(self) -> str | None:
        return self._poisoned

    # Readers

    @contextmanager
    def _reader(self, damaged: Callable[[], StrandlineError] | None = None) -> Iterator[apsw.Connection]:
        """`damaged` names what a damaged page is about, where that is known."""
        self._check_usable()
        self._look()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        is_read = False
        try:
            yield connection
            is_read = True
        except UNREADABLE as error:
            if damaged is not None and is_damage(error):
                raise damaged() from error
            raise self._unavailable(error) from error
        finally:
            self._give_back(connection, is_read=is_read)

    def _give_back(self, connection: apsw.Connection, *, is_read: bool) -> None:
        if self._is_inherited:
            return
        if not is_read:
            # Who keeps the error keeps the cursor, and with it an instant of the store: the next reader would
            # be shown that.
            connection.close(True)
            return
        self._idle.append(connection)
        if self._is_closed:  # meanwhile, so that nobody else would close it
            self._close_readers()

    @contextmanager
    def _own_reader(self) -> Iterator[apsw.Connection]:
        """A connection for one long or odd read, which nobody uses after it."""
        self._check_usable()
        connection = self._connect()
        try:
            yield connection
        except apsw.Error as error:
            raise self._unavailable(error) from error
        finally:
            if not self._is_inherited:
                connection.close()

    def _connect(self) -> apsw.Connection:
        try:
            connection = connect(self._path, **self._options)  # type: ignore[arg-type]  # as given to us
        except apsw.Error as error:
            self._refuse_if_replaced()
            raise self._unavailable(error) from error
        try:
            self._refuse_if_replaced()
        except BaseException:
            connection.close()
            raise
        if not self._has_old_log:
            _let_go_of_log(connection)
        return connection

    def _look(self) -> None:
        """Who only reads notices a file that was replaced too, a moment later."""
        now = time.monotonic()
        if now - self._looked_at > _LOOK_S:
            self._looked_at = now
            self._refuse_if_replaced()

    def _refuse_if_replaced(self) -> None:
        """Another file under our name: the writer would go on in the old one, where nobody looks any more.

        What is replaced between this and the end of a commit goes unnoticed until the next one.
        """
        try:
            is_same = identity_of(self._path) == self._identity is not None
            has_our_log = self._log is None or identity_of(self._log_path) == self._log
        except OSError as error:
            raise StoreUnavailable(
                f"the store at {self._path.name} cannot be looked at: {error}", hint="check folder and rights"
            ) from error
        if not is_same:
            self._poisoned = "the file was replaced or removed under this store"
        elif not has_our_log:
            self._poisoned = "its log was replaced or removed, so what it commits from now on would be lost"
            self._poison_hint = _LOST_LOG
        if not (is_same and has_our_log):
            self._check_usable()

    def _open_log(self) -> None:
        """Have the writer open the log, and keep which file that is.

        SQLite deletes a log when the last process closes the store, which it knows by locks on the file. A
        process loses its locks when it closes any descriptor of that file, for example after a copy of it.
        Another process then takes itself for the last one, and the writer here would go on in a deleted log.
        """
        try:
            self._writer.pragma("user_version")  # a read: from here on the writer has the log open
        except apsw.Error as error:
            raise self._unavailable(error) from error
        self._log = identity_of(self._log_path)

    def _write_old_log_again(self) -> None:
        """Before the first commit to a store that was left with a log, by a process that was killed: what its
        last sync could not bring to the disk may be there in the cache alone, and what is written behind that
        would be lost with it (decision 17)."""
        try:
            write_log_again(self._path)
        except OSError as error:
            raise StoreUnavailable(
                f"the log of the store at {self._path.name} cannot be written again: {error}",
                hint="check the disk",
            ) from error
        self._has_old_log = False
        _let_go_of_log(self._writer)

    # What goes wrong

    def _failed_commit(self, error: apsw.Error) -> StrandlineError:
        """A failed write or sync leaves it open what a later recovery finds in the log, so this handle
        stops here."""
        if isinstance(error, apsw.BusyError) or (isinstance(error, apsw.FullError) and self._wrote_nothing()):
            return self._unavailable(error)
        self._poisoned = f"a commit failed with {error}"
        return OutcomeUnknown(
            f"the store at {self._path.name} could not say whether it stored a commit: {error}", once=None
        )

    def _wrote_nothing(self) -> bool:
        try:
            return not has_unfinished_commit(self._writer, self._path)
        except (apsw.Error, OSError):
            return False  # it cannot be told

    def _unavailable(self, error: Exception) -> StrandlineError:
        if isinstance(error, apsw.BusyError):
            timeout_s = self._options["busy_timeout_s"]
            return StoreUnavailable(
                f"another process has held the store for over {timeout_s} s",
                hint="look for a stuck writer, or try again",
            )
        if isinstance(error, apsw.FullError):
            return StoreUnavailable("the disk is full; nothing was written", hint="make room, then try again")
        if isinstance(error, apsw.ReadOnlyError):
            return StoreUnavailable("the store is open for reading only", hint="open it without read_only")
        if is_damage(error):
            return damaged_file(self._path, error)
        return StoreUnavailable(f"the store at {self._path.name} failed: {error}", hint="check the disk")

    # The end

    def close(self) -> None:
        self._is_closed = True
        if self._is_inherited:
            return
        with self._writing:
            if self._is_log_of_another():
                self._leave_log()
            self._close_readers()
            self._writer.close()

    def _is_log_of_another(self) -> bool:
        try:
            return self._log is not None and identity_of(self._log_path) not in (None, self._log)
        except OSError:
            return False  # a folder that cannot be looked into: SQLite cannot delete a file in it either

    def _leave_log(self) -> None:
        """The log under our name is another process's: the last connection here must not delete it."""
        for connection in (self._writer, *self._idle):
            with suppress(apsw.ConnectionClosedError):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _close_readers(self) -> None:
        with suppress(IndexError):  # none is left, or another thread took the last one
            while True:
                self._idle.pop().close()

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a child of the process that opened it, which leaves all of it alone (fork.py)."""
        return os.getpid() != self._pid

    def _check_usable(self) -> None:
        if self._is_closed:
            raise UsageError("the store is closed", hint="open it again")
        if self._is_inherited:
            raise UsageError("the store was opened by a parent process", hint="open it anew after a fork")
        if self._poisoned:
            raise StoreUnavailable(
                f"the store cannot be used any more: {self._poisoned}", hint=self._poison_hint
            )


def _let_go_of_log(connection: apsw.Connection) -> None:
    """From now on it copies the log into the file if it is the last to close the store. That must not be
    before all of the log is on the disk: a power cut would leave a file and a log that do not belong
    together."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
