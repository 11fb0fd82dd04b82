"""What an action of Spark has read, as a value. Where Spark does not tell, a counter is None, never 0."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ScanCounters:
    """Jobs asked of Spark, data files opened, their sizes, rows decoded from them. None is unknown."""

    jobs: int | None = None
    files_opened: int | None = None
    bytes: int | None = None
    rows_decoded: int | None = None

    def __add__(self, other: "ScanCounters") -> "ScanCounters":
        """Both together; what one of them does not know, the sum does not know."""
        return ScanCounters(
            total_of((self.jobs, other.jobs)),
            total_of((self.files_opened, other.files_opened)),
            total_of((self.bytes, other.bytes)),
            total_of((self.rows_decoded, other.rows_decoded)),
        )


NOTHING_READ: Final = ScanCounters(0, 0, 0, 0)


def total_of(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
