"""The spool as an operator sees it: what is pending, what is damaged, and giving damaged rows up."""

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.content.segment import segment_fault
from strandline.dataset import Strand
from strandline.errors import NotFoundError, UnavailableError
from strandline.ledger.entry import Lost, append_of
from strandline.ledger.spool import Pending, pending
from strandline.persist import Conflict, ExpectSeq
from strandline.pipeline.flush import WAIT_S
from strandline.pipeline.lease import LeaseLost, held
from strandline.pipeline.site import Site


@dataclass(frozen=True, slots=True)
class SpoolLine:
    """Rows of one append that have not landed. `fault` is what is wrong with their segment, where that was
    looked at; `hold` what a flush found."""

    dataset: str
    source: str
    segment: str
    lo: int
    hi: int
    bytes: int
    at: int
    hold: str | None = None
    fault: str | None = None


def spool_lines(site: Site, dataset: str, *, check: bool = False) -> Iterator[SpoolLine]:
    """What is pending, strand by strand, oldest first. `check` looks into every segment. It only reads."""
    for source, tally in sorted(site.standing.pending(dataset).items()):
        holds = {(each.lo, each.hi): each.reason for each in tally.holds}
        for each in pending(site.b, Strand(dataset, source), tally):
            segment = each.entry.segment
            fault = segment_fault(site.content, segment, each.entry.of) if check else None
            yield SpoolLine(
                dataset,
                source,
                segment.cid,
                each.lo,
                each.hi,
                each.bytes,
                each.at,
                holds.get((each.lo, each.hi)),
                fault,
            )


def declare_lost(site: Site, dataset: str, segment: str, *, reason: str) -> dict[str, tuple[int, int]]:
    """Give up the rows of a held segment, in every strand that waits for it; V passes them. By source: (lo,
    hi].

    NotFoundError if no strand waits for it: a segment that is whole is never given up.
    """
    with held(site.b, site.clock, f"flush/{dataset}", timeout_s=WAIT_S) as lease:
        stream = f"flush/{dataset}"
        event = site.b.last_seq(stream)
        if site.standing.numbers(dataset).open:
            raise UnavailableError(
                f"a flush of {dataset!r} is open",
                hint=f"`strandline flush {dataset}` finishes it; then try again",
            )
        at = site.clock.now_us()
        writes, lost = [], {}
        for source, each in _held(site, dataset, segment):
            # Rows of older entries may still be pending, held for another segment: then reading begins there.
            first = next(
                pending(site.b, Strand(dataset, source), site.standing.tally(Strand(dataset, source)))
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
    for source, tally in site.standing.pending(dataset).items():
        if any(hold.segment == segment for hold in tally.holds):
            for each in pending(site.b, Strand(dataset, source), tally):
                if each.entry.segment.cid == segment:
                    yield source, each
