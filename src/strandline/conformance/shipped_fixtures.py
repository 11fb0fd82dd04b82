"""Ready-made fixtures for the backends that Strandline ships, and hosts to run them on.

Each fixture makes stores of its own and removes them: SQLite a file a case in a new folder, Postgres a schema
a case, the remote a scratch store a case. The drivers are imported where they are needed. A host that is ours
can also be killed, by `hosts.py`; one that is somebody else's cannot, so nothing is claimed of its
durability.
"""

import shutil
import sqlite3
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from strandline.conformance.fixture import Capabilities, Opener
from strandline.conformance.hosts import HostAddress, crash_host
from strandline.errors import SequenceError, StrandlineError, UsageError
from strandline.persist.backend import Backend
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.blob import BlobStore, mem_blob_store
from strandline.persist.core.lift import atomic
from strandline.persist.durable import mock_durable
from strandline.persist.event import Event, Scalar, Storable
from strandline.persist.opening import open_store
from strandline.persist.value import decode, encode
from strandline.storage import open_content

_IN_PROCESS = "the store lives in one process and goes with it"
_IN_PROCESS_GAPS = {"shared": _IN_PROCESS, "durable": _IN_PROCESS}


class MemoryFixture:
    """The reference backend."""

    name = "memory"
    capabilities = Capabilities({**_IN_PROCESS_GAPS, "reopen": _IN_PROCESS})

    def __init__(self) -> None:
        self._disk = MemoryBackend()
        self._content = mem_blob_store()

    def fresh(self) -> Backend:
        self._disk, self._content = MemoryBackend(), mem_blob_store()
        return self._opened()

    def reopen(self) -> Backend:
        return self._opened()

    def crash(self) -> Backend:
        return self._opened()

    def content_store(self) -> BlobStore:
        return self._content

    def opener(self) -> Opener:
        raise UsageError(_IN_PROCESS, hint="cases of level shared are skipped")

    def damage(self, stream: str, seq: int) -> Backend:
        rows = self._disk._streams[stream].rows  # noqa: SLF001  # behind the backend's back is the point
        type_, at, text, sum_ = rows[seq]
        rows[seq] = (type_, at, text + " ", sum_)
        return self._opened()

    def close(self) -> None:
        """Nothing is kept."""

    def _opened(self) -> Backend:
        return self._disk


class MockDurableFixture(MemoryFixture):
    """Requests to the reference host in this process: a client can go and come, the host cannot."""

    name = "mock_durable"
    capabilities = Capabilities({**_IN_PROCESS_GAPS, "backup": "backups are made beside the host"})

    def _opened(self) -> Backend:
        return mock_durable(self._disk)


