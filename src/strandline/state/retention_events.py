"""`retention/<dataset>` as values, and folded: which rows were taken out of a table, and by what.

    intended  {run, by, …}                           what will be deleted: fixed before anything is
    pruned    {run, by, rows, evicted, flush_lo, flush_hi}   it is deleted; flushes (flush_lo, flush_hi] had
              some of it

A run that is intended and not pruned was cut short: the same bounds are deleted again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from strandline.persist import Event
from strandline.state.strand_entries import ControlUnreadable
from strandline.state.strand_state import Pruned, with_pruned


def retention_stream(dataset: str) -> str:
    return f"retention/{dataset}"


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is recorded of one dataset."""

    event: int = 0  # the last of the stream
    open: int = 0  # the event of a run that is not recorded as done; 0 if there is none
    rows: int = 0  # in all
    evicted: int = 0  # of them, those that some sink had not passed
    at: int = 0  # of the last run that is done
    pruned: tuple[Pruned, ...] = ()  # by retention, in flush numbers

    @property
    def front(self) -> int:
        """The highest flush number one of whose rows retention has pruned."""
        return max((each.hi for each in self.pruned), default=0)


def with_event(pruning: Pruning, event: Event) -> Pruning:
    data: Any = event.data
    try:
        match event.type:
            case "intended":
                return replace(pruning, event=event.seq, open=event.seq)
            case "pruned":
                pruned = pruning.pruned
                if data["by"] == "retention" and data["rows"]:
                    pruned = with_pruned(pruned, Pruned(data["flush_lo"], data["flush_hi"], data["rows"]))
                return replace(
                    pruning,
                    event=event.seq,
                    open=0,
                    rows=pruning.rows + data["rows"],
                    evicted=pruning.evicted + data["evicted"],
                    at=int(event.at),
                    pruned=pruned,
                )
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, str(error)) from error
    raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")


class Prunings:
    """By dataset, folded along the global order. Standing keeps it caught up."""

    def __init__(self) -> None:
        self._by_dataset: dict[str, Pruning] = {}

    def of(self, dataset: str) -> Pruning:
        return self._by_dataset.get(dataset, Pruning())

    def take(self, dataset: str, event: Event) -> None:
        self._by_dataset[dataset] = with_event(self.of(dataset), event)

    # As part of a kept snapshot

    def data(self) -> list[Any]:
        return [
            [
                name,
                each.event,
                each.open,
                each.rows,
                each.evicted,
                each.at,
                [list(pruned) for pruned in each.pruned],
            ]
            for name, each in self._by_dataset.items()
        ]

    def load(self, data: Iterable[Any]) -> None:
        self._by_dataset = {
            name: Pruning(event, open_, rows, evicted, at, tuple(Pruned(*each) for each in pruned))
            for name, event, open_, rows, evicted, at, pruned in data
        }
