"""What a run of a provider did, or would do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Status = Literal["done", "partial", "failed"]
_MOST_TEXTS: Final = 100


@dataclass(frozen=True, slots=True)
class Failure:
    """An item that was not written in full, and why."""

    item: str
    kind: str
    text: str


@dataclass(slots=True)
class BackfillCounts:
    """Counts of rows, but for items, waiting (items) and doubts (lookups that did not answer in full)."""

    items: int = 0
    waiting: int = 0  # changed a moment ago: they are left for the next run
    written: int = 0
    committed: int = 0
    spooled: int = 0
    in_chunk: int = 0
    chunk_known: int = 0
    quarantined: int = 0
    doubts: int = 0
    doubt_texts: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # what the provider read and made no row of

    @property
    def left_out(self) -> int:
        return self.committed + self.spooled + self.in_chunk + self.chunk_known

    def doubt(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.doubts += 1
            if len(self.doubt_texts) < _MOST_TEXTS and text not in self.doubt_texts:
                self.doubt_texts.append(text)


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Per provider. `error` says why nothing, or nothing more, could be looked at."""

    provider: str
    tally: BackfillCounts
    is_dry: bool = False
    error: Failure | None = None

    @property
    def failed(self) -> int:
        return len(self.tally.failures)

    @property
    def status(self) -> Status:
        if self.error is not None:
            return "failed"
        return "partial" if self.tally.failures else "done"

    def facts(self) -> dict[str, Any]:
        """As events and `--json` have it; fields only ever get more."""
        tally = self.tally
        return {
            "provider": self.provider,
            "status": self.status,
            "dry_run": self.is_dry,
            "items": tally.items,
            "waiting": tally.waiting,
            "written": tally.written,
            "left_out": {
                "committed": tally.committed,
                "spooled": tally.spooled,
                "in_chunk": tally.in_chunk,
                "chunk_known": tally.chunk_known,
            },
            "quarantined": tally.quarantined,
            "doubts": tally.doubts,
            "doubt_texts": list(tally.doubt_texts),
            "skipped": dict(sorted(tally.skipped.items())),
            "failed": self.failed,
            "failures": [
                {"item": each.item, "kind": each.kind, "text": each.text}
                for each in tally.failures[:_MOST_TEXTS]
            ],
            "error": None if self.error is None else {"kind": self.error.kind, "text": self.error.text},
        }
