"""Opening a SQLite store file: the library, the page checksums, the pragmas, the format."""

import secrets
import threading
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

import apsw
import apsw.sqlite_extra

from strandline.errors import (
    EventCorrupt,
    NotFoundError,
    StoreUnavailable,
    StrandlineError,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist.backends.sqlite_read import is_damage

APPLICATION_ID: Final = 0x5374_726E  # "Strn", by which `file` and we know a store
RESERVED_BYTES: Final = 8  # of each page, for its checksum
_LEAST_LIBRARY: Final = (3, 51, 3)
_VFS: Final = "cksmvfs"
_loading = threading.Lock()


def open_file(
    path: Path, *, create: bool, synchronous: str, busy_timeout_s: float, read_only: bool = False
) -> apsw.Connection:
    """A connection to the store at `path`, made and brought to the present format if need be."""
    refuse_affected_library(apsw.sqlite_lib_version())
    if not path.exists() and (read_only or not create):
        raise NotFoundError(
            f"there is no store at {path}", hint="check the path; a command that only reads makes none"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in it")
    connection: apsw.Connection | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = connect(
            path, synchronous=synchronous, busy_timeout_s=busy_timeout_s, read_only=read_only
        )
        _settle_format(connection, path, busy_timeout_s, read_only)
        _refuse_without_checksums(connection, path)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, (apsw.Error, OSError)) and not isinstance(error, apsw.SQLError):
            raise _refusal(path, error) from error
        raise
    return connection


def _refusal(path: Path, error: Exception) -> StrandlineError:
    if isinstance(error, apsw.NotADBError):
        return UsageError(
            f"{path} is no SQLite file", hint="name a Strandline store, or a file that is not there"
        )
    if isinstance(error, apsw.Error) and is_damage(error):
        return EventCorrupt(path.name, 0, f"a page of the file is damaged ({error})")
    return StoreUnavailable(f"the store at {path} cannot be opened: {error}", hint="check folder and rights")


def connect(
    path: Path, *, synchronous: str, busy_timeout_s: float, read_only: bool = False
) -> apsw.Connection:
    """One more connection to a store that is there."""
    _load_checksums()
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(str(path), flags=flags, vfs=_VFS, statementcachesize=200)
    connection.set_busy_timeout(int(busy_timeout_s * 1000))
    connection.setlk_timeout(int(busy_timeout_s * 1000), 0)  # waits at the lock: fairer to processes
    connection.pragma("synchronous", synchronous)
    connection.pragma("secure_delete", "on")  # what is deleted is zeroed, so that erased data leaves the file
    connection.pragma("cache_size", -16_000)
    return connection


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
    with _loading:
        names = apsw.vfs_names()
        if _VFS not in names:
            loader = apsw.Connection(":memory:")
            apsw.sqlite_extra.load(loader, "cksumvfs")
            loader.close()
            apsw.set_default_vfs(names[0])


def _settle_format(connection: apsw.Connection, path: Path, busy_timeout_s: float, read_only: bool) -> None:
    found = connection.pragma("user_version")
    migrations = _migrations()
    if found == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise UsageError(
            f"{path} is a SQLite file of somebody else", hint="name a Strandline store, or a new file"
        )
    if found and connection.pragma("application_id") != APPLICATION_ID:
        raise UsageError(
            f"{path} is a SQLite file of somebody else", hint="name a Strandline store, or a new file"
        )
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
    if connection.reserve_bytes() != RESERVED_BYTES or str(connection.pragma("checksum_verification")) != "1":
        raise StoreUnavailable(
            f"the store at {path} has no page checksums",
            hint="copy it through backup and restore, which gives it them",
        )


def _migrations() -> list[str]:
    folder = files("strandline.persist.backends").joinpath("schema/sqlite")
    scripts = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name
    )
    return [script.read_text(encoding="utf-8") for script in scripts]
