"""The forward sink: units go as requests to another node, which knows by their ranges what it has.

    unit (0, 5000] ─▶ over max_unit_bytes? halve at the middle seq ─▶ POST ─▶ 202  stored
                                                                          ─▶ 409  send the holes
                                                                          ─▶ 413  halve
                                                                          ─▶ 422  send the rows around; halve
                                                                                  if it names none

Bounds may differ from try to try: the receiver keeps ranges, so nothing is stored twice and no hole stays.
The wire is in `strandline.rows.unit`. Nothing here sleeps or repeats: what an answer asks
for is told as an outcome.
"""

import gzip
import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import pyarrow as pa

from strandline.base.failpoint import reach
from strandline.base.ranges import Range, RangeSet
from strandline.base.secret import Secret
from strandline.errors import UsageError
from strandline.rows.dataset import Dataset
from strandline.rows.unit import INGEST, MIME, RANGES, UnitHead, unit_headers
from strandline.sinks.forward.answers import (
    UNEXPECTED,
    blames_rows,
    blames_strand,
    is_ack,
    is_held,
    is_unexpected,
    unexpected_text,
)
from strandline.sinks.forward.http import Answer, NoAnswer, Peer
from strandline.sinks.forward.request_lines import Ahead, RequestLines, with_lines
from strandline.sinks.registry import SinkOptions
from strandline.sinks.sink import (
    Delivery,
    Holdings,
    Limits,
    OtherLife,
    Outcome,
    Patience,
    RangesUnavailable,
    Shipment,
    Sink,
    Status,
    Stored,
    Unit,
)

ENCODER: Final = "ndjson"
ROW_TOO_LARGE: Final = "row_too_large"
_OTHER_LIFE: Final = "other_life"

