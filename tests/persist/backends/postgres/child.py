"""What the tests here run in processes of their own: `child.py <act> <url> <schema> …`."""

import os
import random
import sys
import time
from typing import Any

import psycopg

from strandline.persist.backend import Append, ExpectKey, Put
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.event import ABSENT, Conflict


def append(url: str, schema: str, name: str, count: str) -> None:
    """Append to one stream that all share, and to one of its own."""
    b = PostgresBackend(url, schema=schema)
    for index in range(int(count)):
        b.commit([], [Append("shared", name, index, index), Append(f"own-{name}", name, index, index)])
    b.close()


def count_up(url: str, schema: str, name: str, count: str) -> None:
    """Increment one key by compare-and-swap."""
    b = PostgresBackend(url, schema=schema)
    for _ in range(int(count)):
        while True:
            value = b.kv_get("counter")
            expected: Any = ABSENT if value is None else value
            wanted = [ExpectKey("counter", expected)]
            if not isinstance(b.commit(wanted, [Put("counter", (value or 0) + 1)]), Conflict):
                break
    b.close()


def write_globally(url: str, schema: str, name: str, seconds: str) -> None:
    """Commits of one to four events, some of which are rolled back, some held open for a while."""
    dice = random.Random(int(name))
    b = PostgresBackend(url, schema=schema)
    until = time.monotonic() + float(seconds)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f'set search_path = "{schema}"')
        while time.monotonic() < until:
            streams = dice.sample(["a", "b", "c", f"own-{name}"], dice.randint(1, 3))
            b.commit([], [Append(stream, "e", 0, name, globally=True) for stream in streams])
            if dice.random() < 0.2:
                _hold(other, dice)
    b.close()


def _hold(other: psycopg.Connection[Any], dice: random.Random) -> None:
    """An event that is put in line by a transaction which stays open, then ends one way or the other."""
    with other.transaction() as held:
        other.execute(
            """
            with head as (
                insert into stream as s (name, last_seq) values (%s, 1)
                on conflict (name) do update set last_seq = s.last_seq + 1 returning id, last_seq
            ), line as (
                insert into in_line (stream_id, seq, crc, at_int) select id, last_seq, %s, 0 from head
            )
            insert into event (stream_id, seq, sum, at_int, type, data)
            select id, last_seq, %s + last_seq, 0, 'h', '0' from head
            """,
            [f"held-{os.getpid()}", *_sums(f"held-{os.getpid()}")],
        )
        time.sleep(dice.random() * 0.02)
        if dice.random() < 0.5:
            raise psycopg.Rollback(held)


def _sums(stream: str) -> tuple[int, int]:
    from strandline.persist.core.block import event_crc, pointer_sum

    return pointer_sum(0, stream, 0, 0), event_crc(stream, "h", 0, b"0")


def open_only(url: str, schema: str) -> None:
    """Open at a moment that all share, and say whose lineage it is."""
    while time.time() % 1 > 0.05:
        time.sleep(0.005)
    b = PostgresBackend(url, schema=schema)
    print(b.info()["lineage"])
    b.close()


if __name__ == "__main__":
    acts = (append, count_up, write_globally, open_only)
    {act.__name__: act for act in acts}[sys.argv[1]](*sys.argv[2:])
