"""What was ever done, counted along the global order: by dataset, by sink, by provider of history.

A count only ever grows, is the same for every process, and survives restarts. It is no authority: an event
that cannot be read is not counted, and whoever needs it says so.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from strandline.persist import Event

Kind = Literal["dataset", "sink", "provider"]

DATASET_COUNTS: Final = (
    "rows_spooled",
    "rows_flushed",
    "rows_loaded",
    "bytes_landed",
    "files_landed",
    "flushes",
    "flush_ms",
    "flush_duplicates",
    "settled_drop",
    "rows_quarantined",
    "rows_lost",
)
SINK_COUNTS: Final = (
    "rows_sent",
    "bytes_sent",
    "units_sent",
    "units_retried",
    "duplicates_acked",
    "rows_withheld",
    "dead_letters",
    "backpressure_wait_s",
)
PROVIDER_COUNTS: Final = ("backfill_runs", "backfill_written", "backfill_skipped")
_NAMES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "dataset": DATASET_COUNTS,
    "sink": SINK_COUNTS,
    "provider": PROVIDER_COUNTS,
}


class LifetimeCounts:
    """Standing keeps it caught up."""

    def __init__(self) -> None:
        self._counted: dict[Kind, dict[str, dict[str, int]]] = {"dataset": {}, "sink": {}, "provider": {}}

    def of(self, kind: Kind, name: str) -> dict[str, int]:
        """Every count of that kind, 0 where nothing was counted."""
        found = self._counted[kind].get(name, {})
        return {each: found.get(each, 0) for each in _NAMES[kind]}

    def providers(self) -> list[str]:
        return sorted(self._counted["provider"])

    def take(self, event: Event) -> None:
        stream, _, rest = event.stream.partition("/")
        if (found := _READERS.get((stream, event.type))) is None:
            return
        kind, read = found
        try:
            counted = read(event)
        except (AttributeError, KeyError, TypeError, ValueError):
            return  # the fold that goes by this event tells that it is damaged
        of = self._counted[kind].setdefault(rest.partition("/")[0], {})
        for name, number in counted.items():
            of[name] = of.get(name, 0) + number

    # As part of a kept snapshot

    def data(self) -> dict[str, Any]:
        return {kind: {name: dict(each) for name, each in of.items()} for kind, of in self._counted.items()}

    def load(self, data: Mapping[str, Any]) -> None:
        for kind, of in self._counted.items():
            of.update({name: dict(each) for name, each in data.get(kind, {}).items()})


def _spooled(event: Any) -> dict[str, int]:
    return {"rows_spooled": event.data["hi"] - event.data["lo"]}


def _lost(event: Any) -> dict[str, int]:
    return {"rows_lost": event.data["hi"] - event.data["lo"]}


def _committed(event: Any) -> dict[str, int]:
    data = event.data
    return {
        "rows_flushed": data["rows"],
        "bytes_landed": data["bytes"],
        "files_landed": data["files"],
        "flushes": 1,
        "flush_ms": data["ms"],
        "flush_duplicates": data["duplicates"],
        "settled_drop": data.get("dropped", 0),
    }


def _landed(event: Any) -> dict[str, int]:
    data = event.data
    return {
        "rows_loaded": data["rows"],
        "bytes_landed": data["bytes"],
        "files_landed": data["files"],
        "flush_duplicates": data["duplicates"],
    }


def _quarantined(event: Any) -> dict[str, int]:
    return {"rows_quarantined": event.data["count"]}


def _delivered(event: Any) -> dict[str, int]:
    data = event.data
    return {
        **_sent(data["units"]),
        "duplicates_acked": len(data["known"]),
        "rows_withheld": sum(hi - lo for lo, hi in data["withheld"]),
    }


def _settled(event: Any) -> dict[str, int]:
    return _sent(event.data["units"])


def _sent(units: Iterable[Any]) -> dict[str, int]:
    """A unit is [lo, hi, rows, bytes, digest, target]."""
    found = list(units)
    return {
        "units_sent": len(found),
        "rows_sent": sum(each[2] for each in found),
        "bytes_sent": sum(each[3] for each in found),
    }


def _failed(event: Any) -> dict[str, int]:
    """Our own back-off is not what a destination asks for."""
    wait_us = event.data["not_before"] - event.at if event.data["is_pace"] else 0
    return {"units_retried": 1, "backpressure_wait_s": max(round(wait_us / 1e6), 0)}


def _lettered(_: Any) -> dict[str, int]:
    return {"dead_letters": 1}


def _backfilled(event: Any) -> dict[str, int]:
    left_out = sum(event.data["left_out"].values())
    return {"backfill_runs": 1, "backfill_written": event.data["written"], "backfill_skipped": left_out}


_READERS: Final[Mapping[tuple[str, str], tuple[Kind, Callable[[Any], dict[str, int]]]]] = {
    ("strand", "spooled"): ("dataset", _spooled),
    ("strand", "lost"): ("dataset", _lost),
    ("flush", "committed"): ("dataset", _committed),
    ("flush", "landed"): ("dataset", _landed),
    ("quarantine", "quarantined"): ("dataset", _quarantined),
    ("sink", "delivered"): ("sink", _delivered),
    ("sink", "settled"): ("sink", _settled),
    ("sink", "failed"): ("sink", _failed),
    ("sink", "lettered"): ("sink", _lettered),
    ("backfill", "ended"): ("provider", _backfilled),
}
