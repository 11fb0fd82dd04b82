"""The queries of a SQLite store: pages of events by range, type and time, each a seek and a short walk."""

from collections.abc import Iterable
from typing import Any, Final

import apsw

from strandline.errors import CorruptionError, EventCorrupt
from strandline.persist.backends.sqlite_transaction import SEQ_BITS, SEQ_MASK
from strandline.persist.event import Scalar
from strandline.persist.reserved import GLOBAL

SCAN_ROWS: Final = 20_000
FEW_MATCHES: Final = 2000

DAMAGED_PAGE: Final = "the page that holds it does not match its checksum"
_ON_THE_WAY: Final = "a page on the way to it does not match its checksum"
_LOOKED_AT: Final = 1000

_COLUMNS: Final = "SELECT id, type, at, data FROM events"


def trimmed(connection: apsw.Connection) -> int:
    """Up to which position the global order is cut."""
    row = connection.execute("SELECT truncated FROM streams WHERE name = ?", (GLOBAL,)).fetchone()
    return row[0] if row else 0


def is_damage(error: apsw.Error) -> bool:
    """Whether SQLite met bytes that are not what was written."""
    found = getattr(error, "extendedresult", 0)
    return isinstance(error, (apsw.CorruptError, apsw.NotADBError)) or found == apsw.SQLITE_IOERR_DATA


def page_rows(
    connection: apsw.Connection,
    stream: int,
    first: int,
    last: int,
    limit: int,
    type_: str | None,
    start: Scalar | None,
    end: Scalar | None,
) -> Iterable[tuple[Any, ...]]:
    """(id, type, at, data) of one page of a stream. The truncation point is read in the same statement as
    the rows."""
    low = stream << SEQ_BITS
    visible = f"id BETWEEN max(?, {low + 1} + (SELECT truncated FROM streams WHERE id = {stream})) AND ?"
    bounds = (low + first, low + last)
    if type_ is not None:
        found = connection.execute("SELECT id FROM types WHERE name = ?", (type_,)).fetchone()
        if found is None:
            return ()
        visible, bounds = f"type = ? AND {visible}", (found[0], *bounds)  # type: ignore[assignment]  # one more
    if start is None and end is None:
        hint = "" if type_ is None else " INDEXED BY events_type"
        return connection.execute(f"{_COLUMNS}{hint} WHERE {visible} ORDER BY id LIMIT ?", (*bounds, limit))
    return _rows_in_time(connection, stream, visible, bounds, limit, start, end)


def _rows_in_time(
    connection: apsw.Connection,
    stream: int,
    visible: str,
    bounds: tuple[int, ...],
    limit: int,
    start: Scalar | None,
    end: Scalar | None,
) -> Iterable[tuple[Any, ...]]:
    """A page in order of seq out of an index in order of time, at a cost that follows the page.

    Few matches are sorted. Many are met by walking on in order of seq, as they mostly lie together; where a
    walk finds none, the index tells where the next one is. Whether they are few is asked of the whole
    window, since the index cannot begin at a seq: counting only what is left would pass by all that earlier
    pages have returned, again with each page.
    """
    within, times = time_bounds(start, end)
    in_window = f"FROM events INDEXED BY events_at WHERE stream = {stream} AND {within}"
    matches = f"SELECT count(*) FROM (SELECT 1 {in_window} LIMIT ?)"
    if connection.execute(matches, (*times, FEW_MATCHES + 1)).get <= FEW_MATCHES:
        few = f"{_COLUMNS} NOT INDEXED WHERE id IN (SELECT id {in_window}) AND {visible} ORDER BY id LIMIT ?"
        return connection.execute(few, (*times, *bounds, limit))
    walk = f"{_COLUMNS} NOT INDEXED WHERE {visible} AND {within} ORDER BY id LIMIT ?"
    *chosen, first, last = bounds
    near = connection.execute(walk, (*chosen, first, min(last, first + SCAN_ROWS), *times, limit)).fetchall()
    if near:
        return near
    (nearest,) = connection.execute(
        f"SELECT min(id) {in_window} AND {visible}", (*times, *bounds)
    ).fetchone() or (None,)
    if nearest is None:
        return ()
    return connection.execute(walk, (*chosen, nearest, min(last, nearest + SCAN_ROWS), *times, limit))


def time_bounds(start: Scalar | None, end: Scalar | None) -> tuple[str, tuple[Scalar, ...]]:
    """A condition on `at` and its bindings. SQLite sorts every number below every text, so '' parts the two
    kinds."""
    if start is None and end is None:
        return "1", ()
    if start is None:
        return ("at >= '' AND at <= ?" if isinstance(end, str) else "at <= ?"), (end,)  # type: ignore[return-value]
    if end is None:
        return ("at >= ?" if isinstance(start, str) else "at >= ? AND at < ''"), (start,)
    if isinstance(start, str) is not isinstance(end, str):
        return "0", ()
    return "at >= ? AND at <= ?", (start, end)


def located(connection: apsw.Connection, stream: str, base: int, first: int, last: int) -> EventCorrupt:
    """The first event that cannot be read, looked at one by one."""
    for seq in range(first, min(last, first + _LOOKED_AT) + 1):
        if not _is_readable(connection, "SELECT data FROM events WHERE id = ?", base + seq):
            return EventCorrupt(stream, seq, DAMAGED_PAGE)
    return EventCorrupt(stream, first, _ON_THE_WAY)


def located_pointer(connection: apsw.Connection, first: int) -> EventCorrupt:
    """The first position of the global order that cannot be read."""
    for position in range(first, first + _LOOKED_AT):
        if not _is_readable(connection, "SELECT * FROM pointers WHERE position = ?", position):
            return EventCorrupt(GLOBAL, position, DAMAGED_PAGE)
    return EventCorrupt(GLOBAL, first, _ON_THE_WAY)


def located_globally(connection: apsw.Connection, first: int) -> EventCorrupt:
    """The first event that cannot be read in the global order, or the position that should name it."""
    found = located_pointer(connection, first)
    query = (
        "SELECT s.name, event FROM pointers JOIN streams s ON s.id = event >> ?"
        " WHERE position >= ? AND position < ? ORDER BY position"
    )
    until = found.seq if found.seq != first else first + _LOOKED_AT
    try:
        for stream, id_ in connection.execute(query, (SEQ_BITS, first, until)):
            if not _is_readable(connection, "SELECT data FROM events WHERE id = ?", id_):
                return EventCorrupt(stream, id_ & SEQ_MASK, DAMAGED_PAGE)
    except apsw.Error as error:
        if not is_damage(error):
            raise
    return found


def _is_readable(connection: apsw.Connection, query: str, number: int) -> bool:
    try:
        connection.execute(query, (number,)).fetchall()
    except apsw.Error as error:
        if not is_damage(error):
            raise
        return False
    return True


def located_key(connection: apsw.Connection, prefix: str, after: str) -> CorruptionError:
    """The first key that cannot be read. Its name is read with the page check off, so nothing else may be
    read through this connection any more."""
    connection.pragma("checksum_verification", "off")
    query = "SELECT name FROM keys WHERE name >= ? AND name > ? ORDER BY name LIMIT 1"
    try:
        found = connection.execute(query, (prefix, after)).fetchone()
    except (apsw.Error, UnicodeDecodeError):
        found = None
    if found is None:
        return CorruptionError(
            f"what follows key {after or prefix!r} is damaged: a page is malformed",
            hint="`strandline persist verify` lists all damage",
        )
    return EventCorrupt(str(found[0]), None, DAMAGED_PAGE)
