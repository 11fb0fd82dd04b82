"""Lines that are cut between a commit and its answer: a repeat under the same key has one effect."""

import select
import socket
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Final, Self
from urllib.parse import quote

from strandline.errors import OutcomeUnknown
from strandline.persist import Append, ExpectSeq, append_once, events, kv_get, kv_update, verify
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends import remote
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.backends.remote import RemoteBackend
from tests.conftest import postgres
from tests.faults.count import Count
from tests.server.hosts import HostProcess, Proxy

COMMITS: Final = (b"block_", b"commit_group")  # in what asks a Postgres for a commit
DONE: Final = b"SELECT 1\0"  # in the answer to a statement, once it is carried out and committed


def remote_cuts(*, times: int, seed: int = 1) -> Count:
    """Every commit loses a request or an answer, up to three in a row; the client repeats by itself."""
    count, chance = Count("cuts of HTTP", f"seed {seed}"), Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="strandline-cuts-"))
    pause = remote._FIRST_PAUSE_S
    remote._FIRST_PAUSE_S = 0.001  # type: ignore[misc]  # the pauses are not what is tried here
    with (
        count.timed(),
        HostProcess(folder / "store.db") as host,
        Proxy(host.port) as proxy,
        closing(RemoteBackend(proxy.url, retries=4)) as b,
    ):
        increments = 0

        def cut_next() -> None:
            requests, answers = chance.choice([(0, 1), (0, 1), (1, 0), (1, 1), (0, 3)])
            proxy.cut_requests, proxy.cut_answers = requests, answers
            count.add("answers to commits cut", answers)
            count.add("requests to commit cut", requests)

        def one_more(value: int) -> int:
            cut_next()  # it was read, and is written next
            return value + 1

        for n in range(1, times + 1):
            if n % 5 == 0:
                increments += 1
                kv_update(b, "n", 0, one_more)
            else:
                cut_next()
                outcome = b.commit([], [Append("s", "t", n, {"n": n}, globally=True)])
                if [event.seq for event in outcome] != [n - increments]:  # type: ignore[union-attr]
                    count.broken.append(f"commit {n} came back as {outcome}")
            if proxy.cut_requests or proxy.cut_answers:
                count.broken.append(f"commit {n} was not cut as often as it should have been")
        check(b, [n for n in range(1, times + 1) if n % 5], count)
        if kv_get(b, "n") != increments:
            count.broken.append(f"{increments} increments made {kv_get(b, 'n')}")
    remote._FIRST_PAUSE_S = pause  # type: ignore[misc]
    return count


def check(b: AtomicBackend, wanted: list[int], count: Count) -> None:
    found = [event.data["n"] for event in events(b, "s")]
    if found != wanted:
        extra = sorted(set(wanted) ^ set(found))[:5] or "their order"
        count.broken.append(f"{len(found)} events for {len(wanted)} commits; look at {extra}")
    count.broken += [str(damage) for damage in verify(b)]


class Line:
    """Hands bytes on between clients and a Postgres; while `is_cut` is set, the answer to the next commit
    that was carried out ends the line instead."""

    def __init__(self, server: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slpx-"))
        self._server = server / ".s.PGSQL.5432"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self.is_cut = threading.Event()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, suppress(OSError):
            server.connect(str(self._server))
            commits = False
            while True:
                for each in select.select([client, server], [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    if each is client:
                        commits = any(name in data for name in COMMITS)
                    elif commits and DONE in data and self.is_cut.is_set():
                        self.is_cut.clear()
                        self.cuts += 1
                        return
                    (client if each is server else server).sendall(data)


def postgres_cuts(*, times: int, schema: str = "cuts") -> Count:
    """The connection breaks after the server has worked and before its client hears of it."""
    count = Count("cuts of Postgres", "each commit")
    with (
        count.timed(),
        Line(postgres().folder) as line,
        closing(PostgresBackend(line.url, schema=schema)) as b,
    ):
        for n in range(1, times + 1):
            b.commit([ExpectSeq("s", 10**9)], [])  # a conflict: now there is a connection to be cut
            line.is_cut.set()
            told, cuts = with_key(b, n) if n % 2 else without_key(b, n), line.cuts
            count.add(told)
            if cuts != n or told.endswith("done"):
                count.broken.append(
                    f"the answers to {cuts} of {n} commits were cut; of the last it was {told}"
                )
                break
        check(b, [*range(1, times + 1)], count)
    return count


def with_key(b: AtomicBackend, n: int) -> str:
    """Under a key the store repeats it: it could not answer otherwise, as the first answer was cut."""
    append_once(b, "s", f"key {n}", "t", n, {"n": n}, globally=True)
    return "answers cut of commits with a key: repeated by itself"


def without_key(b: AtomicBackend, n: int) -> str:
    """The server has answered, so it is stored; only the caller does not know."""
    try:
        b.commit([], [Append("s", "t", n, {"n": n}, globally=True)])
    except OutcomeUnknown:
        return "without a key: told that the outcome is unknown"
    return "without a key: told that it was done"
