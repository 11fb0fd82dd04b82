"""The SQLite store behind its back: rows and bits of its file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from strandline.persist import append_batch
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.backends.sqlite.file import connect
from strandline.persist.backends.sqlite.transaction import SEQ_BITS

WAIT_S = 30


@contextmanager
def raw(path: Path, *, page_check: bool = True) -> Iterator[apsw.Connection]:
    """A connection behind the backend's back; it keeps the page checksums right, as a program would."""
    connection = connect(path, synchronous="FULL", busy_timeout_s=WAIT_S)
    if not page_check:
        connection.pragma("checksum_verification", "off")
    try:
        yield connection
    finally:
        connection.close()


def edit(path: Path, statement: str, *bindings: Any) -> None:
    with raw(path) as connection:
        connection.execute(statement, bindings)
        assert connection.changes() > 0, "the statement changed nothing"


def place(b: SqliteBackend, stream: str, seq: int) -> int:
    """The id of an event's row."""
    with raw(b._path) as connection:
        id_ = connection.execute("SELECT id FROM streams WHERE name = ?", (stream,)).get
    return int((id_ << SEQ_BITS) + seq)


def flip(path: Path, marker: bytes) -> None:
    """Change one bit of the closed file, in the one place where `marker` is."""
    content = bytearray(path.read_bytes())
    assert content.count(marker) == 1
    content[content.index(marker) + 3] ^= 0x04
    path.write_bytes(content)


def fill(b: SqliteBackend, stream: str, n: int, *, size: int = 0) -> None:
    append_batch(
        b,
        stream,
        [("added", i, {"n": i, "text": f"<{stream}-{i:06}>" + "x" * size}) for i in range(1, n + 1)],
    )


def mark_of(stream: str, seq: int) -> bytes:
    return f"<{stream}-{seq:06}>".encode()


def rows_of(path: Path, table: str = "events") -> int:
    with raw(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)
