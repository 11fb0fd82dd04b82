"""How soon does a follower know of a commit by another process, and what does it cost to wait?

The time runs from the moment at which the committer has its acknowledgement until the follower's call
returns. It can be below zero, when the follower is told before the committer has heard.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from benchmarks.committer import CHANNEL
from benchmarks.frame import Bench, Case, Contender, main, percentile
from benchmarks.payload import STREAM
from strandline.persist import AtomicBackend, ack, append, consumer, last_seq, open_store, poll

QUESTION = "How soon does a follower wake?"
TIMEOUT_S = 10.0


def ask(bench: Bench) -> None:
    _ask(bench, "SQLite", f"sqlite:///{bench.folder / 'follow.db'}", {}, {}, {})
    url = bench.postgres()
    if url is not None:
        raw = {"raw LISTEN": woken("raw", url, {}, bench.scaled(30), _listener(url))}
        _ask(bench, "Postgres", url, {"schema": "follow"}, raw, {"raw LISTEN": _idle_listener(url, 1.0)})


def _ask(
    bench: Bench,
    kind: str,
    url: str,
    options: dict[str, Any],
    raw: dict[str, Contender],
    raw_idle: dict[str, Contender],
) -> None:
    count = bench.scaled(30)
    with closing(open_store(url, **options)) as b:
        append(b, STREAM, "made", 1, None)
        contenders: dict[str, Contender] = {
            "ours, wait": woken("ours", url, options, count, lambda: _waiter(b)),
            "ours, poll": woken("ours", url, options, count, lambda: _poller(b)),
            **raw,
        }
        bench.run(
            Case(f"{kind}: from a commit elsewhere to here (less is better)", "ms", contenders, list(raw))
        )
        idle: dict[str, Contender] = {"ours, wait": _idle(b, 1.0), **raw_idle}
        bench.run(Case(f"{kind}: an idle follower (less is better)", "% of one core", idle))


def woken(
    kind: str, url: str, options: dict[str, Any], count: int, make: Callable[[], Callable[[], int]]
) -> Contender:
    """A contender: p50 and p95, in ms, of `count` commits by another process.

    `make` gives a function that waits, and tells how many events have come since it last did.
    """

    def run() -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.committer", kind, url, json.dumps(options), str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as committer:
            assert committer.stdin is not None
            assert committer.stdout is not None
            committer.stdout.readline()
            wait = make()
            committer.stdin.write("go\n")
            committer.stdin.flush()
            arrived: list[int] = []
            while len(arrived) < count:
                came = wait()
                assert came, f"no commit in {TIMEOUT_S} s"
                arrived += [time.monotonic_ns()] * came
            acknowledged = [int(line) for line in committer.stdout]
        late_ms = [(there - here) / 1e6 for there, here in zip(arrived, acknowledged, strict=True)]
        return {"p50": percentile(late_ms, 50), "p95": percentile(late_ms, 95)}

    return run


def _waiter(b: AtomicBackend) -> Callable[[], int]:
    seen = last_seq(b, STREAM)

    def wait() -> int:
        nonlocal seen
        before, seen = seen, b.wait(STREAM, seen, timeout_s=TIMEOUT_S)
        return seen - before

    return wait


def _poller(b: AtomicBackend) -> Callable[[], int]:
    """A durable consumer, which acknowledges what it got before it waits again."""
    cursor = consumer(b, "follower", STREAM, start=last_seq(b, STREAM))
    got = cursor.seq

    def wait() -> int:
        nonlocal got
        ack(cursor, got)
        events = poll(cursor, timeout_s=TIMEOUT_S)
        got = events[-1].seq if events else got
        return len(events)

    return wait


def _listener(url: str) -> Callable[[], Callable[[], int]]:
    def make() -> Callable[[], int]:
        connection = psycopg.connect(url, autocommit=True)
        connection.execute(f"LISTEN {CHANNEL}")
        return lambda: len(list(connection.notifies(timeout=TIMEOUT_S, stop_after=1)))

    return make


def _idle(b: AtomicBackend, idle_s: float) -> Contender:
    return _share(lambda: b.wait(STREAM, last_seq(b, STREAM), timeout_s=idle_s))


def _idle_listener(url: str, idle_s: float) -> Contender:
    def act() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            list(connection.notifies(timeout=idle_s))

    return _share(act)


def _share(act: Callable[[], object]) -> Contender:
    """A contender: the share of one core that this process uses meanwhile."""

    def run() -> float:
        began, used = time.perf_counter(), time.process_time()
        act()
        return 100 * (time.process_time() - used) / (time.perf_counter() - began)

    return run


if __name__ == "__main__":
    main({QUESTION: ask})
