"""One write transaction on a SQLite store: the Transaction of commit.py in SQL."""

from collections.abc import Sequence
from typing import Any, Final

import apsw

from strandline.errors import StoreUnavailable
from strandline.persist.commit import KEPT_COMMIT_MARKERS, PutText, Row, pointer_sum
from strandline.persist.event import Scalar
from strandline.persist.reserved import COMMIT_SCOPE, GLOBAL

SEQ_BITS: Final = 36
SEQ_MASK: Final = (1 << SEQ_BITS) - 1


class Names:
    """Ids of streams and types, which never change once committed; dropped whole when a transaction is
    undone."""

    def __init__(self) -> None:
        self.streams: dict[str, int] = {}
        self.types: dict[str, int] = {}
        self.type_names: dict[int, str] = {}

    def clear(self) -> None:
        self.streams, self.types, self.type_names = {}, {}, {}


class SqliteTransaction:
    """Works on the writer's connection, inside BEGIN IMMEDIATE … COMMIT."""

    def __init__(self, connection: apsw.Connection, names: Names) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self.changes = connection.total_changes
        self._names = names

    def head(self, stream: str) -> tuple[int, int]:
        id_ = self._names.streams.get(stream)
        if id_ is not None:
            known: Any = self._run("SELECT mark, truncated FROM streams WHERE id = ?", (id_,)).fetchone()
            return known[0], known[1]
        row = self._run("SELECT id, mark, truncated FROM streams WHERE name = ?", (stream,)).fetchone()
        if row is None:
            return 0, 0
        self._names.streams[stream] = row[0]
        return row[1], row[2]

    def text(self, key: str) -> str | None:
        row = self._run("SELECT value FROM keys WHERE name = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def row(self, stream: str, seq: int) -> tuple[str, Scalar, str] | None:
        mark, truncated = self.head(stream)
        if not truncated < seq <= mark or stream == GLOBAL:
            return None
        found = self._run(
            "SELECT t.name, at, data FROM events JOIN types t ON t.id = events.type WHERE events.id = ?",
            ((self._names.streams[stream] << SEQ_BITS) + seq,),
        ).fetchone()
        return found and (found[0], found[1], found[2])

    def add(self, stream: str, first: int, rows: Sequence[Row]) -> None:
        last = first + len(rows) - 1
        if last > SEQ_MASK:
            raise StoreUnavailable(
                f"stream {stream!r} is full at {SEQ_MASK:,} events", hint="go on in another stream"
            )
        id_ = self._set_mark(stream, first, last)
        base = id_ << SEQ_BITS
        types = {row.type: self._type(row.type) for row in rows}
        insert = "INSERT INTO events (id, stream, type, at, data, sum) VALUES (?, ?, ?, ?, ?, ?)"
        if len(rows) == 1:
            row = rows[0]
            self._run(insert, (base + first, id_, types[row.type], row.at, row.text, row.crc + first))
        else:
            self._run_many(
                insert,
                [
                    (base + seq, id_, types[type_], at, text, crc + seq)
                    for seq, (type_, at, text, crc, _) in enumerate(rows, first)
                ],
            )
        if any(row.globally for row in rows):
            self._point(stream, base, first, rows)

    def put(self, step: PutText) -> None:
        self._run("INSERT OR REPLACE INTO keys (name, value, sum) VALUES (?, ?, ?)", step)

    def delete(self, key: str) -> None:
        self._run("DELETE FROM keys WHERE name = ?", (key,))

    def truncate(self, stream: str, n: int) -> None:
        self._run("UPDATE streams SET truncated = ? WHERE name = ?", (n, stream))

    def rewrite(self, stream: str, seq: int, text: str, sum_: int) -> None:
        place = (self._names.streams[stream] << SEQ_BITS) + seq
        self._run("UPDATE events SET data = ?, sum = ? WHERE id = ?", (text, sum_, place))

    def keep_marker(self, scope: str, step: PutText) -> None:
        self.put(step)
        if scope == COMMIT_SCOPE:
            self._run("INSERT INTO commit_markers (key) VALUES (?)", (step.key,))
            oldest = (self._run("SELECT max(n) FROM commit_markers").get - KEPT_COMMIT_MARKERS,)
            self._run("DELETE FROM keys WHERE name IN (SELECT key FROM commit_markers WHERE n <= ?)", oldest)
            self._run("DELETE FROM commit_markers WHERE n <= ?", oldest)

    def raw(self, stream: str, seq: int) -> tuple[Any, ...] | None:
        """One row as it is there, for quarantine; None if there is none."""
        mark, truncated = self.head(stream)
        if not truncated < seq <= mark:
            return None  # nor may the number reach into the rows of another stream
        found = self._run(
            "SELECT type, CASE typeof(at) WHEN 'text' THEN CAST(at AS BLOB) ELSE at END,"
            " CAST(data AS BLOB), sum FROM events WHERE id = ?",
            ((self._names.streams[stream] << SEQ_BITS) + seq,),
        ).fetchone()
        return None if found is None else tuple(found)

    def remove(self, stream: str, seq: int) -> None:
        """Take one row out, for quarantine."""
        self.head(stream)
        self._run("DELETE FROM events WHERE id = ?", ((self._names.streams[stream] << SEQ_BITS) + seq,))

    def _set_mark(self, stream: str, first: int, last: int) -> int:
        """The stream's id; it is made by its first event."""
        if first > 1:
            if stream not in self._names.streams:
                self.head(stream)
            id_ = self._names.streams[stream]
            self._run("UPDATE streams SET mark = ? WHERE id = ?", (last, id_))
            return id_
        insert = "INSERT INTO streams (name, mark, truncated, swept) VALUES (?, ?, 0, 0) RETURNING id"
        made: int = self._run(insert, (stream, last)).get
        self._names.streams[stream] = made
        return made

    def _type(self, name: str) -> int:
        id_ = self._names.types.get(name)
        if id_ is None:
            row = self._run("SELECT id FROM types WHERE name = ?", (name,)).fetchone()
            id_ = (
                row[0] if row else self._run("INSERT INTO types (name) VALUES (?) RETURNING id", (name,)).get
            )
            self._names.types[name], self._names.type_names[id_] = id_, name
        return id_

    def _point(self, stream: str, base: int, first: int, rows: Sequence[Row]) -> None:
        position = self.head(GLOBAL)[0]
        pointers: list[tuple[Any, ...]] = []
        for seq, row in enumerate(rows, first):
            if row.globally:
                place = position + len(pointers) + 1
                pointers.append((place, base + seq, row.at, pointer_sum(place, stream, seq, row.at)))
        self._run_many("INSERT INTO pointers (position, event, at, sum) VALUES (?, ?, ?, ?)", pointers)
        self._set_mark(GLOBAL, position + 1, position + len(pointers))
