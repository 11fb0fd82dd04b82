"""A process that is there to be killed: it does what it is told on a store, and says what was acknowledged.

    python child.py TARGET OPTIONS   then, a line each on stdin: ["act", {arguments}], or
                                     ["open", {"target": …, "options": …}] for another store

Every act is a run of numbered writes, each under an idempotency key made of its number, so that whoever reads
the acknowledgements knows what must be there, and can repeat the one that may be. An acknowledgement is its
number on a line of its own; the end of an act is a line `done`.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from strandline.persist import (
    Append,
    Event,
    Put,
    append_batch,
    append_batch_once,
    append_once,
    backup,
    commit,
    compact,
    kv_update,
    open_store,
)
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends.sqlite import backend

BLOCK = 3
COMPACTED = 25


def total(value: Any, event: Event) -> Any:
    return value + event.data["n"]


def write_append(b: AtomicBackend, n: int) -> None:
    append_once(b, "s", f"key {n}", "t", n, {"n": n})


def write_batch(b: AtomicBackend, n: int) -> None:
    specs = [("t", n, {"n": n, "i": i, "text": "x" * 1000}) for i in range(BLOCK)]
    append_batch_once(b, "s", f"key {n}", specs)


def write_commit(b: AtomicBackend, n: int) -> None:
    """One unit over two streams, the global order, a key and a marker."""
    left, right = (Append(stream, "t", n, {"n": n}, globally=True) for stream in ("left", "right"))
    commit(b, [], [left, Put("n", n), right], once=("left", f"key {n}"))


def write_plain(b: AtomicBackend, n: int, *, stream: str = "s", writer: int = 0) -> None:
    """Without a key, for those who count and compare only."""
    b.commit([], [Append(stream, "t", n, {"n": n, "writer": writer})])


WRITES = {"append": write_append, "batch": write_batch, "commit": write_commit}


def run_writes(b: AtomicBackend, *, kind: str, first: int, last: int) -> Iterator[int]:
    for n in range(first, last + 1):
        WRITES[kind](b, n)
        yield n


def run_plain(b: AtomicBackend, *, stream: str, writer: int, last: int) -> Iterator[int]:
    for n in range(1, last + 1):
        write_plain(b, n, stream=stream, writer=writer)
    yield last


def run_increments(b: AtomicBackend, *, key: str, times: int) -> Iterator[int]:
    for _ in range(times):
        kv_update(b, key, 0, lambda value: value + 1)
    yield times


def run_compactions(b: AtomicBackend, *, rounds: int) -> Iterator[int]:
    """Each round appends a block, which is acknowledged, and compacts, which is acknowledged too."""
    backend.SWEEP_ROWS = 10  # type: ignore[misc]  # several steps for the little that a test writes
    for n in range(1, rounds + 1):
        append_batch(b, "s", [("t", n, {"n": n})] * COMPACTED)
        yield 2 * n - 1
        compact(b, "s", "snap", total, 0)
        yield 2 * n


def run_backup(b: AtomicBackend, *, to: str) -> Iterator[int]:
    backup(b, to)
    yield 1


def run_units(b: AtomicBackend, *, stream: str, at: int, times: int) -> Iterator[int]:
    """Without a key: an event of the global order together with the key that counts it."""
    for n in range(1, times + 1):
        b.commit([], [Append(stream, "unit", at, {"n": n, "p": "unit"}, globally=True), Put("units", n)])
        yield n


ACTS = {
    "units": run_units,
    "writes": run_writes,
    "plain": run_plain,
    "increments": run_increments,
    "compactions": run_compactions,
    "backup": run_backup,
}


def main() -> None:
    target, options = sys.argv[1], json.loads(sys.argv[2])
    b = open_store(target, **options)
    print("ready", flush=True)
    for line in sys.stdin:
        act, arguments = json.loads(line)
        if act == "open":
            b.close()
            b = open_store(arguments["target"], **arguments["options"])
            print("ready", flush=True)
            continue
        for acknowledged in ACTS[act](b, **arguments):  # type: ignore[operator]  # each with its own arguments
            print(acknowledged, flush=True)
        print("done", flush=True)
    b.close()


if __name__ == "__main__":
    main()
