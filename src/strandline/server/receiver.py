"""The receiver: rows of other nodes become rows of this one, each once. See strandline.unit for the wire.

    POST /v1/ingest/{signal}    a unit           202 stored, 200 stored before, 409 stored in part
    GET  /v1/ranges/{origin}    what is here of another node
    GET  /healthz, /readyz      this process runs; it can store
    GET  /openapi.json          all of this, for programs

A unit is looked at in this order, and nothing behind the first fault: token, headers, the ranges that are
here, then limits, then the body. So a repeat is always cheap and never refused. The store is used in threads,
and the loop stays free; what raises has stored nothing, OutcomeUnknown aside, after which a repeat is safe.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from strandline.dataset import SchemaBreaking, SourceInvalid, check_dataset_name, check_source
from strandline.errors import (
    HeldError,
    NotFoundError,
    OutcomeUnknown,
    StrandlineError,
    UnavailableError,
    UsageError,
)
from strandline.failpoint import reach
from strandline.pipeline.append import Busy, SpoolFull, refuse_full
from strandline.pipeline.config_sections import Server
from strandline.pipeline.registry import DatasetUnknown
from strandline.pipeline.site import Site
from strandline.rows import BadRows
from strandline.server.body import ENCODINGS, BodyTooLarge, RowRefused, read_rows, unpacked
from strandline.server.openapi import description
from strandline.server.rate import Rate, RateExceeded
from strandline.server.received import RangeConflict, held_of, is_other_body, receive, strands_of
from strandline.server.tokens import Gate, OutOfScope, Token, Unauthorized
from strandline.unit import INGEST, MIME, RANGES, Unit, check_origin, read_epoch, read_unit

THREADS: Final = 16  # that unpack, judge and store
LOOKING_THREADS: Final = 8  # that only read
BODY_S: Final = 300.0  # for a whole body
IDLE_S: Final = 30.0  # between two pieces of one
_HELD_BODIES: Final = 4  # as many as the largest may be held in memory at once, or more of smaller ones
_RETRY_S: Final = 5

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class EncodingUnknown(UsageError):
    """A body in another form than rows in JSON lines, or packed another way."""


class BodyLate(UsageError):
    """A body that did not come in time."""


class Crowded(UnavailableError):
    """So many bodies are being read that no more are held."""


# By what the sender does next; the first that fits.
_STATUS: Final[tuple[tuple[type[StrandlineError], int], ...]] = (
    (Unauthorized, 401),
    (OutOfScope, 403),
    (BodyLate, 408),
    (RangeConflict, 409),
    (BodyTooLarge, 413),
    (EncodingUnknown, 415),
    (RowRefused, 422),
    (SourceInvalid, 422),
    (RateExceeded, 429),
    (UsageError, 400),
    (NotFoundError, 404),
    (UnavailableError, 503),
    (HeldError, 503),
)
_TOLD: Final = ("ranges", "lines", "refused", "header", "limit")  # facts that the sender may use
_SPEAKING: Final = (SpoolFull, Busy, RateExceeded, Crowded)  # others may name what is inside


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A unit whose body may come."""

    unit: Unit
    token: Token
    dataset: str
    source: str
    encoding: str


