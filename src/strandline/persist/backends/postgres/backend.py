"""An event store in a schema of a Postgres database, for any number of processes.

A commit is one call of one function, so one round trip: it locks the rows of the names that are expected or
written, in one order, decides, and writes. The commits of the threads of this process share a transaction. An
event of the global order is put in line by its commit, without any lock in common, and gets its position from
whoever reads that order next. Durable means flushed by the server, and on its synchronous standbys if it has
any.
"""

import struct
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeAlias, TypeVar

import psycopg

from strandline.base.failpoint import reach
from strandline.errors import OutcomeUnknown, SequenceError, StoreUnavailable, StrandlineError, UsageError
from strandline.persist.audit import audit, quarantine_key, quarantine_writes, refuse_lost
from strandline.persist.backend import (
    Append,
    Damage,
    Delete,
    Expectation,
    ExpectSeq,
    Once,
    Outcome,
    Put,
    Record,
    StreamHead,
    Truncate,
    Write,
)
from strandline.persist.backends.postgres import block, group, portable, read, sweep
from strandline.persist.backends.postgres.bell import Bell
from strandline.persist.backends.postgres.connection import Connection
from strandline.persist.backends.postgres.pack import int_of
from strandline.persist.backends.postgres.pool import Pool, is_lost, raise_translated
from strandline.persist.backends.postgres.schema import check_schema, current_format, lineage, prepare_schema
from strandline.persist.backends.postgres.transaction import (
    POSITIONS_A_PASS,
    PostgresTransaction,
    is_unusual,
    line_up,
    run_alone,
)
from strandline.persist.core.commit import KEPT_COMMIT_MARKERS, Repeated, decide
from strandline.persist.core.group_commit import GroupCommit
from strandline.persist.core.prepare import Prepared, prepare
from strandline.persist.event import Compacted, Conflict, Event, Scalar, Storable
from strandline.persist.reserved import GLOBAL, LINEAGE, QUARANTINED
from strandline.persist.value import MAX_SEQ, check_limit, check_name, check_seq

Result = TypeVar("Result")
Answer = TypeVar("Answer")
_Names: TypeAlias = frozenset[tuple[str, str]]

_POLL_S: Final = 0.25
# Begin anew, nothing was written: a name vanished under us, a deadlock, a serialisation failure.
_AGAIN: Final = frozenset({"SL001", "40P01", "40001"})
_TRIES: Final = 100
# How long a group waits for a row that another process holds, and how long the parts of such a group do.
_GROUP_MS: Final = 200
_PART_MS: Final = 50
_HELD: Final = "55P03"
# Classes of errors that one commit may bring upon its group: its data, a limit, a row held or damaged.
_OF_ONE: Final = frozenset({"22", "23", "40", "54", "55", "XX"})


class _HeldUp(Exception):
    """The answer of a group to one that must wait for a row: it shall not make the others wait."""


