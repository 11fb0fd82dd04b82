"""Eight processes on one store: every write has its place, none is lost, and each writer's order is kept."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from strandline.persist import events, kv_get, last_seq, streams, verify
from tests.conftest import Place, place_of
from tests.crash.killing import Child

WRITERS = 8
SHARED_KINDS = ("sqlite", "postgres", "remote")


@pytest.fixture(params=SHARED_KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, tmp_path)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Child]]:
    """Eight of them, for one store after the other; at last they end by themselves."""
    nowhere = place_of("sqlite", tmp_path_factory.mktemp("processes"))
    with ExitStack() as stack:
        started = [stack.enter_context(Child(nowhere, is_ready=False)) for _ in range(WRITERS)]
        for child in started:
            child.wait_ready()
        yield started
        for child in started:
            child.end()


@pytest.fixture
def children(place: Place, processes: list[Child]) -> list[Child]:
    """Eight processes that open the store, and so make it, at once."""
    for child in processes:
        child.begin_open(place)
    for child in processes:
        child.wait_ready()
    return processes


def write_all(place: Place, children: list[Child], each: int) -> None:
    for number, child in enumerate(children):
        child.tell("plain", stream="s", writer=number, last=each)
    for child in children:
        assert child.listen(wait_s=60 + each / 10) == each  # 80,000 commits of eight processes take minutes

    with closing(place.open()) as b:
        next_n = [1] * WRITERS
        seq = 0
        for seq, event in enumerate(events(b, "s"), 1):  # P-LOG-2, P-LOG-11
            assert event.seq == seq
            assert event.data["n"] == next_n[event.data["writer"]]
            next_n[event.data["writer"]] += 1
        assert seq == last_seq(b, "s") == WRITERS * each
        assert next_n == [each + 1] * WRITERS
        assert verify(b) == []


def test_eight_processes_append_to_one_stream(place: Place, children: list[Child]) -> None:  # P-LOG-11
    write_all(place, children, 300)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_eight_processes_append_ten_thousand_events_each(place: Place, children: list[Child]) -> None:
    write_all(place, children, 10_000)  # P-LOG-11


def test_increments_of_eight_processes_are_never_lost(place: Place, children: list[Child]) -> None:  # P-KV-7
    each = 40
    for child in children:
        child.tell("increments", key="n", times=each)
    for child in children:
        assert child.listen() == each

    with closing(place.open()) as b:
        assert kv_get(b, "n") == WRITERS * each


def test_units_of_eight_processes_under_the_same_keys_have_one_effect_each(
    place: Place, children: list[Child]
) -> None:  # P-IDM-5, P-GLB-8: all of them write the very same numbered commits
    for child in children:
        child.tell("writes", kind="append", first=1, last=60)
    for child in children:
        assert child.listen() == 60

    with closing(place.open()) as b:
        assert sorted(event.data["n"] for event in events(b, "s")) == [*range(1, 61)]
        assert last_seq(b, "s") == 60
        assert verify(b) == []


def test_eight_processes_that_make_one_store_at_once_share_it(place: Place, children: list[Child]) -> None:
    for number, child in enumerate(children):  # P-API-4
        child.tell("plain", stream=f"of {number}", writer=number, last=3)
    for child in children:
        assert child.listen() == 3

    with closing(place.open(create=False) if "scratch" not in place.options else place.open()) as b:
        assert streams(b) == [f"of {number}" for number in range(WRITERS)]
        assert [last_seq(b, name) for name in streams(b)] == [3] * WRITERS
        assert verify(b) == []
