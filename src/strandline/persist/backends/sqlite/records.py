"""A whole SQLite store taken out and put in, record by record."""

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from strandline.persist.backend import Record
from strandline.persist.backends.sqlite.read import (
    is_damage,
    located,
    located_key,
    located_pointer,
    trimmed,
)
from strandline.persist.backends.sqlite.transaction import SEQ_BITS, SEQ_MASK
from strandline.persist.core.block import pointer_sum, run_length
from strandline.persist.reserved import COMMIT_SCOPE, ONCE, reserved_prefix

_COMMIT_MARKERS = reserved_prefix(ONCE, COMMIT_SCOPE)


def dumped(connection: apsw.Connection, lineage: str) -> Iterator[Record]:
    """Everything as of one instant. The first page that does not match its checksum raises, naming what is
    on it; the connection is of no use afterwards."""
    connection.execute("BEGIN")
    yield Record("meta", ("lineage", lineage))
    yield Record("meta", ("format", connection.pragma("user_version")))
    yield from _keys(connection)
    for id_, *head in connection.execute("SELECT id, name, mark, truncated FROM streams ORDER BY name"):
        yield Record("stream", tuple(head))
        yield from _events(connection, id_, head[0], head[2])
    yield from _pointers(connection)
    connection.execute("COMMIT")


def _keys(connection: apsw.Connection) -> Iterator[Record]:
    last = ""
    try:
        for row in connection.execute("SELECT name, value, sum FROM keys ORDER BY name"):
            yield Record("key", row)
            last = row[0]
    except apsw.Error as error:
        if is_damage(error):
            raise located_key(connection, "", last) from error
        raise


def _events(connection: apsw.Connection, id_: int, stream: str, last: int) -> Iterator[Record]:
    base = id_ << SEQ_BITS
    query = (
        "SELECT events.id & ?, t.name, at, data, sum FROM events"
        " LEFT JOIN types t ON t.id = events.type WHERE events.id BETWEEN ? AND ? ORDER BY events.id"
    )
    try:
        for row in connection.execute(query, (SEQ_MASK, base + last + 1, base + SEQ_MASK)):
            yield Record("event", (stream, *row))
            last = row[0]
    except apsw.Error as error:
        if is_damage(error):
            raise located(connection, stream, base, last + 1, SEQ_MASK) from error
        raise


def _pointers(connection: apsw.Connection) -> Iterator[Record]:
    last = trimmed(connection)
    query = (
        "SELECT position, s.name, event & ?, at, sum FROM pointers LEFT JOIN streams s ON s.id = event >> ?"
        " WHERE position > ? ORDER BY position"
    )
    try:
        for run in connection.execute(query, (SEQ_MASK, SEQ_BITS, last)):
            for pointer in unrolled(*run):
                if pointer[0] > last:
                    yield Record("pointer", pointer)
                    last = pointer[0]
    except apsw.Error as error:
        if is_damage(error):
            raise located_pointer(connection, last + 1) from error
        raise


def unrolled(position: int, stream: Any, seq: int, at: Any, sum_: Any) -> Iterator[tuple[Any, ...]]:
    """The pointers of a run, each as it would be alone; a run that is damaged is its last one, as it is."""
    try:
        count = run_length(sum_, pointer_sum(position, stream, seq, at))
    except TypeError:  # what is damaged may be of any type
        count = 0
    if not 0 < count <= min(position, seq):
        yield position, stream, seq, at, sum_
        return
    for back in range(count - 1, -1, -1):
        place, number = position - back, seq - back
        yield place, stream, number, at, pointer_sum(place, stream, number, at)


class Loader:
    """Puts records into an empty store, inside a transaction that the caller holds."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._streams: dict[str, int] = {}
        self._types: dict[str, int] = {}

    def take(self, records: Sequence[Record]) -> None:
        rows: dict[str, list[tuple[Any, ...]]] = {"key": [], "event": [], "pointer": []}
        for kind, body in records:
            if kind == "stream":
                self._add_stream(*body)
            elif kind == "event":
                stream, seq, type_, at, text, sum_ = body
                id_ = self._streams[stream]
                rows[kind].append(((id_ << SEQ_BITS) + seq, id_, self._type(type_), at, text, sum_))
            elif kind == "pointer":
                position, stream, seq, at, sum_ = body
                rows[kind].append((position, (self._streams[stream] << SEQ_BITS) + seq, at, sum_))
            elif kind == "key":
                rows[kind].append(body)
        self._connection.executemany("INSERT INTO keys VALUES (?, ?, ?)", rows["key"])
        markers = [(key,) for key, *_ in rows["key"] if key.startswith(_COMMIT_MARKERS)]
        self._connection.executemany("INSERT INTO commit_markers (key) VALUES (?)", markers)
        self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows["event"])
        self._connection.executemany("INSERT INTO pointers VALUES (?, ?, ?, ?)", rows["pointer"])

    def _add_stream(self, name: str, mark: int, truncated: int) -> None:
        insert = "INSERT INTO streams (name, mark, truncated, swept) VALUES (?, ?, ?, ?) RETURNING id"
        self._streams[name] = self._connection.execute(insert, (name, mark, truncated, truncated)).get

    def _type(self, name: str) -> int:
        if name not in self._types:
            insert = "INSERT INTO types (name) VALUES (?) RETURNING id"
            self._types[name] = self._connection.execute(insert, (name,)).get
        return self._types[name]
