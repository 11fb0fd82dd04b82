"""Append: rows become durable, numbered and spooled, or nothing happens.

1. The rows are judged. One that cannot be stored refuses the batch, or goes to quarantine where the caller
   asks.
2. The segment is made durable in the content store. A crash now leaves an orphan, which the sweep removes.
3. One transaction numbers the rows in the ledger of each source, and with them names the segment, grows the
   schema, keeps the request's marker and what went to quarantine. A crash leaves all of that or none.

    segment/<cid>             "named" by the append, "dead" by the sweep: the second learns of the other
    request/<dataset>/<id>    {"attempt", "digest", "receipt", "at"}: what a repeat is answered with; where
                              rows went to quarantine also {"refused": [[lo, hi], …], "refused_digest"}:
                              their places in the batch, and the digest of what they were
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from strandline.base.failpoint import reach
from strandline.base.ranges import Range, RangeSet, pairs_of, ranges_of
from strandline.errors import OutcomeUnknown, UnavailableError, UsageError
from strandline.ingest import quarantine
from strandline.ingest.announced_types import misread, with_announced
from strandline.persist import ABSENT, Conflict, ExpectKey, ExpectSeq, Put
from strandline.persist.backend import Expectation, Write
from strandline.rows.batches import ArrowBatch
from strandline.rows.dataset import Dataset, Refusal, Strand
from strandline.rows.validate import Accepted, accept, raise_refusals, rows_digest
from strandline.state.context import Site
from strandline.state.dataset_versions import Recorded, dataset_stream, declared
from strandline.state.flush_plan import readable
from strandline.state.next_number import Head, head_of
from strandline.state.strand_entries import OriginRange, Spooled, append_of
from strandline.storage.segment import Segment, write_segment

Rows: TypeAlias = "Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch"
OnBad: TypeAlias = Literal["refuse", "quarantine"]
MAX_REQUEST_ID_BYTES: Final = 240
_FIRST_WAIT_S: Final = 0.002
_LONGEST_WAIT_S: Final = 0.25
_ANY_SIZE: Final = 2**62


class SpoolFull(UnavailableError):
    """So much is pending that no more is taken in. Nothing is discarded."""

    def __init__(self, pending: int, limit: int) -> None:
        super().__init__(
            f"the spool holds {pending:,} bytes that are not flushed yet, the limit is {limit:,}",
            hint="`strandline flush` lands them; [spool] max_bytes raises the limit",
        )
        self.pending, self.limit = pending, limit


class Busy(UnavailableError):
    """Other writers were first, again and again; nothing was written."""

    def __init__(self, strand: str, waited_s: float) -> None:
        super().__init__(
            f"{strand} took the rows of others for {waited_s:.0f} s, and none of these",
            hint="try again; many small appends to one strand go better through the buffered writer",
        )
        self.strand = strand


class RequestIdReused(UsageError):
    """The id of a request that brought other rows."""

    def __init__(self, dataset: str, request_id: str) -> None:
        super().__init__(
            f"request id {request_id!r} of dataset {dataset!r} was used for other rows before",
            hint="a new batch needs a new id; a repeat must bring the same rows",
        )
        self.dataset, self.request_id = dataset, request_id


@dataclass(frozen=True, slots=True)
class Received:
    """What another node says of rows that it sends: which of its rows they are, the types of their columns,
    and a digest of them, by which a repeat is known."""

    range: OriginRange
    types: Mapping[str, str]
    digest: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an append did. `ranges` are the seqs that the rows of each source got."""

    dataset: str
    request_id: str
    rows: int = 0
    bytes: int = 0
    ranges: Mapping[str, Range] = field(default_factory=dict)
    segment: str | None = None
    quarantined: int = 0
    is_repeat: bool = False


