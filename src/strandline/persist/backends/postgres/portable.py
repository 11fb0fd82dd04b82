"""The whole store as records, out and in: one snapshot by server-side cursors, one transaction by COPY."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, cast

import psycopg
from psycopg import IsolationLevel

from strandline.errors import StrandlineError
from strandline.persist.audit import refuse_unless_empty
from strandline.persist.backend import AtomicBackend, Record, StreamHead
from strandline.persist.backends.postgres import read
from strandline.persist.backends.postgres.connection import Connection
from strandline.persist.backends.postgres.pack import ints, reals, texts
from strandline.persist.backends.postgres.pool import raise_translated
from strandline.persist.backends.postgres.rows import at_columns, at_of, split_ats, value_record
from strandline.persist.backends.postgres.schema import current_format, lineage
from strandline.persist.event import Storable
from strandline.persist.reserved import COMMIT_SCOPE, GLOBAL, ONCE, reserved_prefix

_FETCH: Final = 500
_CHUNK_ROWS: Final = 5000
_CHUNK_BYTES: Final = 16 * 1024 * 1024
_SNAPSHOTS: Final = 10

# A nested loop gives each stream followed by its events, without a sort of them all.
_EVENTS: Final = """
select s.name, s.last_seq, s.truncated, e.seq, e.type, e.at_int, e.at_real, e.at_text, e.data, e.sum
from (select * from stream order by name) s
left join lateral (select * from event where stream_id = s.id and seq > s.truncated order by seq) e on true
where s.last_seq > 0 or e.seq is not null
"""

_POINTERS: Final = """
select p.position, s.name, p.seq, p.at_int, p.at_real, p.at_text, p.sum from
    (select * from pointer where position > (select truncated from stream where id = 0) order by position) p
left join stream s on s.id = p.stream_id order by p.position
"""

_QUEUE: Final = """
select q.crc + 3 * (q.seq + p.more), s.name, q.seq + p.more, q.at_int, q.at_real, q.at_text
from in_line q cross join lateral generate_series(0, q.count - 1) as p (more)
left join stream s on s.id = q.stream_id order by q.id, p.more
"""


def dump(connect: Callable[[], Connection], line_up: Callable[[], None]) -> Iterator[Record]:
    """Everything as of one instant. The connection lasts as long as the iterator."""
    with closing(connect()) as connection:
        try:
            _begin_snapshot(connection, line_up)
            yield Record("meta", ("lineage", lineage(connection)))
            yield Record("meta", ("format", current_format()))
            yield Record("meta", ("backend", "postgres"))
            yield from _dump_keys(connection)
            yield from _dump_streams(connection)
            yield from _dump_pointers(connection)
        except psycopg.Error as error:
            raise_translated(error)


def _begin_snapshot(connection: Connection, line_up: Callable[[], None]) -> None:
    """A snapshot in which no event waits for its position, if writers leave a moment for one.

    If they do not, those in line come out in the order of the line, at positions that the store itself may
    yet give otherwise: a restored store has a lineage of its own, so nobody's cursor is carried from one to
    the other.
    """
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    connection.autocommit = False
    for _ in range(_SNAPSHOTS):
        connection.rollback()
        line_up()
        if connection.execute("select from in_line limit 1").rowcount == 0:
            return


def _rows(connection: Connection, query: str) -> Iterator[tuple[Any, ...]]:
    with connection.cursor(name="dump", binary=True) as cursor:
        cursor.itersize = _FETCH
        cursor.execute(query)
        yield from cursor


def _dump_keys(connection: Connection) -> Iterator[Record]:
    for row in _rows(connection, "select key, text, seqs, sum from kv order by key"):
        yield Record("key", value_record(*row))


def _dump_streams(connection: Connection) -> Iterator[Record]:
    queued = connection.execute("select coalesce(sum(count), 0)::bigint from in_line").fetchone()
    assert queued is not None
    stream, has_global = None, False
    for row in _rows(connection, _EVENTS):
        name, last_seq, truncated, seq = row[:4]
        if name != stream:
            assert stream is None or stream < name, "streams come in order"
            stream = name
            if name == GLOBAL:
                last_seq += queued[0]
                has_global = True
            elif queued[0] and not has_global and name > GLOBAL:
                has_global = True
                yield Record("stream", (GLOBAL, queued[0], 0))
            yield Record("stream", (name, last_seq, truncated))
        if seq is not None:
            yield Record("event", (name, seq, row[4], at_of(*row[5:8]), row[8], row[9]))


def _dump_pointers(connection: Connection) -> Iterator[Record]:
    last = connection.execute("select last_seq from stream where id = 0").fetchone()
    for position, name, seq, at_int, at_real, at_text, sum_ in _rows(connection, _POINTERS):
        yield Record("pointer", (position, name, seq, at_of(at_int, at_real, at_text), sum_))
    position = last[0] if last else 0
    for crc, name, seq, at_int, at_real, at_text in _rows(connection, _QUEUE):
        position += 1
        yield Record("pointer", (position, name, seq, at_of(at_int, at_real, at_text), crc + position))


def load(connection: Connection, records: Iterable[Record]) -> Mapping[str, int]:
    """Fill an empty store in one transaction, a chunk of rows at a time."""
    try:
        with connection.transaction():
            connection.execute("select lock_positions()")
            connection.execute("lock table stream, kv, event, in_line, pointer in share row exclusive mode")
            refuse_unless_empty(cast("AtomicBackend", _Inside(connection)))  # all that it asks for
            loader = _Loader(connection)
            for record in records:
                loader.take(record)
            loader.finish()
    except psycopg.Error as error:
        raise_translated(error)
    return loader.counts


class _Inside:
    """The listings of the store on one connection, inside its transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        return read.stream_page(self._connection, prefix, after, limit)

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        return read.value_page(self._connection, prefix, after, limit)


