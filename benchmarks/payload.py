"""What is stored: events of about 300 bytes, as an order might be."""

import gc
import time
from collections.abc import Callable
from random import getrandbits
from typing import Any, Final

STREAM: Final = "order-1"
TYPE: Final = "line-added"
BATCHES: Final = 20  # several copies of the log back into the file fall into each round, for all alike


def payload(number: int) -> dict[str, Any]:
    """The data of one event; encoded it has about 300 bytes."""
    return {
        "customer": {"id": 1_000_000 + number % 977, "name": "Grace Hopper", "since": "1983-11-08"},
        "line": number,
        "note": "leave it with the neighbour if nobody opens the door",
        "price": 19.95,
        "quantity": 1 + number % 5,
        "sku": f"A-{number % 10_007:05}-XL",
        "tags": ["gift", "express", "fragile"],
        "warehouse": {"aisle": 12, "code": "RTM-3", "shelf": "B"},
    }


def key() -> str:
    """An idempotency key. Drawn here: asking the kernel for one, as uuid4 does, gives up Python's lock."""
    return f"{getrandbits(128):032x}"


def payloads(count: int) -> list[dict[str, Any]]:
    return [payload(number) for number in range(count)]


def nothing() -> None: ...


def feed(
    count: int, store: Callable[[dict[str, Any]], object], after: Callable[[], object] = nothing
) -> Callable[[], float]:
    """A contender that stores `count` events one by one, and what it has to do `after` them all. Making them
    is not on its clock, and neither is what the garbage collector owes them."""

    def run() -> float:
        datas = payloads(count)
        gc.collect()
        began = time.perf_counter()
        for data in datas:
            store(data)
        after()
        return count / (time.perf_counter() - began)

    return run


def feed_batch(
    count: int, store: Callable[[list[dict[str, Any]]], object], after: Callable[[], object] = nothing
) -> Callable[[], float]:
    """The same with some batches of `count` events; one alone is over before the noise is."""

    def run() -> float:
        batches = [payloads(count) for _ in range(BATCHES)]
        gc.collect()
        began = time.perf_counter()
        for datas in batches:
            store(datas)
        after()
        return BATCHES * count / (time.perf_counter() - began)

    return run
