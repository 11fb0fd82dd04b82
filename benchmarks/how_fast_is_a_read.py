"""How fast are events read, decoded and folded?

All sides decode every event and hold the page while they look at it. Ours gives Event objects and knows of
truncation; the raw side gives tuples.
"""

from collections.abc import Callable, Iterable, Sized
from contextlib import closing
from functools import partial
from typing import Any

from benchmarks import ours, raw_postgres, raw_sqlite
from benchmarks.frame import Bench, Case, Contender, main, rate
from benchmarks.payload import payloads
from benchmarks.peer import application_postgres, application_sqlite, peer_postgres, peer_sqlite
from strandline.persist import AtomicBackend, open_store

QUESTION = "How fast is a read?"
EVENTS = 20_000
PAGE = 500
AGGREGATE = 1000


def ask(bench: Bench) -> None:
    ask_sqlite(bench)
    url = bench.postgres()
    if url is not None:
        ask_postgres(bench, url)


def ask_sqlite(bench: Bench) -> None:
    count, folder = bench.scaled(EVENTS), bench.folder
    with (
        closing(open_store(folder / "read-ours.db")) as b,
        closing(raw_sqlite.RawTable(folder / "read-raw.db")) as raw,
        closing(peer_sqlite(folder / "read-peer.db")) as peer,
        closing(application_sqlite(folder / "read-application.db", payloads(AGGREGATE))) as application,
    ):
        for store in (ours.FullContract(b).append_batch, raw.append_batch, peer.append_batch):
            fill(count, store)
        _run_pages(bench, "SQLite", count, b, raw, peer)
        contenders = {
            "ours, project": rate(lambda: ours.replay(b), count),
            "raw table": rate(raw.read_stream, count),
            "eventsourcing, repository.get": rate(application.replay, AGGREGATE),
        }
        title = "SQLite: replay of a stream into one value"
        bench.run(Case(title, "events/s", contenders, ["raw table"]))


def ask_postgres(bench: Bench, url: str) -> None:
    count = bench.scaled(EVENTS)
    with (
        closing(open_store(url, schema="read_ours")) as b,
        closing(raw_postgres.RawTable(url)) as raw,
        closing(peer_postgres(url, "read_peer")) as peer,
        closing(application_postgres(url, payloads(AGGREGATE))) as application,
    ):
        for store in (ours.FullContract(b).append_batch, raw.append_batch, peer.append_batch):
            fill(count, store)
        _run_pages(bench, "Postgres", count, b, raw, peer)
        contenders = {
            "ours, project": rate(lambda: ours.replay(b), count),
            "raw table": rate(raw.read_stream, count),
            "eventsourcing, repository.get": rate(application.replay, AGGREGATE),
        }
        bench.run(Case("Postgres: replay of a stream into one value", "events/s", contenders, ["raw table"]))


def _run_pages(bench: Bench, kind: str, count: int, b: AtomicBackend, raw: Any, peer: Any) -> None:
    for title, of_ours, of_others in (
        ("pages of 500 of one stream", ours.stream_pages, "stream_pages"),
        ("pages of 500 in the global order", ours.global_pages, "global_pages"),
    ):
        contenders = {
            "ours": _walk(count, partial(of_ours, b)),
            "raw table": _walk(count, getattr(raw, of_others)),
            "eventsourcing": _walk(count, getattr(peer, of_others)),
        }
        bench.run(Case(f"{kind}: {title}", "events/s", contenders, ["raw table"]))


def _walk(count: int, pages: Callable[[int], Iterable[Sized]]) -> Contender:
    def act() -> None:
        seen = sum(len(page) for page in pages(PAGE))
        assert seen == count, f"{seen} of {count} events were read"

    return rate(act, count)


def fill(count: int, append_batch: Callable[[list[dict[str, Any]]], object]) -> None:
    for first in range(0, count, 1000):
        append_batch(payloads(min(1000, count - first)))


if __name__ == "__main__":
    main({QUESTION: ask})
