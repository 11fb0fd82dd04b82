"""How much does it cost to reach a store over HTTP, against the same kind of store in this process?

The host is another process on this machine, over SQLite, reached through the loopback interface.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import ours
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.how_do_threads_share import THREADS, together
from benchmarks.light_load import keep_busy
from benchmarks.payload import TYPE, feed, feed_batch, key, payloads
from strandline.persist import Append, AtomicBackend, ExpectSeq, open_store
from strandline.persist.core.prepare import prepare
from strandline.persist.wire import PATH, commit_body

QUESTION = "How much does HTTP cost?"
BATCH = 1000
NOTE = (
    "A batch is encoded, sent, decoded, stored and answered: each side"
    " does once more what the store in this process does once, see *Where does an append go?*"
)
CROWD_NOTE = (
    "The connections are kept busy by one thread that only writes requests that it has and reads their"
    " answers; the clients are ours, one thread each, in one process."
)


def ask(bench: Bench) -> None:
    folder = bench.folder
    with (
        closing(open_store(folder / "http-near.db")) as near,
        served(folder / "http-far.db") as url,
        closing(open_store(url)) as far,
    ):
        beside = {"over HTTP": far, "in this process": near}
        against = ["in this process"]
        batches = {where: feed_batch(BATCH, ours.FullContract(b).append_batch) for where, b in beside.items()}
        bench.run(Case("Batches of 1,000", "events/s", batches, against, note=NOTE))
        each = bench.scaled(20)
        crowds: dict[str, Contender] = {
            f"{THREADS} connections": _connections(each, url, far),
            f"{THREADS} clients": _crowd(each, far),
            "in this process": _crowd(each, near),
        }
        title = f"Single appends, {THREADS} at once"
        bench.run(Case(title, "appends/s", crowds, against, is_durable=True, note=CROWD_NOTE))
        alone = {where: feed(each * 5, ours.FullContract(b, "alone").append) for where, b in beside.items()}
        bench.run(Case("One thread, single appends", "appends/s", alone, against, is_durable=True))


def _crowd(each: int, b: AtomicBackend) -> Contender:
    return together(THREADS, each, lambda number: ours.FullContract(b, f"order-{number}").append)


def _connections(each: int, url: str, far: AtomicBackend) -> Contender:
    def bodies(number: int) -> list[bytes]:
        """What the clients would send."""
        stream = f"line-{number}"
        first = far.last_seq(stream)
        return [
            commit_body(
                prepare(
                    [ExpectSeq(stream, first + n)],
                    [Append(stream, TYPE, 1_700_000_000, data, globally=True)],
                    (stream, key()),
                )
            )
            for n, data in enumerate(payloads(each))
        ]

    return lambda: keep_busy(url, PATH, THREADS, bodies)


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The URL of a host over the SQLite store at `path`, which lives as long as the block."""
    command = [sys.executable, "-m", "strandline", "persist", "serve", "--store", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        try:
            yield host.stdout.readline().split()[-1]
        finally:
            host.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main({QUESTION: ask})
