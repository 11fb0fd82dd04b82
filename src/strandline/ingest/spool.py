"""The spool as an operator sees it: what is pending, what is damaged, and giving damaged rows up."""

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.base.ranges import Range
from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.flush.flush import WAIT_S
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.lease import LeaseLost, held
from strandline.state.pending_rows import Pending, pending
from strandline.state.strand_entries import Lost, Spooled, append_of
from strandline.storage.segment_fault import segment_fault


@dataclass(frozen=True, slots=True)
class SpoolLine:
    """Rows of one append that have not landed. `fault` is what is wrong with their segment, where that was
    looked at; `unread` why it could not be looked at, which is no verdict; `hold` what a flush found."""

    dataset: str
    source: str
    segment: str
    lo: int
    hi: int
    bytes: int
    at: int
    hold: str | None = None
    fault: str | None = None
    unread: UnavailableError | None = None


def spool_lines(site: Site, dataset: str, *, check: bool = False) -> Iterator[SpoolLine]:
    """What is pending, strand by strand, oldest first. `check` looks into every segment, once. It only reads;
    what lands meanwhile is left out."""
    look = _Look(site)
    for source, strand_state in sorted(site.standing.pending(dataset).items()):
        holds = {(each.lo, each.hi): each.reason for each in strand_state.holds}
        for each in pending(site.b, Strand(dataset, source), strand_state):
            found = look.at(each.entry) if check else None
            if found and _has_landed(site, Strand(dataset, source), each):
                continue  # and its segment may be gone, rightly
            yield SpoolLine(
                dataset,
                source,
                each.entry.segment.cid,
                each.lo,
                each.hi,
                each.bytes,
                each.at,
                holds.get((each.lo, each.hi)),
                found if isinstance(found, str) else None,
                found if isinstance(found, UnavailableError) else None,
            )


class _Look:
    """Looks into segments, into one that several strands share once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._shared: dict[str, str | UnavailableError | None] = {}

    def at(self, entry: Spooled) -> str | UnavailableError | None:
        """What is wrong with the segment; UnavailableError, not raised, where storage does not answer."""
        cid = entry.segment.cid
        if cid in self._shared:
            return self._shared[cid]
        try:
            found: str | UnavailableError | None = segment_fault(self._site.content, entry.segment, entry.of)
        except UnavailableError as error:
            found = error
        if entry.of > entry.hi - entry.lo:
            self._shared[cid] = found
        return found


def _has_landed(site: Site, strand: Strand, each: Pending) -> bool:
    return site.standing.strand_state(strand).settled.covers(Range(each.lo, each.hi))


def declare_lost(site: Site, dataset: str, segment: str, *, reason: str) -> dict[str, tuple[int, int]]:
    """Give up the rows of a held segment, in every strand that waits for it; V passes them. By source: (lo,
    hi].

    NotFoundError if no strand waits for it, UsageError if it was put back: a segment that is whole is never
    given up.
    """
    with held(site.b, site.clock, f"flush/{dataset}", timeout_s=WAIT_S) as lease:
        stream = f"flush/{dataset}"
        event = site.b.last_seq(stream)
        if site.standing.numbers(dataset).open:
            raise UnavailableError(
                f"a flush of {dataset!r} is open",
                hint=f"`strandline flush {dataset}` finishes it; then give segment {segment} up",
            )
        at = site.clock.now_us()
        writes: list[Write] = []
        lost: dict[str, tuple[int, int]] = {}
        for source, each in _held(site, dataset, segment):
            if not lost and segment_fault(site.content, each.entry.segment, each.entry.of) is None:
                raise UsageError(
                    f"segment {segment} of {dataset!r} is whole again: nothing of it is lost",
                    hint=f"`strandline flush {dataset}` lands its rows",
                )
            # Rows of older entries may still be pending, held for another segment: then reading begins there.
            first = next(
                pending(site.b, Strand(dataset, source), site.standing.strand_state(Strand(dataset, source)))
            )
            after = each.event + 1 if first.event == each.event else 0
            entry = Lost(segment, each.lo, each.hi, reason, each.bytes, after)
            writes.append(append_of(Strand(dataset, source).ledger, entry, at))
            lost[source] = (each.lo, each.hi)
        if not writes:
            raise NotFoundError(
                f"no strand of {dataset!r} waits for segment {segment}",
                hint=f"`strandline spool list {dataset}` shows what is held",
            )
        outcome = site.b.commit([lease.guard, ExpectSeq(stream, event)], writes)
        if isinstance(outcome, Conflict):
            raise LeaseLost(lease.scope)
    return lost


def _held(site: Site, dataset: str, segment: str) -> Iterator[tuple[str, Pending]]:
    for source, strand_state in site.standing.pending(dataset).items():
        if any(hold.segment == segment for hold in strand_state.holds):
            for each in pending(site.b, Strand(dataset, source), strand_state):
                if each.entry.segment.cid == segment:
                    yield source, each
