"""A receiver on loopback, in this process, and a sender that says what it is told to."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from strandline.base.clock import Clock
from strandline.base.ranges import Range
from strandline.config.keys import ServerSection, SpoolSection
from strandline.persist import AtomicBackend, open_store
from strandline.rows.dataset import Dataset
from strandline.rows.unit import INGEST, MIME, RANGES, UnitHead, unit_headers
from strandline.server.bearer_tokens import Gate, new_token
from strandline.server.receiver import Receiver
from strandline.server.serve import GRACE_S, _Server, listen, server_config, url_of
from strandline.state.context import Site
from tests.sites import StillClock, make_site

ORIGIN = "0123456789abcdef" * 2
TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]


@dataclass(slots=True)
class Sender:
    """Speaks the wire of strandline.rows.unit, one connection a request."""

    url: str
    token: str
    site: Site
    app: Receiver
    sent: list[UnitHead] = field(default_factory=list)

    def send(
        self,
        lines: Sequence[Any],
        lo: int = 0,
        hi: int | None = None,
        *,
        signal: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str | None] | None = None,
        **facts: Any,
    ) -> Answer:
        """Send rows as a unit; `facts` go before those that it has, `headers` before what they make."""
        plain = ndjson(lines)
        unit = replace(unit_of(plain, lo, lo + len(lines) if hi is None else hi, len(lines)), **facts)
        self.sent.append(unit)
        made = self.headers_of(unit, headers)
        return self.ask("POST", f"{INGEST}/{signal or unit.dataset}", plain if body is None else body, made)

    def headers_of(self, unit: UnitHead, others: Mapping[str, str | None] | None = None) -> dict[str, str]:
        made = {
            **unit_headers(unit),
            "Authorization": f"Bearer {self.token}",
            "Content-Type": MIME,
            **(others or {}),
        }
        return {name: value for name, value in made.items() if value is not None}

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read() or b"null"), answer.headers)  # type: ignore[arg-type]  # it is one
        finally:
            connection.close()

    def ranges(self, query: str = "", origin: str = ORIGIN) -> Answer:
        return self.ask("GET", f"{RANGES}/{origin}{query}", None, {"Authorization": f"Bearer {self.token}"})


class PromptServer(_Server):
    """The server of a test: it ends once it is told to. Its parent takes two tenths of a second."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            await asyncio.sleep(TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(TICK_S)
        for task in self.server_state.tasks:
            task.cancel()


def ndjson(rows: Sequence[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else orjson.dumps(each) + b"\n" for each in rows)


def unit_of(body: bytes, lo: int, hi: int, rows: int) -> UnitHead:
    return UnitHead(
        ORIGIN, 0, "logs", "web-1", Range(lo, hi), rows, sha256(body).hexdigest(), "laptop", "centre", {}
    )


@contextmanager
def receiving(
    folder: Path,
    *,
    b: AtomicBackend | None = None,
    settings: ServerSection | None = None,
    clock: Clock | None = None,
    spool: SpoolSection | None = None,
    datasets: Sequence[Dataset] = (Dataset("logs"), Dataset("orders")),
    is_strict: bool = True,
    configured: Sequence[str] = (),
    **options: Any,
) -> Iterator[Sender]:
    opened = b or open_store(folder / "strandline.db")
    site = make_site(opened, folder / "content", spool=spool, datasets=datasets, is_strict=is_strict)
    site.clock = clock or StillClock()
    app = Receiver(site, Gate(opened, configured), settings or ServerSection(), **options)
    _, token = new_token(opened, "test", at=0)
    listening = listen("127.0.0.1", 0)
    server = PromptServer(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Sender(url_of(listening), token, site, app)
    finally:
        app.stop()
        server.should_exit = True
        thread.join(30)
        app.close()
        listening.close()
        opened.close()
