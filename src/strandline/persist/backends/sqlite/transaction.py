"""One write transaction on a SQLite store: the Transaction of core/commit.py in SQL."""

from collections.abc import Sequence
from functools import cache
from itertools import chain, count, repeat
from operator import add
from typing import Any, Final

import apsw
import orjson

from strandline.errors import StoreUnavailable
from strandline.persist.core.block import MAX_RUN, Block, PutText, pointer_runs, run_sum
from strandline.persist.core.commit import KEPT_COMMIT_MARKERS
from strandline.persist.event import Scalar
from strandline.persist.reserved import COMMIT_SCOPE, GLOBAL

SEQ_BITS: Final = 36
SEQ_MASK: Final = (1 << SEQ_BITS) - 1
_MOST_NAMES: Final = 100_000
_MOST_ROWS: Final = 64  # of one statement


class Names:
    """Ids of streams and types, which never change once committed; dropped whole when a transaction is
    undone. For the writer also (mark, truncated) of its streams, which hold as long as the file has the
    `version` that the writer's last commit gave it: nobody else has committed since."""

    def __init__(self) -> None:
        self.streams: dict[str, int] = {}
        self.types: dict[str, int] = {}
        self.type_names: dict[int, str] = {}
        self.heads: dict[str, tuple[int, int]] = {}
        self.version = -1

    def clear(self) -> None:
        self.streams, self.types, self.type_names, self.heads = {}, {}, {}, {}

    def bound(self) -> None:
        if len(self.streams) > _MOST_NAMES or len(self.types) > _MOST_NAMES:
            self.clear()

    def begin(self, version: int) -> None:
        """A transaction begins on the file of this version."""
        self.bound()
        if version != self.version:
            self.heads = {}


