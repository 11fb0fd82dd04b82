"""The queries of the reads. Each runs in one statement, so in one snapshot, and seeks by an index.

Truncation hides rows at once and deletes them later, so every query leaves out what is at or below the
truncation point. A page ends after so many rows, or so many bytes: it may be shorter than was asked for.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

from psycopg.types.numeric import Float8, Int8

from strandline.persist.backend import StreamHead
from strandline.persist.backends.postgres.connection import Connection
from strandline.persist.backends.postgres.rows import (
    ColumnBounds,
    at_of,
    check_pointers,
    events_of,
    pointer_of,
    prefix_end,
    value_of,
    window,
)
from strandline.persist.event import Compacted, Event, Scalar, Storable
from strandline.persist.reserved import GLOBAL
from strandline.persist.value import MAX_SEQ

Row: TypeAlias = tuple[Any, ...]

PAGE_ROWS: Final = 1000
PAGE_BYTES: Final = 16 * 1024 * 1024
_NEAR_ROWS: Final = 2000
_SCAN_ROWS: Final = 10_000

_ROW: Final = "e.seq, e.type, e.at_int, e.at_real, e.at_text, e.data, e.sum"
# A page leaves a large text out; it is then fetched by itself, while there is room. So no page is large, and
# one of small texts costs nothing for that.
_SMALL_BYTES: Final = PAGE_BYTES // PAGE_ROWS
_DATA: Final = f"case when octet_length(e.data) <= {_SMALL_BYTES} then e.data end"
_EVENT: Final = _ROW.replace("e.data", _DATA)

_VALUE: Final = "select key, text, seqs, sum from kv where key = %b"
_HEAD: Final = "select last_seq, truncated from stream where name = %b"

_RANGE: Final = f"""
select {_EVENT} from stream s, lateral (
    select * from event
    where stream_id = s.id and seq > s.truncated and seq between %b and %b order by seq limit %b
) e where s.name = %b order by e.seq
"""

_AT: Final = f"""
select {_ROW} from stream s join event e on e.stream_id = s.id
where s.name = %b and e.seq = %b and e.seq > s.truncated
"""


def head(connection: Connection, stream: str) -> tuple[int, int]:
    row = connection.execute(_HEAD, [stream], binary=True).fetchone()
    return (row[0], row[1]) if row else (0, 0)


def event_at(connection: Connection, stream: str, seq: int) -> Event | None:
    row = connection.execute(_AT, [stream, Int8(seq)], binary=True).fetchone()
    return events_of(stream, [row])[0] if row else None


def raw(connection: Connection, stream: str, seq: int) -> tuple[str, Scalar, str, int] | None:
    """A stored event as it is, damaged or not."""
    row = connection.execute(_AT, [stream, Int8(seq)], binary=True).fetchone()
    return (row[1], at_of(*row[2:5]), row[5], row[6]) if row else None


def page(connection: Connection, stream: str, first: int, last: int, limit: int) -> list[Event]:
    """At most `limit` events of first <= seq <= last."""
    given = [Int8(first), Int8(last), Int8(min(limit, PAGE_ROWS)), stream]
    return _events(connection, stream, lambda: connection.execute(_RANGE, given, binary=True).fetchall())


def _events(connection: Connection, stream: str, look: Callable[[], list[Row]]) -> list[Event]:
    def fetch(row: Row) -> Row | None:
        return connection.execute(_AT, [stream, Int8(row[0])], binary=True).fetchone()

    return events_of(stream, _page(look, 5, fetch))


def _page(look: Callable[[], list[Row]], text: int, fetch: Callable[[Row], Row | None]) -> list[Row]:
    """A page that is complete; only one that was empty at once is empty."""
    while rows := look():
        if whole := _completed(rows, text, fetch):
            return whole
    return []


def _completed(rows: list[Row], text: int, fetch: Callable[[Row], Row | None]) -> list[Row]:
    """The rows of a page with the large texts in their column, as far as the page's bytes go."""
    if all(row[text] is not None for row in rows):
        return rows
    whole: list[Row] = []
    size = 0
    for found in rows:
        row = found if found[text] is not None else fetch(found)
        if row is not None:  # else it was truncated or deleted in between
            whole.append(row)
            size += len(row[text])
        if size >= PAGE_BYTES:
            break
    return whole


