"""The library `eventsourcing` as a contender: its recorders, which is the layer that compares with a store.

It takes no idempotency key and keeps neither checksums nor marks; its SQLite is that of Python, also with a
write-ahead log and `synchronous=FULL`, its default.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import orjson
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import ApplicationRecorder, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from benchmarks.payload import TYPE


class Peer:
    """One recorder, and one aggregate in it."""

    def __init__(self, recorder: ApplicationRecorder, datastore: SQLiteDatastore | PostgresDatastore) -> None:
        self._recorder = recorder
        self._datastore = datastore
        self._id = uuid4()
        self._version = 0

    def append(self, data: dict[str, Any]) -> None:
        self.append_to(self._id, self._version + 1, [data])
        self._version += 1

    def append_batch(self, datas: list[dict[str, Any]]) -> None:
        self.append_to(self._id, self._version + 1, datas)
        self._version += len(datas)

    def append_to(self, id_: UUID, first: int, datas: list[dict[str, Any]]) -> None:
        self._recorder.insert_events(
            [StoredEvent(id_, version, TYPE, orjson.dumps(data)) for version, data in enumerate(datas, first)]
        )

    def global_pages(self, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after = 0
        while page := [
            (found, orjson.loads(found.state))
            for found in self._recorder.select_notifications(after, size, inclusive_of_start=False)
        ]:
            yield page
            after = page[-1][0].id

    def stream_pages(self, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after = 0
        while page := [
            (found, orjson.loads(found.state))
            for found in self._recorder.select_events(self._id, gt=after, limit=size)
        ]:
            yield page
            after = page[-1][0].originator_version

    def close(self) -> None:
        self._datastore.close()


def peer_sqlite(path: Path) -> Peer:
    datastore = SQLiteDatastore(str(path), lock_timeout=30, pool_timeout=30)
    recorder = SQLiteApplicationRecorder(datastore)
    recorder.create_table()
    return Peer(recorder, datastore)


def peer_postgres(url: str, table: str, *, pool_size: int = 1, creates: bool = True) -> Peer:
    """A recorder with a table of its own; its safe mode, in which a lock keeps positions in commit order.
    One process `creates` the table: two at once fail."""
    datastore = PostgresDatastore(
        "postgres", _host(url), 5432, "postgres", "", pool_size=pool_size, max_waiting=0
    )
    recorder = PostgresApplicationRecorder(datastore, events_table_name=table)
    if creates:
        recorder.create_table()
    return Peer(recorder, datastore)


def _host(url: str) -> str:
    (host,) = parse_qs(urlsplit(url).query)["host"]
    return host


class Order(Aggregate):
    """What `eventsourcing` would have one write instead of a fold."""

    def __init__(self) -> None:
        self.total = 0

    @event("LineAdded")
    def add_line(self, data: dict[str, Any]) -> None:
        self.total += data["quantity"]


class PeerApplication:
    """An application of theirs, with one aggregate that has an event for each of the payloads."""

    def __init__(self, settings: dict[str, str], datas: list[dict[str, Any]]) -> None:
        self._application = Application[UUID](env=settings)
        order = Order()
        for data in datas:
            order.add_line(data)
        self._application.save(order)
        self._id = order.id

    def replay(self) -> int:
        order: Order = self._application.repository.get(self._id)
        return order.total

    def close(self) -> None:
        self._application.close()


def application_sqlite(path: Path, datas: list[dict[str, Any]]) -> PeerApplication:
    return PeerApplication({"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}, datas)


def application_postgres(url: str, datas: list[dict[str, Any]]) -> PeerApplication:
    settings = {"HOST": _host(url), "PORT": "5432", "DBNAME": "postgres", "USER": "postgres", "PASSWORD": ""}
    module = {"PERSISTENCE_MODULE": "eventsourcing.postgres"}
    return PeerApplication(module | {f"POSTGRES_{name}": said for name, said in settings.items()}, datas)
