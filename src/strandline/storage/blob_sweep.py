"""Mark and sweep: removes the blobs that no live reference names, once their grace period is over.

Live is what any event or value of the given stores names, the store's own streams and keys (snapshots, events
set aside by quarantine) included. What keeps a blob that is about to be named:

- Only blobs that were old at the listing, which comes before the marking, are looked at.
- The stores are walked twice before a blob is removed: a reference that was moved from a place not yet walked
  to one already walked is found by the second walk in its new place.
- The age is looked at once more at each removal; a put or a renewal makes a blob young.

So a reference must be committed within the grace period after its bytes were put (or renewed), and that
period must exceed the longest time this takes; a reference copied from elsewhere is renewed first. One gap is
left, in buckets: they cannot remove "if still old", so a put of bytes that were unnamed for the whole grace
period, made in the few milliseconds between that last look and the removal, is undone. Who cannot live with
that marks the blob as dead in the store first, as the pipeline does with its segments.

A crash leaves some dead blobs for the next sweep. A store that cannot be read to its end stops the sweep
before it removes anything that this store might name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from strandline.base.failpoint import reach
from strandline.errors import HistoryGap, UsageError
from strandline.persist import Backend, Event, events, kv_items, refs_in, stream_names
from strandline.storage.content import ContentStore

BATCH: Final = 200_000  # blobs that one pair of walks decides on: some 40 MB of memory
_QUARANTINE: Final = "$quarantine/"
_CID: Final = re.compile(rb"sha256-[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep saw and did; of a dry run, what it would have done."""

    examined: int = 0  # blobs listed
    young: int = 0  # within their grace period, so not looked at further
    live: int = 0  # named by a reference
    renewed: int = 0  # not named, but put or renewed while the sweep ran
    removed: int = 0
    removed_bytes: int = 0
    leftovers: int = 0  # staged objects that puts cut short had left, removed
    leftover_bytes: int = 0


def sweep(
    content: ContentStore,
    stores: Sequence[Backend],
    *,
    grace_s: float,
    now: datetime,
    dry_run: bool = False,
    batch: int = BATCH,
) -> SweepReport:
    """Remove every blob that is older than the grace period at `now` and that none of `stores` names.

    `stores` are all that may hold references into this content store: a store left out loses its blobs. `now`
    is compared with the times of the content store's own clock. Let one sweep run at a time.
    """
    older_than = _limit(stores, grace_s, now)
    report = SweepReport()
    candidates = _Candidates(content, older_than)
    while dead := dict(islice(candidates, batch)):
        found = len(dead)
        _mark(dead, stores)
        reach("sweep.marked")
        report = replace(report, live=report.live + found - len(dead))
        for cid, size in dead.items():
            report = _removed(report, size, dry_run or content.remove_older(cid, older_than))
            reach("sweep.removed")
    return _sweep_leftovers(
        content, older_than, dry_run, replace(report, examined=candidates.examined, young=candidates.young)
    )


def live_cids(b: Backend, *, passing: tuple[str, ...] = ()) -> Iterator[str]:
    """The cid of every reference in a store, lazily, in no order and with repeats; but of those in streams
    and keys that begin with one of `passing`: whether they are live the caller knows better."""
    for key, value in kv_items(b, reserved=True):
        if key.startswith(passing):
            continue
        yield from (ref.cid for ref in refs_in(value))
        if key.startswith(_QUARANTINE):
            yield from _cids_set_aside(value)
    for stream in stream_names(b, reserved=True):
        if stream.startswith(passing):
            continue
        for event in _stored_events(b, stream):
            yield from (ref.cid for ref in refs_in(event.data))


class _Candidates(Iterator[tuple[str, int]]):
    """The old blobs with their sizes; it counts what it passes."""

    def __init__(self, content: ContentStore, older_than: datetime) -> None:
        self._stored = content.stored()
        self._older_than = older_than
        self.examined = self.young = 0

    def __next__(self) -> tuple[str, int]:
        for cid, info in self._stored:
            self.examined += 1
            if info.modified < self._older_than:
                return cid, info.size
            self.young += 1
        raise StopIteration


def _limit(stores: Sequence[Backend], grace_s: float, now: datetime) -> datetime:
    if not stores:
        raise UsageError("a sweep of no stores would find no reference live", hint="name every store")
    if now.tzinfo is None:
        raise UsageError(f"now is {now}, without a time zone", hint="such as datetime.now(UTC)")
    if not grace_s >= 0:
        raise UsageError(f"grace_s is {grace_s}", hint="0 or more, and longer than any put takes to be named")
    return now - timedelta(seconds=grace_s)


def _mark(dead: dict[str, int], stores: Sequence[Backend]) -> None:
    """Take out of `dead` what is live, in two walks; see above."""
    for _ in range(2):
        for b in stores:
            if dead:
                for cid in live_cids(b):
                    dead.pop(cid, None)


def _removed(report: SweepReport, size: int, is_removed: bool) -> SweepReport:
    if not is_removed:
        return replace(report, renewed=report.renewed + 1)
    return replace(report, removed=report.removed + 1, removed_bytes=report.removed_bytes + size)


def _sweep_leftovers(
    content: ContentStore, older_than: datetime, dry_run: bool, report: SweepReport
) -> SweepReport:
    for info in content.leftovers():
        if info.modified < older_than and (dry_run or content.remove_leftover(info.name, older_than)):
            report = replace(
                report, leftovers=report.leftovers + 1, leftover_bytes=report.leftover_bytes + info.size
            )
    return report


def _stored_events(b: Backend, stream: str) -> Iterator[Event]:
    """The events there are. What a truncation takes from under the walk is not live: it goes on behind it."""
    first = 1
    while True:
        try:
            yield from events(b, stream, first=first)
        except HistoryGap as gap:
            first = gap.truncated_through + 1
        else:
            return


def _cids_set_aside(value: Any) -> Iterator[str]:
    """The cids in the raw bytes, kept in hexadecimal, of an event that was set aside: it may be restored."""
    for part in value["raw"]:
        try:
            raw = bytes.fromhex(part)
        except ValueError:
            continue  # a number
        yield from (cid.decode() for cid in _CID.findall(raw))
