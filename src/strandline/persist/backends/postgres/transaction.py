"""Commits that one function call cannot decide: redactions, quarantine, and what is about `$global` itself.

They are rare, so they take a transaction of several round trips, in which the shared `decide` runs as on any
backend.
"""

from collections.abc import Callable, Sequence

import psycopg
from psycopg.types.numeric import Int8

from strandline.errors import EventCorrupt, OutcomeUnknown
from strandline.persist.backend import ExpectSeq, Once, Outcome, Redact, Truncate
from strandline.persist.backends.postgres import read
from strandline.persist.backends.postgres.block import Lone, block_query
from strandline.persist.backends.postgres.connection import Connection
from strandline.persist.backends.postgres.pack import int_, texts
from strandline.persist.backends.postgres.pool import is_lost, raise_translated
from strandline.persist.backends.postgres.rows import value_record
from strandline.persist.core.block import Block, PutText, event_crc
from strandline.persist.core.prepare import Prepared
from strandline.persist.event import Scalar
from strandline.persist.reserved import COMMIT_SCOPE, GLOBAL

POSITIONS_A_PASS = 10_000


def is_unusual(prepared: Prepared) -> bool:
    """Whether a commit must be decided here."""
    return any(
        type(step) is Redact or (type(step) is Truncate and step.stream == GLOBAL) for step in prepared.steps
    ) or any(
        isinstance(expected, ExpectSeq) and expected.stream == GLOBAL for expected in prepared.preconditions
    )


def run_alone(
    connection: Connection,
    streams: Sequence[str],
    keys: Sequence[str],
    work: Callable[["PostgresTransaction"], Outcome],
    *,
    once: Once | None = None,
) -> Outcome:
    """Run `work` in a transaction that holds these names, both lists sorted."""
    try:
        connection.execute("begin")
        transaction = PostgresTransaction(connection, streams, keys)
        outcome = work(transaction)
        transaction.finish()
    except psycopg.Error as error:
        roll_back(connection)
        raise_translated(error)
    except BaseException:
        roll_back(connection)
        raise
    try:
        connection.execute("commit")
    except psycopg.Error as error:
        if is_lost(error, connection):
            raise OutcomeUnknown("the connection broke in the commit", once=once) from error
        raise_translated(error)
    return outcome


def roll_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except psycopg.Error:
        connection.close()  # which rolls back too


class PostgresTransaction:
    """The Transaction of core/commit.py. It locks every name first, in the order that all commits keep."""

    def __init__(self, connection: Connection, streams: Sequence[str], keys: Sequence[str]) -> None:
        self._connection, self._streams, self._keys = connection, streams, keys
        self._is_ordering = GLOBAL in streams
        if self._is_ordering:  # before any row: whoever holds rows never waits for this lock
            connection.execute("select lock_positions()")
        if streams:
            connection.execute("select * from lock_streams(%b)", [texts(streams)])
        if keys:
            connection.execute("select * from lock_keys(%b, true)", [texts(keys)])
        if self._is_ordering:
            self._line_up()

    def _line_up(self) -> None:
        while line_up(self._connection) == POSITIONS_A_PASS:
            pass

    def head(self, stream: str) -> tuple[int, int]:
        query = "select last_seq, truncated from stream where name = %s"
        last_seq, truncated = self._connection.execute(query, [stream]).fetchone() or (0, 0)
        return last_seq, truncated

    def text(self, key: str) -> str | None:
        row = self._connection.execute("select text, seqs, sum from kv where key = %s", [key]).fetchone()
        return value_record(key, *row)[1] if row and row[0] is not None else None

    def row(self, stream: str, seq: int) -> tuple[str, Scalar, str] | None:
        found = self.raw(stream, seq)
        if found is None:
            return None
        type_, at, text, sum_ = found
        if event_crc(stream, type_, at, text.encode()) + seq != sum_:
            raise EventCorrupt(stream, seq, "its checksum does not match")
        return type_, at, text

    def raw(self, stream: str, seq: int) -> tuple[str, Scalar, str, int] | None:
        """A stored event as it is, damaged or not."""
        return read.raw(self._connection, stream, seq)

    def add(self, block: Block, first: int) -> None:
        found = self._connection.ask(*block_query(Lone(block)))
        assert found == int_(first), "the seqs of a stream that is locked are ours to give"
        if self._is_ordering:
            self._line_up()

    def put(self, step: PutText) -> None:
        query = "update kv set text = %s, seqs = null, sum = %s where key = %s"
        self._connection.execute(query, [step.text, Int8(step.crc), step.key])

    def delete(self, key: str) -> None:
        self._connection.execute("update kv set text = null, seqs = null, nr = null where key = %s", [key])

    def truncate(self, stream: str, n: int) -> None:
        self._connection.execute("update stream set truncated = %s where name = %s", [Int8(n), stream])

    def rewrite(self, stream: str, seq: int, text: str, sum_: int) -> None:
        query = """
            update event set data = %s, sum = %s from stream s
            where s.id = stream_id and s.name = %s and seq = %s
        """
        self._connection.execute(query, [text, Int8(sum_), stream, Int8(seq)])

    def remove(self, stream: str, seq: int) -> None:
        """Delete the row of one event."""
        query = "delete from event using stream s where s.id = stream_id and s.name = %s and seq = %s"
        self._connection.execute(query, [stream, Int8(seq)])

    def keep_marker(self, scope: str, step: PutText) -> None:
        self.put(step)
        if scope == COMMIT_SCOPE:
            self._connection.execute("update kv set nr = nextval('marker_nr') where key = %s", [step.key])

    def finish(self) -> None:
        """Let go of what only held a place."""
        if self._keys:
            query = "delete from kv where key = any (%b) and text is null"
            self._connection.execute(query, [texts(self._keys)])
        if self._streams:
            query = "delete from stream where name = any (%b) and last_seq = 0 and id <> 0"
            self._connection.execute(query, [texts(self._streams)])


def line_up(connection: Connection) -> int:
    """Give out one pass of positions; how many."""
    row = connection.execute("select line_up(%s)", [Int8(POSITIONS_A_PASS)]).fetchone()
    assert row is not None
    return int(row[0])
