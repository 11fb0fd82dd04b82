"""A collector on loopback: what it is sent by OTLP over HTTP, span by span."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from strandline.observe.traces import stop_traces


@dataclass(frozen=True, slots=True)
class Seen:
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    error: str
    service: str


@dataclass(slots=True)
class Collector:
    url: str
    spans: list[Seen] = field(default_factory=list)

    def all(self) -> list[Seen]:
        """What the process has told; it tells nothing more after that."""
        stop_traces()
        return self.spans

    def named(self, name: str) -> list[Seen]:
        return [each for each in self.all() if each.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    found = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                found.spans.extend(_spans(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        stop_traces()
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(body: bytes) -> Iterator[Seen]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _attributes(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for each in scope.spans:
                is_error = each.status.code == 2
                yield Seen(
                    each.name,
                    each.trace_id.hex(),
                    each.span_id.hex(),
                    each.parent_span_id.hex(),
                    _attributes(each.attributes),
                    each.status.message if is_error else "",
                    service,
                )


def _attributes(found: Any) -> dict[str, Any]:
    return {
        each.key.removeprefix("strandline."): getattr(each.value, each.value.WhichOneof("value"))
        for each in found
    }
