"""How far a reader may go, from the store alone: V of a strand, the visible flush of a dataset, and the
bounds that tokens name, held to them."""

from dataclasses import dataclass

from strandline.dataset import Strand
from strandline.pipeline.site import Site
from strandline.pipeline.token import read_token
from strandline.ranges import Range


@dataclass(frozen=True, slots=True)
class Bounds:
    """`(since, until]` of a strand's seqs, or over all sources of flush numbers. `is_clamped` where more was
    asked for than is visible."""

    source: str | None
    since: int
    until: int
    is_clamped: bool = False

    @property
    def range(self) -> Range:
        return Range(min(self.since, self.until), self.until)


def visible(site: Site, dataset: str, source: str | None) -> int:
    """V of a strand, or with no source the visible flush of the dataset."""
    if source is None:
        return site.standing.numbers(dataset).visible
    return site.standing.tally(Strand(dataset, source)).visible_through


def bounds(
    site: Site, origin: str, dataset: str, source: str | None, since: str | None, until: str | None
) -> Bounds:
    """What two tokens ask for, held to what is visible now."""
    site.known(dataset)
    first = _place(origin, dataset, source, since) or 0
    most = visible(site, dataset, source)
    asked = _place(origin, dataset, source, until)
    last = most if asked is None else min(asked, most)
    return Bounds(source, first, last, is_clamped=asked is not None and asked > most)


def _place(origin: str, dataset: str, source: str | None, token: str | None) -> int | None:
    if token is None:
        return None
    return read_token(token, origin=origin, dataset=dataset, source=source).at
