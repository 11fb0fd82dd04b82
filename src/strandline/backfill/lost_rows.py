"""Rows of a chunk that an operator gave up (`spool lost`) after the chunk was marked as written.

A mark says for good that a chunk is written. But rows that it wrote, or left out because they were spooled,
may be in a segment that is lost before it lands. So the mark says between which seqs of their strands they
are. Once rows in there are given up, the next run looks for the rows of the chunk again, and writes those
that are nowhere. If rows of that strand were removed since, by retention, purge or compaction, nobody can
say which of the rows that are nowhere were lost: then nothing is written, and it is told as a doubt.
"""

from collections.abc import Iterable, Mapping

from strandline.backfill.chunk import Waiting
from strandline.base.ranges import Range
from strandline.rows.dataset import Strand
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.strand_entries import Lost, entry_of


def where_rows_wait(site: Site, dataset: str, sources: Iterable[str]) -> dict[str, Waiting]:
    """Return from where on rows of these strands have not landed. Ask before the spool is looked at."""
    found = {}
    for source in sources:
        state = site.standing.strand_state(Strand(dataset, source))
        found[source] = Waiting(state.visible_through, state.hi, state.removed_rows)
    return found


def waiting_with(
    site: Site, dataset: str, since: Mapping[str, Waiting], written: Mapping[str, int], spooled: Iterable[str]
) -> dict[str, Waiting]:
    """Return where the rows of a chunk may be that have not landed: those that an append now writes, counted
    by source, and those that were found in the spool of some sources."""
    found = {}
    for source in {*written, *spooled}:
        hi = site.standing.strand_state(Strand(dataset, source)).hi + written.get(source, 0)
        found[source] = Waiting(since[source].lo, hi, since[source].removed)
    return found


def lost_in(site: Site, dataset: str, waiting: Mapping[str, Waiting]) -> list[str]:
    """Return the sources of which rows were given up where the chunk has some."""
    return [
        source for source, each in sorted(waiting.items()) if _is_lost(site, Strand(dataset, source), each)
    ]


def removed_in(site: Site, dataset: str, waiting: Mapping[str, Waiting], sources: Iterable[str]) -> list[str]:
    """Return those of the sources of which rows were removed since."""
    return [
        source
        for source in sources
        if site.standing.strand_state(Strand(dataset, source)).removed_rows != waiting[source].removed
    ]


def _is_lost(site: Site, strand: Strand, waiting: Waiting) -> bool:
    place = Range(waiting.lo, waiting.hi)
    if not site.standing.strand_state(strand).empty.within(place):
        return False
    entries = (entry_of(event) for event in past_events(site, strand.ledger))  # loads leave such gaps too
    return any(isinstance(each, Lost) and Range(each.lo, each.hi).meets(place) for each in entries)
