"""Opening a SQLite store file: the library, the page checksums, the pragmas, the format."""

import ctypes
import errno
import os
import secrets
import threading
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import apsw
import apsw.sqlite_extra

from strandline.errors import (
    CorruptionError,
    NotFoundError,
    StoreUnavailable,
    StrandlineError,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist.backends.sqlite.fork import settle, watch
from strandline.persist.backends.sqlite.pages import has_unchecked
from strandline.persist.backends.sqlite.read import is_damage

APPLICATION_ID: Final = 0x5374_726E  # "Strn", by which `file` and we know a store
RESERVED_BYTES: Final = 8  # of each page, for its checksum
_LEAST_LIBRARY: Final = (3, 51, 3)
_VFS: Final = "cksmvfs"
_PAGES_A_CHECKPOINT: Final = 4000  # what many commits write is copied once; about 16 MB of log
_MOST_MS: Final = 2**31 - 1
_REWRITTEN_BYTES: Final = 1024 * 1024
_LOG_HEAD_BYTES: Final = 32
_FRAME_HEAD_BYTES: Final = 24
_LOG_PAGE_BYTES: Final = _FRAME_HEAD_BYTES + 4096
_loading = threading.Lock()

FileIdentity: TypeAlias = tuple[int, int]


def open_file(
    path: Path, *, create: bool, synchronous: str, busy_timeout_s: float, read_only: bool = False
) -> apsw.Connection:
    """A connection to the store at `path`, made and brought to the present format if need be."""
    refuse_affected_library(apsw.sqlite_lib_version())
    settle(path)
    connection: apsw.Connection | None = None
    creates = create and not read_only
    options = {"synchronous": synchronous, "busy_timeout_s": busy_timeout_s, "read_only": read_only}
    try:
        _refuse_no_file(path, creates)
        if creates:
            _make_folder(path.parent)
        connection = connect(path, create=creates, **options)  # type: ignore[arg-type]  # as given to us
        _settle_format(connection, path, busy_timeout_s, read_only=read_only, creates=creates)
        if not _is_checked(connection):
            # It was opened while another process made the file: only a new one learns of the checksums.
            connection.close()
            connection = connect(path, **options)  # type: ignore[arg-type]  # as given to us
        _refuse_without_checksums(connection, path)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, (apsw.SQLError, StrandlineError)):
            raise
        if isinstance(error, (apsw.Error, OSError, ValueError)):
            raise _refusal(path, error) from error
        raise
    return connection


