"""A whole SQLite store taken out and put in, record by record."""

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from strandline.persist.backend import Record
from strandline.persist.backends.sqlite_read import trimmed
from strandline.persist.backends.sqlite_transaction import SEQ_BITS, SEQ_MASK
from strandline.persist.reserved import COMMIT_SCOPE, ONCE, reserved_prefix

_COMMIT_MARKERS = reserved_prefix(ONCE, COMMIT_SCOPE)


def dumped(connection: apsw.Connection, lineage: str, *, raw: bool) -> Iterator[Record]:
    """Everything as of one instant. `raw` gives texts as the bytes that are there, which need not be text."""
    text = "CAST({} AS BLOB)" if raw else "{}"
    connection.execute("BEGIN")
    yield Record("meta", ("lineage", lineage))
    yield Record("meta", ("format", connection.pragma("user_version")))
    for row in connection.execute(f"SELECT name, {text.format('value')}, sum FROM keys ORDER BY name"):
        yield Record("key", row)
    for id_, *head in connection.execute("SELECT id, name, mark, truncated FROM streams ORDER BY name"):
        yield Record("stream", tuple(head))
        rows = connection.execute(
            f"SELECT events.id & ?, t.name, at, {text.format('data')}, sum FROM events"
            " LEFT JOIN types t ON t.id = events.type WHERE events.id BETWEEN ? AND ? ORDER BY events.id",
            (SEQ_MASK, (id_ << SEQ_BITS) + head[2] + 1, (id_ << SEQ_BITS) + SEQ_MASK),
        )
        for row in rows:
            yield Record("event", (head[0], *row))
    pointers = connection.execute(
        "SELECT position, s.name, event & ?, at, sum FROM pointers LEFT JOIN streams s ON s.id = event >> ?"
        " WHERE position > ? ORDER BY position",
        (SEQ_MASK, SEQ_BITS, trimmed(connection)),
    )
    for row in pointers:
        yield Record("pointer", row)
    connection.execute("COMMIT")


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