class PostgresBackend:
    """See AtomicBackend, Inspectable and Portable for what it promises.

    `timeout_s` bounds a connection attempt, the wait for a free connection and the wait for a row that
    another transaction holds. A commit that waits for a row leaves its group and takes a connection apart,
    of which there are `pool_size` too, so that it holds up nobody else. A commit whose answer is lost is
    repeated if it has a `once`, else it raises OutcomeUnknown.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "strandline",
        create: bool = True,
        pool_size: int = 8,
        timeout_s: float = 30.0,
    ) -> None:
        self._pool = Pool(url, check_schema(schema), size=pool_size, timeout_s=timeout_s)
        # For commits that wait for a row, so that no number of them keeps the others from a connection.
        self._patient_pool = Pool(url, schema, size=pool_size, timeout_s=timeout_s)
        try:
            with self._pool.borrow() as connection:
                prepare_schema(connection, schema, create=create)
        except BaseException:
            self._pool.close()
            raise
        self._counts = {"commits": 0, "conflicts": 0}
        self._group = GroupCommit(self._run)
        self._bell = Bell(self._pool.connect, f"strandline {sha256(schema.encode()).hexdigest()[:32]}")
        # An object that is dropped without close() still ends its thread and its connections.
        self._finalizer = weakref.finalize(self, _let_go, self._pool, self._patient_pool, self._bell)

    # Writing

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        self._pool.check()
        prepared = prepare(preconditions, writes, once)
        reach("commit.prepared")
        if is_unusual(prepared):
            names = group.names_of([prepared])
            outcome = self._alone(*names, lambda transaction: decide(transaction, prepared), once=once)
            self._count([outcome])
        else:
            outcome = self._submit(prepared)
        reach("commit.acknowledged")
        if not isinstance(outcome, Conflict):
            self._after(prepared)
        return outcome

    def append(self, stream: str, event: Event) -> int:
        if event.stream != stream:
            raise UsageError(
                f"an event of stream {event.stream!r} is no event of {stream!r}", hint="name one of them"
            )
        if type(event.seq) is not int or not 1 <= event.seq <= MAX_SEQ:
            raise SequenceError(stream, seq=event.seq, last_seq=self.last_seq(stream))
        write = Append(stream, event.type, event.at, event.data)
        outcome = self.commit([ExpectSeq(stream, event.seq - 1)], [write])
        if isinstance(outcome, Conflict):
            raise SequenceError(stream, seq=event.seq, last_seq=outcome.actual)
        return event.seq

    def truncate_through(self, stream: str, n: int) -> None:
        self.commit([], [Truncate(stream, n)])

    def kv_put(self, key: str, value: Storable) -> None:
        self.commit([], [Put(key, value)])

    def kv_delete(self, key: str) -> None:
        self.commit([], [Delete(key)])

    def _submit(self, prepared: Prepared) -> Outcome:
        try:
            return self._group.submit(prepared)
        except _HeldUp:
            pass
        (outcome,) = self._settled([prepared], self._patient_pool, self._pool.timeout_ms)
        self._count([outcome])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _run(self, prepareds: list[Prepared]) -> Sequence[Outcome | BaseException]:
        """Decide a group. Nobody in it waits long for a row that another process holds."""
        outcomes = self._decided(prepareds, min(_GROUP_MS, self._pool.timeout_ms), [])
        self._count(outcomes)
        return outcomes

    def _decided(
        self, prepareds: list[Prepared], patience_ms: int, held: list[_Names]
    ) -> list[Outcome | BaseException]:
        """One transaction for all, or for each half if one of them may be why there can be none for all."""
        try:
            return self._settled(prepareds, self._pool, patience_ms)
        except (StrandlineError, struct.error, OverflowError) as error:
            state = _state(error)
            if isinstance(error, StoreUnavailable) and state[:2] not in _OF_ONE:
                raise
            if len(prepareds) == 1:
                if state != _HELD:
                    return [error]
                held.append(_names(prepareds[0]))
                return [_HeldUp()]
        middle = len(prepareds) // 2
        return [
            outcome
            for half in (prepareds[:middle], prepareds[middle:])
            for outcome in self._decided_half(half, held)
        ]

    def _decided_half(self, prepareds: list[Prepared], held: list[_Names]) -> list[Outcome | BaseException]:
        """Who needs all that one needs who is held up is held up too, and not tried."""
        free = [p for p in prepareds if not any(names and names <= _names(p) for names in held)]
        found: list[Outcome | BaseException] = []
        try:
            found += self._decided(free, min(_PART_MS, self._pool.timeout_ms), held) if free else ()
        except Exception as error:  # noqa: BLE001  # it fails this half: the other may be stored
            found += [error] * len(free)
        tried, outcomes = {id(prepared) for prepared in free}, iter(found)
        return [next(outcomes) if id(prepared) in tried else _HeldUp() for prepared in prepareds]

    def _settled(
        self, prepareds: list[Prepared], pool: Pool, patience_ms: int
    ) -> list[Outcome | BaseException]:
        """One transaction; what has no answer is asked for once more, if it has a `once`."""
        try:
            return self._call(prepareds, pool, patience_ms)
        except OutcomeUnknown as unknown:
            repeatable = [prepared for prepared in prepareds if prepared.once is not None]
            try:
                again = self._call(repeatable, pool, self._pool.timeout_ms) if repeatable else []
                settled = iter([_as_ours(outcome) for outcome in again])
            except StrandlineError:
                settled = iter([_unknown(prepared, unknown) for prepared in repeatable])
            return [
                _unknown(prepared, unknown) if prepared.once is None else next(settled)
                for prepared in prepareds
            ]

    def _call(self, prepareds: list[Prepared], pool: Pool, patience_ms: int) -> list[Outcome | BaseException]:
        """Decide and write a group in one round trip; begun anew while nothing was written."""
        if found := block.lone_block(prepareds):
            statement, values = block.block_query(found, patience_ms=patience_ms)
            try:
                first = self._ask(pool, lambda connection: connection.ask(statement, values))
            except StoreUnavailable as error:
                if _state(error) != block.TAKEN:
                    raise
                first = None
            if first is not None:
                appends = (write for write in prepareds[0].writes if type(write) is Append)
                return [found.block.events(int_of(first), appends)]
        arguments = group.arguments(prepareds, kept=KEPT_COMMIT_MARKERS, patience_ms=patience_ms)
        answer = self._ask(pool, lambda connection: group.call(connection, arguments))
        return group.outcomes(prepareds, answer, self.event_at)

    def _ask(self, pool: Pool, question: Callable[[Connection], Result]) -> Result:
        for _ in range(_TRIES):
            with pool.borrow() as connection:
                try:
                    return question(connection)
                except psycopg.Error as error:
                    if is_lost(error, connection):
                        raise OutcomeUnknown("the connection broke in the commit", once=None) from error
                    if error.sqlstate not in _AGAIN:
                        raise_translated(error)
                    last = error
        return raise_translated(last)

    def _alone(
        self,
        streams: Sequence[str],
        keys: Sequence[str],
        work: Callable[[PostgresTransaction], Outcome],
        *,
        once: Once | None = None,
    ) -> Outcome:
        """One transaction of its own; if it has no answer it is asked for once more, if it has a `once`."""
        try:
            return self._alone_once(streams, keys, work, once)
        except OutcomeUnknown as unknown:
            if once is None:
                raise
            try:
                outcome = self._alone_once(streams, keys, work, once)
            except StrandlineError:
                raise unknown from unknown.__cause__
            return _as_ours(outcome)

    def _alone_once(
        self,
        streams: Sequence[str],
        keys: Sequence[str],
        work: Callable[[PostgresTransaction], Outcome],
        once: Once | None,
    ) -> Outcome:
        for _ in range(_TRIES):
            with self._pool.borrow() as connection:
                try:
                    return run_alone(connection, streams, keys, work, once=once)
                except StoreUnavailable as error:
                    if _state(error) not in _AGAIN:
                        raise
                    last = error
        raise last

    def _count(self, outcomes: Iterable[Outcome | BaseException]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Conflict):
                self._counts["conflicts"] += 1
            elif isinstance(outcome, list):
                self._counts["commits"] += 1

    def _after(self, prepared: Prepared) -> None:
        """What follows a commit and is no part of it: a crash leaves waiters to poll, and rows to sweep."""
        blocks = block.blocks(prepared)
        names = {each.stream for each in blocks}
        if any(True in each.globally for each in blocks):
            names.add(GLOBAL)
        self._bell.ring(names)
        if any(type(step) is Truncate for step in prepared.steps):
            with suppress(
                StrandlineError
            ):  # it is committed: rows that stay are hidden, and swept the next time
                self._with(sweep.sweep)

    # Reading

    def _with(self, work: Callable[[Connection], Result]) -> Result:
        """Run one read; a connection that breaks under it is replaced, once."""
        for is_last in (False, True):
            with self._pool.borrow() as connection:
                try:
                    return work(connection)
                except psycopg.Error as error:
                    if is_last or not is_lost(error, connection):
                        raise_translated(error)
        raise AssertionError("the last try returns or raises")

    def _line_up(self) -> None:
        """Give a position to every event that was in line when this began."""
        while self._with(line_up) == POSITIONS_A_PASS:
            pass

    def last_seq(self, stream: str) -> int:
        if stream == GLOBAL:
            self._line_up()
        return self._with(lambda connection: read.head(connection, stream))[0]

    def truncated_through(self, stream: str) -> int:
        return self._with(lambda connection: read.head(connection, stream))[1]

    def read(self, stream: str) -> list[Event]:
        return list(read.pages(lambda first: list(self.read_range(stream, first, MAX_SEQ, limit=MAX_SEQ)), 1))

    def read_range(
        self,
        stream: str,
        first: int,
        last: int,
        *,
        limit: int,
        type: str | None = None,
        start: Scalar | None = None,
        end: Scalar | None = None,
    ) -> Iterator[Event]:
        self._pool.check()
        if check_limit(limit) == 0 or first > last or last < 1:
            return iter(())
        first, last = read.clamp(first), read.clamp(last)
        if stream == GLOBAL:
            return self._pointers(first, last, limit, type, start, end)
        if type is None and start is None and end is None:
            return iter(self._with(lambda c: read.page(c, stream, first, last, limit)))
        return iter(self._with(lambda c: read.chosen_page(c, stream, first, last, limit, type, start, end)))

    def _pointers(
        self, first: int, last: int, limit: int, type_: str | None, start: Scalar | None, end: Scalar | None
    ) -> Iterator[Event]:
        self._line_up()
        if type_ not in (None, "pointer"):
            return iter(())
        if start is None and end is None:
            return iter(self._with(lambda c: read.pointer_page(c, first, last, limit)))
        return iter(self._with(lambda c: read.chosen_pointers(c, first, last, limit, start, end)))

    def event_at(self, stream: str, seq: int) -> Event | None:
        if not 1 <= seq <= MAX_SEQ:
            return None
        if stream == GLOBAL:
            return next(self._pointers(seq, seq, 1, None, None, None), None)
        return self._with(lambda connection: read.event_at(connection, stream, seq))

    def global_range(self, first: int, *, limit: int) -> Iterator[tuple[int, Event | Compacted]]:
        self._pool.check()
        if check_limit(limit) == 0:
            return iter(())
        first = read.clamp(first)
        found, lost = self._with(lambda c: read.global_page(c, first, limit))
        if len(found) < min(limit, read.PAGE_ROWS):  # a full page needs no later positions
            self._line_up()
            found, lost = self._with(lambda c: read.global_page(c, first, limit))
        for gone in lost:
            refuse_lost(self, gone.stream, gone.seq)
        return iter(found)

    def streams(self) -> list[str]:
        names: list[str] = []
        while page := self.stream_scan("", after=names[-1] if names else "", limit=MAX_SEQ):
            names += [head.name for head in page]
        return names

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        check_limit(limit)
        if read.lists_global(prefix, after):
            self._line_up()
        return self._with(lambda connection: read.stream_page(connection, prefix, after, limit))

    def kv_get(self, key: str) -> Storable:
        if key == LINEAGE:
            return self._with(lineage)
        return self._with(lambda connection: read.value(connection, key))[1]

    def kv_has(self, key: str) -> bool:
        return self._with(lambda connection: read.has(connection, key))

    def kv_keys(self) -> list[str]:
        keys: list[str] = []
        while page := self._with(partial(read.key_page, after=keys[-1] if keys else "")):
            keys += page
        return keys

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        check_limit(limit)
        return self._with(lambda connection: read.value_page(connection, prefix, after, limit))

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        mark = self.last_seq(stream)
        if mark > after or timeout_s <= 0:
            return mark
        with self._bell.watch(stream, timeout_s=min(timeout_s, _POLL_S)) as woken:
            while True:
                woken.clear()
                mark, left = self.last_seq(stream), until - time.monotonic()
                if mark > after or left <= 0:
                    return mark
                woken.wait(min(left, _POLL_S))

    # Upkeep

    def info(self) -> dict[str, Any]:
        streams, events, size = self._with(sweep.counts)
        return {
            "backend": "postgres",
            "lineage": self._with(lineage),
            "format": current_format(),
            "streams": streams,
            "events": events,
            "bytes": size,
            **self._counts,
        }

    def scrub(self, *, rewrite: bool = False) -> None:
        self._with(sweep.sweep)
        self._with(lambda connection: sweep.vacuum(connection, rewrite=rewrite))

    def verify(self) -> list[Damage]:
        return [*audit(self.dump(raw=True)), *self._with(sweep.orphans)]

    def quarantine(self, stream: str, seq: int, at: Scalar) -> None:
        check_name("stream", stream)
        check_seq("seq", seq, least=1)

        def set_aside(transaction: PostgresTransaction) -> Outcome:
            writes = quarantine_writes(transaction, stream, seq, at, transaction.raw(stream, seq))
            outcome = decide(transaction, prepare([], writes))
            transaction.remove(stream, seq)
            return outcome

        self._alone(sorted({stream, QUARANTINED}), [quarantine_key(stream, seq)], set_aside)

    def dump(self, *, raw: bool = False) -> Iterator[Record]:  # noqa: ARG002  # Postgres refuses no row by itself
        self._pool.check()
        return portable.dump(self._pool.connect, self._line_up)

    def load(self, records: Iterable[Record]) -> Mapping[str, int]:
        self._pool.check()
        with self._pool.borrow() as connection:
            return portable.load(connection, records)

    def close(self) -> None:
        self._finalizer()


def _let_go(pool: Pool, patient_pool: Pool, bell: Bell) -> None:
    pool.close()
    patient_pool.close()
    if pool.is_ours():  # in a child after a fork the thread and its locks are the parent's
        bell.close()


def _state(error: BaseException) -> str:
    """The SQLSTATE behind an error, if the server sent one."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def _names(prepared: Prepared) -> _Names:
    """The rows that a commit locks, but for its marker, which is hardly ever another's too."""
    streams, keys = group.names_of([prepared])
    return frozenset(
        [("stream", name) for name in streams] + [("key", name) for name in keys if name != prepared.once_key]
    )


def _as_ours(outcome: Answer) -> Answer | list[Event]:
    """What is known of a commit that is asked for again may be our own first try, whose answer was lost."""
    return list(outcome) if isinstance(outcome, Repeated) else outcome


def _unknown(prepared: Prepared, error: OutcomeUnknown) -> OutcomeUnknown:
    named = OutcomeUnknown(error.message, once=prepared.once)
    named.__cause__ = error.__cause__
    return named
