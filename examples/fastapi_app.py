"""A FastAPI app that keeps a row of each request: no answer leaves whose row could still be lost.

The row is handed to a buffered writer, which makes rows that come together durable together, and the answer
waits for that: a few milliseconds. So what a client has seen answered is kept, also if the process is killed
at the next instant. A client that saw no answer tries again under the same X-Request-Id: in the table it is
one row, since the dataset says that this is what makes two rows the same.

    pip install "strandline[lake]" fastapi uvicorn
    python examples/fastapi_app.py web              # then http://127.0.0.1:8000/hello/ada, and ctrl-c
    strandline flush --home web
    strandline sql --home web "SELECT path, count(*), avg(ms) FROM requests GROUP BY path"
"""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

import strandline
from strandline.errors import UnavailableError

# Two rows of one source with one request_id are one row. So every process of the app has the same source: a
# client that tries again may reach another one. Any number of them may write to it.
SETTINGS = """\
version = 1

[datasets.requests]
identity = { key = "request_id" }
"""


def app_of(home: Path) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # on_full="refuse": a full buffer must not block the event loop, it is answered with 503.
        with (
            strandline.open(home) as node,
            node.writer("requests", source="web", linger_ms=5, on_full="refuse") as writer,
        ):
            app.state.writer = writer
            yield
        # After SIGTERM we come here when everything under way is answered. Leaving the writer drains it.

    app = FastAPI(lifespan=lifespan)

    @app.middleware("http")
    async def keep(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        started = time.perf_counter()

        async def kept(status: int) -> None:
            row = {
                "request_id": request_id,
                "method": request.method,
                "path": request.url.path,
                "status": status,
                "ms": (time.perf_counter() - started) * 1000,
            }
            await asyncio.wrap_future(app.state.writer.write(row))  # returns when the row is durable

        try:
            response = await call_next(request)
        except Exception:
            await kept(500)
            raise
        try:
            await kept(response.status_code)
        except UnavailableError as error:  # the buffer or the spool is full, the store does not answer
            return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
        response.headers["X-Request-Id"] = request_id
        return response

    @app.get("/hello/{name}")
    def hello(name: str) -> dict[str, str]:
        return {"hello": name}

    return app


def main(home: str, port: str = "8000") -> None:
    settings = Path(home) / "strandline.toml"
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(SETTINGS, "utf-8")
    uvicorn.run(app_of(Path(home)), port=int(port), timeout_graceful_shutdown=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
