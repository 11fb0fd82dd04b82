"""Six writers, two readers that follow them: which events does a reader never see?

Positions that are given out before the commit become visible out of order, and a reader that has passed one
never comes back. The same writers and the same reader run on our store, on a table with a serial column as
many write it by hand, and on the library `eventsourcing`, with and without its database functions. Each
writer gives up some of its transactions, and one writer is killed at work.

    python -m tests.faults.gap WAY URL SPACE WRITER EVENTS    one writer
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from random import Random
from typing import Final, NamedTuple, Protocol, Self
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid5

import psycopg
from eventsourcing.persistence import IntegrityError, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from strandline.persist import Append, Conflict, Event, ExpectSeq, events
from strandline.persist.backend import Write
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.backends.postgres.block import block_query, lone_block
from strandline.persist.core.prepare import prepare
from tests.faults.count import ROOT, Count

WRITERS: Final = 6
READERS: Final = 2
KILLED: Final = 5  # of the writers; one of the slow ones
PAGE: Final = 1000
MOST_AT_ONCE: Final = 4
GIVES_UP: Final = 20  # every so many transactions one is given up
HELD_S: Final = 0.002  # and kept open for so long before
WAIT_S: Final = 3600
NAMES: Final = UUID(int=7)


class Seen(NamedTuple):
    """One event as the reader gets it."""

    position: int
    writer: str
    number: int


class Way(Protocol):
    def write(self, writer: str, first: int, count: int) -> None:
        """`count` events in one transaction, numbered from `first`."""

    def give_up(self, writer: str, first: int, count: int) -> None:
        """The same, but nothing of it is committed."""

    def page(self, after: int) -> list[Seen]:
        """What follows that position, as far as it can be seen now."""

    def stored(self, writer: str) -> list[int]:
        """The numbers of its events that are there, whatever a reader of the order sees."""

    def close(self) -> None: ...


class Ours:
    def __init__(self, url: str, space: str) -> None:
        self._b = PostgresBackend(url, schema=space)

    def write(self, writer: str, first: int, count: int) -> None:
        self._b.commit([], appends(writer, first, count))

    def give_up(self, writer: str, first: int, count: int) -> None:
        """A conflict; and the statement of a commit, rolled back after it put its events in line."""
        writes = appends(writer, first, count)
        assert isinstance(self._b.commit([ExpectSeq(writer, first + 9)], writes), Conflict)
        lone = lone_block([prepare([], writes)])
        assert lone is not None
        with self._b._pool.borrow() as connection, connection.transaction(force_rollback=True):
            assert connection.ask(*block_query(lone)) is not None
            time.sleep(HELD_S)

    def page(self, after: int) -> list[Seen]:
        return [
            Seen(position, event.stream, event.data)
            for position, event in self._b.global_range(after + 1, limit=PAGE)
            if isinstance(event, Event)
        ]

    def stored(self, writer: str) -> list[int]:
        return [event.data for event in events(self._b, writer)]

    def close(self) -> None:
        self._b.close()


def appends(writer: str, first: int, count: int) -> list[Write]:
    return [Append(writer, "t", 0, n, globally=True) for n in range(first, first + count)]


class Naive:
    """A table with a serial column, read from the last position on."""

    def __init__(self, url: str, space: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._table = f'"{space}"'
        self._connection.execute("select pg_advisory_lock(7)")
        self._connection.execute(
            f"create table if not exists {self._table}"
            " (position bigserial primary key, writer text, number bigint)".encode()
        )
        self._connection.execute("select pg_advisory_unlock(7)")

    def write(self, writer: str, first: int, count: int) -> None:
        with self._connection.transaction():
            self._insert(writer, first, count)

    def give_up(self, writer: str, first: int, count: int) -> None:
        with self._connection.transaction(force_rollback=True):
            self._insert(writer, first, count)
            time.sleep(HELD_S)

    def _insert(self, writer: str, first: int, count: int) -> None:
        query = f"insert into {self._table} (writer, number) values (%s, %s)"
        for n in range(first, first + count):
            self._connection.execute(query.encode(), [writer, n])

    def page(self, after: int) -> list[Seen]:
        query = f"select * from {self._table} where position > %s order by position limit {PAGE}"
        return [Seen(*row) for row in self._connection.execute(query.encode(), [after]).fetchall()]

    def stored(self, writer: str) -> list[int]:
        query = f"select number from {self._table} where writer = %s order by position"
        return [n for (n,) in self._connection.execute(query.encode(), [writer])]

    def close(self) -> None:
        self._connection.close()


class Peer:
    """The recorder of `eventsourcing`; with its database functions its inserts take no lock."""

    def __init__(self, url: str, space: str, *, functions: bool = False) -> None:
        (host,) = parse_qs(urlsplit(url).query)["host"]
        self._datastore = PostgresDatastore(
            "postgres", host, 5432, "postgres", "", enable_db_functions=functions, pool_size=1, max_waiting=0
        )
        self._recorder = PostgresApplicationRecorder(self._datastore, events_table_name=space)
        with psycopg.connect(url, autocommit=True) as connection:  # two that create it at once would fail
            connection.execute("select pg_advisory_lock(7)")
            self._recorder.create_table()

    def write(self, writer: str, first: int, count: int) -> None:
        self._insert(writer, [*range(first, first + count)])

    def give_up(self, writer: str, first: int, count: int) -> None:
        with suppress(IntegrityError):
            self._insert(writer, [*range(first, first + count), 1])
            raise AssertionError(f"{writer} wrote its event 1 twice")

    def _insert(self, writer: str, numbers: list[int]) -> None:
        id_ = uuid5(NAMES, writer)
        self._recorder.insert_events([StoredEvent(id_, n, "t", writer.encode()) for n in numbers])

    def page(self, after: int) -> list[Seen]:
        found = self._recorder.select_notifications(after, PAGE, inclusive_of_start=False)
        return [Seen(each.id, each.state.decode(), each.originator_version) for each in found]

    def stored(self, writer: str) -> list[int]:
        return [each.originator_version for each in self._recorder.select_events(uuid5(NAMES, writer))]

    def close(self) -> None:
        self._datastore.close()


WAYS: Final[dict[str, Callable[[str, str], Way]]] = {
    "ours": Ours,
    "naive": Naive,
    "eventsourcing": Peer,
    "eventsourcing with functions": lambda url, space: Peer(url, space, functions=True),
}


class Writer:
    """A process that writes, and tells of each transaction once it is acknowledged. Every other one is slow
    to commit, so that those who came later overtake it: it waits before its sync, where the server syncs."""

    def __init__(self, name: str, url: str, space: str, number: int, events: int) -> None:
        self.name = f"w{number}"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        slow = {"PGOPTIONS": "-c commit_delay=2000 -c commit_siblings=0"} if number % 2 else {}
        command = [sys.executable, "-m", "tests.faults.gap", name, url, space, self.name, str(events)]
        surroundings = {**os.environ, **slow, "PGAPPNAME": f"gap {self.name}"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=self._said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        self._said.close()

    def told(self) -> tuple[int, int]:
        """How many events it had acknowledged, and how many transactions it had given up."""
        number = self._said.fileno()
        lines = os.pread(number, os.fstat(number).st_size, 0).split(
            b"\n"
        )  # the last is empty, or half of one
        acked, given_up = lines[-2].split() if len(lines) > 1 else (0, 0)
        return int(acked), int(given_up)

    def kill_at(self, acked: int) -> None:
        until = time.monotonic() + WAIT_S
        while self.told()[0] < acked and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        self.process.kill()
        assert self.process.wait(WAIT_S) == -signal.SIGKILL, (
            "the writer ended by itself, and nobody was killed"
        )


class Followed:
    """What one reader saw: those of each writer must come in its order, and positions must rise."""

    def __init__(self, found: Iterable[Seen], *, dense: bool) -> None:
        self.seen = self.order = position = 0
        self.broken: list[str] = []
        last: dict[str, int] = {}
        for each in found:
            self.seen += 1
            self.order = hash((self.order, each))
            if each.number <= last.get(each.writer, 0):
                self.broken.append(f"{each} after number {last[each.writer]} of the same writer")
            if each.position <= position or (dense and each.position != position + 1):
                self.broken.append(f"{each} after position {position}")
            last[each.writer], position = each.number, each.position


def follow(way: Way, is_over: Callable[[], bool]) -> Iterator[Seen]:
    """What a reader gets that goes on from the last position it saw."""
    after = 0
    while True:
        over = is_over()
        page = way.page(after)
        yield from page
        if page:
            after = page[-1].position
        elif over:
            return


def measure(name: str, url: str, space: str, *, events: int) -> Count:
    """Let six processes write, follow them twice, and compare what was seen and what is there with what was
    acknowledged. One of the six writes on until it is killed, halfway."""
    count, each = Count(f"gap, {name}", "6 seeds, and the moment"), -(-events // WRITERS)
    with count.timed(), ExitStack() as stack:
        way, over = stack.enter_context(closing(WAYS[name](url, space))), threading.Event()

        def followed(_: int) -> Followed:
            with closing(WAYS[name](url, space)) as own:
                return Followed(follow(own, over.is_set), dense=name == "ours")

        pool = stack.enter_context(ThreadPoolExecutor(READERS))
        stack.callback(over.set)
        readers = [pool.submit(followed, n) for n in range(READERS)]
        limits = [10**9 if number == KILLED else each for number in range(WRITERS)]
        writers = [
            stack.enter_context(Writer(name, url, space, number, limit))
            for number, limit in enumerate(limits)
        ]
        writers[KILLED].kill_at(each // 2)
        ended = [writer.process.wait(WAIT_S) for writer in writers]
        assert ended == [0] * KILLED + [-signal.SIGKILL], f"the writers ended with {ended}"
        wait_until_left(url)
        over.set()
        compare(way, writers, limits, [reader.result() for reader in readers], count)
    return count


def wait_until_left(url: str) -> None:
    """A server may still be at work on the last transaction of a writer that is dead."""
    query = "select from pg_stat_activity where application_name like 'gap w%'"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(query).rowcount:
            time.sleep(0.01)


def compare(
    way: Way, writers: list[Writer], limits: list[int], readers: list[Followed], count: Count
) -> None:
    stored = 0
    for writer, limit in zip(writers, limits, strict=True):
        numbers, (acked, given_up) = way.stored(writer.name), writer.told()
        stored += len(numbers)
        count.add("transactions given up", given_up)
        after = next((first + size - 1 for first, size in plan(writer.name, limit) if first > acked), acked)
        if numbers != [*range(1, len(numbers) + 1)] or len(numbers) not in (acked, after):
            count.broken.append(f"{writer.name} had {acked} events acknowledged, {len(numbers)} are stored")
    count.add("events", stored)
    count.add("writers killed")
    count.add("readers", len(readers))
    count.add("never delivered", sum(stored - reader.seen for reader in readers))
    count.broken += [fault for reader in readers for fault in reader.broken[:9]]
    if count.tried["never delivered"]:
        count.broken.append(f"{count.tried['never delivered']} events were never delivered")
    elif len({reader.order for reader in readers}) > 1:
        count.broken.append("the readers saw the same events in another order")


def plan(writer: str, events: int) -> Iterator[tuple[int, int]]:
    """The transactions of a writer: the first number of each, and how many."""
    chance, done = Random(writer), 0
    while done < events:
        size = min(chance.randint(1, MOST_AT_ONCE), events - done)
        yield done + 1, size
        done += size


def main() -> None:
    name, url, space, writer, events = sys.argv[1:]
    given_up = 0
    with closing(WAYS[name](url, space)) as way:
        for turn, (first, size) in enumerate(plan(writer, int(events)), 1):
            if turn % GIVES_UP == 0:
                way.give_up(writer, first, size)
                given_up += 1
            way.write(writer, first, size)
            print(first + size - 1, given_up, flush=True)


if __name__ == "__main__":
    main()
