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
from benchmarks.payload import feed, feed_batch
from strandline.persist import AtomicBackend, open_store

QUESTION = "How much does HTTP cost?"
BATCH = 1000
NOTE = (
    "Aim: 0.50x, also for 64 connections. A batch is encoded, sent, decoded, stored and answered: each side"
    " does once more what the store in this process does once."
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
        crowds = {where: _crowd(each, b) for where, b in beside.items()}
        bench.run(Case(f"{THREADS} threads, single appends", "appends/s", crowds, against, is_durable=True))
        alone = {where: feed(each * 5, ours.FullContract(b, "alone").append) for where, b in beside.items()}
        bench.run(Case("One thread, single appends", "appends/s", alone, against, is_durable=True))


def _crowd(each: int, b: AtomicBackend) -> Contender:
    return together(THREADS, each, lambda number: ours.FullContract(b, f"order-{number}").append)


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