class TenOperations:
    """A backend of the basic minimum and nothing more, to certify what `lift` makes of one."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        self._events: dict[str, list[tuple[int, str, Scalar, bytes]]] = {}
        self._keys: dict[str, bytes] = {}

    def append(self, stream: str, event: Event) -> int:
        mark = self.last_seq(stream)
        if event.seq != mark + 1:
            raise SequenceError(stream, seq=event.seq, last_seq=mark)
        row = (event.seq, event.type, event.at, encode(event.data))
        self._events.setdefault(stream, []).append(row)
        self._marks[stream] = event.seq
        return event.seq

    def read(self, stream: str) -> list[Event]:
        rows = self._events.get(stream, [])
        return [Event(stream, seq, type_, at, decode(text)) for seq, type_, at, text in rows]

    def last_seq(self, stream: str) -> int:
        return self._marks.get(stream, 0)

    def streams(self) -> list[str]:
        return sorted(self._marks)

    def truncate_through(self, stream: str, n: int) -> None:
        if stream in self._events:
            self._events[stream] = [row for row in self._events[stream] if row[0] > n]

    def kv_get(self, key: str) -> Storable:
        return decode(self._keys[key]) if key in self._keys else None

    def kv_put(self, key: str, value: Storable) -> None:
        self._keys[key] = encode(value)

    def kv_delete(self, key: str) -> None:
        self._keys.pop(key, None)

    def kv_has(self, key: str) -> bool:
        return key in self._keys

    def kv_keys(self) -> list[str]:
        return sorted(self._keys)


class BasicFixture(MemoryFixture):
    """Ten operations over dictionaries, lifted by the library."""

    name = "basic"
    capabilities = Capabilities(
        {
            "atomic": "it has the ten basic operations only, lifted by one lock",
            **_IN_PROCESS_GAPS,
            "reopen": _IN_PROCESS,
            "damage": "ten operations show nothing of stored bytes",
            "verify": "ten operations show nothing of stored bytes",
            "redact": "ten operations cannot change a stored event",
            "backup": "ten operations show nothing of stored bytes",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self._basic = TenOperations()

    def fresh(self) -> Backend:
        super().fresh()
        self._basic = TenOperations()
        return self._basic

    def _opened(self) -> Backend:
        return self._basic


class _OnDisk:
    """What the fixtures of durable backends have in common: a store by name, and a folder for the rest."""

    name = ""
    capabilities = Capabilities()

    def __init__(self, folder: str | Path | None = None) -> None:
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="slconf-", dir=folder))
        self._store = ""
        self._open: list[Backend] = []

    def fresh(self) -> Backend:
        self._let_go()
        self._store = f"case_{token_hex(8)}"
        return self._opened()

    def reopen(self) -> Backend:
        self._close_all()
        return self._opened()

    def crash(self) -> Backend:
        """The old object is kept, unclosed, so that nothing of it is written in good order."""
        return self._opened()

    def content_store(self) -> BlobStore:
        return open_content(self._folder / f"{self._store}.content")

    def opener(self) -> Opener:
        raise NotImplementedError

    def damage(self, stream: str, seq: int) -> Backend:
        raise UsageError(
            f"event {seq} of {stream!r} cannot be reached from here", hint="declare `damage` missing"
        )

    def close(self) -> None:
        self._let_go()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _opened(self) -> Backend:
        b = self.opener()()
        self._open.append(b)
        return b

    def _close_all(self) -> None:
        while self._open:
            with suppress(StrandlineError):
                atomic(self._open.pop()).close()

    def _let_go(self) -> None:
        """End the present store."""
        self._close_all()
        if self._store:
            self._remove()
        self._store = ""

    def _remove(self) -> None:
        shutil.rmtree(self._folder / f"{self._store}.content", ignore_errors=True)


class SqliteFixture(_OnDisk):
    """A file a case, in a new folder inside `folder`. What is killed is the process that uses it."""

    name = "sqlite"

    def opener(self) -> Opener:
        return partial(open_store, str(self._path))

    def damage(self, stream: str, seq: int) -> Backend:
        self._close_all()
        damage_file(self._path, stream, seq)
        return self._opened()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._store}.db"

    def _remove(self) -> None:
        super()._remove()
        for path in self._folder.glob(f"{self._store}.db*"):
            path.unlink()


class PostgresFixture(_OnDisk):
    """A schema a case, in the database of `url`."""

    name = "postgres"

    def __init__(self, url: str, host: HostAddress | None = None) -> None:
        super().__init__()
        self._url, self._host = url, host
        if host is None:
            self.capabilities = Capabilities({"durable": "this server is not ours to kill"})

    def opener(self) -> Opener:
        return partial(open_store, self._url, schema=self._store)

    def crash(self) -> Backend:
        if self._host is not None:
            crash_host(self._host)
        return self._opened()

    def damage(self, stream: str, seq: int) -> Backend:
        find = f'(SELECT id FROM "{self._store}".stream WHERE name = %s)'
        self._execute(
            f'UPDATE "{self._store}".event SET data = left(data, -1) || chr(32)'
            f" WHERE stream_id = {find} AND seq = %s",
            (stream, seq),
        )
        return self.reopen()

    def _remove(self) -> None:
        super()._remove()
        self._execute(f'DROP SCHEMA IF EXISTS "{self._store}" CASCADE', ())

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode(), values)


class RemoteFixture(_OnDisk):
    """A scratch store a case, at a host that was started with `strandline persist serve --scratch`."""

    name = "remote"

    def __init__(self, url: str, host: HostAddress | None = None, *, token: str | None = None) -> None:
        super().__init__()
        self._url, self._host, self._token = url, host, token
        missing = {"backup": "backups are made beside the host"}
        if host is None:
            away = "this host is not ours"
            missing |= {"durable": f"{away} to kill", "damage": f"{away}, nor are its files"}
        self.capabilities = Capabilities(missing)

    def opener(self) -> Opener:
        return partial(open_store, self._url, scratch=self._store, token=self._token)

    def crash(self) -> Backend:
        if self._host is not None:
            crash_host(self._host)
        return self._opened()

    def damage(self, stream: str, seq: int) -> Backend:
        if self._host is None:
            return super().damage(stream, seq)
        damage_file(Path(f"{self._host.store}.scratch") / f"{self._store}.db", stream, seq)
        return self.reopen()


def damage_file(path: Path, stream: str, seq: int) -> None:
    """Change the stored text of one event in a SQLite store file, checksums left as they were.

    It goes through a SQLite that knows nothing of page checksums, so that the page has a wrong one
    afterwards, as if the disk had changed it. The log is emptied into the file before, by one that does: its
    pages get theirs there.
    """
    from strandline.persist.backends.sqlite.file import connect

    sound = connect(path, synchronous="FULL", busy_timeout_s=30)
    sound.pragma("wal_checkpoint", "TRUNCATE")
    sound.close()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        found = connection.execute(
            "UPDATE events SET data = substr(data, 1, length(data) - 1) || ' '"
            " WHERE stream = (SELECT id FROM streams WHERE name = ?) AND id % (1 << 36) = ?",
            (stream, seq),
        )
        if found.rowcount != 1:
            raise UsageError(f"event {seq} of {stream!r} is not in {path}", hint="damage what is there")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
