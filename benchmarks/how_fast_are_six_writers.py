"""How fast do six processes write to one Postgres, in an order in which no reader misses anything?

Beside them the same commits into a bare table, numbered by a sequence: a reader that follows those by number
misses what commits late (docs/faults.md counts it), so that one is no store. `eventsourcing` locks its table.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
import psycopg

from benchmarks import ours
from benchmarks.frame import Bench, Case, main
from benchmarks.payload import TYPE, payloads
from benchmarks.peer import peer_postgres
from strandline.persist import global_pos, open_store

QUESTION = "How fast are six writers?"
WRITERS = 6
NOTE = (
    "Each commit has one to four events and is durable; ours has the full contract on: an expected seq, an"
    " idempotency key, checksums, the global order, in which a reader gives all their"
    " places when they have ended."
    " That a reader who follows misses none is counted among the faults. A bare writer begins, inserts and"
    " commits, as the transactions did that the aim was set against; in one round trip is the least that it"
    " can do, and what ours does too."
)
SPENT_NOTE = (
    "Six clients and their six servers share the cores of this machine, so what both spend is what bounds"
    " them. The clients check, encode and hash what the bare ones encode alone; the server updates the row of"
    " the stream, adds an event with three indexes, a marker, and a place in line for the global order, where"
    " the bare table gets a row with two indexes."
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
        "ours, full contract": lambda: together("ours", url, commits).events_per_s,
        "a bare sequence, unsafe": lambda: together("unsafe", url, commits).events_per_s,
        "the same in one round trip": lambda: together("at once", url, commits).events_per_s,
        "eventsourcing, table lock": lambda: together("peer", url, commits).events_per_s,
    }
    case = Case(
        f"Postgres: {WRITERS} processes, in commit order",
        "events/s",
        contenders,
        ["a bare sequence, unsafe", "the same in one round trip"],
        is_durable=True,
        note=NOTE,
    )
    bench.run(case)
    more = max(bench.scaled(600), 300)  # the kernel counts by hundredths of a second
    parts = {
        "ours": lambda: _spent("ours", url, more),
        "a bare sequence in one round trip": lambda: _spent("at once", url, more),
    }
    title = "Postgres: µs of processor for one of those events (less is better)"
    bench.run(Case(title, "µs", parts, ["a bare sequence in one round trip"], note=SPENT_NOTE))


def _spent(way: str, url: str, commits: int) -> dict[str, float]:
    spent = together(way, url, commits)
    both = spent.clients_us + spent.server_us
    return {"the clients": spent.clients_us, "the server": spent.server_us, "both": both}


class Spent(NamedTuple):
    """What six processes did together, and µs of processor for each event: theirs, and the server's."""

    events_per_s: float
    clients_us: float
    server_us: float


def together(way: str, url: str, commits: int) -> Spent:
    """Six processes that are ready begin at once; when all have ended, what is to be numbered is."""
    command = [sys.executable, "-m", "benchmarks.how_fast_are_six_writers", way, url, str(commits)]
    with ExitStack() as started:
        writers = [
            started.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(WRITERS)
        ]
        reader = started.enter_context(closing(open_store(url, schema="six_ours")))
        assert [_line(writer) for writer in writers] == ["ready"] * WRITERS
        before, began = server_ticks(url), time.perf_counter()
        for writer in writers:
            _go_on(writer)
        said = [_line(writer).split() for writer in writers]
        if way == "ours":
            global_pos(reader)
        took_s, ticks = time.perf_counter() - began, server_ticks(url) - before
        for writer in writers:
            _go_on(writer)  # until now its connection was open, and its server counted
    events = sum(int(written) for written, _ in said)
    clients_s = sum(float(spent_s) for _, spent_s in said)
    server_s = ticks / os.sysconf("SC_CLK_TCK")
    return Spent(events / took_s, clients_s * 1e6 / events, server_s * 1e6 / events)


def _line(writer: "subprocess.Popen[str]") -> str:
    assert writer.stdout is not None
    return writer.stdout.readline().rstrip()


def _go_on(writer: "subprocess.Popen[str]") -> None:
    assert writer.stdin is not None
    writer.stdin.write("go on\n")
    writer.stdin.flush()


def server_ticks(url: str) -> int:
    """Ticks of processor that the server at `url` has taken, with all its processes; 0 where there is no
    /proc."""
    with psycopg.connect(url) as connection:
        (ours,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        try:
            parents = {int(path.name): _numbers(path) for path in Path("/proc").glob("[0-9]*")}
        except OSError:
            return 0
    if ours not in parents:
        return 0
    head = parents[ours][0]
    own, children = parents[head][1:3], [of for of in parents.values() if of[0] == head]
    return sum(own) + sum(ticks for _, ticks, _ in children)


def _numbers(path: Path) -> tuple[int, int, int]:
    """Of a process: its parent, its ticks, those of its children that have ended."""
    try:
        fields = (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0, 0, 0
    return int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def write(way: str, url: str, commits: int) -> None:
    """One of the six. It says when it is ready, waits for a line, says how many events it has written and in
    how many seconds of processor, and waits for another."""
    datas = payloads(4)
    with ExitStack() as opened:
        act = _ways()[way](url, opened)
        act(datas[:1])  # the first one opens connections
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.process_time()
        for number in range(commits):
            act(datas[: 1 + number % 4])
        spent_s = time.process_time() - began
        print(sum(1 + number % 4 for number in range(commits)), spent_s, flush=True)
        sys.stdin.readline()


def _ways() -> dict[str, Callable[[str, ExitStack], Callable[[list[dict[str, Any]]], None]]]:
    return {
        "ours": _ours,
        "unsafe": partial(_unsafe, is_at_once=False),
        "at once": partial(_unsafe, is_at_once=True),
        "peer": _peer,
    }


def _ours(url: str, opened: ExitStack) -> Callable[[list[dict[str, Any]]], None]:
    b = opened.enter_context(closing(open_store(url, schema="six_ours")))
    return ours.FullContract(b, uuid4().hex).append_batch


def _unsafe(url: str, opened: ExitStack, *, is_at_once: bool) -> Callable[[list[dict[str, Any]]], None]:
    connection = opened.enter_context(psycopg.connect(url, autocommit=is_at_once))
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
        connection.commit()  # at once it asks nothing of the server
        last += len(datas)

    return act


def _peer(url: str, opened: ExitStack) -> Callable[[list[dict[str, Any]]], None]:
    return opened.enter_context(closing(peer_postgres(url, "six_peer", creates=False))).append_batch


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _ways():
        write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main({QUESTION: ask})