_MAX_SCHEMA_BYTES: Final = 16 * 1024
_SELF_EVIDENT: Final = frozenset(
    {"string", "bigint", "boolean"}
)  # the type that their values have by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSink(Sink):
    """A receiver, and how it is spoken to. The waits, attempts and `parallel` are for whoever drives it."""

    url: str
    token: Secret | None = None
    compression: Literal["none", "gzip", "zstd"] = "none"
    max_unit_rows: int = 5_000
    max_unit_bytes: int = 4 * 1024 * 1024
    max_body_bytes: int = 64 * 1024 * 1024
    inline_wait_s: float = 300
    poison_attempts: int = 3
    on_poison: Literal["dead_letter", "hold"] = "dead_letter"
    failed_attempts: int = 20
    parallel: int = 4
    include_row_id: bool = False

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.token is not None and not (self.token.text.isascii() and self.token.text.isprintable()):
            raise UsageError(
                f"{self.token.reference} has a character that no header holds",
                hint="a token is one line of ASCII",
            )

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def asks_first(self) -> bool:
        return True

    @property
    def wants_row_id(self) -> bool:
        return self.include_row_id

    @property
    def prepares(self) -> bool:
        return True

    def prepared(self, dataset: Dataset, rows: pa.RecordBatch) -> pa.RecordBatch:
        return with_lines(dataset, rows, with_row_id=self.include_row_id)

    @property
    def patience(self) -> Patience:
        return Patience(
            self.inline_wait_s, self.poison_attempts, self.on_poison, refused_attempts=self.failed_attempts
        )

    @property
    def fingerprint(self) -> str:
        parts = urlsplit(self.url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        return f"forward {parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"

    def limits(self, mean_row_bytes: float) -> Limits:  # noqa: ARG002  # a unit that is too large is halved
        return Limits(self.max_unit_rows, self.max_unit_bytes, ENCODER)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        peer = self._peer()
        try:
            yield _Delivery(self, peer)
        finally:
            peer.close()

    def holdings(self, shipment: Shipment, source: str, epoch: int) -> Holdings | None:
        """The ranges that the receiver has; None if it keeps none to tell. Raises RangesUnavailable."""
        asked = urlencode({"epoch": epoch, "dataset": shipment.dataset.name, "source": source})
        peer = self._peer()
        try:
            answer = peer.ask("GET", f"{RANGES}/{shipment.origin}?{asked}", {"Accept": "application/json"})
        except NoAnswer as error:
            raise RangesUnavailable(self.url, error.text) from error
        finally:
            peer.close()
        if answer.status in (401, 408, 429) or not (answer.status == 200 or 400 <= answer.status < 500):
            raise RangesUnavailable(
                self.url,
                f"HTTP {answer.status} {peer.text_of(answer):.200}",
                status=_pause(answer.status),
                http_status=answer.status,
                wait_s=answer.wait_s,
            )
        strands = _strands(answer, shipment.dataset.name, source, epoch) if answer.status == 200 else None
        return None if strands is None else _holdings(strands, shipment.instance)

    def renewed(self) -> Self:
        return replace(self, token=self.token.renewed() if self.token else None)

    def _peer(self) -> Peer:
        return Peer(self.url, self.token.text if self.token else None)


def configure(options: SinkOptions) -> ForwardSink:
    keys: dict[str, Any] = dict(options.keys)
    if reference := keys.pop("token", None):
        keys["token"] = Secret(reference, options.home, options.secret(reference))
    return ForwardSink(**keys)


def check_url(url: str) -> None:
    hint = "https://host, https://host:port or https://host/path; a token is a key of its own"
    try:
        parts = urlsplit(url)
        is_plain = parts.username is None and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError as error:
        raise UsageError("url is no URL", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or not url.isascii():
        raise UsageError("url is none that rows can be sent to", hint=hint)


def is_open_wire(url: str) -> bool:
    """Whether what is sent there could be read on the way: no TLS, and not to this machine itself."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    return parts.scheme == "http" and not is_here


class _Delivery:
    """The sink at work over one connection."""

    def __init__(self, sink: ForwardSink, peer: Peer) -> None:
        self._sink, self._peer = sink, peer
        self._requests = 0

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        ahead = Ahead(unit.shipment.dataset, rows, with_row_id=self._sink.include_row_id)
        todo: list[Range | RequestLines | Outcome] = [unit.range]  # the next one last
        while todo:
            each = todo.pop()
            if isinstance(each, Range):
                todo += reversed(_cut(ahead, each, unit.limits.unit_bytes))
            elif isinstance(each, RequestLines):
                todo += reversed(self._sent(unit, each))
            else:
                yield replace(each, requests=self._requests)
                self._requests = 0
                if not each.goes_on:
                    if each.hi < unit.hi:
                        yield Outcome(each.hi, unit.hi, "put_off")
                    return

    def _sent(self, unit: Unit, piece: RequestLines) -> list[RequestLines | Outcome]:
        """What became of a piece, in order: outcomes, and what is to be sent in its place."""
        if not piece.rows:
            return []
        if piece.size > self._sink.max_body_bytes:
            text = f"over max_body_bytes, {self._sink.max_body_bytes:,}"
            return _smaller(unit, piece, ROW_TOO_LARGE, text)
        try:
            answer = self._post(unit, piece)
        except NoAnswer as error:
            return [_outcome(unit, piece, "failed", kind=error.kind, text=error.text)]
        if is_ack(answer):
            is_known = answer.members().get("duplicate") is True
            status: Status = "known" if is_known else "stored"
            return [_outcome(unit, piece, status, http_status=answer.status)]
        text = self._peer.text_of(answer)
        if answer.status == 413:
            return _smaller(unit, piece, ROW_TOO_LARGE, text, http_status=413)
        if answer.status == 409 and answer.kind == _OTHER_LIFE:
            return [_other_life(unit, piece, answer)]
        if answer.status == 409 and (held := _held(answer, piece)):
            return _around_held(unit, piece, held)
        if answer.status == 422 and (bad := _refused(answer, piece)):
            return _around_bad(unit, piece, bad, text)
        if blames_rows(answer):
            return _smaller(unit, piece, answer.kind, text, http_status=answer.status)
        return [self._refusal(unit, piece, answer, text)]

    def _refusal(self, unit: Unit, piece: RequestLines, answer: Answer, text: str) -> Outcome:
        kind, status = answer.kind, _pause(answer.status)
        if is_held(answer):
            status = "held"
        elif blames_strand(answer):
            status = "poison"
        elif status == "failed" and is_unexpected(answer):
            status, kind = "refused", UNEXPECTED
            text = unexpected_text(self._sink.url.rstrip("/") + _path(unit), answer.status, text)
        wait_s = answer.wait_s if status == "pace" else None
        return _outcome(unit, piece, status, kind=kind, text=text, http_status=answer.status, wait_s=wait_s)

    def _post(self, unit: Unit, piece: RequestLines) -> Answer:
        body = piece.body()
        headers = {"Content-Type": MIME, **unit_headers(_head(unit, piece))}
        if unit.shipment.traceparent:
            headers["traceparent"] = unit.shipment.traceparent
        if self._sink.compression != "none":
            headers["Content-Encoding"] = self._sink.compression
            body = _packed(body, self._sink.compression)
        self._requests += 1
        reach("forward.post")
        answer = self._peer.ask("POST", _path(unit), headers, body)
        reach("forward.answer")
        return answer


def _cut(ahead: Ahead, part: Range, limit: int) -> list[Range | RequestLines | Outcome]:
    if len(part) > 1 and ahead.is_over(part, limit):
        return list(part.halves())
    return [ahead.take(part)]


def _path(unit: Unit) -> str:
    return f"{INGEST}/{quote(unit.shipment.signal, safe='')}"


def _smaller(
    unit: Unit, piece: RequestLines, kind: str, text: str, *, http_status: int = 0
) -> list[RequestLines | Outcome]:
    """Return the halves of a piece that is not taken as it is; a row that is alone is given up."""
    if piece.rows > 1:
        return list(piece.halves())
    only = piece.within(Range(piece.seqs[0] - 1, piece.seqs[0]))
    return [_outcome(unit, only, "bad_rows", kind=kind, text=text, http_status=http_status)]


def _around_held(unit: Unit, piece: RequestLines, held: RangeSet) -> list[RequestLines | Outcome]:
    """What the receiver has counts as delivered, what it lacks is sent."""
    known = [piece.within(each) for each in held.within(piece.range)]
    told: list[RequestLines | Outcome] = [_outcome(unit, each, "known", http_status=409) for each in known]
    told += [piece.within(each) for each in held.holes(piece.range)]
    return sorted(told, key=_place)


def _around_bad(unit: Unit, piece: RequestLines, bad: list[int], text: str) -> list[RequestLines | Outcome]:
    """The rows of these seqs are given up, the others are sent."""
    rows = [Range(seq - 1, seq) for seq in bad]
    told: list[RequestLines | Outcome] = [
        _outcome(unit, piece.within(each), "bad_rows", kind="row_refused", text=text, http_status=422)
        for each in rows
    ]
    told += [piece.within(each) for each in RangeSet.of(rows).holes(piece.range)]
    return sorted(told, key=_place)


def _place(each: RequestLines | Outcome) -> int:
    return each.range.lo if isinstance(each, RequestLines) else each.lo


def _held(answer: Answer, piece: RequestLines) -> RangeSet | None:
    """The ranges inside a piece that the receiver has; None where the answer does not say so."""
    members = answer.members()
    try:
        ranges = RangeSet.of(_read_ranges(members.get("ranges")))
    except ValueError:
        return None
    return ranges if members.get("error") == "range_conflict" and ranges.within(piece.range) else None


def _refused(answer: Answer, piece: RequestLines) -> list[int]:
    """The seqs of the lines that the answer names; none where it names none of ours."""
    members = answer.members()
    lines = members.get("lines") if members.get("error") == "row_refused" else None
    if not isinstance(lines, list) or not all(
        type(line) is int and 1 <= line <= piece.rows for line in lines
    ):
        return []
    return [piece.seqs[line - 1] for line in sorted(set(lines))]


def _pause(http_status: int) -> Status:
    """What a refusal asks for, of rows or of a question: another credential, time, or just another try."""
    return "denied" if http_status == 401 else "pace" if http_status in (429, 503) else "failed"


def _other_life(unit: Unit, piece: RequestLines, answer: Answer) -> Outcome:
    """The strand waits, because only a person knows whether the rows there are those of this node."""
    newest = answer.members().get("newest")
    error = OtherLife(
        unit.shipment.instance,
        unit.shipment.dataset.name,
        unit.source,
        newest=newest if isinstance(newest, int) else unit.hi,
        through=unit.through,
    )
    told = {"kind": error.kind, "text": error.text, "http_status": answer.status}
    return _outcome(unit, piece, "held", **told)


def _outcome(unit: Unit, piece: RequestLines, status: Status, **more: Any) -> Outcome:
    return Outcome(
        piece.range.lo,
        piece.range.hi,
        status,
        rows=piece.rows,
        bytes=piece.size,
        digest=piece.digest,
        target=_head(unit, piece).id,
        **more,
    )


def _head(unit: Unit, piece: RequestLines) -> UnitHead:
    shipment = unit.shipment
    return UnitHead(
        origin=shipment.origin,
        epoch=unit.epoch,
        dataset=shipment.dataset.name,
        source=unit.source,
        range=piece.range,
        rows=piece.rows,
        sha256=piece.digest,
        node=shipment.node,
        instance=shipment.instance,
        schema=_schema(shipment.dataset),
        intent=unit.intent,
        through=unit.through,
    )


def _schema(dataset: Dataset) -> Mapping[str, str]:
    """The types of its columns; of very many only those that values do not tell: headers are bounded."""
    types = {column.name: column.type for column in dataset.columns}
    if sum(len(name) + len(type_) + 6 for name, type_ in types.items()) <= _MAX_SCHEMA_BYTES:
        return types
    return {name: type_ for name, type_ in types.items() if type_ not in _SELF_EVIDENT}


def _packed(body: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(body, compresslevel=6, mtime=0)
    return bytes(pa.compress(body, codec="zstd", asbytes=True))


def _strands(answer: Answer, dataset: str, source: str, epoch: int) -> list[dict[str, Any]] | None:
    """The members of an answer that are of one strand; None if the answer is not one about ranges."""
    strands = answer.members().get("strands")
    if not isinstance(strands, list) or not all(isinstance(strand, dict) for strand in strands):
        return None
    place = (epoch, dataset, source)
    return [each for each in strands if (each.get("epoch"), each.get("dataset"), each.get("source")) == place]


def _holdings(strands: list[dict[str, Any]], instance: str) -> Holdings | None:
    """What the members of a strand say; None if they cannot be read."""
    try:
        ranges = [range_ for strand in strands for range_ in _read_ranges(strand.get("ranges"))]
        told = [msgspec.convert(strand.get("newest", {}), dict[str, _Newest]) for strand in strands]
    except ValueError:
        return None
    newest = next((each[instance] for each in told if instance in each), None)
    stored = tuple(Stored(each.lo, each.hi) for each in ranges)
    return Holdings(stored, newest=None if newest is None else (newest.seq, newest.intent))


class _Newest(msgspec.Struct):
    seq: int
    intent: str


def _read_ranges(found: Any) -> list[Range]:
    """Pairs of an answer. Raises ValueError."""
    return [Range(lo, hi) for lo, hi in msgspec.convert(found, list[tuple[int, int]])]
