"""Spans: a piece of work has a name, a beginning, an end, and what came of it.

    with span("flush", dataset="logs") as found:
        …
        found.set(rows=1_204)

Whoever works says so here and knows nothing of tracing. Where nobody listens, as ever unless `[observe]
traces` names a collector, that costs one look at a name, and nothing is imported.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol


class Span(Protocol):
    def set(self, **attributes: Any) -> None:
        """What came of it: numbers and short names, never rows, secrets or paths. None is left out."""


class Listener(Protocol):
    """Who makes spans of what it is told, in `traces.py`."""

    def span(
        self, name: str, parent: str | None, attributes: dict[str, Any]
    ) -> AbstractContextManager[Span]: ...

    def traceparent(self) -> str: ...


class _Nobody:
    def set(self, **attributes: Any) -> None:
        pass


_NOBODY: Final[AbstractContextManager[Span]] = nullcontext(_Nobody())
_listener: Listener | None = None


def listen(listener: Listener | None) -> None:
    """Have this one told of every span of the process from now on."""
    global _listener  # noqa: PLW0603  # one for a process, as a logger is
    _listener = listener


def send_traces(url: str | None, *, node: str) -> None:
    """Have the spans of this process sent to a collector, where there is one. UsageError where what that
    needs is not installed."""
    if url is not None:
        from strandline.observe.traces import start_traces

        start_traces(url, node=node)


def span(name: str, *, parent: str | None = None, **attributes: Any) -> AbstractContextManager[Span]:
    """The work inside the block. An error that leaves it is the span's too. `parent` is the `traceparent` of
    who asked for it; without one it is part of the span around it."""
    return _NOBODY if _listener is None else _listener.span(name, parent, attributes)


def traceparent() -> str:
    """The span that is under way, as W3C Trace Context names it; empty where nobody listens."""
    return "" if _listener is None else _listener.traceparent()
