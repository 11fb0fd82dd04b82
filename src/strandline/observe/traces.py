"""Spans as OpenTelemetry traces, sent to a collector by OTLP over HTTP.

Sending is done in a thread of its own from a bounded queue: a collector that is slow or down delays nothing,
fails nothing, and loses spans, of which the log tells once until it answers again. At the end of a process
what is left is given LAST_S.
"""

import atexit
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final

from strandline.errors import StrandlineError, UsageError
from strandline.observe.span import Listener, Span, listen

try:
    from opentelemetry import context, trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise UsageError(
        f"[observe] traces needs {error.name}, which is not installed",
        hint='pip install "strandline[observe]"',
    ) from error

PATH: Final = "/v1/traces"
LAST_S: Final = 2.0
_EXPORT_S: Final = 5.0
_EVERY_MS: Final = 1_000
_QUEUE: Final = 2_048
_PREFIX: Final = "strandline."

_log = logging.getLogger(__name__)
_starting = threading.Lock()
_started: dict[str, "Traces"] = {}


class Traces:
    """The listener of a process."""

    def __init__(self, url: str, *, node: str) -> None:
        made = {"service.name": "strandline", "service.instance.id": node}
        resource = Resource.create({**made, "service.version": version("strandline")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._batches = BatchSpanProcessor(
            _Patient(OTLPSpanExporter(endpoint=url.rstrip("/") + PATH, timeout=_EXPORT_S)),
            max_queue_size=_QUEUE,
            schedule_delay_millis=_EVERY_MS,
            export_timeout_millis=int(_EXPORT_S * 1_000),
        )
        self._provider.add_span_processor(self._batches)
        self._tracer = self._provider.get_tracer("strandline", version("strandline"))
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, parent: str | None, attributes: dict[str, Any]) -> Iterator[Span]:
        around = self._propagator.extract({"traceparent": parent}) if parent else context.get_current()
        with self._tracer.start_as_current_span(
            name,
            context=around,
            attributes=_named(attributes),
            record_exception=False,  # its text may quote a row, or name a path
            set_status_on_exception=False,
        ) as found:
            try:
                yield _Span(found)
            except BaseException as error:
                kind = error.kind if isinstance(error, StrandlineError) else type(error).__name__
                found.set_status(trace.Status(trace.StatusCode.ERROR, kind))
                raise

    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent", "")

    def close(self) -> None:
        """Send what is left, for at most LAST_S."""
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(LAST_S)


class _Span:
    def __init__(self, found: trace.Span) -> None:
        self._found = found

    def set(self, **attributes: Any) -> None:
        self._found.set_attributes(_named(attributes))


class _Patient(SpanExporter):
    """Says once that nobody takes the spans, and once that somebody does again."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter, self._is_down = exporter, False
        # It says so with every batch.
        logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_down = result is not SpanExportResult.SUCCESS
        if is_down != self._is_down:
            text = "does not take spans: they are lost, and nothing else is" if is_down else "takes spans"
            _log.warning("the collector of [observe] traces %s", text)
        self._is_down = is_down
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # of the exporter

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def start_traces(url: str, *, node: str) -> Listener:
    """Have every span of this process sent to the collector at `url`, until it ends. Again, it changes
    nothing; of several nodes in a process the first one's collector gets them all."""
    with _starting:
        if not _started:
            _started[url] = made = Traces(url, node=node)
            listen(made)
            atexit.register(stop_traces)
        return next(iter(_started.values()))


def stop_traces() -> None:
    """Nobody is told any more; what was told is sent, if that takes moments."""
    with _starting:
        listen(None)
        while _started:
            _started.popitem()[1].close()


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {_PREFIX + name: value for name, value in attributes.items() if value is not None}