def _make_folder(folder: Path) -> None:
    """SQLite syncs the folder that holds a store, not the ones above: a power cut could take them with it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_no_file(path: Path, creates: bool) -> None:
    if "\0" in str(path):  # asked whether it exists, Python says no
        raise ValueError("embedded null byte")
    if not path.exists() and not creates:
        raise _no_store(path, "there is no store at")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in it")


def _no_store(path: Path, found: str) -> NotFoundError:
    return NotFoundError(f"{found} {path}", hint="check the path; a command that only reads makes none")


def _refusal(path: Path, error: Exception) -> StrandlineError:
    if isinstance(error, apsw.NotADBError):
        return UsageError(
            f"{path} is no SQLite file", hint="name a Strandline store, or a file that is not there"
        )
    if isinstance(error, ValueError) or getattr(error, "errno", None) == errno.ENAMETOOLONG:
        reason = error.strerror if isinstance(error, OSError) else error
        return UsageError(f"{str(path)!r:.200} cannot name a file: {reason}", hint="choose another name")
    if isinstance(error, apsw.Error) and is_damage(error):
        return damaged_file(path, error)
    return StoreUnavailable(f"the store at {path} cannot be opened: {error}", hint="check folder and rights")


def damaged_file(path: Path, error: Exception) -> CorruptionError:
    """Where it is not known which event or key the damage is about."""
    if has_unchecked(path):
        return CorruptionError(
            f"another SQLite program has written pages of the store at {path.name} without checksums",
            hint="run `strandline persist repair`, and look into a store with `sqlite3 -readonly` only",
        )
    return CorruptionError(
        f"a page of the store at {path.name} is damaged ({error})",
        hint="`strandline persist verify` lists all damage, and says whether `repair` mends it",
    )


def connect(
    path: Path,
    *,
    synchronous: str,
    busy_timeout_s: float,
    read_only: bool = False,
    create: bool = False,
    has_page_check: bool = True,
) -> apsw.Connection:
    """One more connection to a store that is there, or with `create` to one that is about to be made."""
    _load_checksums()
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    connection = watch(apsw.Connection(str(path), flags=flags, vfs=_VFS, statementcachesize=200))
    try:
        if not has_page_check:
            connection.pragma("checksum_verification", "off")  # before anything reads the first page
        # Whoever is the last to close a store leaves its log, unless a handle says otherwise (decision 17).
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        timeout_ms = min(int(busy_timeout_s * 1000), _MOST_MS)
        connection.set_busy_timeout(timeout_ms)
        connection.setlk_timeout(timeout_ms, 0)  # waits at the lock: fairer to processes
        connection.pragma("synchronous", synchronous)
        connection.pragma("secure_delete", "on")  # what is deleted is zeroed: erased data leaves the file
        connection.pragma("cache_size", -16_000)
        connection.pragma("wal_autocheckpoint", _PAGES_A_CHECKPOINT)
        connection.pragma("journal_size_limit", _PAGES_A_CHECKPOINT * _LOG_PAGE_BYTES)
    except BaseException:
        connection.close()
        raise
    return connection


def log_of(path: Path) -> Path:
    """Where SQLite keeps the log of the store at `path`."""
    return path.with_name(path.name + "-wal")


def has_log(path: Path) -> bool:
    """Whether there is a log that is not empty: somebody has the store open, or was killed with it."""
    try:
        return log_of(path).stat().st_size > 0
    except (OSError, ValueError):  # what is wrong with the path is told by who opens it
        return False


def write_log_again(path: Path) -> None:
    """Bring to the disk what is in the log, also what a sync that failed has left in the cache and called
    clean. The caller holds the store's write lock, so that nobody else adds to the log meanwhile."""
    try:
        log = os.open(log_of(path), os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while chunk := os.pread(log, _REWRITTEN_BYTES, offset):
            offset += os.pwrite(log, chunk, offset)  # maybe less than all of it: the rest is read again
        os.fsync(log)
    finally:
        os.close(log)
    sync_folder(path.parent)  # who made the log may have died before its name was durable


def identity_of(path: Path | str) -> FileIdentity | None:
    """Which file the path leads to now; None if to none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # each commit asks, and Path.stat takes twice as long
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def has_moved(connection: apsw.Connection) -> bool:
    """Whether the path that was opened leads to another file by now than the one that is open."""
    answer = ctypes.c_int()
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(answer))
    return bool(answer.value)


def has_unfinished_commit(connection: apsw.Connection, path: Path) -> bool:
    """Whether the log has, behind all that is committed, the head of a frame that ends a commit.

    A disk that is full may have taken that head, and not the page after it. Where the log has been at this
    place before, with the same page, the frame is whole all the same: who opens the store after a crash finds
    a commit that is done (decision 15).
    """
    [(_, done, _)] = cast("Any", connection.execute("PRAGMA wal_checkpoint(NOOP)").fetchall())
    with log_of(path).open("rb") as log:
        head = log.read(_LOG_HEAD_BYTES)
        if len(head) < _LOG_HEAD_BYTES:
            return False
        size, salts = _FRAME_HEAD_BYTES + int.from_bytes(head[8:12]), head[16:24]
        log.seek(_LOG_HEAD_BYTES + done * size)
        while (frame := log.read(_FRAME_HEAD_BYTES))[8:16] == salts:
            if any(frame[4:8]):  # the size of the file after it; zero in all frames of a commit but the last
                return True
            log.seek(size - _FRAME_HEAD_BYTES, os.SEEK_CUR)
    return False


def refuse_affected_library(version: str) -> None:
    """Up to 3.51.2 two connections that write and checkpoint a WAL database at once can corrupt it."""
    if tuple(int(part) for part in version.split(".")) < _LEAST_LIBRARY:
        raise StoreUnavailable(
            f"SQLite {version} can corrupt a store that two connections write at once",
            hint="install a current apsw, which brings its own SQLite: pip install -U apsw",
        )


def _load_checksums() -> None:
    """Register the checksumming VFS once; it makes itself the default, which other users of SQLite did not
    ask for."""
    if _VFS in apsw.vfs_names():
        return
    with _loading:
        names = apsw.vfs_names()
        if _VFS not in names:
            loader = apsw.Connection(":memory:")
            apsw.sqlite_extra.load(loader, "cksumvfs")
            loader.close()
            apsw.set_default_vfs(names[0])


def _settle_format(
    connection: apsw.Connection, path: Path, busy_timeout_s: float, *, read_only: bool, creates: bool
) -> None:
    migrations = _migrations()
    found, owner, has_tables = _read_header(connection)
    if (owner != APPLICATION_ID) if found else has_tables:
        raise UsageError(
            f"{path} is a SQLite file of somebody else", hint="name a Strandline store, or a new file"
        )
    if found == 0 and not creates:
        raise _no_store(path, "there is an empty file, and no store in it, at")
    if found > len(migrations):
        raise UnsupportedFormat(
            f"the store at {path} has format {found}, this version knows up to {len(migrations)}",
            hint="use the version of Strandline that wrote it, or a newer one",
        )
    if read_only:
        return
    if found == 0:
        connection.reserve_bytes(reserve=RESERVED_BYTES)
    _in_wal_mode(connection, busy_timeout_s)
    if found < len(migrations):
        _migrate(connection, migrations)


def _read_header(connection: apsw.Connection) -> tuple[int, int, bool]:
    """Format, owner, and whether there is anything, all of one instant: another process may be making it."""
    connection.execute("BEGIN")
    try:
        found, owner = connection.pragma("user_version"), connection.pragma("application_id")
        has_tables = bool(connection.execute("SELECT count(*) FROM sqlite_schema").get)
    finally:
        with suppress(apsw.SQLError):  # a read that fails has ended it, and is what should be told
            connection.execute("ROLLBACK")
    return found, owner, has_tables


def _migrate(connection: apsw.Connection, migrations: list[str]) -> None:
    """All of it in one transaction; a second process that opens meanwhile finds nothing left to do."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.pragma("user_version")
        for script in migrations[found:]:
            connection.execute(script)
        if found == 0:
            connection.pragma("application_id", APPLICATION_ID)
            connection.execute("INSERT INTO meta VALUES ('lineage', ?)", (secrets.token_hex(16),))
        if found < len(migrations):
            connection.pragma("user_version", len(migrations))
        connection.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


def _in_wal_mode(connection: apsw.Connection, busy_timeout_s: float) -> None:
    """Two processes that make a store at once meet here, where SQLite answers busy without waiting."""
    until = time.monotonic() + busy_timeout_s
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreUnavailable(
                f"the file system does not take a write-ahead log (journal mode {mode!r})",
                hint="keep the store on a local disk",
            )
        return


def _refuse_without_checksums(connection: apsw.Connection, path: Path) -> None:
    if not _is_checked(connection):
        raise StoreUnavailable(
            f"the store at {path} has no page checksums",
            hint="copy it through backup and restore, which gives it them",
        )


def _is_checked(connection: apsw.Connection) -> bool:
    is_on = str(connection.pragma("checksum_verification")) == "1"
    return is_on and connection.reserve_bytes() == RESERVED_BYTES


def _migrations() -> list[str]:
    folder = files("strandline.persist.backends").joinpath("schema/sqlite")
    scripts = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name
    )
    return [script.read_text(encoding="utf-8") for script in scripts]
