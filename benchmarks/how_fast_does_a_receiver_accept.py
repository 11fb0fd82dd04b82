"""How many rows a second does a receiver take in from 16 clients at once, and how long does each wait?"""

import threading
import time
from contextlib import closing
from functools import partial
from typing import Final

from benchmarks.delivering import Line, Receiver, Request, addressed, made_ready, receiving
from benchmarks.frame import Bench, Case, Contender, Measure, main, percentile
from benchmarks.log_rows import rows as log_rows
from strandline.rows.dataset import Dataset
from strandline.rows.unit import UnitHead
from strandline.rows.validate import accept

QUESTION = "How fast does a receiver accept?"
CLIENTS: Final = 16
UNITS: Final = {1_000: 10, 100: 40}  # rows of a request, requests of a client in a round
DATASET: Final = "accepted"
_NOTE: Final = """\
The receiver is a process of its own, with the clients' process on the same machine. Each client has a source
and a connection of its own, and posts bodies that were made before, one after another; an answer comes when
the rows are on the disk. ms are from a request to the end of its answer."""


def ask(bench: Bench) -> None:
    known = accept(Dataset(DATASET), log_rows(1), source=None, max_row_bytes=2**20).dataset
    with receiving(bench.folder / "accept-receiver") as to:
        for size, each in UNITS.items():
            ready = made_ready(known, size * max(bench.scaled(each), 2), size)
            contenders: dict[str, Contender] = {
                f"{CLIENTS} clients": partial(together, to, ready, CLIENTS),
                "1 client": partial(together, to, ready, 1),
            }
            bench.run(Case(f"{size:,} rows a request", "", contenders, ["1 client"], note=_NOTE), at_most=5)


def together(to: Receiver, ready: list[tuple[UnitHead, bytes]], clients: int) -> Measure:
    """That many clients begin at once, and each posts everything that is ready as rows of its own."""
    start, failures = threading.Barrier(clients + 1), list[BaseException]()
    waits_ms: list[float] = []  # lists take from many threads

    def work(requests: list[Request]) -> None:
        with closing(Line(to)) as line:
            start.wait()
            try:
                for each in requests:
                    began = time.perf_counter()
                    line.post(DATASET, each)
                    waits_ms.append((time.perf_counter() - began) * 1000)
            except BaseException as error:  # noqa: BLE001  # raised below: a thread has nobody to raise to
                failures.append(error)

    threads = [
        threading.Thread(target=work, args=(addressed(ready, to, source=f"web-{number}"),))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    if failures:
        raise failures[0]
    rows = clients * sum(unit.rows for unit, _ in ready)
    return {
        "rows/s": rows / took_s,
        "p50 ms": percentile(waits_ms, 50),
        "p99 ms": percentile(waits_ms, 99),
    }


if __name__ == "__main__":
    main({QUESTION: ask})
