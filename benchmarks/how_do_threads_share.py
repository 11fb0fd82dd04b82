"""How much do 64 threads store together, each waiting for its own acknowledgement, against one by hand?"""

import gc
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

from benchmarks import ours, raw_postgres, raw_sqlite
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.payload import feed, nothing, payloads
from benchmarks.peer import Peer, peer_postgres, peer_sqlite
from strandline.persist import AtomicBackend, open_store

QUESTION = "How do threads share a store?"
THREADS = 64
NOTE = (
    "Those who wait share a transaction and its sync; what is left"
    " is Python, of which one thread runs at a time, and the change from one thread to the next: *Where does"
    " an append go?* The raw table by as many threads is the least that can be done together: it checks and"
    " expects nothing, and all append to one stream. What sharing is worth depends on what is shared: *How"
    " much is a shared sync worth?*"
)


def ask(bench: Bench) -> None:
    ask_sqlite(bench)
    url = bench.postgres()
    if url is not None:
        ask_postgres(bench, url)


def ask_sqlite(bench: Bench) -> None:
    each, folder = bench.scaled(20), bench.folder
    with (
        closing(open_store(folder / "threads-full.db")) as full,
        closing(open_store(folder / "threads-plain.db")) as plain,
        closing(open_store(folder / "threads-one.db")) as one,
        closing(raw_sqlite.RawTable(folder / "threads-raw.db")) as raw,
        closing(raw_sqlite.RawTable(folder / "threads-shared.db")) as shared,
        closing(peer_sqlite(folder / "threads-peer.db")) as peer,
    ):
        contenders = {
            **_ours(each, full, plain, one),
            "raw table, 1 thread": feed(each * 10, raw.append),
            f"raw table, {THREADS} threads": together(THREADS, each, lambda _: shared.append_in_group),
            "eventsourcing, 8 threads": together(8, each, _peer_act(peer)),
        }
        against = ["raw table, 1 thread", "ours full, 1 thread"]
        title = "SQLite: acknowledged single appends"
        bench.run(Case(title, "appends/s", contenders, against, is_durable=True, note=NOTE))


def ask_postgres(bench: Bench, url: str) -> None:
    each = bench.scaled(20)
    with (
        closing(open_store(url, schema="threads_full")) as full,
        closing(open_store(url, schema="threads_plain")) as plain,
        closing(open_store(url, schema="threads_one")) as one,
        closing(raw_postgres.RawTable(url)) as raw,
        closing(peer_postgres(url, "threads_peer", pool_size=8)) as peer,
    ):
        contenders = {
            **_ours(each, full, plain, one),
            "raw table, 1 thread": feed(each * 10, raw.append),
            "eventsourcing, 8 threads": together(8, each, _peer_act(peer)),
        }
        against = ["raw table, 1 thread", "ours full, 1 thread"]
        bench.run(
            Case("Postgres: acknowledged single appends", "appends/s", contenders, against, is_durable=True)
        )


def _ours(each: int, full: AtomicBackend, plain: AtomicBackend, one: AtomicBackend) -> dict[str, Contender]:
    alone = ours.FullContract(one)
    return {
        f"ours full, {THREADS} threads": together(
            THREADS,
            each,
            lambda n: ours.FullContract(full, f"order-{n}").append,
            after=ours.FullContract(full).line_up,
        ),
        f"ours plain, {THREADS} threads": together(
            THREADS, each, lambda _: lambda data: ours.append_plain(plain, data)
        ),
        "ours full, 1 thread": feed(each * 10, alone.append),
    }


def _peer_act(peer: Peer) -> Callable[[int], Callable[[dict[str, Any]], None]]:
    def make(_: int) -> Callable[[dict[str, Any]], None]:
        id_, versions = uuid4(), iter(range(1, 2**31))
        return lambda data: peer.append_to(id_, next(versions), [data])

    return make


def together(
    threads: int,
    each: int,
    make: Callable[[int], Callable[[dict[str, Any]], object]],
    clock: Callable[[], float] = time.perf_counter,
    after: Callable[[], object] = nothing,
) -> Callable[[], float]:
    """A contender: that many threads begin at once; each does an act of its own `each` times. Then comes what
    is to be done `after` them all."""

    def run() -> float:
        datas, start = payloads(each), threading.Barrier(threads + 1)
        failures: list[BaseException] = []

        def work(act: Callable[[dict[str, Any]], object]) -> None:
            start.wait()
            try:
                for data in datas:
                    act(data)
            except BaseException as error:  # noqa: BLE001  # raised below: a thread has nobody to raise to
                failures.append(error)

        workers = [threading.Thread(target=work, args=(make(number),)) for number in range(threads)]
        for worker in workers:
            worker.start()
        gc.collect()  # as payload.feed does
        start.wait()
        began = clock()
        for worker in workers:
            worker.join()
        after()
        took_s = clock() - began
        if failures:
            raise failures[0]
        return threads * each / took_s

    return run


if __name__ == "__main__":
    main({QUESTION: ask})
