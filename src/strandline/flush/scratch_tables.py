"""The scratch tables of loads, known to the store before they are written, so that none outlives its load.

    scratch/<dataset>/<load>    {"at", "dropped_at"}    there may be a scratch table of this load

A load under way holds the lease `load/<load>`. Whoever takes that lease over raises its fence, and from then
on the old holder can reserve nothing more: so a load that is not open by then never will be, and its table
may go. Should the old holder have slept, and not died, it may write the table once more before it learns of
this; so a sweep comes by again a day later, and only then forgets.
"""

from typing import Final

from strandline.lake.ports.stage import Tables
from strandline.persist import Conflict, Delete, Put, kv_items
from strandline.state.context import Site
from strandline.state.flush_plan import LoadPlan, open_plan, readable, whole
from strandline.state.lease import Lease, LeaseHeld, LeaseLost, held

AGAIN_S: Final = 86_400


def announce_scratch(site: Site, dataset: str, load: str, lease: Lease) -> None:
    """Before the table is written: a crash from here on leaves this key at least."""
    announced = Put(_key(dataset, load), {"at": site.clock.now_us(), "dropped_at": 0})
    if isinstance(site.b.commit([lease.guard], [announced]), Conflict):
        raise LeaseLost(lease.scope)


def drop_scratch(site: Site, tables: Tables, dataset: str, load: str, lease: Lease) -> None:
    """Remove the table, then what tells of it."""
    tables.drop_input(load)
    site.b.commit([lease.guard], [Delete(_key(dataset, load))])


def sweep_scratch(site: Site, tables: Tables, dataset: str) -> int:
    """Drop the scratch tables of loads that are neither under way nor open; how many."""
    dropped = 0
    for key, value in list(kv_items(site.b, prefix=_key(dataset, ""))):
        load = key.removeprefix(_key(dataset, ""))
        with readable(key, None):
            dropped_at = whole(value, "dropped_at")
        if dropped_at and site.clock.now_us() - dropped_at < AGAIN_S * 1_000_000:
            continue
        try:
            with held(site.b, site.clock, f"load/{load}") as lease:
                if load not in _open_loads(site, dataset):  # looked at under the new fence
                    _drop_dead(site, tables, dataset, load, lease, is_first=not dropped_at)
                    dropped += 1
        except LeaseHeld:
            continue  # it is under way
    return dropped


def _drop_dead(site: Site, tables: Tables, dataset: str, load: str, lease: Lease, *, is_first: bool) -> None:
    if not is_first:
        drop_scratch(site, tables, dataset, load, lease)
        return
    tables.drop_input(load)
    now = site.clock.now_us()
    site.b.commit([lease.guard], [Put(_key(dataset, load), {"at": now, "dropped_at": now})])


def _open_loads(site: Site, dataset: str) -> set[str]:
    opened = site.standing.numbers(dataset).open.items()
    plans = (open_plan(site.b, dataset, number, event) for number, event in opened)
    return {plan.load for plan in plans if isinstance(plan, LoadPlan)}


def _key(dataset: str, load: str) -> str:
    return f"scratch/{dataset}/{load}"
