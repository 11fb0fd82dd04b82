"""Sites for tests: a node's store and content, without Spark."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.config.keys import FlushSection, SpoolSection
from strandline.persist import AtomicBackend
from strandline.rows.dataset import Dataset, Strand
from strandline.rows.validate import arrow_schema
from strandline.state.context import Site
from strandline.state.node_state import Standing
from strandline.state.pending_rows import pending
from strandline.storage import ContentStore, open_content
from strandline.storage.segment_reader import read_segment

NOON_US = 1_700_000_000_000_000


@dataclass(slots=True)
class StillClock:
    """Time that passes only when someone sleeps."""

    us: int = NOON_US
    slept: list[float] = field(default_factory=list)

    def now_us(self) -> int:
        return self.us

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.us += int(seconds * 1_000_000)


def make_site(
    b: AtomicBackend,
    content: ContentStore | Path,
    *,
    clock: StillClock | None = None,
    spool: SpoolSection | None = None,
    flush: FlushSection | None = None,
    datasets: Iterable[Dataset] = (),
    is_strict: bool = False,
) -> Site:
    declared = {each.name: each for each in datasets}
    return Site(
        b,
        content if isinstance(content, ContentStore) else open_content(content),
        clock or StillClock(),
        Standing(b),
        spool or SpoolSection(),
        flush or FlushSection(),
        declared.get,
        is_strict,
    )


def spooled_rows(site: Site, dataset: str, source: str) -> list[tuple[int, dict[str, Any]]]:
    """What a flush would land of a strand: seqs with rows, nulls left out."""
    strand, found = Strand(dataset, source), []
    schema = arrow_schema(site.known(dataset).dataset)
    for each in pending(site.b, strand, site.standing.strand_state(strand)):
        batches = read_segment(
            site.content, each.entry.segment, first_row=each.first_row, rows=each.hi - each.lo, schema=schema
        )
        for i, row in enumerate(pa.Table.from_batches(list(batches), schema).to_pylist()):
            kept = {name: value for name, value in row.items() if value is not None and name != "source"}
            found.append((each.lo + 1 + i, kept))
    return found
