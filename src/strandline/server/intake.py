"""Requests that bring rows: how their bodies are read, within limits of size, time and memory; where the work
is done; and what the sender is told.

The store is used in threads, and the loop stays free. What raises has stored nothing, OutcomeUnknown aside,
after which a repeat is safe.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from strandline.config.keys import ServerSection
from strandline.errors import (
    HeldError,
    NotFoundError,
    OutcomeUnknown,
    StrandlineError,
    UnavailableError,
    UsageError,
)
from strandline.ingest.append import Busy, SpoolFull
from strandline.rows.dataset import SourceInvalid
from strandline.server.bearer_tokens import BearerToken, Gate, OutOfScope, Unauthorized
from strandline.server.body import ENCODINGS, BodyTooLarge, RowRefused
from strandline.server.rate_limit import Rate, RateExceeded
from strandline.server.received_ranges import RangeConflict
from strandline.sinks.sink import OtherLife
from strandline.state.context import Site
from strandline.state.dataset_versions import DatasetUnknown

THREADS: Final = 16  # that unpack, judge and store
LOOKING_THREADS: Final = 8  # that only read
BODY_S: Final = 300.0  # for a whole body
IDLE_S: Final = 30.0  # between two pieces of one
RETRY_S: Final = 5
RETRY_AFTER: Final = "Retry-After"
_HELD_BODIES: Final = 4  # as many as the largest may be held in memory at once, or more of smaller ones

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class EncodingUnknown(UsageError):
    """A body in a form that is not read here, or packed another way."""


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
    (OtherLife, 409),
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
_TOLD: Final = ("ranges", "newest", "lines", "refused", "header", "limit")  # facts that the sender may use
_SPEAKING: Final = (SpoolFull, Busy, RateExceeded, Crowded)  # others may name what is inside


class Body:
    """What has come of a body so far, counted against what the process may hold."""

    def __init__(self, intake: "Intake") -> None:
        self._intake, self.size = intake, 0

    def take(self, chunk: bytes) -> bytes:
        self.size += len(chunk)
        self._intake.hold(len(chunk))
        return chunk


class Intake:
    """Shared by all that takes rows in over HTTP. The site is the caller's; `close` lets go of the
    threads."""

    def __init__(
        self,
        site: Site,
        gate: Gate,
        settings: ServerSection,
        *,
        body_s: float = BODY_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self.site, self.gate, self.settings = site, gate, settings
        self.rate = Rate(settings.rate_bytes_per_s, site.clock)
        self._body_s, self._idle_s = body_s, idle_s
        self._held = 0  # bytes of bodies in memory; of the loop alone
        self._threads = ThreadPoolExecutor(THREADS, "receive")
        self._looking = ThreadPoolExecutor(LOOKING_THREADS, "receive-look")
        self._counting = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()  # seconds for which senders were put off, by why

    def close(self) -> None:
        self._looking.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)

    async def looked(self, look: Callable[[], Answer]) -> Answer:
        """In a thread that only reads."""
        return await asyncio.get_running_loop().run_in_executor(self._looking, look)

    async def stored(self, store: Callable[[], Answer]) -> Answer:
        """In a thread that may write."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, store)

    # Bodies

    @contextmanager
    def holding(self) -> Iterator[Body]:
        """What a body that is read inside takes of memory is given back at the end."""
        body = Body(self)
        try:
            yield body
        finally:
            self._held -= body.size

    def hold(self, more: int) -> None:
        self._held += more
        if self._held > _HELD_BODIES * self.settings.max_body_bytes:
            raise Crowded("too many bodies are being read", hint="send it again")

    def check_declared(self, headers: Any) -> None:
        if int(headers.get("Content-Length", "0")) > self.settings.max_body_bytes:
            raise BodyTooLarge(self.settings.max_body_bytes)

    async def read(self, request: Request, token: BearerToken, body: Body) -> bytes:
        chunks: list[bytes] = []
        limit = self.settings.max_body_bytes
        pieces = aiter(request.stream())
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    async with asyncio.timeout(self._idle_s):
                        chunk = await anext(pieces, None)
                    if chunk is None:
                        break
                    if body.size + len(chunk) > limit:
                        raise BodyTooLarge(limit)
                    chunks.append(body.take(chunk))
        except TimeoutError as error:
            raise BodyLate("the body did not come in time", hint="send it again") from error
        finally:
            self.rate.spend(token.id, body.size)
        return b"".join(chunks)

    # Counts

    def counted(self, what: str, answer: Response) -> Response:
        self.count(what)
        return answer

    def refused(self, what: str, error: Exception) -> Response:
        """What the sender is told; and counted, with the wait that is asked of it."""
        made = told(error)
        with self._counting:
            self.counts[what] += 1
            if isinstance(error, StrandlineError) and (wait_s := made.headers.get(RETRY_AFTER)):
                self.waits[error.kind] += int(wait_s)
        return made

    def count(self, what: str, by: int = 1) -> None:
        with self._counting:
            self.counts[what] += by

    def counted_now(self) -> tuple[dict[str, int], dict[str, int]]:
        """What came of requests, and the seconds for which senders were put off."""
        with self._counting:
            return dict(self.counts), dict(self.waits)


def content_type(headers: Any, known: tuple[str, ...]) -> str:
    """Of the body; EncodingUnknown where it is none of those that are known."""
    kind = str(headers.get("Content-Type", "")).partition(";")[0].strip().lower()
    if kind not in known:
        wanted = " or ".join(known)
        raise EncodingUnknown(f"the body is {kind or 'of no type'!r:.80}", hint=f"Content-Type: {wanted}")
    return kind


def content_encoding(headers: Any) -> str:
    encoding = str(headers.get("Content-Encoding", "identity")).strip().lower()
    if encoding not in ENCODINGS:
        raise EncodingUnknown(
            f"the body is packed as {encoding!r:.80}", hint=f"one of {', '.join(ENCODINGS)}"
        )
    return encoding


# Answers


def answer(status: int, body: Mapping[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def told(error: Exception) -> Response:
    """What the sender is told. Of what is inside, that it failed: the log has the rest."""
    if not isinstance(error, StrandlineError):
        _log.error("a request failed", exc_info=error)
        return answer(500, {"error": "internal", "message": "the receiver failed; nothing was stored"})
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
    return answer(status, {**body, **facts}, _headers(status, error))


def _headers(status: int, error: StrandlineError) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        wait_s = error.facts.get("wait_s", 30 if isinstance(error, SpoolFull) else RETRY_S)
        return {RETRY_AFTER: str(max(int(wait_s), 1))}
    return {}