def append(
    site: Site,
    dataset: str,
    rows: Rows,
    *,
    source: str | None = None,
    request_id: str | None = None,
    on_bad: OnBad = "refuse",
    also: Sequence[Write] = (),
    expected: Sequence[Expectation] = (),
    received: Received | None = None,
) -> Receipt:
    """Store `rows`, number them, and return when they survive a power cut.

    A repeat under the same `request_id` writes nothing and gives the first receipt. `also` is written in the
    same transaction, also where there are no rows, if what is `expected` holds; else ExpectationUnmet.
    """
    if on_bad not in ("refuse", "quarantine"):
        raise UsageError(f"on_bad is {on_bad!r:.80}", hint="'refuse' or 'quarantine'")
    request = _check_request_id(request_id) if request_id is not None else uuid.uuid4().hex
    given = rows if isinstance(rows, (pa.Table, pa.RecordBatch)) else list(rows)
    is_asked = request_id is not None
    while True:
        schema = site.schema(dataset)
        judged = _judge(site, schema, given, source, on_bad, received.types if received else {})
        reach("append.judged")
        batch = _Batch(schema, given, judged, source, received)
        if is_asked and (first := _repeat(site, request, batch)) is not None:
            return first
        if not judged.table.num_rows and not judged.refusals and not also:
            return Receipt(dataset, request)
        refuse_full(site)
        outcome = _Attempt(site, batch, request, also, expected).run()
        if outcome is not None:
            site.standing.keep_if_due()
            return outcome
        # The schema grew under us, or a repeat of this request was first: judge again.


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows as they were given, and what was found about them."""

    schema: Recorded
    given: Any
    judged: Accepted
    source: str | None
    received: Received | None

    def digest(self) -> str:
        """Of the good rows, or what the sender says of all."""
        return self.received.digest if self.received else rows_digest(self.judged.table)


def _judge(
    site: Site, schema: Recorded, given: Any, source: str | None, on_bad: OnBad, types: Mapping[str, str]
) -> Accepted:
    if schema.event == 0 and site.is_strict:
        site.known(schema.dataset.name)
    have = schema.dataset
    if wrong := misread(have, given, types) if types else []:
        raise_refusals(have, wrong)
    announced = with_announced(have, given, types) if types else have
    judged = accept(announced, given, source=source, max_row_bytes=site.spool.max_row_bytes)
    if judged.refusals and on_bad == "refuse":
        raise_refusals(have, judged.refusals)
    if announced is not have:  # one change, whatever else the rows brought
        return judged._replace(dataset=replace(judged.dataset, version=have.version + 1))
    return judged


def refuse_full(site: Site) -> None:
    """SpoolFull where so much is pending that no append is taken."""
    pending = site.standing.pending_bytes()
    if pending >= site.spool.max_bytes:
        raise SpoolFull(pending, site.spool.max_bytes)


class _Attempt:
    """One judged batch on its way into the store."""

    def __init__(
        self,
        site: Site,
        batch: _Batch,
        request: str,
        also: Sequence[Write],
        expected: Sequence[Expectation],
    ) -> None:
        self._site, self._batch, self._request = site, batch, request
        self._schema, self._judged = batch.schema, batch.judged
        self._dataset: Dataset = batch.judged.dataset
        self._also, self._expected = also, expected
        self._digest = batch.digest()
        self._origin = batch.received.range if batch.received else None
        self._id = site.random_hex()

    def run(self) -> Receipt | None:
        """The receipt; None where the batch must be judged again."""
        site = self._site
        began = site.clock.now_us()
        segment = self._store_segment()
        wait_s = 0.0  # the first conflict only tells that what this process knew of the ledger is old
        while True:
            with site.numbering(self._ledgers(segment)):
                outcome = self._commit(segment)
            if isinstance(outcome, Receipt):
                return outcome
            if outcome.name.startswith(("dataset/", "request/")):
                return None
            if outcome.name.startswith("segment/"):
                segment = self._store_segment()  # the sweep was first: its bytes may be gone
                continue
            if outcome.name in map(_name_of, self._expected):
                raise ExpectationUnmet(outcome)
            waited_s = (site.clock.now_us() - began) / 1e6
            if waited_s > site.spool.append_timeout_s:
                raise Busy(outcome.name, waited_s)
            site.clock.sleep(wait_s)
            wait_s = min(max(wait_s, _FIRST_WAIT_S) * 2, _LONGEST_WAIT_S)

    def _store_segment(self) -> Segment | None:
        if not self._judged.table.num_rows:
            return None
        reach("append.segment")
        segment = write_segment(
            self._site.content, self._dataset, self._judged.table, append_id=self._site.random_hex()
        )
        reach("append.segment_stored")
        return segment

    def _ledgers(self, segment: Segment | None) -> list[str]:
        return [Strand(self._dataset.name, run.source).ledger for run in segment.runs] if segment else []

    def _commit(self, segment: Segment | None) -> Receipt | Conflict:
        site = self._site
        heads = {run.source: self._head(run.source) for run in segment.runs} if segment else {}
        receipt = self._receipt(segment, heads)
        expected, writes = self._writes(segment, heads, receipt, site.clock.now_us())
        reach("append.commit")
        outcome = self._settled(expected, writes)
        reach("append.committed")
        if isinstance(outcome, Conflict):
            for source in heads:
                site.heads.pop(Strand(self._dataset.name, source).ledger, None)
            return outcome
        for source, head in heads.items():
            ledger = Strand(self._dataset.name, source).ledger
            site.heads[ledger] = Head(head.event + len(head.opening) + 1, receipt.ranges[source].hi)
        return receipt

    def _settled(self, expected: list[Expectation], writes: list[Write]) -> Conflict | None:
        """Commit; where the answer is lost, repeat it until the marker or a conflict tells."""
        is_unknown = False
        for is_last in (False, False, True):
            try:
                outcome = self._site.b.commit(expected, writes)
            except UnavailableError as error:
                if not is_unknown and not isinstance(error, OutcomeUnknown):
                    raise  # nothing was written
                is_unknown = True
                if is_last:
                    raise OutcomeUnknown(
                        f"the answer to an append to {self._dataset.name!r} was lost; repeat it with "
                        f"request_id={self._request!r}",
                        once=(f"request/{self._dataset.name}", self._request),
                    ) from error
                continue
            if isinstance(outcome, Conflict) and self._is_ours(outcome):
                return None
            return outcome if isinstance(outcome, Conflict) else None
        raise AssertionError("the last try returns or raises")

    def _is_ours(self, conflict: Conflict) -> bool:
        """Whether what stands in the way is this very append, whose first answer was lost."""
        is_request = conflict.name == _request_key(self._dataset.name, self._request)
        marker = conflict.actual
        return is_request and isinstance(marker, Mapping) and marker.get("attempt") == self._id

    def _head(self, source: str) -> Head:
        strand = Strand(self._dataset.name, source)
        return self._site.heads.get(strand.ledger) or head_of(self._site.b, strand)

    def _receipt(self, segment: Segment | None, heads: Mapping[str, Head]) -> Receipt:
        ranges = (
            {run.source: Range(heads[run.source].hi, heads[run.source].hi + run.rows) for run in segment.runs}
            if segment
            else {}
        )
        return Receipt(
            self._dataset.name,
            self._request,
            rows=segment.rows if segment else 0,
            bytes=segment.ref.size if segment else 0,
            ranges=ranges,
            segment=segment.ref.cid if segment else None,
            quarantined=len(self._judged.refusals),
        )

    def _writes(
        self, segment: Segment | None, heads: Mapping[str, Head], receipt: Receipt, at: int
    ) -> tuple[list[Expectation], list[Write]]:
        name = self._dataset.name
        request_key = _request_key(name, self._request)
        expected: list[Expectation] = [ExpectKey(request_key, ABSENT), *self._expected]
        writes: list[Write] = [*self._also]
        # A schema that is not recorded yet, or must grow, is recorded with the rows that need it.
        if self._schema.event == 0 or self._dataset.version != self._schema.event:
            expected.append(ExpectSeq(dataset_stream(name), self._schema.event))
            writes.append(declared(replace(self._dataset, version=self._schema.event + 1), at))
        if segment is not None:
            expected.append(ExpectKey(segment_key(segment.ref.cid), ABSENT))
            writes.append(Put(segment_key(segment.ref.cid), "named"))
            for run in segment.runs:
                ledger, range_ = Strand(name, run.source).ledger, receipt.ranges[run.source]
                expected.append(ExpectSeq(ledger, heads[run.source].event))
                bytes_ = _share(segment, run.first_row, run.rows)
                entry = Spooled(
                    segment.ref, segment.rows, run.first_row, bytes_, range_.lo, range_.hi, self._origin
                )
                writes += [append_of(ledger, each, at) for each in (*heads[run.source].opening, entry)]
        marker = {"attempt": self._id, "digest": self._digest, "receipt": _receipt_data(receipt), "at": at}
        if refused := self._judged.refusals:
            rows, reasons = self._judged.refused_rows, [str(each) for each in refused]
            content, source = self._site.content, self._batch.source
            writes.append(quarantine.quarantined(content, name, rows, reasons, source, at, self._id))
            marker |= {"refused": _places(refused), "refused_digest": quarantine.digest_of(rows)}
        writes.append(Put(request_key, marker))
        return expected, writes


class ExpectationUnmet(UnavailableError):
    """What the caller expected to stay where it was has moved. Nothing was written."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(
            f"{conflict.name!r} was expected at {conflict.expected}, it is at {conflict.actual}",
            hint="look at what it gained, then decide again",
        )
        self.conflict = conflict


