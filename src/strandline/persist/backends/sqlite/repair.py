"""A store whose file another SQLite program has written: what is damaged in it, and its repair."""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import apsw

from strandline.errors import CorruptionError, NotFoundError, StoreUnavailable, StrandlineError, UsageError
from strandline.persist.backend import Damage
from strandline.persist.backends.sqlite.file import (
    APPLICATION_ID,
    RESERVED_BYTES,
    connect,
    damaged_file,
    has_log,
    refuse_affected_library,
    write_log_again,
)
from strandline.persist.backends.sqlite.fork import settle
from strandline.persist.backends.sqlite.pages import wrong_pages
from strandline.persist.backends.sqlite.read import is_damage
from strandline.persist.backends.sqlite.survey import survey

BUSY_S: Final = 30.0
_SHOWN: Final = 5
_FAULTS: Final = 20
_REMEDY: Final = "another SQLite program has written the file, and `strandline persist repair` mends it"


def damage_of(path: Path) -> list[Damage]:
    """All that is damaged in a store file, read without its page check: the store need not open."""
    with _translated(path):
        with closing(_connection(path)) as connection:
            pages = wrong_pages(path, connection)
        found = _damaged_rows(path)
    if not pages:
        return found
    if any(damage.what != "quarantined" for damage in found):
        return [*found, _of_file(path, _numbers(pages))]
    return [*found, _of_file(path, f"{_numbers(pages)}, and all rows match theirs: {_REMEDY}")]


def repair(path: Path) -> int:
    """Give the right checksums to all pages, and return how many did not have them.

    All rows must match their own checksums, and tables their indexes, or it raises CorruptionError and leaves
    the store as it is. It writes the whole file anew, in one transaction, so a crash changes nothing.
    """
    with _translated(path):
        return _repaired(path)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.BusyError as error:
        raise StoreUnavailable(
            f"another process has held the store for over {BUSY_S:.0f} s", hint="end it, then repeat"
        ) from error
    except apsw.FullError as error:
        raise StoreUnavailable(
            "the disk is full; nothing was repaired",
            hint="make as much room as the store takes, then repeat",
        ) from error
    except (apsw.Error, OSError) as error:
        raise _unreadable(path, error) from error


def _repaired(path: Path) -> int:
    with closing(_connection(path)) as connection:
        _empty_log(connection, path)
        pages = wrong_pages(path, connection)
    if not pages:
        return 0
    damaged = [damage for damage in _damaged_rows(path) if damage.what != "quarantined"]
    if damaged:
        raise CorruptionError(
            f"the store at {path.name} is damaged, so nothing was repaired: {_said(damaged)}",
            hint="restore a backup into a new store",
        )
    with closing(_connection(path)) as connection:
        connection.execute("VACUUM")
        _empty_log(connection, path)
        left = wrong_pages(path, connection)
    if left:
        raise CorruptionError(
            f"pages of the store at {path.name} were written by another program during the repair",
            hint="end that program, then repeat",
        )
    return len(pages)


def _connection(path: Path) -> apsw.Connection:
    """One without the page check, which leaves the log as it is when it is closed."""
    refuse_affected_library(apsw.sqlite_lib_version())
    settle(path)
    if not path.is_file():
        raise NotFoundError(f"there is no store at {path}", hint="check the path")
    connection = connect(path, synchronous="FULL", busy_timeout_s=BUSY_S, has_page_check=False)
    try:
        if (
            connection.pragma("application_id") != APPLICATION_ID
            or connection.reserve_bytes() != RESERVED_BYTES
        ):
            raise UsageError(
                f"{path} is not a Strandline store with page checksums", hint="name a store in SQLite"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _empty_log(connection: apsw.Connection, path: Path) -> None:
    """Copy the log into the file, which gives the pages in it their checksums."""
    if has_log(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            write_log_again(path)  # as before any first commit (decision 17)
        finally:
            connection.execute("ROLLBACK")
    [(is_busy, *_)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if is_busy:
        raise apsw.BusyError("a reader holds the log")


def _damaged_rows(path: Path) -> list[Damage]:
    """What rows say by their own checksums, and tables and indexes by their structure."""
    with closing(_connection(path)) as connection:
        try:
            lineage = str(connection.execute("SELECT value FROM meta WHERE name = 'lineage'").get)
            found = survey(connection, lineage, path.name)
        except apsw.Error as error:
            if not is_damage(error):
                raise
            found = [_of_file(path, f"reading stopped: {error}")]
    with closing(_connection(path)) as connection:
        try:
            faults = [row[0] for row in connection.execute(f"PRAGMA integrity_check({_FAULTS})")]
        except apsw.Error as error:
            if not is_damage(error):
                raise
            faults = [str(error)]
    return found + [_of_file(path, fault) for fault in faults if fault != "ok"]


def _of_file(path: Path, found: str) -> Damage:
    return Damage("file", path.name, 0, found)


def _numbers(pages: list[int]) -> str:
    if len(pages) == 1:
        return f"page {pages[0]} does not match its checksum"
    shown = ", ".join(map(str, pages[:_SHOWN])) + (" and others" if len(pages) > _SHOWN else "")
    return f"{len(pages):,} pages ({shown}) do not match their checksums"


def _said(damaged: Iterable[Damage]) -> str:
    listed = [f"{damage.what} {damage.name} {damage.seq or ''}: {damage.found}" for damage in damaged]
    return "; ".join(listed[:_SHOWN])


def _unreadable(path: Path, error: Exception) -> StrandlineError:
    if isinstance(error, apsw.NotADBError):
        return UsageError(f"{path} is not a SQLite file", hint="name a store in SQLite")
    if is_damage(error):
        return damaged_file(path, error)
    return StoreUnavailable(f"the store at {path} cannot be repaired: {error}", hint="check disk and rights")