class _Loader:
    """Keeps a chunk of each kind, and writes them so that every stream is there before its pointers."""

    def __init__(self, connection: Connection) -> None:
        self.counts: dict[str, int] = {}
        self._connection = connection
        self._rows: dict[str, list[tuple[Any, ...]]] = {"key": [], "stream": [], "event": [], "pointer": []}
        self._held = self._bytes = 0
        self._stream_id = 0
        self._stream: str | None = None

    def take(self, record: Record) -> None:
        kind, body = record
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "stream":
            name, last_seq, truncated = body
            self._stream = name
            if name == GLOBAL:
                query = "update stream set last_seq = %s, truncated = %s, swept = %s where id = 0"
                self._connection.execute(query, [last_seq, truncated, truncated])
                return
            self._stream_id += 1
            body = (self._stream_id, name, last_seq, truncated, truncated)
        elif kind == "event":
            name, seq, type_, at, text, sum_ = body
            if name != self._stream:
                raise StrandlineError(
                    f"event {seq} of {name!r} does not follow its stream", hint="the dump is damaged"
                )
            body = (self._stream_id, seq, sum_, *at_columns(at), type_, text)
            self._bytes += len(text)
        elif kind == "key":
            self._bytes += len(body[1])
        if kind in self._rows:
            self._rows[kind].append(body)
            self._held += 1
            if self._held >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
                self._write()

    def _write(self) -> None:
        self._copy("key", "kv (key, text, sum)", ["text", "text", "int8"])
        self._copy(
            "stream",
            "stream (id, name, last_seq, truncated, swept)",
            ["int8", "text", "int8", "int8", "int8"],
        )
        self._copy(
            "event",
            "event (stream_id, seq, sum, at_int, at_real, at_text, type, data)",
            ["int8", "int8", "int8", "int8", "float8", "text", "text", "text"],
        )
        self._write_pointers(self._rows["pointer"])
        self._rows["pointer"] = []
        self._held = self._bytes = 0

    def _copy(self, kind: str, target: str, types: list[str]) -> None:
        rows, self._rows[kind] = self._rows[kind], []
        if rows:
            with self._connection.cursor().copy(f"copy {target} from stdin (format binary)") as copy:
                copy.set_types(types)
                for row in rows:
                    copy.write_row(row)

    def _write_pointers(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        positions, streams, seqs, ats, sums = zip(*rows, strict=True)
        at_ints, at_reals, at_texts = split_ats(ats)
        written = self._connection.execute(
            """
            insert into pointer (position, stream_id, seq, sum, at_int, at_real, at_text)
            select v.position, s.id, v.seq, v.sum, v.at_int, v.at_real, v.at_text
            from unnest(%b, %b, %b, %b, %b, %b, %b)
                as v (position, stream, seq, sum, at_int, at_real, at_text)
            join stream s on s.name = v.stream
            """,
            [
                ints(positions), texts(streams), ints(seqs), ints(sums),
                ints(at_ints), reals(at_reals), texts(at_texts),
            ],
        )  # fmt: skip
        if written.rowcount != len(rows):
            raise StrandlineError("a pointer names a stream that is not there", hint="the dump is damaged")

    def finish(self) -> None:
        self._write()
        markers = reserved_prefix(ONCE, COMMIT_SCOPE)
        self._connection.execute(
            "update kv set nr = nextval('marker_nr') where starts_with(key, %s)", [markers]
        )
        self._connection.execute(
            "select setval(pg_get_serial_sequence('stream', 'id'), %s)", [max(self._stream_id, 1)]
        )
