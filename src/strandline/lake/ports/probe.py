"""What landing and compaction ask of a catalog, and how an unknown one is tried: plain values, no Spark."""

from collections.abc import Sequence
from typing import Final, Protocol

STAGED: Final = "a staged snapshot stays out of the table until it is published"
ONCE: Final = "an id that was published is refused the second time"
HISTORY: Final = "older snapshots stay, and can be read"
BRANCHES: Final = "a branch stays apart until the table is fast-forwarded to it"
REMOVAL: Final = "snapshots expire by their ids, and files without a snapshot can be removed"
DROP: Final = "a table can be dropped with its files"

PROMISES: Final = (STAGED, ONCE, HISTORY, BRANCHES, REMOVAL, DROP)


class Probe(Protocol):
    """Tries a catalog in a scratch table. UnavailableError if the catalog does not answer, which says nothing
    about what it keeps."""

    def missing(self, table: str) -> Sequence[str]:
        """Make the scratch table `table`, try each of PROMISES in it, and drop it. Return those that do not
        hold."""

    def drop(self, table: str) -> None:
        """Drop a scratch table that a killed probe has left, if it is there."""
