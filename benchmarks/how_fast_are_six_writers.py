"""How fast do six processes write to one Postgres, in an order in which no reader misses anything?

Beside them the same commits into a bare table, numbered by a sequence: a reader that follows those by number
misses what commits late (docs/faults.md counts it), so that one is no store. `eventsourcing` locks its table.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import orjson
import psycopg

from benchmarks import ours
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.payload import TYPE, payloads
from benchmarks.peer import peer_postgres
from strandline.persist import open_store

QUESTION = "How fast are six writers?"
WRITERS = 6
NOTE = (
    "Each commit has one to four events and is durable; ours has the full contract on: an expected seq, an"
    " idempotency key, checksums, the global order. That a reader who follows"
    " misses none is counted among the faults."
)


def ask(bench: Bench) -> None:
    url = bench.postgres()
    if url is None:
        return
    commits = bench.scaled(200)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE six_unsafe (position bigserial PRIMARY KEY, stream text NOT NULL,"
            " seq bigint NOT NULL, type text NOT NULL, data bytea NOT NULL, UNIQUE (stream, seq))"
        )
    open_store(url, schema="six_ours").close()
    peer_postgres(url, "six_peer").close()
    contenders = {
        "ours, full contract": _together("ours", url, commits),
        "a bare sequence, unsafe": _together("unsafe", url, commits),
        "eventsourcing, table lock": _together("peer", url, commits),
    }
    case = Case(
        f"Postgres: {WRITERS} processes, in commit order",
        "events/s",
        contenders,
        ["a bare sequence, unsafe"],
        is_durable=True,
        note=NOTE,
    )
    bench.run(case)


def _together(way: str, url: str, commits: int) -> Contender:
    """A contender: six processes that are ready begin at once."""
    command = [sys.executable, "-m", "benchmarks.how_fast_are_six_writers", way, url, str(commits)]

    def run() -> float:
        with ExitStack() as started:
            writers = [
                started.enter_context(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                )
                for _ in range(WRITERS)
            ]
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
            began = time.perf_counter()
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            written = sum(int(writer.stdout.readline()) for writer in writers if writer.stdout is not None)
            return written / (time.perf_counter() - began)

    return run


def write(way: str, url: str, commits: int) -> None:
    """One of the six. It says when it is ready, waits for a line, and says how many events it has written."""
    datas = payloads(4)
    with ExitStack() as opened:
        act = _ways()[way](url, opened)
        act(datas[:1])  # the first one opens connections
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(commits):
            act(datas[: 1 + number % 4])
        print(sum(1 + number % 4 for number in range(commits)), flush=True)


def _ways() -> dict[str, Callable[[str, ExitStack], Callable[[list[dict[str, Any]]], None]]]:
    return {"ours": _ours, "unsafe": _unsafe, "peer": _peer}


def _ours(url: str, opened: ExitStack) -> Callable[[list[dict[str, Any]]], None]:
    b = opened.enter_context(closing(open_store(url, schema="six_ours")))
    return ours.FullContract(b, uuid4().hex).append_batch


def _unsafe(url: str, opened: ExitStack) -> Callable[[list[dict[str, Any]]], None]:
    connection = opened.enter_context(psycopg.connect(url, autocommit=True))
    stream, last = uuid4().hex, 0

    def act(datas: list[dict[str, Any]]) -> None:
        nonlocal last
        values = ", ".join(["(%s, %s, %s, %s)"] * len(datas))
        rows = [
            field
            for seq, data in enumerate(datas, last + 1)
            for field in (stream, seq, TYPE, orjson.dumps(data))
        ]
        connection.execute(
            f"INSERT INTO six_unsafe (stream, seq, type, data) VALUES {values}".encode(), rows, prepare=True
        )
        last += len(datas)

    return act


def _peer(url: str, opened: ExitStack) -> Callable[[list[dict[str, Any]]], None]:
    return opened.enter_context(closing(peer_postgres(url, "six_peer", creates=False))).append_batch


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _ways():
        write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main({QUESTION: ask})
