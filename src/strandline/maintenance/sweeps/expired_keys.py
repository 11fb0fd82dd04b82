"""Markers and fences that have served: they go, so that a store does not grow with all it ever did.

request/<dataset>/<id>    of an append: a day, unless it is of a backfill or an import, which stay
loaded/<dataset>/<id>     of a load: a day after its numbers were given out, if it is not open; likewise
fence/load/<load>         of a load that is not open and has no scratch table: nobody takes its lease any
                          more, and without a fence every write of a holder that slept is refused
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from strandline.persist import Conflict, Delete, ExpectKey, Put
from strandline.state.context import Site
from strandline.state.flush_plan import LoadPlan, flush_stream, open_plan, readable, whole
from strandline.state.lease import Lease, LeaseLost

KEPT_S: Final = 86_400
EVERY_S: Final = 6 * 3_600  # so a marker is looked at a few times in its life
LASTING: Final = ("backfill-", "import-")  # how the ids begin whose markers stay for good
_KEY: Final = "sweep/markers"
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many went."""

    requests: int = 0
    loads: int = 0
    fences: int = 0


def sweep_markers(site: Site, lease: Lease) -> Forgotten:
    now = site.clock.now_us()
    looked_at: Any = site.b.kv_get(_KEY)
    if type(looked_at) is int and 0 <= now - looked_at < EVERY_S * 1_000_000:
        return Forgotten()
    limit = now - KEPT_S * 1_000_000
    open_ = _open(site)
    forgotten = Forgotten(
        _forget(site, lease, "request/", lambda key, value: _is_old_request(key, value, limit)),
        _forget(site, lease, "loaded/", lambda key, value: _is_old_load(site, key, value, open_, limit)),
        _forget_fences(site, lease, open_, limit),
    )
    if isinstance(site.b.commit([lease.guard], [Put(_KEY, now)]), Conflict):
        raise LeaseLost(lease.scope)
    return forgotten


def _is_lasting(key: str) -> bool:
    return unquote(key.split("/", 2)[2]).startswith(LASTING)


def _is_old_request(key: str, value: Any, limit: int) -> bool:
    with readable(key, None):
        return whole(value, "at") <= limit and not _is_lasting(key)


def _is_old_load(site: Site, key: str, value: Any, open_: dict[str, dict[int, str]], limit: int) -> bool:
    dataset = key.split("/", 2)[1]
    with readable(key, None):
        number, event = whole(value, "number"), whole(value, "event")
    if _is_lasting(key) or number in open_.get(dataset, {}):
        return False
    opened = site.b.event_at(flush_stream(dataset), event)
    return opened is None or int(opened.at) <= limit


def _forget(site: Site, lease: Lease, prefix: str, is_old: Callable[[str, Any], bool]) -> int:
    """By pages. A marker never changes but to be used anew, which the expectation notices."""
    count = 0
    for page in _pages(site, prefix):
        old = {key: value for key, value in page if is_old(key, value)}
        expected = [ExpectKey(key, value) for key, value in old.items()]
        deletes = [Delete(key) for key in old]
        if old and not isinstance(site.b.commit([lease.guard, *expected], deletes), Conflict):
            count += len(old)
    return count


def _forget_fences(site: Site, lease: Lease, open_: dict[str, dict[int, str]], limit: int) -> int:
    loads = {load for numbers in open_.values() for load in numbers.values()}
    loads |= {key.rpartition("/")[2] for key, _ in _items(site, "scratch/")}
    count = 0
    for key, fence in list(_items(site, "fence/load/")):
        load = key.removeprefix("fence/load/")
        holder: Any = site.b.kv_get(f"lease/load/{load}")
        if load in loads or (holder is not None and whole(holder, "until") > limit):
            continue
        # A load that is being begun has its lease from its first moment on.
        gone = [Delete(key), *([] if holder is None else [Delete(f"lease/load/{load}")])]
        count += not isinstance(site.b.commit([lease.guard, ExpectKey(key, fence)], gone), Conflict)
    return count


def _open(site: Site) -> dict[str, dict[int, str]]:
    """The loads that are open: by dataset and number."""
    found: dict[str, dict[int, str]] = {}
    for dataset in site.standing.datasets():
        for number, event in site.standing.numbers(dataset).open.items():
            plan = open_plan(site.b, dataset, number, event)
            if isinstance(plan, LoadPlan):
                found.setdefault(dataset, {})[number] = plan.load
    return found


def _pages(site: Site, prefix: str) -> Iterator[list[tuple[str, Any]]]:
    after = ""
    while page := site.b.kv_scan(prefix, after=after, limit=_PAGE):
        yield page
        after = page[-1][0]


def _items(site: Site, prefix: str) -> Iterator[tuple[str, Any]]:
    for page in _pages(site, prefix):
        yield from page