def _name_of(expected: Expectation) -> str:
    return expected.key if isinstance(expected, ExpectKey) else expected.stream


def segment_key(cid: str) -> str:
    return f"segment/{cid}"


def _request_key(dataset: str, request: str) -> str:
    return f"request/{dataset}/{quote(request, safe='')}"


def _check_request_id(request_id: object) -> str:
    if type(request_id) is str and 0 < len(quote(request_id, safe="")) <= MAX_REQUEST_ID_BYTES:
        return request_id
    raise UsageError(
        f"request id {request_id!r:.80} is empty, no text, or over {MAX_REQUEST_ID_BYTES} bytes when encoded",
        hint="such as a UUID, or the name of the file and the number of the batch in it",
    )


def _share(segment: Segment, first_row: int, rows: int) -> int:
    """The bytes of a run, as if all rows were alike; the shares of all runs add up to the segment."""
    size = segment.ref.size
    return size * (first_row + rows) // segment.rows - size * first_row // segment.rows


# Repeats


def _repeat(site: Site, request: str, batch: _Batch) -> Receipt | None:
    """The first receipt of a request that was here before; RequestIdReused if it brought other rows."""
    dataset = batch.schema.dataset.name
    key = _request_key(dataset, request)
    marker: Any = site.b.kv_get(key)
    if marker is None:
        return None
    _check_marker(key, marker)
    if not _is_same(marker, batch):
        raise RequestIdReused(dataset, request)
    return _receipt_of(marker["receipt"])


