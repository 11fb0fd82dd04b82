"""A ledger of orders, fed by webhooks that come twice, late, or two at the same moment.

A payment provider sends a webhook until it is answered, so each may come again. Its id is the key of its
event: a repeat stores nothing and gets the first answer, also years later, also where both came at once. What
the state of the order forbids is refused: a cancellation after the parcel has left changes nothing.

    python examples/orders.py            # tells a short story, on a store in memory
    python examples/orders.py orders.db  # the same on a SQLite file: run it twice, the sums stay
"""

import sys
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from strandline.persist import (
    Append,
    Backend,
    Event,
    ExpectSeq,
    commit,
    is_conflict,
    open_store,
    project,
    project_global,
    seen,
)

Kind = Literal["placed", "paid", "shipped", "cancelled"]


@dataclass(frozen=True, slots=True)
class Webhook:
    """`id` is the sender's, and the same each time that this webhook comes."""

    id: str
    order: str
    kind: Kind
    data: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """What the order, as it stands, does not allow. Nothing was stored. Over HTTP this would be a 409."""

    why: str


# An order is a fold of its events


class Order(TypedDict):
    status: Literal["unknown", "placed", "shipped", "cancelled"]
    due: int
    paid: int


UNKNOWN: Final = Order(status="unknown", due=0, paid=0)


def step(order: Order, event: Event) -> Order:
    match event.type:
        case "placed":
            return {**order, "status": "placed", "due": event.data["cents"]}
        case "paid":
            return {**order, "paid": order["paid"] + event.data["cents"]}
        case "shipped":
            return {**order, "status": "shipped"}
        case _:
            return {**order, "status": "cancelled"}


def refusal(order: Order, kind: Kind) -> str | None:
    """Why the order does not allow this now, None if it does."""
    status = order["status"]
    if kind == "placed":
        return None if status == "unknown" else f"the order is {status} already"
    if status != "placed":
        return f"the order is {status}"
    if kind == "shipped" and order["paid"] < order["due"]:
        return f"{order['due'] - order['paid']} cents are not paid"
    return None


# What a handler of webhooks calls


def receive(b: Backend, hook: Webhook, at: int) -> Event | Refused:
    """Store the webhook as an event, once; a repeat gives the event that is there."""
    stream = stream_of(hook.order)
    while True:
        state = project(b, stream, step, UNKNOWN)
        # A repeat is let through: it was allowed when it first came, and the commit below will know it.
        if not seen(b, stream, hook.id) and (why := refusal(state.value, hook.kind)):
            return Refused(why)
        outcome = commit(
            b,
            [ExpectSeq(stream, state.seq)],  # decided on this state: where it moved since, decide again
            [Append(stream, hook.kind, at, hook.data, globally=True)],
            once=(stream, hook.id),  # known already: its first result, whatever is expected
        )
        if not is_conflict(outcome):
            return outcome[0]
        if outcome.reason == "KEY_REUSED":
            return Refused(f"webhook {hook.id} said something else before")


def stream_of(order: str) -> str:
    return f"order/{order}"


def order_of(b: Backend, order: str) -> Order:
    state: Order = project(b, stream_of(order), step, UNKNOWN).value
    return state


def received_cents(b: Backend) -> int:
    """The money of all orders: a fold over the global order, in which every stream takes part."""
    return project_global(b, lambda sum_, each: sum_ + (each.data["cents"] if each.type == "paid" else 0), 0)


STORY: Final = [
    Webhook("w1", "1001", "placed", {"cents": 4500}),
    Webhook("w2", "1001", "paid", {"cents": 4500}),
    Webhook("w2", "1001", "paid", {"cents": 4500}),  # our answer was lost: it comes again
    Webhook("w3", "1001", "shipped"),
    Webhook("w4", "1001", "cancelled"),  # too late
    Webhook("w2", "1001", "paid", {"cents": 4500}),  # and again, now that the order is shipped
    Webhook("w5", "1002", "shipped"),  # of an order that nobody placed
]


def main(target: str = "memory:") -> None:
    b = open_store(target)
    for at, hook in enumerate(STORY, 1):
        outcome = receive(b, hook, at)
        said = outcome.why if isinstance(outcome, Refused) else f"event {outcome.seq}"
        print(f"{hook.id} {hook.kind:9} -> {said}")
    print(order_of(b, "1001"), received_cents(b))
    b.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
