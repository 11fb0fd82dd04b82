"""`maintain/<dataset>` as values, and folded: what compaction has rewritten or left alone, what was swept.

    begun      {run, branch, base, level}           files will be rewritten on a branch of the table
    staged     {run, head, …}                       they are, and checked: all that `compacted` will say
    compacted  {run, level, snapshot, parts, rows, duplicates, files_in, files_out, bytes_in, bytes_out, gone}
    abandoned  {run, reason}                        the branch is gone, and the table as it was
    left       {parts: [[place, first, signature, reason], …]}   bins that are left alone until their files
               change, and why
    swept      {files}                              so many files that no snapshot names were removed

A run that is begun and neither compacted nor abandoned was cut short. Whether it landed is told by its head.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from strandline.persist import Append, Event
from strandline.state.strand_entries import ControlUnreadable


def maintain_stream(dataset: str) -> str:
    return f"maintain/{dataset}"


def maintain_event(dataset: str, type_: str, at: int, data: Mapping[str, Any]) -> Append:
    return Append(maintain_stream(dataset), type_, at, dict(data), globally=True)


FAILED: Final = "failed"  # how the reason begins for which a bin is tried again after a while


class BinLeftAlone(NamedTuple):
    """Why a bin is left alone: as long as its files are those of the signature."""

    signature: str
    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What is recorded of one dataset.

    `made` are the commits that brought rewritten files which are still there, and the level of those.
    """

    event: int = 0  # the last of the stream
    begun: int = 0  # the event of a run that is not known to have ended; 0 if there is none
    base: int = 0  # the snapshot that it began at
    staged: int = 0  # and the one that says what it made
    compactions: int = 0
    ineffective: int = 0  # of them, those that left as many files as there were
    at: int = 0  # of the last one
    rows: int = 0  # that were rewritten
    duplicates: int = 0  # that were removed
    swept_at: int = 0
    made: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[tuple[str | int, int], BinLeftAlone] = field(default_factory=dict)

    @property
    def failed(self) -> dict[tuple[str | int, int], BinLeftAlone]:
        """Bins that could not be rewritten, by place and first seq."""
        return {key: each for key, each in self.left.items() if each.reason.startswith(FAILED)}


def with_event(rewriting: Rewriting, event: Event) -> Rewriting:
    data: Any = event.data
    at = int(event.at)
    now = replace(rewriting, event=event.seq)
    try:
        match event.type:
            case "begun":
                return replace(now, begun=event.seq, base=data["base"], staged=0)
            case "staged":
                return replace(now, staged=event.seq)
            case "abandoned":
                return replace(now, begun=0, staged=0)
            case "compacted":
                return _compacted(now, data, at)
            case "left":
                more = {
                    (place, first): BinLeftAlone(found, reason, at)
                    for place, first, found, reason in data["parts"]
                }
                return replace(now, left={**now.left, **more})
            case "swept":
                return replace(now, swept_at=at)
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, str(error)) from error
    raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")


def _compacted(now: Rewriting, data: Any, at: int) -> Rewriting:
    gone, parts = set(data["gone"]), {(place, first) for place, first, *_ in data["parts"]}
    made = {snapshot: level for snapshot, level in now.made.items() if snapshot not in gone}
    return replace(
        now,
        begun=0,
        staged=0,
        compactions=now.compactions + 1,
        ineffective=now.ineffective + (data["files_out"] >= data["files_in"]),
        at=at,
        rows=now.rows + data["rows"],
        duplicates=now.duplicates + data["duplicates"],
        made={**made, data["snapshot"]: data["level"]},
        left={key: each for key, each in now.left.items() if key not in parts},
    )


class Rewrites:
    """By dataset, folded along the global order. Standing keeps it caught up."""

    def __init__(self) -> None:
        self._by_dataset: dict[str, Rewriting] = {}

    def of(self, dataset: str) -> Rewriting:
        return self._by_dataset.get(dataset, Rewriting())

    def take(self, dataset: str, event: Event) -> None:
        self._by_dataset[dataset] = with_event(self.of(dataset), event)

    # As part of a kept snapshot

    def data(self) -> list[Any]:
        return [
            [
                name,
                each.event,
                each.begun,
                each.base,
                each.staged,
                each.compactions,
                each.ineffective,
                each.at,
                each.rows,
                each.duplicates,
                each.swept_at,
                [list(pair) for pair in each.made.items()],
                [[*key, *left] for key, left in each.left.items()],
            ]
            for name, each in self._by_dataset.items()
        ]

    def load(self, data: Iterable[Any]) -> None:
        for name, *numbers, made, left in data:
            kept = {(place, first): BinLeftAlone(*why) for place, first, *why in left}
            self._by_dataset[name] = replace(Rewriting(*numbers), made=dict(made), left=kept)
