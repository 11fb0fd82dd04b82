"""How far a reader may go, from the store alone: V of a strand, the visible flush of a dataset, and the
bounds that tokens name, held to them."""

from dataclasses import dataclass

from strandline.dataset import Strand
from strandline.ledger.spool import pending
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


@dataclass(frozen=True, slots=True)
class DataAge:
    """What a read does not see yet, and since when.

    `as_of` is the time (UTC microseconds) up to which every row that was appended has landed; None if no
    flush has. `age_s` is how long ago that was; 0 where nothing is pending, None where `as_of` is.
    """

    pending_rows: int
    as_of: int | None
    age_s: float | None

    def __str__(self) -> str:
        if not self.pending_rows:
            return "all rows have landed"
        age = "nothing has landed yet" if self.age_s is None else f"the data is {self.age_s:,.0f} s old"
        return f"{self.pending_rows:,} rows are not flushed, and {age}"


def age(site: Site, dataset: str) -> DataAge:
    """From the last flush, which landed all that was pending then but for what is held: of that the oldest
    row counts."""
    waiting, now = site.standing.pending(dataset), site.clock.now_us()
    rows = sum(tally.pending_rows for tally in waiting.values())
    if not rows:
        return DataAge(0, now, 0.0)
    flushed_at = site.standing.numbers(dataset).flushed_at
    if not flushed_at:
        return DataAge(rows, None, None)
    held = (
        next(pending(site.b, Strand(dataset, source), tally)).at
        for source, tally in waiting.items()
        if tally.holds
    )
    as_of = min([flushed_at, *held])
    return DataAge(rows, as_of, max(now - as_of, 0) / 1e6)


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
