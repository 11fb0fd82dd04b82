"""The other process of a follower: it appends now and then, and says when each commit was acknowledged.

    python -m benchmarks.committer ours URL OPTIONS COUNT    OPTIONS as JSON, for open_store
    python -m benchmarks.committer raw URL {} COUNT          an insert and a NOTIFY in one transaction

It prints a line when it is ready, and begins when it reads one. At the end it prints what the monotonic
clock, which all processes of a machine share, was after each commit, in ns.
"""

import json
import random
import sys
import time
from collections.abc import Callable

from benchmarks.ours import append_plain
from benchmarks.payload import payload
from strandline.persist import open_store

CHANNEL = "raw_events_added"


def main(kind: str, url: str, options: str, count: str) -> None:
    act = _ours(url, options) if kind == "ours" else _raw(url)
    pauses = random.Random(7)  # the same pauses every time
    print("ready", flush=True)
    sys.stdin.readline()
    acknowledged = []
    for number in range(int(count)):
        time.sleep(pauses.uniform(0.02, 0.05))
        act(number)
        acknowledged.append(time.monotonic_ns())
    print("\n".join(map(str, acknowledged)), flush=True)


def _ours(url: str, options: str) -> Callable[[int], None]:
    b = open_store(url, **json.loads(options))
    return lambda number: append_plain(b, payload(number))


def _raw(url: str) -> Callable[[int], None]:
    from benchmarks.raw_postgres import RawTable

    raw = RawTable(url)
    return lambda number: raw.append_and_notify(payload(number), CHANNEL)


if __name__ == "__main__":
    main(*sys.argv[1:])
