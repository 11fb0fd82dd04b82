"""One bundle of chunks on its way in: judged, checked, and what is left of it appended with its marks.

A crash before the append leaves nothing; the append is one transaction, so that its marks are there if and
only if its rows are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from strandline.backfill.check_known import Check, tried
from strandline.backfill.chunk import BUNDLE_BYTES, BUNDLE_ROWS, ChunkPart, Waiting, can_join, count, joined
from strandline.backfill.lost_rows import waiting_with, where_rows_wait
from strandline.backfill.result import BackfillCounts
from strandline.base.failpoint import reach
from strandline.errors import UnavailableError
from strandline.ingest.append import ExpectationUnmet, append
from strandline.lake.ports.lookup import Lookup, RowKey, has_identity
from strandline.persist import ExpectKey
from strandline.persist.backend import Expectation, Write
from strandline.rows.batches import ArrowBatch
from strandline.rows.dataset import SOURCE, Dataset
from strandline.rows.validate import Accepted, accept, source_of
from strandline.sources.provider import Chunk
from strandline.state.context import Site

TRIES: Final = 20


class Overtaken(UnavailableError):
    """Others wrote to the same strands each time that rows were about to be written. Nothing was."""

    def __init__(self, dataset: str, tries: int) -> None:
        super().__init__(
            f"others wrote to {dataset!r} in each of {tries} tries, and these rows were not",
            hint="run the backfill again; what is written already is not written twice",
        )
        self.dataset, self.tries = dataset, tries


class WrittenElsewhere(UnavailableError):
    """Another run of the same provider has written the same chunk meanwhile."""

    def __init__(self, item: str) -> None:
        super().__init__(
            f"another run has written a chunk of {item!r} meanwhile",
            hint="run the backfill again: it goes on behind it",
        )
        self.item = item


class Bundle:
    """Chunks of one dataset and source that are checked and written together: a lookup costs about the same
    for one as for many."""

    def __init__(self) -> None:
        self.parts: list[ChunkPart] = []
        self.rows = self.bytes = 0

    def takes(self, part: ChunkPart) -> bool:
        if not self.parts:
            return True
        last = self.parts[-1]
        is_alike = (last.item.dataset, last.item.source) == (part.item.dataset, part.item.source)
        has_room = self.rows < BUNDLE_ROWS and self.bytes < BUNDLE_BYTES
        is_alike = is_alike and last.is_again == part.is_again
        return is_alike and has_room and can_join(last.rows, part.rows)

    def add(self, part: ChunkPart) -> None:
        self.parts.append(part)
        self.rows += part.mark.rows
        self.bytes += part.bytes

    @property
    def is_full(self) -> bool:
        return self.rows >= BUNDLE_ROWS or self.bytes >= BUNDLE_BYTES

    @property
    def is_again(self) -> bool:
        return self.parts[0].is_again

    def marks(self, waiting: Mapping[str, Waiting]) -> tuple[list[ExpectKey], list[Write]]:
        return [part.expected for part in self.parts], [part.write_with(waiting) for part in self.parts]


def write_bundle(site: Site, lookup: Callable[[], Lookup], bundle: Bundle, *, is_dry: bool) -> BackfillCounts:
    """Leave out what is known, append the rest; `is_dry` only counts. Raises Overtaken after TRIES. The
    lookup is asked for where a row may be known at all."""
    first, given = bundle.parts[0].item, joined([part.rows for part in bundle.parts])
    schema = site.known(first.dataset) if site.is_strict else site.schema(first.dataset)
    judged = accept(schema.dataset, given, source=first.source, max_row_bytes=site.spool.max_row_bytes)
    doubts, keys = _keys(site, lookup, judged)
    check = _check(site, lookup, judged, keys)
    places = _places(given, judged, first.source)
    since = where_rows_wait(site, first.dataset, check.sources if check is not None else ())
    for _ in range(TRIES):
        if check is not None:
            check.look()
        kept, found = _sorted_out(keys, check, is_again=bundle.is_again)
        refused = [] if bundle.is_again else [refusal.row for refusal in judged.refusals]
        found.quarantined = len(refused)
        found.chunk_known += len(judged.refusals) - len(refused)
        found.doubt(doubts if check is None else [*doubts, *check.doubts])
        if is_dry or (bundle.is_again and doubts):  # without ids nobody can say what is missing
            return found
        left = _taken(given, sorted([*(places[row] for row in kept), *refused]))
        waiting = _waiting(site, first.dataset, since, keys, kept, check)
        if _append(site, bundle, left, check if kept else None, waiting):
            return found
    raise Overtaken(first.dataset, TRIES)


def _waiting(
    site: Site,
    dataset: str,
    since: Mapping[str, Waiting],
    keys: Sequence[RowKey | None],
    kept: Sequence[int],
    check: Check | None,
) -> dict[str, Waiting]:
    """Where the rows with an identity will be that have not landed. Others may stand between them."""
    if check is None:
        return {}
    named = {key.source for row in kept if (key := keys[row]) is not None}
    spooled = {key.source for key in check.spooled}
    written = dict.fromkeys(named, len(kept))  # or fewer: a bound is enough
    return waiting_with(site, dataset, since, written, spooled)


def _append(
    site: Site, bundle: Bundle, rows: Chunk, check: Check | None, waiting: Mapping[str, Waiting]
) -> bool:
    """False where the ledgers have moved since the check."""
    marks, writes = bundle.marks(waiting)
    item = bundle.parts[0].item
    expected: list[Expectation] = [*marks, *(check.expected if check is not None else [])]
    reach("backfill.append")
    try:
        append(
            site,
            item.dataset,
            rows,
            source=item.source,
            on_bad="quarantine",
            expected=expected,
            also=writes,
        )
    except ExpectationUnmet as error:
        for part in bundle.parts:
            if part.key == error.conflict.name:
                raise WrittenElsewhere(part.item.id) from error
        return False
    reach("backfill.appended")
    return True


# Rows and their keys


def _keys(
    site: Site, lookup: Callable[[], Lookup], judged: Accepted
) -> tuple[list[str], list[RowKey | None]]:
    """The key of each row of the judged table, and a doubt where none could be made."""
    rows = judged.table.num_rows
    if not rows or not has_identity(judged.dataset):
        return [], [None] * rows
    asked = lookup()  # a Spark that does not start is no doubt: nothing could be known
    ids, failure = tried(site, lambda: asked.ids(judged.dataset, judged.table))
    if ids is None:
        assert failure is not None
        return [f"the ids of {judged.dataset.name!r}: {failure.message}"], [None] * rows
    sources = judged.table[SOURCE].to_pylist()
    return [], [
        None if id_ is None else RowKey(source, id_) for source, id_ in zip(sources, ids, strict=True)
    ]


def _check(
    site: Site, lookup: Callable[[], Lookup], judged: Accepted, keys: Sequence[RowKey | None]
) -> Check | None:
    """None where no row has an identity: then nothing is left out, whoever writes meanwhile."""
    asked = list(dict.fromkeys(key for key in keys if key is not None))
    if not asked:
        return None
    sources = list(dict.fromkeys(key.source for key in asked))
    return Check(site, lookup(), judged.dataset, sources, asked)


def _sorted_out(
    keys: Sequence[RowKey | None], check: Check | None, *, is_again: bool = False
) -> tuple[list[int], BackfillCounts]:
    """The rows that are written, by their place in the judged table, and why others are not. A row without
    identity is not written again: nobody could say whether it is missing."""
    found, kept = BackfillCounts(), []
    seen: set[RowKey] = set()
    for row, key in enumerate(keys):
        if key is None and is_again:
            found.chunk_known += 1
        elif key is None or check is None:
            kept.append(row)
        elif key in check.committed:
            found.committed += 1
        elif key in check.spooled:
            found.spooled += 1
        elif key in seen:
            found.in_chunk += 1
        else:
            seen.add(key)
            kept.append(row)
    found.written = len(kept)
    return kept, found


def _places(given: Chunk, judged: Accepted, source: str | None) -> list[int]:
    """Where each row of the judged table stands among those that were given: it has the rows of each source
    together, in the order in which sources first appear."""
    refused = {refusal.row for refusal in judged.refusals}
    good = [row for row in range(count(given)) if row not in refused]
    if len(judged.table[SOURCE].unique()) < 2:
        return good
    rows = given if isinstance(given, list) else ArrowBatch(given).rows()
    return [
        place for together in _by_source(judged.dataset, rows, good, source).values() for place in together
    ]


def _by_source(
    dataset: Dataset, rows: Sequence[Mapping[str, Any]], good: Sequence[int], source: str | None
) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place in good:
        places.setdefault(source_of(dataset, rows[place], source), []).append(place)
    return places


def _taken(given: Chunk, places: list[int]) -> Chunk:
    if isinstance(given, list):
        return [given[place] for place in places]
    return given.take(pa.array(places, pa.int64()))
