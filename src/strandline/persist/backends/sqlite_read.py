"""The queries of a SQLite store: pages of events by range, type and time, each a seek and a short walk."""

from collections.abc import Iterable
from typing import Any, Final

import apsw

from strandline.persist.backends.sqlite_transaction import SEQ_BITS
from strandline.persist.event import Scalar
from strandline.persist.reserved import GLOBAL

SCAN_ROWS: Final = 20_000
FEW_MATCHES: Final = 2000

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
    walk finds none, the index tells where the next one is.
    """
    within, times = time_bounds(start, end)
    by_time = f"FROM events INDEXED BY events_at WHERE stream = {stream} AND {within} AND {visible}"
    ids: list[Any] = connection.execute(
        f"SELECT id {by_time} LIMIT ?", (*times, *bounds, FEW_MATCHES + 1)
    ).fetchall()
    if len(ids) <= FEW_MATCHES:
        wanted = sorted(id_ for (id_,) in ids)[:limit]
        marks = ",".join("?" * len(wanted))
        return connection.execute(f"{_COLUMNS} WHERE id IN ({marks}) ORDER BY id", wanted)
    walk = f"{_COLUMNS} NOT INDEXED WHERE {visible} AND {within} ORDER BY id LIMIT ?"
    *chosen, first, last = bounds
    near = connection.execute(walk, (*chosen, first, min(last, first + SCAN_ROWS), *times, limit)).fetchall()
    if near:
        return near
    (nearest,) = connection.execute(f"SELECT min(id) {by_time}", (*times, *bounds)).fetchone() or (None,)
    return connection.execute(walk, (*chosen, nearest, last, *times, limit)) if nearest is not None else ()


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
