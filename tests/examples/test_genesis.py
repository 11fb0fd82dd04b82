"""examples/genesis.py: a database comes in row by row, once, and a store in memory becomes one on a disk."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.genesis import LEGACY, Brought, bring_in, main, order_of, stream_of
from examples.orders import Webhook, receive, received_cents
from examples.orders import order_of as ledger_of
from strandline.persist import (
    AtomicBackend,
    append_expect,
    backup,
    blob_fetch,
    is_blob_ref,
    is_conflict,
    kv_get,
    mem_backend,
    mem_blob_store,
    open_store,
    read,
    restore,
    streams_all,
)
from strandline.storage import open_content
from tests.conftest import open_backend


@pytest.fixture
def legacy() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        opened.executescript(LEGACY)
        yield opened


def whole(b: AtomicBackend) -> Any:
    events = {name: [(each.type, each.at, each.data) for each in read(b, name)] for name in streams_all(b)}
    return events, [kv_get(b, f"customer/{id_}") for id_ in (1, 2, 3)]


def test_an_entity_is_a_stream_of_its_state_or_of_its_history_and_a_value_a_key(
    legacy: sqlite3.Connection,
) -> None:  # M-1, M-3
    b = mem_backend()

    bring_in(legacy, b, mem_blob_store())

    assert [(each.type, each.at) for each in read(b, stream_of(1))] == [("genesis", 1700)]
    assert [(each.type, each.at) for each in read(b, stream_of(2))] == [("placed", 1750), ("paid", 1800)]
    assert kv_get(b, "customer/2") == {"name": "Bob", "photo": None}
    assert (order_of(b, 1), order_of(b, 2)) == (
        {"status": "shipped", "cents": 4500},
        {"status": "paid", "cents": 800},
    )


def test_bytes_go_first_and_the_store_has_their_reference_alone(
    legacy: sqlite3.Connection, tmp_path: Path
) -> None:  # M-2
    b, content = mem_backend(), open_content(tmp_path)

    bring_in(legacy, b, content)

    photo: Any = kv_get(b, "customer/1")
    assert is_blob_ref(photo["photo"])
    assert blob_fetch(content, photo["photo"]) == b"\x89PNG"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_again_and_after_a_crash_at_any_write_the_store_is_the_same(
    kind: str, legacy: sqlite3.Connection, tmp_path: Path
) -> None:  # M-5
    once = mem_backend()
    bring_in(legacy, once, mem_blob_store())

    for crash_at in range(6):
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        with closing(open_backend(kind, folder)) as b:
            with pytest.MonkeyPatch.context() as patch:
                crash_after(b, crash_at, patch)
                with pytest.raises(KeyboardInterrupt):
                    bring_in(legacy, b, mem_blob_store())

            bring_in(legacy, b, mem_blob_store())
            again = bring_in(legacy, b, mem_blob_store())

            assert whole(b) == whole(once)
            assert [(each.written, each.known) for each in again] == [(0, 2), (0, 3)]


def crash_after(b: AtomicBackend, writes: int, patch: pytest.MonkeyPatch) -> None:
    """End it as a signal would, before the write after so many or, the last time, behind all of them."""
    left = [writes]

    def counted(write: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            done = write(*args, **options)
            if left[0] == 0 and writes == 5:
                raise KeyboardInterrupt
            return done

        return run

    for name in ("commit", "kv_put"):
        patch.setattr(type(b), name, counted(getattr(type(b), name)))


def test_every_row_is_counted_and_what_cannot_be_understood_is_told(
    legacy: sqlite3.Connection,
) -> None:  # M-6
    legacy.execute("UPDATE orders SET cents = 900 WHERE id = 2")
    paid = {"status": "paid"}

    assert bring_in(legacy, mem_backend(), mem_blob_store()) == [
        Brought("customers", read=3, written=2, refused=["customer 3: no name"]),
        Brought(
            "orders",
            read=3,
            written=3,
            refused=["order 3: status '?', cents 1"],
            differ=[f"order 2: its events give {paid | {'cents': 800}}, its row is {paid | {'cents': 900}}"],
        ),
    ]


def test_a_store_in_memory_becomes_a_durable_one_and_no_call_changes(tmp_path: Path) -> None:  # M-8
    memory, paid = mem_backend(), Webhook("w2", "1", "paid", {"cents": 4500})
    receive(memory, Webhook("w1", "1", "placed", {"cents": 4500}), 1)
    first = receive(memory, paid, 2)

    backup(memory, tmp_path / "moving.db")
    with closing(open_store(tmp_path / "store.db")) as durable:
        restore(durable, tmp_path / "moving.db")

        for b in (memory, durable):
            assert receive(b, paid, 9) == first, "a repeat is known on both"
            assert ledger_of(b, "1") == {"status": "placed", "due": 4500, "paid": 4500}
            assert received_cents(b) == 4500
            assert is_conflict(append_expect(b, "order/1", 1, "cancelled", 3, {})), "and a lost race"


def test_the_story_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main()

    told = capsys.readouterr().out.splitlines()
    assert told[0] == "customers: 3 read, 2 written, 0 known customer 3: no name"
    assert told[3].startswith("orders: 3 read, 0 written, 3 known")