def chosen_page(
    connection: Connection,
    stream: str,
    first: int,
    last: int,
    limit: int,
    type_: str | None,
    start: Scalar | None,
    end: Scalar | None,
) -> list[Event]:
    """The same of one type, within a window of time, or both.

    A type alone is an index in order of seq. A window is not, and has two ways: a walk by seq, which costs
    what stands before the page, and the index of its kind of `at`, which costs the whole window. They take
    turns at a growing number of rows, so a page costs no more than a few times the cheaper of the two, and
    all pages of a window together no more than a few walks of the stream.
    """
    asked: dict[str, Any] = {"stream": stream, "first": Int8(first), "last": Int8(last)}
    asked["limit"] = Int8(min(limit, PAGE_ROWS))
    seqs, types = "{seq} > s.truncated and {seq} between %(first)b and %(last)b", ""
    if type_ is not None:
        asked["type"] = type_
        types = " and {type} = %(type)b"
    near = (seqs + types).format(seq="e.seq", type="e.type")
    if start is None and end is None:
        return _chosen(
            connection, asked, f"select * from event e where stream_id = s.id and {near} order by seq"
        )
    bounds = window(start, end)
    if bounds is None:
        return []
    conditions = _within(bounds, asked)
    few = f"select * from event e where stream_id = s.id and {near} order by seq limit %(rows)b"
    within = " or ".join(conditions)
    rows = _NEAR_ROWS
    while True:
        asked["rows"] = Int8(rows)
        if found := _chosen(connection, asked, f"select * from ({few}) e where {within} order by seq"):
            return found
        walked, seq = _one(connection, asked, f"select count(*), max(e.seq) from stream s, lateral ({few}) e")
        if walked < rows:
            return []
        asked["first"] = Int8(seq + 1)  # what is appended meanwhile comes after that
        if _is_small(connection, asked, conditions):
            break
        rows *= 2
    # Columns in an expression are no use to the planner: only the index of `at` is left to it.
    far = (seqs + types).format(seq="(seq + 0)", type="(type || '')")
    each = (
        f"(select * from event where stream_id = s.id and {one} and {far} order by seq + 0 limit %(limit)b)"
        for one in conditions
    )
    return _chosen(connection, asked, f"select * from ({' union all '.join(each)}) e order by seq")


def _is_small(connection: Connection, asked: dict[str, Any], conditions: list[str]) -> bool:
    """Whether a window has fewer events, of any seq, than rows were asked for."""
    each = " union all ".join(
        f"(select from event where stream_id = s.id and {one} limit %(rows)b)" for one in conditions
    )
    (count,) = _one(connection, asked, f"select count(*) from stream s, lateral ({each}) e")
    return bool(count < asked["rows"])


def _one(connection: Connection, asked: dict[str, Any], select: str) -> Row:
    query = f"{select} where s.name = %(stream)b"
    row = connection.execute(query.encode(), asked, binary=True, prepare=False).fetchone()
    assert row is not None, "a count has a row"
    return row


def _chosen(connection: Connection, asked: dict[str, Any], ordered: str) -> list[Event]:
    query = f"""
        select {_EVENT} from stream s, lateral ({ordered} limit %(limit)b) e
        where s.name = %(stream)b order by e.seq
    """

    def look() -> list[Row]:
        return connection.execute(query, asked, binary=True, prepare=False).fetchall()

    return _events(connection, asked["stream"], look)


def _within(bounds: ColumnBounds, asked: dict[str, Any]) -> list[str]:
    """One condition for each column that can match."""
    conditions = []
    if bounds.ints is not None:
        asked["low"], asked["high"] = map(Int8, bounds.ints)
        conditions.append("at_int between %(low)b and %(high)b")
    if bounds.reals is not None:
        asked["least"], asked["most"] = map(Float8, bounds.reals)
        conditions.append("at_int is null and at_real between %(least)b and %(most)b")
    if bounds.texts is not None:
        asked["from"], to = bounds.texts
        conditions.append("at_int is null and at_real is null and at_text >= %(from)b")
        if to is not None:
            asked["to"] = to
            conditions[-1] += " and at_text <= %(to)b"
    return conditions


_POINTERS: Final = """
select p.position, s.name, p.seq, p.at_int, p.at_real, p.at_text, p.sum from (
    select * from pointer
    where position > (select truncated from stream where id = 0) and position between %b and %b
    order by position limit %b
) p left join stream s on s.id = p.stream_id order by p.position
"""


def pointer_page(connection: Connection, first: int, last: int, limit: int) -> list[Event]:
    """At most `limit` events of the stream `$global`."""
    given = [Int8(first), Int8(last), Int8(min(limit, PAGE_ROWS))]
    rows = connection.execute(_POINTERS, given, binary=True)
    return [pointer_of(row[0], row[1], row[2:]) for row in rows]


