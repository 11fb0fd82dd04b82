"""Files below a table that no snapshot names: what a job that was killed has left, rows and all.

    list ─▶ which flushes and loads are open? ─▶ which of the listed files does a snapshot name?

In this order, because a flush that ends in between has its files named by then, and one that begins in
between has none in the list. While one is open, what it writes cannot be told from what was left: then the
files are reported and stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strandline.errors import UnavailableError
from strandline.flush.reconcile import paused
from strandline.lake.ports.purge import Purger
from strandline.state.context import Site

MOST_NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class UnnamedFiles:
    """`removed` files are gone; `count` are left, of which `left` are the first. `reason` says why they are
    left, or why nobody could look."""

    removed: int = 0
    count: int = 0
    left: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_left(self) -> bool:
        """Whether such a file is there, or may be."""
        return bool(self.count or self.reason)


def purge_files(site: Site, purger: Purger, dataset: str) -> UnnamedFiles:
    """Remove the files that no snapshot names, under the lease `maintain/<dataset>`."""
    try:
        listing = purger.list_files(dataset)
        numbers = sorted(site.standing.numbers(dataset).open)
        files = purger.unnamed(dataset, listing)
    except UnavailableError as error:
        return UnnamedFiles(reason=error.message)
    if not files:
        return UnnamedFiles()
    if listing.keeps:
        return _left(files, listing.keeps)
    if numbers:
        listed = ", ".join(map(str, numbers))
        return _left(files, f"flush or load {listed} is open, and may be writing them")
    if paused(site) is not None:
        return _left(files, "a restore is not confirmed: `strandline maintain --confirm-restore`")
    left = purger.remove(dataset, files)
    gone = len(files) - len(left)
    return UnnamedFiles(gone) if not left else _left(left, "the storage did not remove them", gone)


def _left(files: Sequence[str], reason: str, removed: int = 0) -> UnnamedFiles:
    return UnnamedFiles(removed, len(files), tuple(files[:MOST_NAMED]), reason)
