"""An application's database, brought into the event store: each row once, whatever kills it on the way.

    customers   name, photo           the current value of a key; the photo goes to the content store first
    orders      status, cents         a stream, whose first event is the order as it stood
    order_log   what became of them   a stream too: where history was kept, it is brought in instead

Every event has the table, the primary key and the version of its row as its key, so a second run, or one
after a crash, adds nothing that is there. Times are those of the rows. What cannot be understood is told, and
nothing is left out silently. Sums and lists that the application kept are not brought in: they are folds now.

    python examples/genesis.py            # tells a short story, on a store in memory
    python examples/genesis.py shop.db    # the same on a SQLite file: run it twice, the counts stay
"""

import sqlite3
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.persist import (
    Backend,
    Event,
    append_once,
    blob_store,
    kv_get,
    kv_put,
    mem_blob_store,
    open_store,
    project,
    seen,
)
from strandline.persist.blob import BlobStore

STATUSES: Final = ("placed", "paid", "shipped")
NOTHING: Final[dict[str, Any]] = {"status": "unknown", "cents": 0}


@dataclass(slots=True)
class Brought:
    """What became of the rows of a table. `differ` are those whose fold is not what the row says."""

    table: str
    read: int = 0
    written: int = 0
    known: int = 0
    refused: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)


def bring_in(legacy: sqlite3.Connection, b: Backend, content: BlobStore) -> list[Brought]:
    """From one look at the database, in which nobody's change is seen by half."""
    legacy.execute("BEGIN")
    try:
        return [_customers(legacy, b, content), _orders(legacy, b)]
    finally:
        legacy.rollback()


def _customers(legacy: sqlite3.Connection, b: Backend, content: BlobStore) -> Brought:
    brought = Brought("customers")
    for id_, name, photo in legacy.execute("SELECT id, name, photo FROM customers ORDER BY id"):
        brought.read += 1
        if not name:
            brought.refused.append(f"customer {id_}: no name")
            continue
        # The bytes are durable before anything names them; a crash here leaves bytes, and no broken name.
        ref = None if photo is None else blob_store(content, photo, "image/png")
        value, key = {"name": name, "photo": ref}, f"customer/{id_}"
        if kv_get(b, key) == value:
            brought.known += 1
        else:
            kv_put(b, key, value)
            brought.written += 1
    return brought


def _orders(legacy: sqlite3.Connection, b: Backend) -> Brought:
    brought = Brought("orders")
    for id_, status, cents, version, at in legacy.execute(
        "SELECT id, status, cents, version, changed_at FROM orders ORDER BY id"
    ):
        brought.read += 1
        stream, row = stream_of(id_), {"status": status, "cents": cents}
        if status not in STATUSES or type(cents) is not int:
            brought.refused.append(f"order {id_}: status {status!r}, cents {cents!r}")
            continue
        history = _history(legacy, id_) or [(f"orders/{id_}/{version}", "genesis", at, row)]
        for key, type_, then, data in history:
            if seen(b, stream, key):
                brought.known += 1
            else:
                append_once(b, stream, key, type_, then, data)
                brought.written += 1
        if order_of(b, id_) != row:
            brought.differ.append(f"order {id_}: its events give {order_of(b, id_)}, its row is {row}")
    return brought


def _history(legacy: sqlite3.Connection, order: int) -> list[tuple[str, str, int, dict[str, Any]]]:
    found = legacy.execute(
        "SELECT id, kind, cents, at FROM order_log WHERE order_id = ? ORDER BY id", (order,)
    )
    return [(f"order_log/{id_}/1", kind, at, {"cents": cents}) for id_, kind, cents, at in found]


# What the application asks from then on: folds, made anew from events


def stream_of(order: int) -> str:
    return f"order/{order}"


def step(order: dict[str, Any], event: Event) -> dict[str, Any]:
    if event.type == "genesis":
        return dict(event.data)
    return {"status": event.type, "cents": order["cents"] + event.data["cents"]}


def order_of(b: Backend, order: int) -> dict[str, Any]:
    found: dict[str, Any] = project(b, stream_of(order), step, NOTHING).value
    return found


LEGACY: Final = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, photo BLOB);
CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, cents INTEGER, version INTEGER, changed_at INTEGER);
CREATE TABLE order_log (id INTEGER PRIMARY KEY, order_id INTEGER, kind TEXT, cents INTEGER, at INTEGER);
INSERT INTO customers VALUES (1, 'Ann', x'89504e47'), (2, 'Bob', NULL), (3, NULL, NULL);
INSERT INTO orders VALUES (1, 'shipped', 4500, 7, 1700), (2, 'paid', 800, 2, 1800), (3, '?', 1, 1, 1900);
INSERT INTO order_log VALUES (1, 2, 'placed', 800, 1750), (2, 2, 'paid', 0, 1800);
"""


def main(target: str = "memory:") -> None:
    legacy = sqlite3.connect(":memory:")
    legacy.executescript(LEGACY)
    b, content = open_store(target), mem_blob_store()
    for _ in ("once", "and again"):
        for each in bring_in(legacy, b, content):
            print(
                f"{each.table}: {each.read} read, {each.written} written, {each.known} known", *each.refused
            )
    print(kv_get(b, "customer/1"), order_of(b, 1), order_of(b, 2))
    b.close()
    legacy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
