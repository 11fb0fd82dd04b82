"""Six writers, two readers that follow them: which events does a reader never see?

Positions that are given out before the commit become visible out of order, and a reader that has passed one
never comes back. The same writers and the same reader run on our store, on a table with a serial column as
many write it by hand, and on the library `eventsourcing`, with and without its database functions.

    python -m tests.faults.gap WAY URL SPACE WRITER EVENTS    one writer
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid5

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from strandline.persist import Append, Event
from strandline.persist.backend import Write
from strandline.persist.backends.postgres import PostgresBackend
from tests.faults.count import ROOT, Count

WRITERS: Final = 6
READERS: Final = 2
PAGE: Final = 1000
MOST_AT_ONCE: Final = 4
NAMES: Final = UUID(int=7)


class Seen(NamedTuple):
    """One event as the reader gets it."""

    position: int
    writer: str
    number: int


class Way(Protocol):
    def write(self, writer: str, first: int, count: int) -> None:
        """`count` events in one transaction, numbered from `first`."""

    def page(self, after: int) -> list[Seen]:
        """What follows that position, as far as it can be seen now."""

    def stored(self) -> int: ...

    def close(self) -> None: ...


class Ours:
    def __init__(self, url: str, space: str) -> None:
        self._b = PostgresBackend(url, schema=space)

    def write(self, writer: str, first: int, count: int) -> None:
        writes: list[Write] = [Append(writer, "t", 0, n, globally=True) for n in range(first, first + count)]
        self._b.commit([], writes)

    def page(self, after: int) -> list[Seen]:
        return [
            Seen(position, event.stream, event.seq)
            for position, event in self._b.global_range(after + 1, limit=PAGE)
            if isinstance(event, Event)
        ]

    def stored(self) -> int:
        return int(self._b.info()["events"])

    def close(self) -> None:
        self._b.close()


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
        query = f"insert into {self._table} (writer, number) values (%s, %s)"
        with self._connection.transaction():
            for n in range(first, first + count):
                self._connection.execute(query.encode(), [writer, n])

    def page(self, after: int) -> list[Seen]:
        query = f"select * from {self._table} where position > %s order by position limit {PAGE}"
        return [Seen(*row) for row in self._connection.execute(query.encode(), [after]).fetchall()]

    def stored(self) -> int:
        query = f"select count(*) from {self._table}"
        row = self._connection.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0

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
        id_ = uuid5(NAMES, writer)
        self._recorder.insert_events(
            [StoredEvent(id_, n, "t", writer.encode()) for n in range(first, first + count)]
        )

    def page(self, after: int) -> list[Seen]:
        found = self._recorder.select_notifications(after, PAGE, inclusive_of_start=False)
        return [Seen(each.id, each.state.decode(), each.originator_version) for each in found]

    def stored(self) -> int:
        with self._datastore.transaction(commit=False) as cursor:
            cursor.execute(f"select count(*) as n from {self._recorder.events_table_name}".encode())
            row: Any = cursor.fetchone()
            return int(row["n"])

    def close(self) -> None:
        self._datastore.close()


WAYS: Final[dict[str, Callable[[str, str], Way]]] = {
    "ours": Ours,
    "naive": Naive,
    "eventsourcing": Peer,
    "eventsourcing with functions": lambda url, space: Peer(url, space, functions=True),
}


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
    """Let six processes write, follow them twice, and compare what was seen with what is there."""
    count, each = Count(f"gap, {name}", "6 seeds, and the moment"), -(-events // WRITERS)
    with count.timed(), closing(WAYS[name](url, space)) as way:
        writers = [started(name, url, space, number, each) for number in range(WRITERS)]

        def seen_by_one(_: int) -> int:
            with closing(WAYS[name](url, space)) as own:
                found = follow(own, lambda: all(writer.poll() is not None for writer in writers))
                return in_order(found, count)

        with ThreadPoolExecutor(READERS) as pool:
            seen = list(pool.map(seen_by_one, range(READERS)))
        assert [writer.wait(60) for writer in writers] == [0] * WRITERS
        count.add("events", way.stored())
        count.add("readers", READERS)
        count.add("never delivered", sum(way.stored() - each for each in seen))
    if count.tried["never delivered"]:
        count.broken.append(f"{count.tried['never delivered']} events were never delivered")
    return count


def started(name: str, url: str, space: str, number: int, events: int) -> "subprocess.Popen[bytes]":
    """A writer; every other one is slow to commit, so that those who came later overtake it: it waits before
    its sync, where the server syncs at all."""
    slow = {"PGOPTIONS": "-c commit_delay=2000 -c commit_siblings=0"} if number % 2 else {}
    command = [sys.executable, "-m", "tests.faults.gap", name, url, space, f"w{number}", str(events)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **slow})


def in_order(found: Iterable[Seen], count: Count) -> int:
    """How many there are; those of each writer must come in its order."""
    seen, last = 0, dict[str, int]()
    for each in found:
        seen += 1
        if each.number <= last.get(each.writer, 0):
            count.broken.append(f"{each} after number {last[each.writer]} of the same writer")
        last[each.writer] = each.number
    return seen


def main() -> None:
    name, url, space, writer, events = sys.argv[1:]
    chance, done = Random(writer), 0
    with closing(WAYS[name](url, space)) as way:
        while done < int(events):
            size = min(chance.randint(1, MOST_AT_ONCE), int(events) - done)
            way.write(writer, done + 1, size)
            done += size


if __name__ == "__main__":
    main()
