"""Another process that compacts between the look at a snapshot and the fold: it is no gap."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strandline.persist import (
    AtomicBackend,
    Backend,
    HistoryGap,
    StreamHead,
    append,
    append_batch,
    checkpoint,
    compact,
    maybe_compact,
    mem_backend,
    open_store,
    replay,
    snapshot_drop,
    truncate_through,
    view,
    view_refresh,
    view_value,
)
from strandline.persist.durable import IoBackend, serve


def total(value: Any, event: Any) -> Any:
    return value + event.data


V = view("total", "s", total, 0)
CALLS: dict[str, Callable[[Backend], object]] = {
    "replay": lambda b: replay(b, "s", "total", total, 0).value,
    "checkpoint": lambda b: checkpoint(b, "s", "total", total, 0).value,
    "compact": lambda b: compact(b, "s", "total", total, 0).value,
    "maybe_compact": lambda b: maybe_compact(b, "s", "total", total, 0, every=1).value,
    "view_value": lambda b: view_value(b, V),
    "view_refresh": lambda b: view_refresh(b, V).value,
}


class Overtaken(IoBackend):
    """A client before whose first look at the marks of a stream, which begins a fold, others act."""

    def __init__(self, disk: AtomicBackend, *others: Callable[[], object]) -> None:
        super().__init__(lambda request: serve(disk, request))
        self._others = list(others)

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        if self._others:
            self._others.pop(0)()
        return super().stream_scan(prefix, after=after, limit=limit)


@pytest.fixture(params=["memory", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(mem_backend() if request.param == "memory" else open_store(tmp_path / "s.db")) as opened:
        append_batch(opened, "s", [("t", n, n) for n in range(1, 6)])
        yield opened


def compacts(disk: AtomicBackend) -> Callable[[], object]:
    def act() -> None:
        append(disk, "s", "t", 1, 100)
        compact(disk, "s", "total", total, 0)

    return act


@pytest.mark.parametrize("call", CALLS)
def test_a_fold_starts_again_from_the_snapshot_that_another_has_made(
    call: str, disk: AtomicBackend
) -> None:  # P-SNP-6, P-CMP-5
    checkpoint(disk, "s", "total", total, 0)
    append(disk, "s", "t", 1, 10)

    assert CALLS[call](Overtaken(disk, compacts(disk), compacts(disk))) == 15 + 10 + 100 + 100


@pytest.mark.parametrize("call", CALLS)
def test_a_gap_that_no_snapshot_covers_raises(call: str, disk: AtomicBackend) -> None:  # P-PRJ-9
    checkpoint(disk, "s", "total", total, 0)
    append_batch(disk, "s", [("t", n, n) for n in range(3)])

    with pytest.raises(HistoryGap):
        CALLS[call](Overtaken(disk, lambda: truncate_through(disk, "s", 7)))
    with pytest.raises(HistoryGap):
        CALLS[call](Overtaken(disk, lambda: snapshot_drop(disk, "total", force=True)))


def test_the_gap_of_another_stream_is_the_steps_own(disk: AtomicBackend) -> None:  # P-PRJ-7
    def step(value: Any, event: Any) -> Any:
        raise HistoryGap("other", prior_seq=1, truncated_through=2)

    with pytest.raises(HistoryGap, match="'other'"):
        replay(disk, "s", "total", step, 0)
