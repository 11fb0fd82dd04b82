"""What a purge has decided, and as the data of its event.

    intended   {run, by, where, source, flush, found, left, bare, rows, rows_body}

If a predicate chose the rows, the event says which: `rows` has [lo, hi, lo, hi, …] by source, and `rows_body`
names the same in the content store if they are many. An event of an earlier version has neither, and its
rows are those that `where` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from strandline.base.ranges import Range
from strandline.lake.ports.purge import Match, PurgeAsked
from strandline.storage.content import ContentStore

BY: Final = "purge"
_MOST_IN_EVENT: Final = 1_000  # ranges
_MIME: Final = "application/json"


@dataclass(frozen=True, slots=True)
class AlreadyDelivered:
    """Rows that had left through a sink, as far as its line tells: it cannot call them back."""

    sink: str
    source: str
    rows: int


@dataclass(frozen=True, slots=True)
class PurgeRun:
    """What is decided."""

    id: str
    asked: PurgeAsked
    found: tuple[Match, ...]
    left: tuple[AlreadyDelivered, ...]
    bare: Mapping[str, int]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.found)


def intent_data(content: ContentStore, run: PurgeRun) -> dict[str, Any]:
    """Return the data of the event. What it names in the content store is durable when this returns."""
    data: dict[str, Any] = {
        "run": run.id,
        "by": BY,
        "where": run.asked.where,
        "source": run.asked.source,
        "flush": run.asked.flush,
        "found": [
            [each.source, each.rows, *(each.seqs.lo, each.seqs.hi), *(each.flushes.lo, each.flushes.hi)]
            for each in run.found
        ],
        "left": [[each.sink, each.source, each.rows] for each in run.left],
        "bare": dict(run.bare),
    }
    if run.asked.rows is None:
        return data
    rows = {
        source: list(chain.from_iterable((each.lo, each.hi) for each in ranges))
        for source, ranges in run.asked.rows.items()
    }
    if sum(map(len, rows.values())) <= 2 * _MOST_IN_EVENT:
        return {**data, "rows": rows}
    return {**data, "rows_body": content.put_stream([orjson.dumps(rows)], _MIME)}


def run_of(content: ContentStore, data: Mapping[str, Any]) -> PurgeRun:
    rows = data.get("rows")
    if (body := data.get("rows_body")) is not None:
        raw = content.get(body.cid)
        if raw is None:
            raise ValueError(f"its rows, {body.cid}, are not in the content store")
        rows = orjson.loads(raw)
    ranges = None
    if rows is not None:
        ranges = {
            source: tuple(Range(lo, hi) for lo, hi in zip(bounds[::2], bounds[1::2], strict=True))
            for source, bounds in rows.items()
        }
    matches = tuple(
        Match(source, count, Range(lo, hi), Range(early, late), () if ranges is None else ranges[source])
        for source, count, lo, hi, early, late in data["found"]
    )
    asked = PurgeAsked(data["where"], data["source"], data["flush"], ranges)
    left = tuple(AlreadyDelivered(*each) for each in data["left"])
    return PurgeRun(data["run"], asked, matches, left, dict(data["bare"]))