class Receiver:
    """The application. `stop` has it say that it ends, `close` lets go of its threads; the site is the
    caller's."""

    def __init__(
        self,
        site: Site,
        gate: Gate,
        settings: Server,
        *,
        dataset_of: Callable[[str], str] = lambda signal: signal,
        body_s: float = BODY_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._site, self._gate, self._settings, self._dataset_of = site, gate, settings, dataset_of
        self._body_s, self._idle_s = body_s, idle_s
        self._rate = Rate(settings.rate_bytes_per_s, site.clock)
        self._held = 0  # bytes of bodies in memory; of the loop alone
        self._threads = ThreadPoolExecutor(THREADS, "receive")
        self._looking = ThreadPoolExecutor(LOOKING_THREADS, "receive-look")
        self._counting = threading.Lock()
        self.counts: Counter[str] = Counter()
        self._is_stopping = False
        routes = [
            Route(INGEST + "/{signal}", self._ingest, methods=["POST"]),
            Route(RANGES + "/{origin}", self._ranges, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
        ]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
        self._app.router.redirect_slashes = False  # senders follow no redirect

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def stop(self) -> None:
        """Say that it ends; may be called from a signal handler."""
        self._is_stopping = True

    def close(self) -> None:
        self._is_stopping = True
        self._looking.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)

    # Units

    async def _ingest(self, request: Request) -> Response:
        size = 0

        def hold(more: int) -> None:
            nonlocal size
            size, self._held = size + more, self._held + more
            if self._held > _HELD_BODIES * self._settings.max_body_bytes:
                raise Crowded("too many bodies are being read", hint="send it again")

        try:
            admitted = await self._in_thread(self._looking, partial(self._admit, request))
            if admitted is None:
                return self._counted("units_duplicate", _answer(200, {"stored": 0, "duplicate": True}))
            body = await self._body(request, admitted.token, hold)
            stored = await self._in_thread(self._threads, partial(self._store, admitted, body))
            reach("receive.answer")
            return self._answered(stored)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:  # noqa: BLE001  # whatever it is, the sender gets an answer
            return self._counted("units_refused", _told(error))
        finally:
            self._held -= size

    def _answered(self, stored: int | None) -> Response:
        if stored is None:
            return self._counted("units_duplicate", _answer(200, {"stored": 0, "duplicate": True}))
        self._count("rows_stored", stored)
        return self._counted("units_stored", _answer(202, {"stored": stored, "duplicate": False}))

    def _admit(self, request: Request) -> _Admitted | None:
        """All that the headers tell; None where the rows are here already."""
        headers = request.headers
        token = self._gate.token(headers.getlist("Authorization"))
        if request.url.query:
            raise UsageError("a unit has no query", hint="all of it is in headers and body")
        unit = read_unit(headers.getlist)
        dataset = self._dataset_of(check_dataset_name(request.path_params["signal"]))
        token.check(origin=unit.origin, datasets=(unit.dataset, dataset))
        source = check_source(self._source(unit))
        if held_of(self._site.b, unit).has(unit.range):
            if is_other_body(self._site, unit, dataset):
                self._note_other_body(unit)
            return None
        encoding = _encoding(headers)
        declared = int(headers.get("Content-Length", "0"))
        if declared > self._settings.max_body_bytes:
            raise BodyTooLarge(self._settings.max_body_bytes)
        if self._site.is_strict:
            self._site.known(dataset)
        refuse_full(self._site)
        self._rate.admit(token.id)
        return _Admitted(unit, token, dataset, source, encoding)

    def _source(self, unit: Unit) -> str:
        """`<node>/<source>`; a node's name has no `/` there, so that the first one ends it."""
        if self._settings.keep_source:
            return unit.source
        return f"{unit.node.replace('%', '%25').replace('/', '%2F')}/{unit.source}"

    async def _body(self, request: Request, token: Token, hold: Callable[[int], None]) -> bytes:
        chunks: list[bytes] = []
        size, limit = 0, self._settings.max_body_bytes
        pieces = aiter(request.stream())
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    async with asyncio.timeout(self._idle_s):
                        chunk = await anext(pieces, None)
                    if chunk is None:
                        break
                    size += len(chunk)
                    if size > limit:
                        raise BodyTooLarge(limit)
                    hold(len(chunk))
                    chunks.append(chunk)
        except TimeoutError as error:
            raise BodyLate("the body did not come in time", hint="send it again") from error
        finally:
            self._rate.spend(token.id, size)
        return b"".join(chunks)

    def _store(self, admitted: _Admitted, body: bytes) -> int | None:
        """How many rows were stored; None where they were before."""
        unit, dataset = admitted.unit, admitted.dataset
        rows = read_rows(unit, unpacked(body, admitted.encoding, self._settings.max_body_bytes))
        reach("receive.judged")
        try:
            receipt = receive(self._site, unit, dataset, admitted.source, rows)
        except (BadRows, SchemaBreaking) as error:
            if not error.refusals:
                raise
            raise RowRefused(dataset, list(error.refusals)) from error
        if receipt is None and is_other_body(self._site, unit, dataset):
            self._note_other_body(unit)
        return None if receipt is None else receipt.rows

    def _note_other_body(self, unit: Unit) -> None:
        self._count("range_body_mismatch")
        _log.warning("unit %s is stored with another body", unit.id)

    # What is here

    async def _ranges(self, request: Request) -> Response:
        try:
            found = await self._in_thread(self._looking, partial(self._found_ranges, request))
            return _answer(200, found)
        except Exception as error:  # noqa: BLE001  # as above
            return _told(error)

    def _found_ranges(self, request: Request) -> dict[str, Any]:
        token = self._gate.token(request.headers.getlist("Authorization"))
        origin = check_origin(request.path_params["origin"])
        asked = _asked(request)
        dataset = check_dataset_name(asked["dataset"]) if "dataset" in asked else None
        token.check(origin=origin, datasets=() if dataset is None else (dataset,))
        strands, after = strands_of(
            self._site.b,
            origin,
            epoch=read_epoch(asked["epoch"]) if "epoch" in asked else None,
            dataset=dataset,
            source=asked.get("source"),
            after=asked.get("after", ""),
        )
        shown = [
            {
                "epoch": each.epoch,
                "dataset": each.dataset,
                "source": each.source,
                "ranges": [[range_.lo, range_.hi] for range_ in each.ranges.ranges],
            }
            for each in strands
            if token.covers(each.dataset)
        ]
        return {"origin": origin, "strands": shown, "after": after}

    # How it is

    async def _healthz(self, _: Request) -> Response:
        return _answer(200, {"status": "ok"})

    async def _readyz(self, _: Request) -> Response:
        """It tells nothing of what is inside, so it needs no token."""
        if self._is_stopping:
            return _answer(503, {"status": "stopping"}, {"Retry-After": str(_RETRY_S)})
        try:
            await self._in_thread(self._looking, partial(refuse_full, self._site))
        except Exception as error:  # noqa: BLE001  # as above
            return _told(error)
        return _answer(200, {"status": "ok"})

    async def _openapi(self, _: Request) -> Response:
        return _answer(200, description())

    # Around

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _counted(self, what: str, answer: Response) -> Response:
        self._count(what)
        return answer

    def _count(self, what: str, by: int = 1) -> None:
        with self._counting:
            self.counts[what] += by


def _encoding(headers: Any) -> str:
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != MIME:
        raise EncodingUnknown(f"the body is {kind or 'of no type'!r:.80}", hint=f"Content-Type: {MIME}")
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        raise EncodingUnknown(
            f"the body is packed as {encoding!r:.80}", hint=f"one of {', '.join(ENCODINGS)}"
        )
    return str(encoding)


def _asked(request: Request) -> dict[str, str]:
    """The query, each name once."""
    pairs = request.query_params.multi_items()
    known = {"epoch", "dataset", "source", "after"}
    for name, value in pairs:
        if name not in known or [each for each, _ in pairs].count(name) > 1 or "\0" in value:
            raise UsageError(
                "the query is not one of this place", hint=f"{', '.join(sorted(known))}, each once"
            )
    return dict(pairs)


def _answer(status: int, body: Mapping[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def _told(error: Exception) -> Response:
    """What the sender is told. Of what is inside, that it failed: the log has the rest."""
    if not isinstance(error, StrandlineError):
        _log.error("a request failed", exc_info=error)
        return _answer(500, {"error": "internal", "message": "the receiver failed; nothing was stored"})
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    message, hint = error.message, error.hint
    if isinstance(error, DatasetUnknown):  # which ones there are is not for everyone
        message = f"there is no dataset {error.name!r} here"
        hint = "declare it at the receiver, or leave it out of the sink"
    elif status >= 500 and not isinstance(error, _SPEAKING):
        _log.error("a request failed: %s", error.kind, exc_info=error)
        is_lost = isinstance(error, OutcomeUnknown)
        message = "the answer of the store was lost" if is_lost else "the store failed"
        hint = "send it again: it is stored once"
    body = {"error": error.kind, "message": message, "hint": hint or "GET /openapi.json tells what there is"}
    facts = {name: value for name, value in error.facts.items() if name in _TOLD}
    return _answer(status, {**body, **facts}, _headers(status, error))


def _headers(status: int, error: StrandlineError) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        wait_s = error.facts.get("wait_s", 30 if isinstance(error, SpoolFull) else _RETRY_S)
        return {"Retry-After": str(max(int(wait_s), 1))}
    return {}


async def _not_served(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found" if error.status_code == 404 else "usage"
    body = {"error": kind, "message": str(error.detail), "hint": "GET /openapi.json tells what there is"}
    return _answer(error.status_code, body, dict(error.headers or {}))
