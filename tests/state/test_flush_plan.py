"""What is stored of flushes and loads, read again (L-CTL-4): damage is told by name."""

from typing import Any

import pytest

from strandline.persist import Append, BlobRef, Event, mem_backend
from strandline.state.flush_plan import Numbers, flush_stream, open_plan, plan_of, plans_after, with_event
from strandline.state.strand_entries import ControlUnreadable

SEGMENT = BlobRef("sha256-" + "0" * 64, 10, "application/vnd.apache.parquet")
PIECE = {"segment": SEGMENT, "first_row": 0, "rows": 1, "lo": 0, "at": 5}
SHARE = {"ranges": [[0, 1]], "next": 2, "rows": 1, "bytes": 10, "pieces": [PIECE]}
PLANNED = {
    "number": 1,
    "id": "logs-1-x",
    "fence": 1,
    "reason": "command",
    "schema": 1,
    "strands": {"a": SHARE},
}
LOADING = {
    "number": 1,
    "id": "logs-1-x",
    "fence": 1,
    "load": "l",
    "schema": 1,
    "input": {"table": "t", "snapshot": 3, "rows": {"a": 1}},
    "ranges": {"a": [0, 1]},
}
NOTHING: list[Any] = [None, 7, "text", [], {}]
NO_NUMBERS: list[Any] = [{"number": value} for value in [*NOTHING, "1", 1.0, True, -1] if value != 7]


def event(type_: str, data: Any, seq: int = 1, at: Any = 0) -> Event:
    return Event(flush_stream("logs"), seq, type_, at, data)


@pytest.mark.parametrize(
    "type_", ["planned", "loading", "amended", "committed", "landed", "released", "raised"]
)
@pytest.mark.parametrize("data", [*NOTHING, *NO_NUMBERS])
def test_an_event_without_a_number_cannot_be_folded(type_: str, data: Any) -> None:
    with pytest.raises(ControlUnreadable) as told:
        with_event(Numbers(), event(type_, data, seq=9))

    assert (told.value.stream, told.value.seq) == ("flush/logs", 9)


def test_an_event_of_an_unknown_type_cannot_be_folded() -> None:
    with pytest.raises(ControlUnreadable, match="'undone'"):
        with_event(Numbers(), event("undone", {"number": 1}))


def spoiled(good: dict[str, Any]) -> list[dict[str, Any]]:
    """Each entry left out, and each of a kind that it cannot have."""
    without = [{key: each for key, each in good.items() if key != name} for name in good]
    kinds: list[Any] = [None, 1.5, [[]]]
    wrong = [{**good, name: value} for name in good for value in kinds]
    return [*without, *wrong]


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        *[("planned", data) for data in [*NOTHING, *spoiled(PLANNED)]],
        *[("planned", {**PLANNED, "strands": {"a": share}}) for share in [*NOTHING, *spoiled(SHARE)]],
        *[
            ("planned", {**PLANNED, "strands": {"a": {**SHARE, "pieces": [piece]}}})
            for piece in [*NOTHING, *spoiled(PIECE)]
        ],
        *[("loading", data) for data in [*NOTHING, *spoiled(LOADING)]],
        *[("loading", {**LOADING, "input": fixed}) for fixed in [*NOTHING, *spoiled(LOADING["input"])]],  # type: ignore[arg-type]
        *[("loading", {**LOADING, "ranges": {"a": each}}) for each in ([1, 0], [0], "ab", None, ["a", "b"])],
    ],
)
def test_a_damaged_plan_stops_the_work(type_: str, data: Any) -> None:
    with pytest.raises(ControlUnreadable):
        plan_of(event(type_, data))


def test_the_plans_that_are_spoiled_above_are_good_as_they_are() -> None:
    assert plan_of(event("planned", PLANNED)).number == 1
    assert plan_of(event("loading", LOADING)).number == 1


@pytest.mark.parametrize(
    "data",
    [
        *NOTHING,
        {"number": 1},
        {"number": 1, "version": "1", "strands": {}},
        {"number": 1, "version": 1, "strands": 3},
    ],
)
def test_a_damaged_amendment_stops_the_work(data: Any) -> None:
    b = mem_backend()
    stream = flush_stream("logs")
    b.commit([], [Append(stream, "planned", 0, PLANNED), Append(stream, "amended", 0, data)])

    with pytest.raises(ControlUnreadable) as told:
        open_plan(b, "logs", 1, 1)

    assert told.value.seq == 2


def test_a_reader_that_looks_for_numbers_does_not_pass_a_damaged_event() -> None:
    b = mem_backend()
    b.commit([], [Append(flush_stream("logs"), "planned", 0, {"number": "1"})])

    with pytest.raises(ControlUnreadable):
        list(plans_after(b, "logs", 0, 5))
