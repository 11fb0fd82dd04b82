"""A store that someone has tampered with: the events of another one, some of them changed or left out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strandline.persist import Append, Event, global_events, mem_backend
from strandline.state.context import Site
from strandline.state.node_state import Standing

Change = Callable[[Event], Any]  # the event's data, or None to leave it out


def tampered(site: Site, change: Change) -> Site:
    """A site over a copy of the store: what takes part in the global order, as `change` gives it."""
    copy = mem_backend()
    for _, event in global_events(site.b):
        assert isinstance(event, Event)
        data = change(event)
        if data is not None:
            copy.commit([], [Append(event.stream, event.type, event.at, data, globally=True)])
    return replace(site, b=copy, standing=Standing(copy), heads={}, _schemas={}, _locks={})


def changing(stream_start: str, type_: str, change: Callable[[Any], Any]) -> Change:
    """Change the events of a type in streams whose name begins so; all others stay."""

    def changed(event: Event) -> Any:
        is_meant = event.stream.startswith(stream_start) and event.type == type_
        return change(event.data) if is_meant else event.data

    return changed
