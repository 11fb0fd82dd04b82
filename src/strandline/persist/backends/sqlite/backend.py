"""The embedded backend: one SQLite file in WAL mode, many threads and many processes at once.

`synchronous="FULL"` (the default) survives power loss: a commit is on the disk before it is acknowledged.
`"NORMAL"` survives the death of the process, and may lose, on power loss, the commits since the last
checkpoint of the log (about 4,000 pages, 16 MB); what is left is a prefix of them, never a part of one.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from strandline.base.failpoint import reach
from strandline.errors import (
    CorruptionError,
    EventCorrupt,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.persist.audit import quarantine_writes, refuse_lost, refuse_unless_empty
from strandline.persist.backend import (
    Commit,
    Damage,
    Delete,
    Expectation,
    Once,
    Outcome,
    Put,
    Record,
    StreamHead,
    Truncate,
    Write,
)
from strandline.persist.backends.sqlite.file import damaged_file
from strandline.persist.backends.sqlite.handle import Handle
from strandline.persist.backends.sqlite.pages import has_unchecked
from strandline.persist.backends.sqlite.read import (
    DAMAGED_PAGE,
    RUNS,
    UNDECODABLE,
    UNREADABLE,
    check_run,
    global_rows,
    is_damage,
    located,
    located_globally,
    located_key,
    located_pointer,
    names_from,
    page_rows,
    time_bounds,
    trimmed,
)
from strandline.persist.backends.sqlite.records import Loader, dumped
from strandline.persist.backends.sqlite.survey import Unread, damaged_beside, survey, surveyed
from strandline.persist.backends.sqlite.transaction import SEQ_BITS, SEQ_MASK, Names, SqliteTransaction
from strandline.persist.core.commit import append_with_seq, decide
from strandline.persist.core.group_commit import GroupCommit
from strandline.persist.core.prepare import Prepared, prepare
from strandline.persist.event import Compacted, Conflict, Event, Scalar, Storable, make_event
from strandline.persist.reserved import GLOBAL, LINEAGE
from strandline.persist.value import MAX_SEQ, check_limit, check_name, check_seq, decode

Result = TypeVar("Result")

PAGE_ROWS: Final = 1000
PAGE_BYTES: Final = 16 * 1024 * 1024
POLL_S: Final = 0.01
SWEEP_ROWS: Final = 1000
_TURN_S: Final = 0.001


class SqliteBackend(Handle):
    """See AtomicBackend for what it promises. Reads have connections of their own and never wait for a
    writer."""

    def __init__(
        self,
        path: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        synchronous: str = "FULL",
        busy_timeout_s: float = 30,
    ) -> None:
        super().__init__(
            path,
            create=create,
            read_only=read_only,
            synchronous=synchronous,
            busy_timeout_s=busy_timeout_s,
        )
        self._group = GroupCommit(self._commit_group)
        self._is_inside = False  # somebody is at work in a transaction
        self._is_begun = False  # a transaction, neither committed nor undone yet
        self._failed: apsw.Error | None = None  # a COMMIT that was not judged yet
        self._names = Names()  # the writer's: holds what is not committed yet
        # The readers': only what they found committed, so that no undone id is taken for another.
        self._seen = Names()
        self._counts = {"commits": 0, "conflicts": 0}
        self._lineage = self._read_lineage()

    # Writing

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        self._check_usable()
        prepared = prepare(preconditions, writes, once)
        reach("commit.prepared")
        outcome = self._group.submit(prepared)
        reach("commit.acknowledged")
        self._sweep_after([prepared])
        return outcome

    def commit_each(self, commits: Sequence[Commit]) -> list[Outcome | Exception]:
        self._check_usable()
        outcomes: list[Any] = [_prepared(*commit) for commit in commits]
        places = [place for place, found in enumerate(outcomes) if isinstance(found, Prepared)]
        group: list[Prepared] = [outcomes[place] for place in places]
        reach("commit.prepared")
        for place, outcome in zip(places, self._group.submit_each(group) if group else (), strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
            outcomes[place] = outcome
        reach("commit.acknowledged")
        self._sweep_after(group)
        return outcomes

    def _sweep_after(self, group: Iterable[Prepared]) -> None:
        if any(type(step) is Truncate for prepared in group for step in prepared.steps):
            # The commits are done, whatever becomes of this: what stays is hidden, and swept with the next.
            with suppress(StrandlineError):
                self._sweep()

    def _commit_group(self, group: list[Prepared]) -> list[Outcome | BaseException]:
        """If what one of them meets undoes the whole group, each is tried alone."""
        try:
            return self._commit_together(group)
        except StrandlineError as error:
            if len(group) == 1 or not _is_of_one(error):
                raise
        return [self._commit_alone(prepared) for prepared in group]

    def _commit_alone(self, prepared: Prepared) -> Outcome | BaseException:
        try:
            return self._commit_together([prepared])[0]
        except Exception as error:  # noqa: BLE001  # the others have theirs
            return error

    def _commit_together(self, group: list[Prepared]) -> list[Outcome | BaseException]:
        def decided(tx: SqliteTransaction) -> list[Outcome | BaseException]:
            if len(group) > 1:
                tx.look_up([prepared.once_key for prepared in group if prepared.once])
            return [_decided(tx, prepared) for prepared in group]

        try:
            outcomes = self._in_transaction(decided)
        except UNDECODABLE as error:
            raise damaged_file(self._path, error) from error
        for outcome in outcomes:
            if not isinstance(outcome, BaseException):
                self._counts["conflicts" if isinstance(outcome, Conflict) else "commits"] += 1
        return outcomes

    def append(self, stream: str, event: Event) -> int:
        self._check_usable()
        self._in_transaction(lambda tx: append_with_seq(tx, stream, event))
        return event.seq

    def truncate_through(self, stream: str, n: int) -> None:
        self.commit([], [Truncate(stream, n)])

    def kv_put(self, key: str, value: Storable) -> None:
        self.commit([], [Put(key, value)])

    def kv_delete(self, key: str) -> None:
        self.commit([], [Delete(key)])

    def _in_transaction(self, work: Callable[[SqliteTransaction], Result]) -> Result:
        """BEGIN IMMEDIATE … COMMIT on the writer's connection; whatever goes wrong before COMMIT is undone.
        What a signal keeps from being done here is done when the next one begins. (So it is no context
        manager: a signal where that ends would leave it open, and the lock taken.)"""
        with self._writing:
            if self._is_inside:
                raise UsageError(
                    "a commit in the middle of another one of the same thread",
                    hint="commit what a signal handler, or who yields records, has to say after it",
                )
            self._is_inside = True
            try:
                return self._committed(work)
            finally:
                self._is_inside = False

    def _committed(self, work: Callable[[SqliteTransaction], Result]) -> Result:
        self._settle()
        self._check_usable()
        self._is_begun = True
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            if self._has_old_log:
                self._write_old_log_again()
            self._names.begin(self._writer.data_version())
            tx = SqliteTransaction(self._writer, self._names)
            result = work(tx)
            tx.flush()
            self._check_usable()  # it may have been forked
            self._refuse_if_replaced()
            reach("commit.before")
        except BaseException as error:
            self._undo()
            if isinstance(error, apsw.Error):
                raise self._unavailable(error) from error
            raise
        try:
            self._writer.execute("COMMIT")
        except apsw.Error as error:
            self._failed = error  # before anything is called: there Python would look at a signal
            self._undo()
            raise self._judged() from error
        self._names.version = self._writer.data_version()
        self._is_begun = False
        reach("commit.after")
        return result

    def _settle(self) -> None:
        if self._failed is not None:
            self._judged()
        if self._is_begun and not self._is_inherited:
            self._undo()
            with suppress(apsw.ConnectionClosedError):
                self._writer.pragma("checksum_verification", "on")  # a quarantine has it off

    def _undo(self) -> None:
        self._names.clear()
        if self._is_inherited:
            return
        with suppress(apsw.Error):  # the transaction may be gone already: then there is nothing to undo
            self._writer.execute("ROLLBACK")
        self._is_begun = False

    def _judged(self) -> StrandlineError:
        """What a commit that failed comes to."""
        assert self._failed is not None  # as both who ask have seen
        found = self._failed_commit(self._failed)
        self._failed = None
        return found

    # Reading

    def _read_lineage(self) -> str:
        try:
            with self._reader() as connection:
                return str(connection.execute("SELECT value FROM meta WHERE name = 'lineage'").get)
        except BaseException:
            self.close()
            raise

    def last_seq(self, stream: str) -> int:
        return self._head(stream)[0]

    def truncated_through(self, stream: str) -> int:
        return self._head(stream)[1]

    def _head(self, stream: str) -> tuple[int, int]:
        with self._reader() as connection:
            row = connection.execute(
                "SELECT mark, truncated FROM streams WHERE name = ?", (stream,)
            ).fetchone()
            return (row[0], row[1]) if row else (0, 0)

    def read(self, stream: str) -> list[Event]:
        events: list[Event] = []
        while page := list(
            self.read_range(stream, events[-1].seq + 1 if events else 1, MAX_SEQ, limit=PAGE_ROWS)
        ):
            events += page
        return events

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
        most = min(check_limit(limit), PAGE_ROWS)
        first, last = max(first, 1), min(last, SEQ_MASK)
        most = min(most, last - first + 1)  # a limit ends a walk before the row, and the page, after its last
        if most <= 0:
            return iter(())
        if stream == GLOBAL:
            return self._pointers(first, last, most, type, start, end)
        with self._reader() as connection:
            id_ = self._stream_id(connection, stream)
            if id_ is None:
                return iter(())
            try:
                rows = page_rows(connection, id_, first, last, most, type, start, end)
                return iter(self._events(connection, stream, rows))
            except UNREADABLE as error:
                if is_damage(error):
                    raise located(connection, stream, id_ << SEQ_BITS, first, last) from error
                raise

    def _events(
        self, connection: apsw.Connection, stream: str, rows: Iterable[tuple[Any, ...]]
    ) -> list[Event]:
        names, size, events = self._seen.type_names, 0, []
        for id_, type_, at, text in rows:
            name = names.get(type_) or self._type_name(connection, type_)
            events.append(make_event(stream, id_ & SEQ_MASK, name, at, decode(text)))
            size += len(text)
            if size > PAGE_BYTES:
                break
        return events

    def _type_name(self, connection: apsw.Connection, id_: int) -> str:
        row = connection.execute("SELECT name FROM types WHERE id = ?", (id_,)).fetchone()
        if row is None:
            raise CorruptionError(
                f"type {id_} of the store at {self._path.name} has no name",
                hint="`strandline persist verify` lists all damage",
            )
        self._seen.type_names[id_] = row[0]
        return str(row[0])

    def _stream_id(self, connection: apsw.Connection, stream: str) -> int | None:
        found = self._seen.streams.get(stream)
        if found is None:
            row = connection.execute("SELECT id FROM streams WHERE name = ?", (stream,)).fetchone()
            if row is None:
                return None
            self._seen.bound()
            found = self._seen.streams[stream] = row[0]
        return found

    def _pointers(
        self,
        first: int,
        last: int,
        most: int,
        type_: str | None,
        start: Scalar | None,
        end: Scalar | None,
    ) -> Iterator[Event]:
        if type_ not in (None, "pointer"):
            return iter(())
        within, bindings = time_bounds(start, end)
        with self._reader(lambda: located_pointer(connection, first)) as connection:
            first = max(first, trimmed(connection) + 1)
            runs: list[Any] = connection.execute(
                f"SELECT position, before, s.name, event & {SEQ_MASK}, at, length FROM ({RUNS})"
                f" CROSS JOIN streams s ON s.id = event >> {SEQ_BITS} WHERE {within} LIMIT ?",
                (first, most if start is end is None else -1, *bindings, most),
            ).fetchall()
        for position, before, *_, length in runs:
            check_run(position, before, length, first)
        pointers = (
            make_event(GLOBAL, place, "pointer", at, {"stream": name, "seq": seq - position + place})
            for position, before, name, seq, at, _ in runs
            for place in range(before + 1, min(position, last) + 1)
        )
        return iter(list(islice(pointers, most)))

    def event_at(self, stream: str, seq: int) -> Event | None:
        return next(self.read_range(stream, seq, seq, limit=1), None) if seq >= 1 else None

    def global_range(self, first: int, *, limit: int) -> Iterator[tuple[int, Event | Compacted]]:
        most = min(check_limit(limit), PAGE_ROWS)
        if first > MAX_SEQ:
            return iter(())
        with self._reader(lambda: located_globally(connection, max(first, 1))) as connection:
            page: list[tuple[int, Event | Compacted]] = []
            lost: list[tuple[str, int]] = []
            size = 0
            for position, stream, seq, type_, at, text in global_rows(connection, first, most):
                if text is None:
                    page.append((position, Compacted(stream, seq)))
                    if seq > type_:
                        lost.append((stream, seq))
                else:
                    name = self._seen.type_names.get(type_) or self._type_name(connection, type_)
                    page.append((position, make_event(stream, seq, name, at, decode(text))))
                    size += len(text)
                    if size > PAGE_BYTES:
                        break
        for stream, seq in lost:
            refuse_lost(self, stream, seq)
        return iter(page)

    def streams(self) -> list[str]:
        with self._reader() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM streams ORDER BY name")]

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        beyond, bound = names_from(prefix, after)
        with self._reader() as connection:
            rows: list[Any] = connection.execute(
                f"SELECT name, mark, truncated FROM streams WHERE {beyond} ORDER BY name LIMIT ?",
                (bound, min(check_limit(limit), PAGE_ROWS)),
            ).fetchall()
        return [StreamHead(*row) for row in rows if row[0].startswith(prefix)]

    def kv_get(self, key: str) -> Storable:
        if key == LINEAGE:
            self._check_usable()
            return self._lineage
        with self._reader(lambda: EventCorrupt(key, None, DAMAGED_PAGE)) as connection:
            row = connection.execute("SELECT value FROM keys WHERE name = ?", (key,)).fetchone()
            return decode(row[0]) if row else None

    def kv_has(self, key: str) -> bool:
        with self._reader(lambda: EventCorrupt(key, None, DAMAGED_PAGE)) as connection:
            return connection.execute("SELECT 1 FROM keys WHERE name = ?", (key,)).fetchone() is not None

    def kv_keys(self) -> list[str]:
        names: list[str] = []
        with self._reader(lambda: self._damaged_key("", names[-1] if names else "")) as connection:
            for (name,) in connection.execute("SELECT name FROM keys ORDER BY name"):
                names.append(name)
        return names

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        most = min(check_limit(limit), PAGE_ROWS)
        found: list[tuple[str, Storable]] = []
        size = 0
        beyond, bound = names_from(prefix, after)
        with self._reader(lambda: self._damaged_key(prefix, found[-1][0] if found else after)) as connection:
            rows = connection.execute(
                f"SELECT name, value FROM keys WHERE {beyond} ORDER BY name LIMIT ?", (bound, most)
            )
            for name, text in rows:
                size += len(text)
                if not name.startswith(prefix) or (found and size > PAGE_BYTES):
                    break
                found.append((name, decode(text)))
        return found

    def _damaged_key(self, prefix: str, after: str) -> CorruptionError:
        with self._own_reader() as connection:
            return located_key(connection, prefix, after)

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        with self._reader() as connection:
            seen = None
            while True:
                version = connection.pragma(
                    "data_version"
                )  # changes with each commit of any other connection
                if version != seen:
                    seen = version
                    row = connection.execute("SELECT mark FROM streams WHERE name = ?", (stream,)).fetchone()
                    mark = int(row[0]) if row else 0
                left_s = until - time.monotonic()
                if mark > after or left_s <= 0:
                    return mark
                time.sleep(min(POLL_S, left_s))
                self._check_usable()
                self._look()

    # Upkeep

    def info(self) -> dict[str, Any]:
        with self._reader() as connection:
            streams, events = connection.execute(
                "SELECT count(*), coalesce(sum(mark), 0) FROM streams WHERE name < '$' OR name >= '%'"
            ).fetchone() or (0, 0)
            format_ = connection.pragma("user_version")
        files = [self._path, self._path.with_name(self._path.name + "-wal")]
        return {
            "backend": "sqlite",
            "lineage": self._lineage,
            "format": format_,
            "streams": streams,
            "events": events,
            "bytes": sum(file.stat().st_size for file in files if file.exists()),
            **self._counts,
        }

    def _sweep(self) -> None:
        """Delete what truncation points hide, in steps, so that appends go on between them; a crash leaves
        the rest."""
        while self._in_transaction(lambda _: self._swept_some()):
            reach("truncate.swept")
            if self._group.is_busy:  # a lock that is taken again at once leaves those who wait no chance
                time.sleep(_TURN_S)

    def _swept_some(self) -> bool:
        row = self._writer.execute(
            "SELECT id, name, truncated, swept FROM streams INDEXED BY streams_unswept"
            " WHERE swept < truncated LIMIT 1"
        ).fetchone()
        if row is None:
            return False
        id_, name, truncated, swept = row
        until = min(truncated, swept + SWEEP_ROWS)
        if name == GLOBAL:
            self._writer.execute("DELETE FROM pointers WHERE position <= ?", (until,))
        else:
            span = ((id_ << SEQ_BITS) + swept + 1, (id_ << SEQ_BITS) + until)
            self._writer.execute("DELETE FROM events WHERE id BETWEEN ? AND ?", span)
        self._writer.execute("UPDATE streams SET swept = ? WHERE id = ?", (until, id_))
        return True

    def scrub(self, *, rewrite: bool = False) -> None:
        self._check_usable()
        self._sweep()
        with self._writing:
            try:
                if rewrite:
                    self._writer.execute("VACUUM")
                is_busy = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
            except apsw.Error as error:
                raise self._unavailable(error) from error
        if is_busy:
            raise StoreUnavailable(
                "a reader holds the log, so removed bytes are still in it",
                hint="end it, then repeat to finish",
            )

    def verify(self) -> list[Damage]:
        with self._own_reader() as connection:
            connection.pragma("checksum_verification", "off")
            try:
                found = survey(connection, self._lineage, self._path.name)
            except apsw.Error as error:
                found = [Damage("file", self._path.name, 0, f"reading stopped: {error}")]
        return found + self._damaged_pages()

    def _damaged_pages(self) -> list[Damage]:
        """Row checksums say nothing of indexes and inner pages: a full read with the page check on does."""
        with self._reader() as connection:
            try:
                faults = [
                    row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"
                ]
            except apsw.Error as error:
                faults = [str(error)]
        # Only the cause of a fault: a page of the file may also be torn by a power cut, and whole in the log.
        if faults and has_unchecked(self._path):
            faults.append("another SQLite program has written pages: `strandline persist repair` mends them")
        return [Damage("file", self._path.name, 0, fault) for fault in faults]

    def quarantine(self, stream: str, seq: int, at: Scalar) -> None:
        check_name("stream", stream)
        check_seq("seq", seq, least=1)
        with self._writing:
            self._check_usable()
            try:
                self._set_aside(stream, seq, at)
            finally:
                self._writer.pragma("shrink_memory")  # forgets pages that were read without their check

    def _set_aside(self, stream: str, seq: int, at: Scalar) -> None:
        # Taking it out writes its page anew, with a checksum that is right: whatever else is damaged on that
        # page would be read as good from then on, so it is set aside along with it.
        with self._own_reader() as connection:
            connection.pragma("checksum_verification", "off")
            beside = damaged_beside(connection, stream, seq)

        def move(tx: SqliteTransaction) -> None:
            self._writer.pragma("checksum_verification", "off")
            try:
                decide(tx, prepare([], quarantine_writes(tx, stream, seq, at, tx.raw(stream, seq))))
                tx.remove(stream, seq)
                for name, n in beside:
                    with suppress(apsw.CorruptError):  # on a malformed page, which then stays as it is
                        writes = quarantine_writes(tx, name, n, at, tx.raw(name, n))
                        tx.remove(name, n)
                        decide(tx, prepare([], writes))
                tx.flush()  # before the check is on again: it may have to write on a page that is damaged
            except apsw.Error as error:
                if not is_damage(error):
                    raise
                raise CorruptionError(
                    f"event {seq} of stream {stream!r} cannot be set aside: its page is malformed, so SQLite "
                    f"cannot take it out ({error})",
                    hint="restore a backup into a new store",
                ) from error
            finally:
                self._writer.pragma("checksum_verification", "on")

        self._in_transaction(move)

    def dump(self, *, raw: bool = False) -> Iterator[Record]:
        with self._own_reader() as connection:
            if raw:
                connection.pragma("checksum_verification", "off")
                yield from surveyed(connection, self._lineage, Unread(self._path.name))
            else:
                yield from dumped(connection, self._lineage)

    def load(self, records: Iterable[Record]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        source = iter(records)

        def fill(_: SqliteTransaction) -> None:
            refuse_unless_empty(self)  # as it was committed; nobody else commits from here on
            loader = Loader(self._writer)
            while chunk := list(islice(source, SWEEP_ROWS)):
                for record in chunk:
                    counts[record.kind] = counts.get(record.kind, 0) + 1
                loader.take(chunk)
            self._names.clear()  # of streams that it has made the writer knows what was so before

        self._in_transaction(fill)
        return counts

    def seal(self) -> None:
        """Leave one file without a log beside it, as a backup is; writing to it later starts a log again."""
        if self._options["read_only"]:
            raise UsageError("the store is open for reading only", hint="open it without read_only")
        with self._writing:
            self._settle()
            self._check_usable()
            self._close_readers()
            try:
                self._writer.pragma("journal_mode", "delete")
                self._log = None  # deleted on purpose
            except apsw.Error as error:
                raise self._unavailable(error) from error


def _prepared(
    preconditions: Sequence[Expectation], writes: Sequence[Write], once: Once | None
) -> Prepared | Exception:
    try:
        return prepare(preconditions, writes, once)
    except Exception as error:  # noqa: BLE001  # it stands in the place of the outcome
        return error


def _is_of_one(error: StrandlineError) -> bool:
    """Whether it is about what one commit needs, and not about the disk, or about whether it is stored."""
    return isinstance(error, CorruptionError) or (
        isinstance(error, StoreUnavailable) and error.__cause__ is None
    )


def _decided(tx: SqliteTransaction, prepared: Prepared) -> Outcome | BaseException:
    """One commit of a group. It raises before its first write, so the others are not touched; if it has
    written all the same (a stream is full), only undoing the whole group undoes it."""
    before = tx.writes
    try:
        return decide(tx, prepared)
    except StrandlineError as error:
        if tx.writes != before:
            raise
        return error
