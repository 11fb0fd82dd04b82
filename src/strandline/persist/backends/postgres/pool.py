"""The connections of one object, shared by its threads; and where errors of the driver are translated."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from queue import Empty, SimpleQueue
from typing import Any, Final, NoReturn

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from strandline.errors import StoreUnavailable, UsageError
from strandline.persist.backends.postgres import pack
from strandline.persist.backends.postgres.connection import Connection

_MOST_TIMEOUT_S: Final = 2_000_000.0  # in milliseconds an int of Postgres

# What a commit asks for is never weaker than a flush here: a stronger setting of the server stays. Every
# query of ours has its index, also while a table is too new to have statistics; a scan that is forced must
# not wake the compiler.
_SESSION = """
set search_path = {schema}, pg_temp;
set client_encoding = 'UTF8';
select set_config('synchronous_commit', 'on', false)
    where current_setting('synchronous_commit') in ('off', 'local');
set default_transaction_isolation = 'read committed';
set default_transaction_read_only = off;
set lock_timeout = {lock_timeout};
set enable_seqscan = off;
set enable_bitmapscan = off;
set jit = off;
set plan_cache_mode = force_generic_plan;
set timezone = 'UTC';
"""


class Pool:
    """At most `size` connections, the one used last first."""

    def __init__(self, url: str, schema: str, *, size: int, timeout_s: float) -> None:
        if type(size) is not int or size < 1:
            raise UsageError(f"pool_size is {size!r:.80}", hint="pool_size is an int of 1 or more")
        if type(timeout_s) not in (int, float) or not (isfinite(timeout_s) and timeout_s > 0):
            raise UsageError(f"timeout_s is {timeout_s!r:.80}", hint="timeout_s is a finite number above 0")
        timeout_s = min(timeout_s, _MOST_TIMEOUT_S)
        self.schema, self.timeout_s = schema, timeout_s
        self._url, self._size = url, size
        self._defaults = _defaults(url, timeout_s)
        self._free: list[Connection] = []
        self._room: SimpleQueue[None] = SimpleQueue()  # a quicker semaphore
        for _ in range(size):
            self._room.put(None)
        self._pid = os.getpid()
        self.is_closed = False

    @property
    def timeout_ms(self) -> int:
        return max(1, round(self.timeout_s * 1000))

    def check(self) -> None:
        """Refuse an object that is closed, or that came here by a fork."""
        if not self.is_ours():
            raise UsageError(
                "this store was opened by the parent process", hint="open it again after the fork"
            )
        if self.is_closed:
            raise UsageError("the store is closed", hint="open it again")

    def is_ours(self) -> bool:
        return self._pid == os.getpid()

    def connect(self) -> Connection:
        """A connection of its own, in autocommit; who asks closes it."""
        try:
            connection = Connection.connect(self._url, autocommit=True, **self._defaults)
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"Postgres cannot be reached: {_told(error)}", hint="is the server up, and the URL right?"
            ) from error
        try:
            settings = {
                "schema": sql.Identifier(self.schema),
                "lock_timeout": sql.Literal(self.timeout_ms),
            }
            connection.execute(sql.SQL(_SESSION).format(**settings))
            pack.register(connection)
        except psycopg.Error as error:
            connection.close()
            raise_translated(error)
        return connection

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """A connection that was alive a moment ago. One that breaks or is left in a transaction is closed."""
        self.check()
        try:
            self._room.get(timeout=self.timeout_s)
        except Empty:
            raise StoreUnavailable(
                f"all {self._size} connections were in use for {self.timeout_s:g} s", hint="raise pool_size"
            ) from None
        try:
            connection = self._living() or self.connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._room.put(None)

    def _living(self) -> Connection | None:
        while self._free:
            try:
                connection = self._free.pop()
            except IndexError:
                return None  # another thread was quicker
            # An idle server has nothing to say but that it is going.
            if not connection.closed and not connection.has_input():
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        idle = not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        if idle and not self.is_closed:
            self._free.append(connection)
            if not self.is_closed:
                return
            with suppress(ValueError):
                self._free.remove(connection)  # closed in between, and close() may have missed it
        connection.close()

    def close(self) -> None:
        self.is_closed = True
        if self.is_ours():
            while self._free:
                self._free.pop().close()


def _defaults(url: str, timeout_s: float) -> dict[str, Any]:
    """What the URL leaves open: a peer that vanished is noticed as soon as one that does not answer."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise UsageError(
            "the URL of the store is malformed", hint="postgresql://user:password@host:port/database"
        ) from None  # it quotes the URL, which may hold a password
    whole_s = max(2, round(timeout_s))
    wanted = {
        "connect_timeout": whole_s,
        "tcp_user_timeout": whole_s * 1000,
        "application_name": "strandline",
    }
    return {name: value for name, value in wanted.items() if name not in given}


def is_lost(error: psycopg.Error, connection: Connection) -> bool:
    """Whether the answer was lost with the connection, rather than being an error of the server's."""
    return connection.closed or (error.sqlstate is None and isinstance(error, psycopg.OperationalError))


def raise_translated(error: psycopg.Error) -> NoReturn:
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        raise UsageError(
            f"Postgres cannot take an argument: {_told(error)}", hint="leave U+0000 out"
        ) from error
    raise StoreUnavailable(f"Postgres failed: {_told(error)}", hint=_hint(error.sqlstate or "")) from error


def _hint(state: str) -> str:
    match state[:2], state:
        case _, "55P03":
            return "another transaction held a row for too long; look at pg_stat_activity"
        case "53", _:
            return "the server is out of space, memory or connections"
        case "42" | "3F", _:
            return "the store's schema was changed or dropped, or this role may not use it"
    return "the same call may work later"


def _told(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
