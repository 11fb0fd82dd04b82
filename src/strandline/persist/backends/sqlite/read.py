"""The queries of a SQLite store: pages of events by range, type and time, each a seek and a short walk."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import apsw
import orjson

from strandline.errors import CorruptionError, EventCorrupt
from strandline.persist.backends.sqlite.transaction import SEQ_BITS, SEQ_MASK
from strandline.persist.core.block import RUN_STEP
from strandline.persist.event import Scalar
from strandline.persist.reserved import GLOBAL

SCAN_ROWS: Final = 20_000
FEW_MATCHES: Final = 2000

DAMAGED_PAGE: Final = "the page that holds it does not match its checksum"
UNDECODABLE: Final = (orjson.JSONDecodeError, UnicodeDecodeError)
UNREADABLE: Final = (apsw.Error, *UNDECODABLE)
# Rows that cannot stand beside each other are none that were written so: our own names are looked up first.
_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError, *UNDECODABLE)
_ON_THE_WAY: Final = "a page on the way to it does not match its checksum"
NOT_ONE: Final = "it is missing, or two rows have it"
_LOOKED_AT: Final = 1000

_COLUMNS: Final = "SELECT id, type, at, data FROM events"
# The runs of the global order from position ?1 on, at most ?2, each with the position before its first and
# with the length that its sum says: see core/block.py.
RUNS: Final = (
    f"SELECT position, event, at, (sum - position - 3 * (event & {SEQ_MASK})) / {RUN_STEP} + 1 AS length,"
    " coalesce((SELECT max(q.position) FROM pointers q"
    " WHERE q.position < p.position AND q.position >= ?1), ?1 - 1) AS before"
    " FROM pointers p WHERE position >= ?1 ORDER BY position LIMIT ?2"
)

_FOLLOWS: Final = "length = position - before OR (before = ?1 - 1 AND length > position - before)"


def trimmed(connection: apsw.Connection) -> int:
    """Up to which position the global order is cut."""
    row = connection.execute("SELECT truncated FROM streams WHERE name = ?", (GLOBAL,)).fetchone()
    return row[0] if row else 0


def names_from(prefix: str, after: str) -> tuple[str, str]:
    """A condition, and what it binds, for a walk over names that start with `prefix` and come after `after`.

    It is one bound, the higher of the two: with both, SQLite seeks by one, and may walk from it to the other
    with every page.
    """
    return ("name > ?", after) if after >= prefix else ("name >= ?", prefix)


def is_damage(error: Exception) -> bool:
    """Whether SQLite, or who decodes what it read, met bytes that are not what was written."""
    found = getattr(error, "extendedresult", 0)
    return isinstance(error, _DAMAGE) or found == apsw.SQLITE_IOERR_DATA


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


def check_run(position: int, before: int, length: int, first: int) -> None:
    """Raise EventCorrupt if a run does not begin where the one before it ends: a row between them is lost.

    The run that has the position `first` may begin before it.
    """
    if length == position - before or (before == first - 1 and length > position - before):
        return
    raise EventCorrupt(GLOBAL, before + 1, NOT_ONE)


def global_rows(
    connection: apsw.Connection, first: int, limit: int
) -> Iterator[tuple[int, str, int, Any, Any, Any]]:
    """(position, stream, seq, type, at, data) of one page of the global order. Of an event that is gone the
    last two are None, and in the place of its type is the truncation point of its stream."""
    first = max(first, trimmed(connection) + 1)
    return islice(_filled(_runs_with_events(connection, first, limit), first, limit), limit)


def _runs_with_events(connection: apsw.Connection, first: int, limit: int) -> Iterable[tuple[Any, ...]]:
    """Each run with each of its events that is there, or with none. `before` is null for a run that does not
    follow on the one before it."""
    return connection.execute(
        f"SELECT position, CASE WHEN {_FOLLOWS} THEN before END, event & {SEQ_MASK}, s.name, s.truncated,"
        f" e.id & {SEQ_MASK}, e.type, e.at, e.data FROM ({RUNS})"
        f" CROSS JOIN streams s ON s.id = event >> {SEQ_BITS}"
        f" LEFT JOIN events e ON e.id BETWEEN"
        f" max(event - position + before, (s.id << {SEQ_BITS}) + s.truncated) + 1 AND event LIMIT ?2",
        (first, limit),
    )


def _filled(
    rows: Iterable[tuple[Any, ...]], first: int, limit: int
) -> Iterator[tuple[int, str, int, Any, Any, Any]]:
    """Every position of every run, with what is there. The last run may go on after the last row that was
    asked for."""
    position = done = number = offset = cut = 0
    stream, seq = "", None
    for number, row in enumerate(rows, 1):  # noqa: B007  # how many came is asked below
        last, before, last_seq, name, truncated, seq, type_, at, text = row
        if last != position:
            if before is None:
                raise EventCorrupt(GLOBAL, max(position + 1, first), NOT_ONE)
            yield from _gone(stream, offset, cut, done, position)
            position, done, offset, stream, cut = last, before, last - last_seq, name, truncated
        if seq is not None:
            if done < seq + offset - 1:
                yield from _gone(stream, offset, cut, done, seq + offset - 1)
            done = seq + offset
            yield done, stream, seq, type_, at, text
    if number < limit or seq is None:
        yield from _gone(stream, offset, cut, done, position)


def _gone(
    stream: str, offset: int, truncated: int, done: int, through: int
) -> Iterator[tuple[int, str, int, int, None, None]]:
    return ((place, stream, place - offset, truncated, None, None) for place in range(done + 1, through + 1))


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
        f"SELECT position, before, s.name, event FROM ({RUNS})"
        f" CROSS JOIN streams s ON s.id = event >> {SEQ_BITS}"
    )
    until = first + _LOOKED_AT if found.seq in (None, first) else found.seq
    try:
        for position, before, stream, last in connection.execute(query, (first, _LOOKED_AT)):
            for id_ in range(last - position + before + 1, last + min(0, until - 1 - position) + 1):
                if not _is_readable(connection, "SELECT data FROM events WHERE id = ?", id_):
                    return EventCorrupt(stream, id_ & SEQ_MASK, DAMAGED_PAGE)
    except UNREADABLE as error:
        if not is_damage(error):
            raise
    return found


def _is_readable(connection: apsw.Connection, query: str, number: int) -> bool:
    try:
        for first, *_ in connection.execute(query, (number,)):
            if isinstance(first, str):  # an event's data
                orjson.loads(first)
    except UNREADABLE as error:
        if not is_damage(error):
            raise
        return False
    return True


def located_key(connection: apsw.Connection, prefix: str, after: str) -> CorruptionError:
    """The first key that cannot be read. Its name is read with the page check off, so nothing else may be
    read through this connection any more."""
    connection.pragma("checksum_verification", "off")
    beyond, bound = names_from(prefix, after)
    query = f"SELECT name FROM keys WHERE {beyond} ORDER BY name LIMIT 1"
    try:
        found = connection.execute(query, (bound,)).fetchone()
    except (apsw.Error, UnicodeDecodeError):
        found = None
    if found is None:
        return CorruptionError(
            f"what follows key {after or prefix!r} is damaged: a page is malformed",
            hint="`strandline persist verify` lists all damage",
        )
    return EventCorrupt(str(found[0]), None, DAMAGED_PAGE)