class SqliteTransaction:
    """Works on the writer's connection, inside BEGIN IMMEDIATE … COMMIT.

    What is written together is handed to SQLite together: blocks, marks and keys wait here until `flush`, and
    `head` and `text` look here first. So a group of commits costs a few statements, not a few for each.
    """

    def __init__(self, connection: apsw.Connection, names: Names) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self._names = names
        self._heads = names.heads
        self._texts: dict[str, str | None] = {}
        self._marks: dict[str, int] = {}
        self._blocks: list[list[tuple[Any, ...]]] = []
        self._pointers: list[tuple[Any, ...]] = []
        self._keys: dict[str, PutText | None] = {}
        self._commit_markers: list[tuple[str]] = []
        self.writes = 0

    def head(self, stream: str) -> tuple[int, int]:
        found = self._heads.get(stream)
        if found is None:
            found = self._heads[stream] = self._stored_head(stream)
        return found

    def _stored_head(self, stream: str) -> tuple[int, int]:
        id_ = self._names.streams.get(stream)
        if id_ is not None:
            known: Any = self._run("SELECT mark, truncated FROM streams WHERE id = ?", (id_,)).fetchone()
            return known[0], known[1]
        row = self._run("SELECT id, mark, truncated FROM streams WHERE name = ?", (stream,)).fetchone()
        if row is None:
            return 0, 0
        self._names.streams[stream] = row[0]
        return row[1], row[2]

    def look_up(self, keys: Sequence[str]) -> None:
        """Read many keys at once that `text` will be asked for."""
        found = self._run(
            "SELECT name, value FROM keys WHERE name IN (SELECT value FROM json_each(?))",
            (orjson.dumps(keys).decode(),),
        )
        self._texts = dict.fromkeys(keys) | dict(found)

    def text(self, key: str) -> str | None:
        if key in self._keys:
            step = self._keys[key]
            return None if step is None else step.text
        if key in self._texts:
            return self._texts[key]
        row = self._run("SELECT value FROM keys WHERE name = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def row(self, stream: str, seq: int) -> tuple[str, Scalar, str] | None:
        mark, truncated = self.head(stream)
        if not truncated < seq <= mark or stream == GLOBAL:
            return None
        self.flush()
        found = self._run(
            "SELECT t.name, at, data FROM events JOIN types t ON t.id = events.type WHERE events.id = ?",
            ((self._names.streams[stream] << SEQ_BITS) + seq,),
        ).fetchone()
        return found and (found[0], found[1], found[2])

    def add(self, block: Block, first: int) -> None:
        stream, last = block.stream, first + len(block) - 1
        if last > SEQ_MASK:
            raise StoreUnavailable(
                f"stream {stream!r} is full at {SEQ_MASK:,} events", hint="go on in another stream"
            )
        self.writes += 1
        id_ = self._set_mark(stream, last)
        base = id_ << SEQ_BITS
        if last == first:
            type_, sum_ = self._type(block.types[0]), block.crcs[0] + first
            self._blocks.append([(base + first, id_, type_, block.ats[0], block.texts[0], sum_)])
        else:
            self._blocks.append(self._rows(block, id_, base + first, first))
        if True in block.globally:
            self._point(block, base, first)

    def _rows(self, block: Block, id_: int, place: int, first: int) -> list[tuple[Any, ...]]:
        numbers = {type_: self._type(type_) for type_ in set(block.types)}
        types, sums = map(numbers.__getitem__, block.types), map(add, block.crcs, count(first))
        return list(zip(count(place), repeat(id_), types, block.ats, block.texts, sums, strict=False))

    def put(self, step: PutText) -> None:
        self.writes += 1
        self._keys[step.key] = step

    def delete(self, key: str) -> None:
        self.writes += 1
        self._keys[key] = None

    def truncate(self, stream: str, n: int) -> None:
        self.writes += 1
        self._run("UPDATE streams SET truncated = ? WHERE name = ?", (n, stream))
        self._heads[stream] = (self.head(stream)[0], n)

    def rewrite(self, stream: str, seq: int, text: str, sum_: int) -> None:
        self.writes += 1
        self.flush()
        place = (self._names.streams[stream] << SEQ_BITS) + seq
        self._run("UPDATE events SET data = ?, sum = ? WHERE id = ?", (text, sum_, place))

    def keep_marker(self, scope: str, step: PutText) -> None:
        self.put(step)
        if scope == COMMIT_SCOPE:
            self._commit_markers.append((step.key,))

    def flush(self) -> None:
        """Hand over what waits."""
        if self._marks:
            ids = self._names.streams
            marks = [(mark, ids[stream]) for stream, mark in self._marks.items()]
            self._write("UPDATE streams SET mark = ? WHERE id = ?", marks)
            self._marks = {}
        if self._blocks:
            self._write_events()
            self._blocks = []
        if self._pointers:
            self._write_run("INSERT INTO pointers (position, event, at, sum) VALUES ", self._pointers)
            self._pointers = []
        if self._keys:
            puts = [step for step in self._keys.values() if step is not None]
            self._write("INSERT OR REPLACE INTO keys (name, value, sum) VALUES (?, ?, ?)", puts)
            deletes = [(key,) for key, step in self._keys.items() if step is None]
            self._write("DELETE FROM keys WHERE name = ?", deletes)
            self._keys, self._texts = {}, {}
        if self._commit_markers:
            self._write_run("INSERT INTO commit_markers (key) VALUES ", self._commit_markers)
            self._commit_markers = []
            oldest = (self._run("SELECT max(n) FROM commit_markers").get - KEPT_COMMIT_MARKERS,)
            self._run("DELETE FROM keys WHERE name IN (SELECT key FROM commit_markers WHERE n <= ?)", oldest)
            self._run("DELETE FROM commit_markers WHERE n <= ?", oldest)

    def _write_events(self) -> None:
        insert = "INSERT INTO events (id, stream, type, at, data, sum) VALUES "
        self._write(insert + "(?, ?, ?, ?, ?, ?)", [block[0] for block in self._blocks if len(block) == 1])
        for block in self._blocks:
            if len(block) > 1:
                self._write_run(insert, block)

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if len(rows) == 1:
            self._run(statement, rows[0])
        elif rows:
            self._run_many(statement, rows)

    def _write_run(self, insert: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Rows side by side, some with each statement: as many as a power of two, so that few statements are
        to be parsed. Rows that are far from each other are quicker one by one, for to undo a statement of
        several SQLite keeps a copy of each page that it touches."""
        if len(rows) == 1:
            self._run(insert + _places(len(rows[0]), 1), rows[0])
            return
        done = 0
        while left := len(rows) - done:
            size = min(_MOST_ROWS, 1 << left.bit_length() - 1)
            values = tuple(chain.from_iterable(rows[done : done + size]))
            self._run(insert + _places(len(rows[0]), size), values)
            done += size

    def raw(self, stream: str, seq: int) -> tuple[Any, ...] | None:
        """One row as it is there, for quarantine; None if there is none."""
        mark, truncated = self.head(stream)
        if not truncated < seq <= mark:
            return None  # nor may the number reach into the rows of another stream
        self.flush()
        found = self._run(
            "SELECT type, CASE typeof(at) WHEN 'text' THEN CAST(at AS BLOB) ELSE at END,"
            " CAST(data AS BLOB), sum FROM events WHERE id = ?",
            ((self._names.streams[stream] << SEQ_BITS) + seq,),
        ).fetchone()
        return None if found is None else tuple(found)

    def remove(self, stream: str, seq: int) -> None:
        """Take one row out, for quarantine."""
        self.head(stream)
        self.flush()
        self._run("DELETE FROM events WHERE id = ?", ((self._names.streams[stream] << SEQ_BITS) + seq,))

    def _set_mark(self, stream: str, last: int) -> int:
        """The stream's id; it is made by its first event."""
        self._heads[stream] = (last, self.head(stream)[1])
        id_ = self._names.streams.get(stream)
        if id_ is None:
            insert = "INSERT INTO streams (name, mark, truncated, swept) VALUES (?, ?, 0, 0) RETURNING id"
            id_ = self._names.streams[stream] = self._run(insert, (stream, last)).get
        else:
            self._marks[stream] = last
        return id_

    def _type(self, name: str) -> int:
        id_ = self._names.types.get(name)
        if id_ is None:
            row = self._run("SELECT id FROM types WHERE name = ?", (name,)).fetchone()
            id_ = (
                row[0] if row else self._run("INSERT INTO types (name) VALUES (?) RETURNING id", (name,)).get
            )
            self._names.types[name], self._names.type_names[id_] = id_, name
        return id_

    def _point(self, block: Block, base: int, first: int) -> None:
        """A row for each run of consecutive events with one `at`."""
        position = self.head(GLOBAL)[0]
        for index, length, at in pointer_runs(block, MAX_RUN):
            position, seq = position + length, first + index + length - 1
            self._pointers.append(
                (position, base + seq, at, run_sum(position, block.stream, seq, at, length))
            )
        self._set_mark(GLOBAL, position)


@cache
def _places(width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return ", ".join([row] * rows)
