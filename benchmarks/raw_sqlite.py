"""apsw used by hand, as durable as ours: a write-ahead log, `synchronous=FULL`.

`RawTable` is the least that one would call an event store: one table. `SameTables` does by hand what a commit
with the full contract leaves in our own tables, on our own kind of file.
"""

import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import orjson

from benchmarks.payload import STREAM, TYPE, key
from strandline.base.failpoint import reach
from strandline.persist.backends.sqlite.file import open_file
from strandline.persist.backends.sqlite.transaction import SEQ_BITS
from strandline.persist.core.block import event_crc, key_crc, run_sum

_SCHEMA = """
CREATE TABLE events (position INTEGER PRIMARY KEY, stream TEXT NOT NULL, seq INTEGER NOT NULL,
                     type TEXT NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX events_seq ON events (stream, seq);
"""
_INSERT = "INSERT INTO events (stream, seq, type, data) VALUES (?, ?, ?, ?)"


class RawTable:
    """One table with a position, and a unique index on stream and seq."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        self._connection.execute(_SCHEMA)
        self._seq = 0
        self._gate, self._is_led = threading.Lock(), False
        self._waiting: list[tuple[bytes, threading.Lock]] = []

    def append(self, data: dict[str, Any]) -> None:
        self._seq += 1
        self._connection.execute(_INSERT, (STREAM, self._seq, TYPE, orjson.dumps(data)))

    def append_batch(self, datas: list[dict[str, Any]]) -> None:
        with self._connection:
            self._connection.executemany(
                _INSERT,
                [(STREAM, seq, TYPE, orjson.dumps(data)) for seq, data in enumerate(datas, self._seq + 1)],
            )
        self._seq += len(datas)

    def append_in_group(self, data: dict[str, Any]) -> None:
        """Store it in one commit with what others bring meanwhile: the least that threads can do together."""
        turn = threading.Lock()
        turn.acquire()
        mine = (orjson.dumps(data), turn)
        with self._gate:
            self._waiting.append(mine)
            leads = len(self._waiting) == 1 and not self._is_led
            self._is_led |= leads
        if not leads:
            turn.acquire()
            if mine not in self._waiting:
                return
        with self._gate:
            group, self._waiting = self._waiting, []
        with self._connection:
            self._connection.executemany(
                _INSERT, [(STREAM, seq, TYPE, text) for seq, (text, _) in enumerate(group, self._seq + 1)]
            )
        self._seq += len(group)
        for _, other in group:
            other.release()
        with self._gate:
            self._is_led = bool(self._waiting)
            if self._waiting:
                self._waiting[0][1].release()

    def stream_pages(self, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after = 0
        query = "SELECT seq, type, data FROM events WHERE stream = ? AND seq > ? ORDER BY seq LIMIT ?"
        while page := [
            (seq, type_, orjson.loads(data))
            for seq, type_, data in self._connection.execute(query, (STREAM, after, size))
        ]:
            yield page
            after = page[-1][0]

    def global_pages(self, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after = 0
        columns = "position, stream, seq, type, data"
        query = f"SELECT {columns} FROM events WHERE position > ? ORDER BY position LIMIT ?"
        while page := [
            (position, stream, seq, type_, orjson.loads(data))
            for position, stream, seq, type_, data in self._connection.execute(query, (after, size))
        ]:
            yield page
            after = page[-1][0]

    def read_stream(self) -> int:
        """Read and decode a whole stream in one statement, keeping nothing."""
        query = "SELECT seq, type, data FROM events WHERE stream = ? ORDER BY seq"
        total = 0
        for _, _, data in self._connection.execute(query, (STREAM,)):
            total += orjson.loads(data)["quantity"]
        return total

    def close(self) -> None:
        self._connection.close()


class SameTables:
    """Our file, our pragmas, our tables, and the statements of a full commit with nothing around them."""

    def __init__(self, path: Path) -> None:
        self._connection = open_file(path, create=True, synchronous="FULL", busy_timeout_s=30)
        streams = "INSERT INTO streams (id, name, mark, truncated, swept) VALUES (?, ?, 0, 0, 0)"
        self._connection.executemany(streams, [(1, STREAM), (2, "$global")])
        self._connection.execute("INSERT INTO types VALUES (1, ?)", (TYPE,))

    def append(self, data: dict[str, Any]) -> None:
        self.append_batch([data])

    def append_batch(self, datas: list[dict[str, Any]]) -> None:
        run, at = self._connection.execute, 1_700_000_000
        texts = [orjson.dumps(data, option=orjson.OPT_SORT_KEYS) for data in datas]
        crcs = [event_crc(STREAM, TYPE, at, text) for text in texts]
        once, digest = f"$once/{STREAM}/{key()}", sha256(b"\0\0".join(texts)).hexdigest()
        reach("commit.prepared")  # the steps of ours, for who compares them
        run("BEGIN IMMEDIATE")
        assert run("SELECT value FROM keys WHERE name = ?", (once,)).fetchone() is None
        mark: int = run("SELECT mark FROM streams WHERE id = 1").get
        position: int = run("SELECT mark FROM streams WHERE id = 2").get
        run("UPDATE streams SET mark = ? WHERE id = 1", (mark + len(datas),))
        self._connection.executemany(
            "INSERT INTO events (id, stream, type, at, data, sum) VALUES (?, 1, 1, ?, ?, ?)",
            [
                ((1 << SEQ_BITS) + seq, at, text.decode(), crc + seq)
                for seq, (text, crc) in enumerate(zip(texts, crcs, strict=True), mark + 1)
            ],
        )
        seq, place = mark + len(datas), position + len(datas)  # of the last one: a run has one row
        run(
            "INSERT INTO pointers (position, event, at, sum) VALUES (?, ?, ?, ?)",
            (place, (1 << SEQ_BITS) + seq, at, run_sum(place, STREAM, seq, at, len(datas))),
        )
        run("UPDATE streams SET mark = ? WHERE id = 2", (place,))
        marker = orjson.dumps({"digest": digest, "runs": [[STREAM, mark + 1, at, len(datas)]]})
        run(
            "INSERT INTO keys (name, value, sum) VALUES (?, ?, ?)",
            (once, marker.decode(), key_crc(once, marker)),
        )
        reach("commit.before")
        run("COMMIT")
        reach("commit.after")

    def close(self) -> None:
        self._connection.close()
