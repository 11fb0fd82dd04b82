"""What the last look of retention at a table found, so that the next one need not look: a key of the store.

    retention/<dataset>   {at, cutoff, pointer, rules, ripens_at, first,
                           waiting: {source: [lo, hi, rows]}, is_over_limit}

It holds for as long as the table and the rules are the same: until `ripens_at` nothing else can go by its
age, and what waits, waits for a sink. It is a cache: without it the table's metadata is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.base.ranges import Range
from strandline.lake.ports.prune import RowPlace
from strandline.maintenance.retention.prune_candidates import Ripe
from strandline.maintenance.retention.sink_marks import Marks
from strandline.persist import AtomicBackend, Put


@dataclass(frozen=True, slots=True)
class LastLook:
    at: int
    cutoff: int | None
    pointer: str
    rules: str
    ripens_at: int | None = None
    first: RowPlace | None = None  # rows up to it are too many
    waiting: Mapping[str, Ripe] = field(default_factory=dict)  # for a sink, or just short of V
    is_over_limit: bool = False  # they have waited for longer, or are more, than they should

    def is_idle(self, pointer: str, rules: str, marks: Marks, now: int) -> bool:
        """Whether there is nothing to do for sure."""
        if (self.pointer, self.rules) != (pointer, rules):
            return False
        is_ripe = self.ripens_at is not None and now >= self.ripens_at
        return not is_ripe and all(
            marks.through(source) <= each.seqs.lo for source, each in self.waiting.items()
        )

    def held(self, marks: Marks) -> dict[str, int]:
        """By sink: rows that could go and that it does not have, at most. Those that wait for none are not
        here."""
        found = {
            name: sum(
                each.above(marks.mark(name, source), marks.visible(source))
                for source, each in self.waiting.items()
            )
            for name in marks.awaited()
        }
        return {name: rows for name, rows in found.items() if rows}


def key(dataset: str) -> str:
    return f"retention/{dataset}"


def kept_of(b: AtomicBackend, dataset: str) -> LastLook | None:
    """None where there is none, or none that can be read."""
    data: Any = b.kv_get(key(dataset))
    try:
        first = None if data["first"] is None else RowPlace(*data["first"])
        waiting = {
            source: Ripe(Range(lo, hi), rows) for source, (lo, hi, rows) in dict(data["waiting"]).items()
        }
        return LastLook(
            int(data["at"]),
            data["cutoff"],
            str(data["pointer"]),
            str(data["rules"]),
            data["ripens_at"],
            first,
            waiting,
            bool(data["is_over_limit"]),
        )
    except (TypeError, KeyError, ValueError):
        return None  # only a cache


def keeping(dataset: str, kept: LastLook) -> Put:
    data = {
        "at": kept.at,
        "cutoff": kept.cutoff,
        "pointer": kept.pointer,
        "rules": kept.rules,
        "ripens_at": kept.ripens_at,
        "first": None if kept.first is None else list(kept.first),
        "waiting": {source: [each.seqs.lo, each.seqs.hi, each.rows] for source, each in kept.waiting.items()},
        "is_over_limit": kept.is_over_limit,
    }
    return Put(key(dataset), data)