def _check_marker(key: str, marker: Any) -> None:
    with readable(key, None):
        _receipt_of(marker["receipt"])
        texts = [marker["digest"], *([marker["refused_digest"]] if "refused" in marker else [])]
        if not all(type(each) is str for each in texts):
            raise TypeError("a digest is no text")
        for lo, hi in marker.get("refused", []):
            Range(lo, hi)


def _is_same(marker: Mapping[str, Any], batch: _Batch) -> bool:
    """Whether the marker is of these very rows. What was refused then may fit now, so those rows are compared
    as they were given, and the others without them."""
    if batch.received is not None:
        return bool(marker["digest"] == batch.digest())
    if "refused" not in marker:  # none was, or an older version stored it
        has_as_many = len(batch.judged.refusals) == marker["receipt"]["quarantined"]
        return has_as_many and bool(marker["digest"] == batch.digest())
    rows, refused = _parted(batch.given, RangeSet(ranges_of(marker["refused"])))
    if quarantine.digest_of(refused) != marker["refused_digest"]:
        return False
    again = accept(batch.schema.dataset, rows, source=batch.source, max_row_bytes=_ANY_SIZE)
    return not again.refusals and bool(rows_digest(again.table) == marker["digest"])


def _parted(given: Any, refused: RangeSet) -> tuple[Any, list[Any]]:
    """The rows of a batch that are not at the places (lo, hi], and those that are, as they were given."""
    count = given.num_rows if isinstance(given, (pa.Table, pa.RecordBatch)) else len(given)
    places = [place for place in range(count) if place + 1 in refused]
    others = [place for place in range(count) if place + 1 not in refused]
    if isinstance(given, list):
        return [given[place] for place in others], [given[place] for place in places]
    return given.take(pa.array(others, pa.int64())), ArrowBatch(given).given(places)


def _places(refusals: Sequence[Refusal]) -> list[list[int]]:
    """Row 0 is (0, 1]."""
    return pairs_of(RangeSet.of(Range(each.row, each.row + 1) for each in refusals).ranges)


def digest_of(site: Site, dataset: str, request: str) -> str | None:
    """The digest that a request was stored with; None if its marker is not there (any more)."""
    marker: Any = site.b.kv_get(_request_key(dataset, request))
    return None if marker is None else str(marker["digest"])


def _receipt_data(receipt: Receipt) -> dict[str, Any]:
    return {
        "dataset": receipt.dataset,
        "request_id": receipt.request_id,
        "rows": receipt.rows,
        "bytes": receipt.bytes,
        "ranges": {source: [each.lo, each.hi] for source, each in receipt.ranges.items()},
        "segment": receipt.segment,
        "quarantined": receipt.quarantined,
    }


def _receipt_of(data: Mapping[str, Any]) -> Receipt:
    ranges = {source: Range(lo, hi) for source, (lo, hi) in data["ranges"].items()}
    return Receipt(**{**data, "ranges": ranges}, is_repeat=True)


# Quarantine, tried again


def retry_quarantined(site: Site, dataset: str, entry: int) -> Receipt:
    """Append the rows of an entry once more; those that still do not fit are quarantined under a new entry.

    The entry leaves quarantine in the transaction that numbers its rows.
    """
    stream = quarantine.quarantine_stream(dataset)
    expected = [
        ExpectSeq(stream, site.b.last_seq(stream))
    ]  # read first: a retry or drop in between is a conflict
    found = quarantine.entry_named(site.b, dataset, entry)
    return append(
        site,
        dataset,
        quarantine.rows_of(site.content, found),
        source=found.source,
        on_bad="quarantine",
        also=[quarantine.retried(dataset, entry, site.clock.now_us())],
        expected=expected,
    )


def drop_quarantined(site: Site, dataset: str, entry: int, *, reason: str) -> int:
    """Give the rows of an entry up; how many there were."""
    stream = quarantine.quarantine_stream(dataset)
    while True:
        expected = ExpectSeq(stream, site.b.last_seq(stream))
        found = quarantine.entry_named(site.b, dataset, entry)
        dropped = quarantine.dropped(dataset, found, reason, site.clock.now_us())
        if not isinstance(site.b.commit([expected], [dropped]), Conflict):
            return found.count
