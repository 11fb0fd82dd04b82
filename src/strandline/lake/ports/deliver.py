"""The requests of a delivery to the lake, so that delivery does not import Spark. `jobs/deliver.py` carries
them out: it brings rows of the tables to a sink."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strandline.base.ranges import Range
from strandline.errors import HeldError, UnavailableError
from strandline.lake.ports.scan_counters import NOTHING_READ, ScanCounters
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.sinks.sink import Shipment, Sink
    from strandline.sinks.unit_runner import IntentPart, Told


class PolicyUnreadable(HeldError):
    """A rule of [policy] that Spark cannot read: rows that it may be about do not leave."""

    def __init__(self, dataset: str, where: str, found: str) -> None:
        super().__init__(
            f"the policy for dataset {dataset!r} cannot be read, so nothing of it leaves: {found:.500}",
            hint="correct `where` in [policy], then `strandline sync`",
        )
        self.dataset, self.where, self.found = dataset, where, found


class JobsCancelled(UnavailableError):
    """The process ends, and with it what it had Spark do."""

    def __init__(self) -> None:
        super().__init__(
            "the Spark job was cancelled, since the process ends",
            hint="nothing is lost: what was begun is taken up by the next start",
        )


@dataclass(frozen=True, slots=True)
class Carried:
    """What was told of the units that had rows, and what it cost to read them."""

    told: "tuple[Told, ...]"
    counters: ScanCounters = NOTHING_READ


class Courier(Protocol):
    """Brings the rows of parts of strands of one dataset to a sink. `withhold` is a predicate over the
    columns of the dataset: rows for which it is not false stay. PolicyUnreadable if it is none."""

    def carry(
        self, sink: "Sink", shipment: "Shipment", parts: "Sequence[IntentPart]", *, withhold: str | None
    ) -> Carried:
        """Deliver what the table has of the parts."""
        ...

    def fetch(self, dataset: Dataset, source: str, seqs: Range) -> "pa.Table":
        """The rows of a range in order, as a sink gets them, withheld or not."""
        ...

    def check(self, dataset: Dataset, withhold: str) -> None:
        """Whether the predicate can be read at all, without a look at any row."""
        ...

    def withheld(self, dataset: Dataset, source: str, ranges: Sequence[Range], withhold: str) -> list[Range]:
        """The rows of these ranges that stay, as ranges."""
        ...