def chosen_pointers(
    connection: Connection, first: int, last: int, limit: int, start: Scalar | None, end: Scalar | None
) -> list[Event]:
    """The same within a window of time; pointers have no index of it."""
    bounds = window(start, end)
    if bounds is None:
        return []
    asked: dict[str, Any] = {"first": Int8(first), "last": Int8(last), "limit": Int8(min(limit, PAGE_ROWS))}
    query = f"""
        select p.position, s.name, p.seq, p.at_int, p.at_real, p.at_text, p.sum from (
            select * from pointer
            where position > (select truncated from stream where id = 0)
                and position between %(first)b and %(last)b and ({" or ".join(_within(bounds, asked))})
            order by position limit %(limit)b
        ) p left join stream s on s.id = p.stream_id order by p.position
    """
    rows = connection.execute(query, asked, binary=True, prepare=False)
    return [pointer_of(row[0], row[1], row[2:]) for row in rows]


_GLOBAL: Final = f"""
select p.position, s.name, p.seq, p.at_int, p.at_real, p.at_text, p.sum,
    {_EVENT.replace("case when", "case when e.seq is null then '' when")}, s.truncated
from (
    select * from pointer
    where position > (select truncated from stream where id = 0) and position >= %b
    order by position limit %b
) p
left join stream s on s.id = p.stream_id
left join event e on e.stream_id = p.stream_id and e.seq = p.seq and e.seq > s.truncated
order by p.position
"""
_GONE: Final = (None, None, None, None, None, "", None)


def global_page(
    connection: Connection, first: int, limit: int
) -> tuple[list[tuple[int, Event | Compacted]], list[Compacted]]:
    """At most `limit` positions from `first` on, each with its event; and the events among them that are gone
    without having been truncated."""
    rows = connection.execute(_GLOBAL, [Int8(first), Int8(min(limit, PAGE_ROWS))], binary=True).fetchall()

    def fetch(row: Row) -> Row:
        event = connection.execute(_AT, [row[1], Int8(row[2])], binary=True).fetchone() or _GONE
        return (*row[:7], *event, row[14])

    found: list[tuple[int, Event | Compacted]] = []
    lost: list[Compacted] = []
    for name, run in groupby(_completed(rows, 12, fetch), itemgetter(1)):
        of_one = list(run)
        check_pointers(name, of_one)
        events = iter(events_of(name, [row[7:14] for row in of_one if row[7] is not None]))
        found += [(row[0], Compacted(name, row[2]) if row[7] is None else next(events)) for row in of_one]
        lost += [Compacted(name, row[2]) for row in of_one if row[7] is None and row[2] > row[14]]
    return found, lost


def stream_page(connection: Connection, prefix: str, after: str, limit: int) -> list[StreamHead]:
    query, given = _listing(
        "select name, last_seq, truncated from stream where last_seq > 0 and", "name", prefix, after
    )
    rows = connection.execute(query, [*given, Int8(min(limit, _SCAN_ROWS))], binary=True)
    return [StreamHead(*row) for row in rows]


def value_page(connection: Connection, prefix: str, after: str, limit: int) -> list[tuple[str, Storable]]:
    small = f"case when octet_length(text) <= {_SMALL_BYTES} then text end"
    query, given = _listing(f"select key, {small}, seqs, sum from kv where", "key", prefix, after)

    def look() -> list[Row]:
        return connection.execute(query, [*given, Int8(min(limit, PAGE_ROWS))], binary=True).fetchall()

    def fetch(row: Row) -> Row | None:
        return connection.execute(_VALUE, [row[0]], binary=True).fetchone()

    return [(row[0], value_of(*row)) for row in _page(look, 1, fetch)]


def key_page(connection: Connection, after: str) -> list[str]:
    query, given = _listing("select key from kv where", "key", "", after)
    return [row[0] for row in connection.execute(query, [*given, Int8(_SCAN_ROWS)], binary=True)]


def _listing(select: str, column: str, prefix: str, after: str) -> tuple[str, list[str]]:
    """Names that start with `prefix` and come after `after`, as one range of the index."""
    end = prefix_end(prefix)
    below = f" and {column} < %b" if end is not None and prefix else ""
    given = [after, prefix, end] if below else [after, prefix]
    return f"{select} {column} > %b and {column} >= %b{below} order by {column} limit %b", given  # type: ignore[return-value]


def value(connection: Connection, key: str) -> tuple[bool, Storable]:
    """Whether the key is there, and its value."""
    row = connection.execute(_VALUE, [key], binary=True).fetchone()
    return (True, value_of(*row)) if row else (False, None)


def has(connection: Connection, key: str) -> bool:
    return connection.execute("select from kv where key = %b", [key]).rowcount > 0


def pages(read: Any, first: int) -> Iterator[Event]:
    """Every event from `first` on: `read(first)` gives a page, an empty one at the end."""
    while found := read(first):
        yield from found
        first = found[-1].seq + 1


def clamp(seq: int) -> int:
    """A bound that a bigint holds; what lies beyond is as good as the end."""
    return max(0, min(seq, MAX_SEQ))


def lists_global(prefix: str, after: str) -> bool:
    return after < GLOBAL and GLOBAL.startswith(prefix)
