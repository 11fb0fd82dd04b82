"""Strandline as a contender, through its front door."""

from collections.abc import Iterator
from typing import Any

from benchmarks.payload import STREAM, TYPE, key
from strandline.persist import (
    Append,
    AtomicBackend,
    Event,
    ExpectSeq,
    append,
    append_batch,
    commit,
    global_pos,
    is_conflict,
    last_seq,
    project_fold,
)
from strandline.persist.backend import Outcome


def append_plain(b: AtomicBackend, data: dict[str, Any]) -> None:
    append(b, STREAM, TYPE, 1_700_000_000, data)


def append_batch_plain(b: AtomicBackend, datas: list[dict[str, Any]]) -> None:
    append_batch(b, STREAM, [(TYPE, 1_700_000_000, data) for data in datas])


class FullContract:
    """Everything on: the expected seq, a place in the global order, an idempotency key for each commit.

    It knows the last seq, as one who just folded the stream does.
    """

    def __init__(self, b: AtomicBackend, stream: str = STREAM) -> None:
        self._b = b
        self._stream = stream
        self._seq = last_seq(b, stream)

    def append(self, data: dict[str, Any]) -> None:
        self._commit([data])

    def append_batch(self, datas: list[dict[str, Any]]) -> None:
        self._commit(datas)

    def line_up(self) -> None:
        """Give the events their places in the global order: on Postgres it is the next reader who does."""
        global_pos(self._b)

    def _commit(self, datas: list[dict[str, Any]]) -> None:
        writes = [Append(self._stream, TYPE, 1_700_000_000, data, globally=True) for data in datas]
        once = (self._stream, key())
        outcome: Outcome = commit(self._b, [ExpectSeq(self._stream, self._seq)], writes, once=once)
        assert not is_conflict(outcome), outcome
        self._seq += len(datas)


def stream_pages(b: AtomicBackend, size: int) -> Iterator[list[Event]]:
    after = 0
    while page := list(b.read_range(STREAM, after + 1, 2**63 - 1, limit=size)):
        yield page
        after = page[-1].seq


def global_pages(b: AtomicBackend, size: int) -> Iterator[list[Any]]:
    after = 0
    while page := list(b.global_range(after + 1, limit=size)):
        yield page
        after = page[-1][0]


def replay(b: AtomicBackend) -> int:
    """Fold a stream to one number, as a projection does."""
    total: int = project_fold(b, STREAM, lambda total, event: total + event.data["quantity"], 0)
    return total
