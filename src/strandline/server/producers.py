"""Rows of producers in any language: `POST /v1/append/{dataset}`, the append of `node.append` over HTTP.

    curl localhost:8080/v1/append/logs -H "Authorization: Bearer $TOKEN" \\
         -H "Content-Type: application/json" -d '[{"level": "info", "message": "hello"}]'

The body is a JSON array, JSON lines or an Arrow stream, packed with gzip or zstd or not. `source` and
`on_bad` may stand in the query; `Idempotency-Key` makes a repeat harmless. 202 says that the rows are
numbered and survive a power cut, 200 that they were before.
"""

from functools import partial
from typing import Any, Final

import pyarrow as pa
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from strandline.base.failpoint import reach
from strandline.errors import UsageError
from strandline.ingest.append import OnBad, Receipt, Rows, append, refuse_full
from strandline.observe.span import span
from strandline.rows.dataset import Refusal, SchemaBreaking, check_dataset_name
from strandline.rows.row_files import parse_lines, parse_row, parse_rows
from strandline.rows.validate import BadRows
from strandline.server.bearer_tokens import BearerToken, OutOfScope
from strandline.server.body import RowRefused, unpacked
from strandline.server.intake import Intake, answer, content_encoding, content_type

APPEND: Final = "/v1/append"
JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
TYPES: Final = (JSON, LINES, ARROW)
KEY: Final = "Idempotency-Key"
_ASKED: Final = frozenset({"source", "on_bad"})


class BodyUnreadable(UsageError):
    """A body that is not what its Content-Type says."""

    def __init__(self, found: str) -> None:
        super().__init__(f"the body cannot be read: {found}", hint=f"Content-Type: {' or '.join(TYPES)}")


class Producers:
    """What serves them."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def append(self, request: Request) -> Response:
        intake = self._intake
        try:
            with (
                span("append", parent=request.headers.get("traceparent")) as told_of,
                intake.holding() as body,
            ):
                token, dataset = await intake.looked(partial(self._admit, request))
                told_of.set(dataset=dataset)
                raw = await intake.read(request, token, body)
                receipt = await intake.stored(partial(self._store, request, dataset, raw))
                told_of.set(rows=receipt.rows, bytes=len(raw), is_repeat=receipt.is_repeat)
                reach("append.answer")
                intake.count("rows_appended", 0 if receipt.is_repeat else receipt.rows)
                return answer(200 if receipt.is_repeat else 202, _told_of(receipt))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:  # noqa: BLE001  # whatever it is, the producer gets an answer
            return intake.refused("appends_refused", error)

    def _admit(self, request: Request) -> tuple[BearerToken, str]:
        """Everything but the body."""
        token = self._intake.gate.token(request.headers.getlist("Authorization"))
        dataset = check_dataset_name(request.path_params["dataset"])
        if not token.covers(dataset):
            raise OutOfScope("dataset", dataset)
        if token.origins is not None:  # its rows are those of other nodes
            raise OutOfScope("origin", self._intake.site.origin)
        content_type(request.headers, TYPES)
        content_encoding(request.headers)
        _asked(request)
        self._intake.check_declared(request.headers)
        if self._intake.site.is_strict:
            self._intake.site.known(dataset)
        refuse_full(self._intake.site)
        self._intake.rate.admit(token.id)
        return token, dataset

    def _store(self, request: Request, dataset: str, raw: bytes) -> Receipt:
        asked, headers = _asked(request), request.headers
        body = unpacked(raw, content_encoding(headers), self._intake.settings.max_body_bytes)
        rows = _rows(dataset, body, content_type(headers, TYPES))
        on_bad: OnBad = "quarantine" if asked.get("on_bad") == "quarantine" else "refuse"
        try:
            return append(
                self._intake.site,
                dataset,
                rows,
                source=asked.get("source"),
                request_id=headers.get(KEY),
                on_bad=on_bad,
            )
        except (BadRows, SchemaBreaking) as error:
            if not error.refusals:
                raise
            raise RowRefused(dataset, list(error.refusals)) from error


def _asked(request: Request) -> dict[str, str]:
    """The query, each name once."""
    pairs = request.query_params.multi_items()
    names = [name for name, _ in pairs]
    if not _ASKED.issuperset(names) or len(set(names)) < len(names):
        raise UsageError("the query is not one of this place", hint="source and on_bad, each once")
    found = dict(pairs)
    if found.get("on_bad", "refuse") not in ("refuse", "quarantine"):
        raise UsageError(f"on_bad is {found['on_bad']!r:.40}", hint="refuse or quarantine")
    return found


def _rows(dataset: str, body: bytes, kind: str) -> Rows:
    if kind == ARROW:
        try:
            table = pa.ipc.open_stream(body).read_all()
            table.validate(full=True)  # offsets of a stranger may point anywhere
            return table
        except (pa.ArrowException, OSError) as error:
            raise BodyUnreadable(f"no Arrow stream: {str(error).splitlines()[0]:.200}") from error
    if kind == JSON:
        try:
            return parse_rows(body)
        except ValueError as error:
            raise BodyUnreadable(str(error)) from error
    if (quickly := parse_lines(body)) is not None:
        return quickly
    rows: list[dict[str, Any]] = []
    refusals = []
    for place, line in enumerate(body.split(b"\n")):
        if not line.strip():
            continue
        try:
            rows.append(parse_row(line.strip()))
        except ValueError as error:
            refusals.append(Refusal(place, "", str(error), "a JSON object with nothing lost"))
    if refusals:
        raise RowRefused(dataset, refusals)
    return rows


def _told_of(receipt: Receipt) -> dict[str, Any]:
    return {
        "dataset": receipt.dataset,
        "request_id": receipt.request_id,
        "rows": receipt.rows,
        "quarantined": receipt.quarantined,
        "ranges": {source: [each.lo, each.hi] for source, each in receipt.ranges.items()},
        "is_repeat": receipt.is_repeat,
    }
