"""The few things that cases of many suites start from."""

from collections.abc import Iterable
from typing import Any

from strandline.persist import Event, append_batch, kv_items
from strandline.persist.backend import Backend


def counted(b: Backend, stream: str, n: int, *, start: int = 1, globally: bool = False) -> list[Event]:
    """`n` events `added` in one block; the i-th has `i` as its `at` and its `n`, counted from `start`."""
    specs = [("added", i, {"n": i}) for i in range(start, start + n)]
    return append_batch(b, stream, specs, globally=globally)


def total(value: Any, event: Event) -> Any:
    """The fold of most cases: the sum of every `n`."""
    return value + event.data["n"]


def kinds(value: Any, event: Event) -> Any:
    """A fold that shows order: the types, one after the other."""
    return [*value, event.type]


def kept_keys(b: Backend) -> list[tuple[str, Any]]:
    """Every key and value, but for what is random: the lineage, and the keys that remote clients draw."""
    return [
        item for item in kv_items(b, reserved=True) if not item[0].startswith(("$lineage", "$once/$commit/"))
    ]


def seqs(events: Iterable[Event]) -> list[int]:
    return [event.seq for event in events]
