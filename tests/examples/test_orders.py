"""examples/orders.py: a webhook counts once, however often and in how many threads it comes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from examples.orders import Refused, Webhook, main, order_of, receive, received_cents, stream_of
from strandline.persist import AtomicBackend, Event, read
from tests.conftest import open_backend

PLACED = Webhook("w1", "1", "placed", {"cents": 4500})
PAID = Webhook("w2", "1", "paid", {"cents": 4500})
SHIPPED = Webhook("w3", "1", "shipped")
CANCELLED = Webhook("w4", "1", "cancelled")


@pytest.fixture(params=["memory", "sqlite"])
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(open_backend(request.param, tmp_path)) as opened:
        yield opened


def types_of(b: AtomicBackend, order: str) -> list[str]:
    return [event.type for event in read(b, stream_of(order))]


def test_a_webhook_that_comes_twice_counts_once(b: AtomicBackend) -> None:  # P-IDM-1
    receive(b, PLACED, 1)
    first = receive(b, PAID, 2)

    again = receive(b, PAID, 3)

    assert again == first
    assert order_of(b, "1") == {"status": "placed", "due": 4500, "paid": 4500}
    assert received_cents(b) == 4500


def test_a_webhook_that_comes_in_many_threads_at_once_counts_once(b: AtomicBackend) -> None:  # P-IDM-5
    receive(b, PLACED, 1)
    halves = [Webhook(f"half-{n}", "1", "paid", {"cents": 2250}) for n in (1, 2)]

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda hook: receive(b, hook, 2), halves * 8))

    assert {event.seq for event in outcomes if isinstance(event, Event)} == {2, 3}
    assert len(outcomes) == 16
    assert (order_of(b, "1")["paid"], received_cents(b)) == (4500, 4500)


def test_what_comes_after_the_parcel_has_left_is_refused(b: AtomicBackend) -> None:  # P-CON-1
    for at, hook in enumerate((PLACED, PAID, SHIPPED), 1):
        receive(b, hook, at)

    assert receive(b, CANCELLED, 4) == Refused("the order is shipped")
    assert types_of(b, "1") == ["placed", "paid", "shipped"]


def test_a_repeat_gets_its_first_answer_also_when_it_would_be_refused_now(
    b: AtomicBackend,
) -> None:  # P-IDM-1
    for at, hook in enumerate((PLACED, PAID, SHIPPED), 1):
        receive(b, hook, at)

    outcome = receive(b, PAID, 5)

    assert isinstance(outcome, Event)
    assert (outcome.seq, outcome.at) == (2, 2)


def test_of_a_shipment_and_a_cancellation_at_once_one_is_refused(b: AtomicBackend) -> None:  # P-CON-6
    for turn in range(20):
        order = f"order-{turn}"
        for kind in ("placed", "paid"):
            receive(b, Webhook(kind, order, kind, {"cents": 1}), 1)
        hooks = [Webhook("w3", order, "shipped"), Webhook("w4", order, "cancelled")]

        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(lambda hook: receive(b, hook, 2), hooks))

        status = order_of(b, order)["status"]
        assert Refused(f"the order is {status}") in outcomes
        assert types_of(b, order) == ["placed", "paid", status]


def test_an_id_that_said_something_else_is_refused(b: AtomicBackend) -> None:  # P-IDM-7
    receive(b, PLACED, 1)

    outcome = receive(b, Webhook("w1", "1", "paid", {"cents": 1}), 2)

    assert outcome == Refused("webhook w1 said something else before")
    assert types_of(b, "1") == ["placed"]


def test_the_story_told_twice_leaves_the_same_sums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # P-IDM-4
    main(str(tmp_path / "orders.db"))
    first = capsys.readouterr().out.splitlines()
    main(str(tmp_path / "orders.db"))

    assert capsys.readouterr().out.splitlines() == first
    assert first == [
        "w1 placed    -> event 1",
        "w2 paid      -> event 2",
        "w2 paid      -> event 2",
        "w3 shipped   -> event 3",
        "w4 cancelled -> the order is shipped",
        "w2 paid      -> event 2",
        "w5 shipped   -> the order is unknown",
        "{'status': 'shipped', 'due': 4500, 'paid': 4500} 4500",
    ]
