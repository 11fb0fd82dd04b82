"""psycopg used by hand: one table, one statement a transaction, binary COPY for batches; `fsync` is on."""

from collections.abc import Iterator
from typing import Any

import orjson
import psycopg

from benchmarks.payload import STREAM, TYPE

_INSERT = "INSERT INTO raw_events (stream, seq, type, data) VALUES (%s, %s, %s, %s)"
_COPY = "COPY raw_events (stream, seq, type, data) FROM STDIN (FORMAT BINARY)"


class RawTable:
    """One table with a position, and a unique index on stream and seq; one connection."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("DROP TABLE IF EXISTS raw_events")
        self._connection.execute(
            "CREATE TABLE raw_events (position bigserial PRIMARY KEY, stream text NOT NULL,"
            " seq bigint NOT NULL, type text NOT NULL, data bytea NOT NULL, UNIQUE (stream, seq))"
        )
        self._seq = 0

    def append(self, data: dict[str, Any]) -> None:
        self._seq += 1
        self._connection.execute(_INSERT, (STREAM, self._seq, TYPE, orjson.dumps(data)), prepare=True)

    def append_and_notify(self, data: dict[str, Any], channel: str) -> None:
        with self._connection.transaction():
            self.append(data)
            self._connection.execute("SELECT pg_notify(%s, '')", (channel,), prepare=True)

    def append_batch(self, datas: list[dict[str, Any]]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(("text", "int8", "text", "bytea"))
            for seq, data in enumerate(datas, self._seq + 1):
                copy.write_row((STREAM, seq, TYPE, orjson.dumps(data)))
        self._seq += len(datas)

    def append_many(self, datas: list[dict[str, Any]]) -> None:
        """The same by executemany, which psycopg sends as a pipeline."""
        rows = [(STREAM, seq, TYPE, orjson.dumps(data)) for seq, data in enumerate(datas, self._seq + 1)]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(_INSERT, rows)
        self._seq += len(datas)

    def stream_pages(self, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after = 0
        query = "SELECT seq, type, data FROM raw_events WHERE stream = %s AND seq > %s ORDER BY seq LIMIT %s"
        while page := [
            (seq, type_, orjson.loads(data)) for seq, type_, data in self._rows(query, (STREAM, after, size))
        ]:
            yield page
            after = page[-1][0]

    def global_pages(self, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after = 0
        columns = "position, stream, seq, type, data"
        query = f"SELECT {columns} FROM raw_events WHERE position > %s ORDER BY position LIMIT %s"
        while page := [
            (position, stream, seq, type_, orjson.loads(data))
            for position, stream, seq, type_, data in self._rows(query, (after, size))
        ]:
            yield page
            after = page[-1][0]

    def read_stream(self) -> int:
        """Read and decode a whole stream in one statement, keeping nothing of it."""
        query = "SELECT seq, type, data FROM raw_events WHERE stream = %s ORDER BY seq"
        return sum(orjson.loads(data)["quantity"] for _, _, data in self._rows(query, (STREAM,)))

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # Binary results are the quicker ones for bytea, so the raw side gets them.
        with self._connection.cursor(binary=True) as cursor:
            return cursor.execute(query.encode(), values, prepare=True).fetchall()

    def close(self) -> None:
        self._connection.close()
