"""The receiver: rows of other nodes become rows of this one, each once. The wire is in strandline.rows.unit.

    POST /v1/append/{dataset}   rows of a producer, see producers.py
    POST /v1/ingest/{signal}    a unit           202 stored, 200 stored before, 409 stored in part
    GET  /v1/ranges/{origin}    what is here of another node
    GET  /healthz, /readyz      this process runs; it can store
    GET  /metrics               how the node stands, for Prometheus, where [observe] metrics is on
    GET  /openapi.json          all of this, for programs

A unit is looked at in this order, and nothing behind the first fault: token, headers, the ranges that are
here, then limits, then the body. So a repeat is always cheap and never refused.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from strandline.base.failpoint import reach
from strandline.config.keys import ServerSection
from strandline.errors import UsageError
from strandline.ingest.append import refuse_full
from strandline.observe.process_counts import MetricsPage
from strandline.observe.span import span
from strandline.rows.dataset import SchemaBreaking, check_dataset_name, check_source
from strandline.rows.unit import INGEST, MIME, RANGES, UnitHead, check_origin, read_epoch, read_unit
from strandline.rows.validate import BadRows
from strandline.server.bearer_tokens import BearerToken, Gate, OutOfScope
from strandline.server.body import RowRefused, read_rows, unpacked
from strandline.server.intake import (
    BODY_S,
    IDLE_S,
    RETRY_S,
    Intake,
    answer,
    content_encoding,
    content_type,
    told,
)
from strandline.server.openapi import description
from strandline.server.producers import APPEND, Producers
from strandline.server.received_ranges import held_of, is_other_body, receive, strands_of
from strandline.server.serve import is_loopback
from strandline.state.context import Site

METRICS: Final = "/metrics"
METRICS_MIME: Final = "text/plain; version=0.0.4; charset=utf-8"
_HANDED_ON: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A unit whose body may come."""

    unit: UnitHead
    token: BearerToken
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
        settings: ServerSection,
        *,
        dataset_of: Callable[[str], str] = lambda signal: signal,
        metrics: MetricsPage | None = None,
        body_s: float = BODY_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._site, self._settings, self._dataset_of = site, settings, dataset_of
        self._intake = Intake(site, gate, settings, body_s=body_s, idle_s=idle_s)
        self._is_stopping = False
        self._metrics_page = metrics
        routes = [
            Route(APPEND + "/{dataset}", Producers(self._intake).append, methods=["POST"]),
            Route(INGEST + "/{signal}", self._ingest, methods=["POST"]),
            Route(RANGES + "/{origin}", self._ranges, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
        ]
        if metrics is not None:
            routes.append(Route(METRICS, self._metrics, methods=["GET"]))
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
        self._app.router.redirect_slashes = False  # senders follow no redirect

    @property
    def counts(self) -> Counter[str]:
        return self._intake.counts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def stop(self) -> None:
        """Say that it ends; may be called from a signal handler."""
        self._is_stopping = True

    def close(self) -> None:
        self._is_stopping = True
        self._intake.close()

    # Units

    async def _ingest(self, request: Request) -> Response:
        intake = self._intake
        try:
            with (
                span("receive", parent=request.headers.get("traceparent")) as told_of,
                intake.holding() as body,
            ):
                admitted = await intake.looked(partial(self._admit, request))
                if admitted is None:
                    return intake.counted("units_duplicate", answer(200, {"stored": 0, "duplicate": True}))
                told_of.set(dataset=admitted.dataset, unit=admitted.unit.id)
                raw = await intake.read(request, admitted.token, body)
                stored = await intake.stored(partial(self._store, admitted, raw))
                told_of.set(rows=stored, bytes=len(raw))
                reach("receive.answer")
                return self._answered(stored)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:  # noqa: BLE001  # whatever it is, the sender gets an answer
            return intake.refused("units_refused", error)

    def _answered(self, stored: int | None) -> Response:
        intake = self._intake
        if stored is None:
            return intake.counted("units_duplicate", answer(200, {"stored": 0, "duplicate": True}))
        intake.count("rows_stored", stored)
        return intake.counted("units_stored", answer(202, {"stored": stored, "duplicate": False}))

    def _admit(self, request: Request) -> _Admitted | None:
        """All that the headers tell; None where the rows are here already."""
        headers = request.headers
        token = self._intake.gate.token(headers.getlist("Authorization"))
        if request.url.query:
            raise UsageError("a unit has no query", hint="all of it is in headers and body")
        unit = read_unit(headers.getlist)
        dataset = self._dataset_of(check_dataset_name(request.path_params["signal"]))
        token.check(origin=unit.origin, datasets=(unit.dataset, dataset))
        source = check_source(self._source(unit))
        if held_of(self._site.b, unit).has(unit):
            if is_other_body(self._site, unit, dataset):
                self._note_other_body(unit)
            return None
        content_type(headers, (MIME,))
        encoding = content_encoding(headers)
        self._intake.check_declared(headers)
        if self._site.is_strict:
            self._site.known(dataset)
        refuse_full(self._site)
        self._intake.rate.admit(token.id)
        return _Admitted(unit, token, dataset, source, encoding)

    def _source(self, unit: UnitHead) -> str:
        """`<node>/<source>`; a node's name has no `/` there, so that the first one ends it."""
        if self._settings.keep_source:
            return unit.source
        return f"{unit.node.replace('%', '%25').replace('/', '%2F')}/{unit.source}"

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

    def _note_other_body(self, unit: UnitHead) -> None:
        self._intake.count("range_body_mismatch")
        _log.warning("unit %s is stored with another body", unit.id)

    # What is here

    async def _ranges(self, request: Request) -> Response:
        try:
            found = await self._intake.looked(partial(self._found_ranges, request))
            return answer(200, found)
        except Exception as error:  # noqa: BLE001  # as above
            return told(error)

    def _found_ranges(self, request: Request) -> dict[str, Any]:
        token = self._intake.gate.token(request.headers.getlist("Authorization"))
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
                "newest": {
                    name: {"seq": newest.seq, "intent": newest.intent} for name, newest in each.newest.items()
                },
            }
            for each in strands
            if token.covers(each.dataset)
        ]
        return {"origin": origin, "strands": shown, "after": after}

    # How it is

    async def _healthz(self, _: Request) -> Response:
        return answer(200, {"status": "ok"})

    async def _readyz(self, _: Request) -> Response:
        """It tells nothing of what is inside, so it needs no token."""
        if self._is_stopping:
            return answer(503, {"status": "stopping"}, {"Retry-After": str(RETRY_S)})
        try:
            await self._intake.looked(partial(refuse_full, self._site))
        except Exception as error:  # noqa: BLE001  # as above
            return told(error)
        return answer(200, {"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        try:
            return Response(
                await self._intake.looked(partial(self._found_metrics, request)), media_type=METRICS_MIME
            )
        except Exception as error:  # noqa: BLE001  # as above
            return told(error)

    def _found_metrics(self, request: Request) -> bytes:
        """It names every dataset and sink: for who is on this machine, or may send anything."""
        if not _is_here(request):
            token = self._intake.gate.token(request.headers.getlist("Authorization"))
            if token.datasets is not None or token.origins is not None:
                raise OutOfScope("page", METRICS)
        assert self._metrics_page is not None  # else there is no such route
        return self._metrics_page(*self._intake.counted_now())

    async def _openapi(self, _: Request) -> Response:
        return answer(200, description(with_metrics=self._metrics_page is not None))


def _is_here(request: Request) -> bool:
    """Whether it comes from this machine by itself, and is not what a proxy here hands on."""
    host = "" if request.client is None else request.client.host
    return is_loopback(host) and not any(name in request.headers for name in _HANDED_ON)


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


async def _not_served(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found" if error.status_code == 404 else "usage"
    body = {"error": kind, "message": str(error.detail), "hint": "GET /openapi.json tells what there is"}
    return answer(error.status_code, body, dict(error.headers or {}))
