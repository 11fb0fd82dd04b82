"""Housekeeping: what keeps a table as quick after a thousand flushes as after ten."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.config.keys import CompactionSection
from strandline.state.context import Site
from strandline.state.flush_plan import open_plan
from strandline.state.lease import LeaseHeld, take_lease

if TYPE_CHECKING:
    from strandline.lake.ports.snapshots import KnownSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotsToExpire:
    """What may go, in two steps: Iceberg remembers a published id only as long as the snapshot that carries
    it, so staged copies go before it."""

    staged: tuple[int, ...]
    published: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.staged) + len(self.published)


def choose_expired(
    found: Sequence["KnownSnapshot"],
    settings: CompactionSection,
    *,
    now: int,
    is_closed: Callable[[str], bool],
    oldest_open: int | None,
) -> SnapshotsToExpire:
    """Pure. `found` is oldest first. Nothing goes that an open plan may need: neither its own snapshots nor
    any that is newer than the plan. Nor does a published snapshot while some staged copy of its id stays:
    once the id is forgotten, that copy could be published a second time. What is no landing and hangs on no
    branch or tag goes with age: a rewrite that was given up leaves it."""
    free = {each for each in found if oldest_open is None or each.at < oldest_open}
    too_old = now - int(settings.max_snapshot_age_h * 3_600_000_000)
    staged = tuple(
        each.id
        for each in found
        if each in free
        and not (each.is_current or each.is_named)
        and (each.at < too_old if each.wap is None else is_closed(each.wap))
    )
    history = [each for each in found if each.is_current]
    copied = {each.wap for each in found if not each.is_current and each.id not in staged}
    removable = [
        each
        for each in history
        if each in free
        and not each.is_named
        and (each.wap is None or (is_closed(each.wap) and each.wap not in copied))
    ]
    # Down to well below the limit at once, so that not every flush has to expire.
    over = len(history) - settings.max_snapshots
    count = over + settings.max_snapshots // 5 if over > 0 else 0
    old = sum(each.at < too_old for each in history[: -settings.min_snapshots])
    most = len(history) - min(settings.min_snapshots, len(history))
    wanted = {each.id for each in history[: min(max(count, old), most)]}
    return SnapshotsToExpire(staged, tuple(each.id for each in removable if each.id in wanted))


def expire_snapshots(
    site: Site,
    dataset: str,
    settings: CompactionSection,
    snapshots: Callable[[], Sequence["KnownSnapshot"]],
    expire: Callable[[Iterable[int]], None],
) -> int:
    """Expire what may go, and tell how many went. Where another keeps house already, nothing is done."""
    try:
        lease = take_lease(site.b, site.clock, f"maintain/{dataset}")
    except LeaseHeld:
        return 0
    try:
        doomed = expirable(site, dataset, settings, snapshots)
        for ids in (doomed.staged, doomed.published):
            if ids:
                expire(ids)
        return len(doomed)
    finally:
        lease.release()


def expirable(
    site: Site, dataset: str, settings: CompactionSection, snapshots: Callable[[], Sequence["KnownSnapshot"]]
) -> SnapshotsToExpire:
    """What may go now. To let it go takes the lease `maintain/<dataset>`."""
    # Looked at before the plans: a plan that is opened later has snapshots that are not among these.
    found = snapshots()
    numbers = site.standing.numbers(dataset)
    began = [open_plan(site.b, dataset, number, event).at for number, event in numbers.open.items()]
    rewriting = site.standing.rewrites().of(dataset)
    if rewriting.begun:  # whether it landed is told by its snapshot, which came after the one it began at
        began += [each.at for each in found if each.id == rewriting.base]

    def is_closed(wap: str) -> bool:
        number = wap.removeprefix(f"{dataset}-").partition("-")[0]
        return number.isdecimal() and int(number) <= numbers.last and int(number) not in numbers.open

    return choose_expired(
        found,
        settings,
        now=site.clock.now_us(),
        is_closed=is_closed,
        oldest_open=min(began, default=None),
    )
