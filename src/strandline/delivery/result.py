"""What a run of a sink did, and which strands it could not finish."""

from dataclasses import dataclass, field
from typing import Final, Literal

from strandline.delivery.verdict import Verdict
from strandline.lake.ports.scan_counters import NOTHING_READ, ScanCounters

NOT_TAKEN: Final = "not_taken"  # a dataset that the sink cannot take, and says so: no failure

Status = Literal["exported", "partial", "failed", "idle", "held"]


@dataclass(frozen=True, slots=True)
class StrandResult:
    """A strand that is not delivered in full, and why."""

    dataset: str
    source: str
    kind: str
    text: str
    not_before: int = 0
    is_held: bool = False


@dataclass(slots=True)
class SyncResult:
    """What a run did. Counters that Spark does not give out are None, never 0."""

    instance: str
    rows: int = 0
    bytes: int = 0
    units: int = 0
    requests: int = 0
    withheld: int = 0
    dead_letters: int = 0
    control_writes: int = 0
    counters: ScanCounters = NOTHING_READ
    strands: int = 0  # of which something was owed
    troubles: list[StrandResult] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.rows += sum(each.rows for each in verdict.receipts)
        self.bytes += sum(each.bytes for each in verdict.receipts)
        self.units += len(verdict.receipts)
        self.withheld += sum(map(len, verdict.withheld))
        self.dead_letters += len(verdict.given_up)

    def facts(self) -> dict[str, int | str | None]:
        """The counters of the run (L-COST-4), by name."""
        return {
            "status": self.status,
            "strands": self.strands,
            "units_sent": self.units,
            "rows_sent": self.rows,
            "bytes_sent": self.bytes,
            "requests": self.requests,
            "control_writes": self.control_writes,
            "rows_withheld": self.withheld,
            "dead_letters": self.dead_letters,
            "spark_jobs": self.counters.jobs,
            "files_opened": self.counters.files_opened,
            "data_bytes_read": self.counters.bytes,
            "rows_read": self.counters.rows_decoded,
        }

    @property
    def status(self) -> Status:
        faults = [each for each in self.troubles if each.kind != NOT_TAKEN]
        if faults or self.dead_letters:
            is_held = not self.dead_letters and all(each.is_held for each in faults)
            return "partial" if self.units else "held" if is_held else "failed"
        return "exported" if self.strands > len(self.troubles) else "idle"
