"""How far a reader may go, from the store alone: V of a strand, the visible flush of a dataset, and the
bounds that tokens name, held to them."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from strandline.base.ranges import Range
from strandline.errors import HeldError, UsageError
from strandline.read.token import read_token
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.pending_rows import pending
from strandline.state.strand_state import Pruned, pruned_past

OnPruned = Literal["error", "continue"]  # what a read does whose `since` is behind the front
_ON_PRUNED: Final = get_args(OnPruned)


class BehindFront(HeldError):
    """Rows that follow a token were pruned: whoever goes on from it would not know.

    `front` and `since` are seqs of a strand, or over all sources flush numbers; of `rows` the older ones are
    counted together, so they are at most.
    """

    def __init__(self, dataset: str, source: str | None, *, since: int, front: int, rows: int) -> None:
        where = repr(dataset) if source is None else f"{dataset!r}, source {source!r}"
        unit = "flush" if source is None else "seq"
        super().__init__(
            f"dataset {where}: up to {rows:,} rows after {unit} {since:,} are pruned; the front is {front:,}",
            hint='read on without them: `--on-pruned continue`, in Python on_pruned="continue"',
        )
        self.dataset, self.source, self.since, self.front, self.rows = dataset, source, since, front, rows


class TokenAhead(HeldError):
    """A token that is above all that is visible. V never goes back, so the store or the token is of another
    time. `at` and `visible` are seqs of a strand, or over all sources flush numbers."""

    def __init__(self, dataset: str, source: str | None, *, at: int, visible: int) -> None:
        where = repr(dataset) if source is None else f"{dataset!r}, source {source!r}"
        unit = "flush" if source is None else "seq"
        super().__init__(
            f"dataset {where}: the token is at {unit} {at:,}, and only {unit} {visible:,} is visible",
            hint="the store was put back from a copy, or the token is from another copy: rows that come now "
            "have numbers that the reader has seen with other rows; read from a token of this store",
        )
        self.dataset, self.source, self.at, self.visible = dataset, source, at, visible


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
    rows = sum(strand_state.pending_rows for strand_state in waiting.values())
    if not rows:
        return DataAge(0, now, 0.0)
    flushed_at = site.standing.numbers(dataset).flushed_at
    if not flushed_at:
        return DataAge(rows, None, None)
    held = (
        next(pending(site.b, Strand(dataset, source), strand_state)).at
        for source, strand_state in waiting.items()
        if strand_state.holds
    )
    as_of = min([flushed_at, *held])
    return DataAge(rows, as_of, max(now - as_of, 0) / 1e6)


def visible(site: Site, dataset: str, source: str | None) -> int:
    """V of a strand, or with no source the visible flush of the dataset."""
    if source is None:
        return site.standing.numbers(dataset).visible
    return site.standing.strand_state(Strand(dataset, source)).visible_through


def bounds(
    site: Site,
    origin: str,
    dataset: str,
    source: str | None,
    since: str | None,
    until: str | None,
    on_pruned: OnPruned = "error",
) -> Bounds:
    """What two tokens ask for, held to what is visible now.

    Raise BehindFront if rows after `since` were pruned, unless the caller goes on without them. Raise
    TokenAhead if `since` is above what is visible.
    """
    if on_pruned not in _ON_PRUNED:
        raise UsageError(f"on_pruned is {on_pruned!r:.80}", hint="'error' or 'continue'")
    site.known(dataset)
    first = _place(origin, dataset, source, since) or 0
    if since is not None and on_pruned == "error":
        _check_front(site, dataset, source, first)
    most = visible(site, dataset, source)
    if first > most:
        raise TokenAhead(dataset, source, at=first, visible=most)
    asked = _place(origin, dataset, source, until)
    last = most if asked is None else min(asked, most)
    return Bounds(source, first, last, is_clamped=asked is not None and asked > most)


def _check_front(site: Site, dataset: str, source: str | None, since: int) -> None:
    pruned: tuple[Pruned, ...]
    if source is None:
        pruning = site.standing.prunings().of(dataset)
        pruned, front = pruning.pruned, pruning.front
    else:
        strand_state = site.standing.strand_state(Strand(dataset, source))
        pruned, front = strand_state.pruned, strand_state.front
    if since < front:
        # A flush number says nothing of how many rows it landed: of a run all count that has any behind.
        rows = (
            sum(each.rows for each in pruned if each.hi > since)
            if source is None
            else pruned_past(pruned, since)
        )
        raise BehindFront(dataset, source, since=since, front=front, rows=rows)


def _place(origin: str, dataset: str, source: str | None, token: str | None) -> int | None:
    if token is None:
        return None
    return read_token(token, origin=origin, dataset=dataset, source=source).at
