"""Blobs that nothing names: an append died between its two steps, or what named them is settled.

    sweep/strays    {"listed_at", "doomed", "than", "graves"}

A blob is looked at once it is older than the grace period. It stays while it has a key `segment/<cid>`, while
a row in quarantine or a dead letter that waits is in it, while a pending ledger entry or anything else in the
store names it. Else its key becomes "dead", which expects that it has none: so of an append that is slow and
a sweep one learns of the other, and the append writes its segment anew. The key stays for another grace
period, in which every such append has ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from strandline.base.failpoint import reach
from strandline.flush.reconcile import paused
from strandline.ingest.append import segment_key
from strandline.ingest.quarantine import entries
from strandline.maintenance.sweeps.landed_segments import DEAD, chunks
from strandline.persist import ABSENT, Conflict, Delete, ExpectKey, Put
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.flush_plan import readable
from strandline.state.lease import Lease, LeaseLost
from strandline.state.pending_rows import pending
from strandline.state.sink_progress import sink_stream
from strandline.state.strand_entries import ControlUnreadable
from strandline.storage import live_cids

_KEY: Final = "sweep/strays"
_BATCH: Final = 50_000  # blobs that one walk over the store decides on
_PAGE: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Whether what these name is live is told by keys of segments, by open entries and by letters that wait.
_OURS: Final = ("strand/", "flush/", "sink/", "quarantine/", "segment/", "request/")


@dataclass(frozen=True, slots=True)
class Strayed:
    """What went. `is_paused` where it waits for an operator, after a restore: then nothing did."""

    blobs: int = 0
    bytes: int = 0
    leftovers: int = 0  # staged by puts that were cut short
    is_paused: bool = False


class _Grave(msgspec.Struct, frozen=True):
    """Keys that say "dead", and since when."""

    at: int
    cids: list[str]


class _State(msgspec.Struct, frozen=True):
    listed_at: int = 0
    than: int = 0  # what was put since then is not what was doomed
    doomed: dict[str, int] = {}  # with their sizes
    graves: list[_Grave] = []  # oldest first


def sweep_strays(site: Site, lease: Lease, *, grace_s: float) -> Strayed:
    """Remove them, listing the content store once a grace period."""
    sweep = _Strays(site, lease)
    sweep.finish()
    sweep.clear_graves(grace_s)
    now = site.clock.now_us()
    if now - sweep.state.listed_at < grace_s * 1_000_000:
        return sweep.strayed
    if paused(site) is not None:
        return replace(sweep.strayed, is_paused=True)
    sweep.run(now - int(grace_s * 1_000_000))
    sweep.commit(msgspec.structs.replace(sweep.state, listed_at=now))
    return sweep.strayed


class _Strays:
    """One run, under its lease."""

    def __init__(self, site: Site, lease: Lease) -> None:
        self.site, self._lease = site, lease
        self._stored = site.b.kv_get(_KEY)
        with readable(_KEY, None):
            self.state = _State() if self._stored is None else msgspec.convert(self._stored, _State)
        self.strayed = Strayed()

    def finish(self) -> None:
        """What a crash left in the midst of going."""
        if self.state.doomed:
            self._destroy()

    def clear_graves(self, grace_s: float) -> None:
        limit = self.site.clock.now_us() - int(grace_s * 1_000_000)
        while self.state.graves and self.state.graves[0].at <= limit:
            oldest, *others = self.state.graves
            state = msgspec.structs.replace(self.state, graves=others)
            self.commit(state, [], [Delete(segment_key(cid)) for cid in oldest.cids])

    def run(self, than: int) -> None:
        batch: dict[str, int] = {}
        for cid, size in self._without_key(than):
            batch[cid] = size
            if len(batch) == _BATCH:
                self._remove(batch, than)
                batch = {}
        self._remove(batch, than)
        for info in self.site.content.leftovers():
            if info.modified < _time(than) and self.site.content.remove_leftover(info.name, _time(than)):
                self.strayed = replace(self.strayed, leftovers=self.strayed.leftovers + 1)

    def _without_key(self, than: int) -> Iterator[tuple[str, int]]:
        """The old blobs that are no segment. Both come in order, so that each is read once."""
        keys = _segment_keys(self.site)
        key = next(keys, None)
        for cid, info in self.site.content.stored():
            while key is not None and key < cid:
                key = next(keys, None)
            if key != cid and info.modified < _time(than):
                yield cid, info.size

    def _remove(self, batch: dict[str, int], than: int) -> None:
        """The store is looked at after the listing: a blob that was old then was named before, or never."""
        for found in self._live() if batch else ():
            for cid in found:
                batch.pop(cid, None)
            if not batch:
                return
        reach("sweep.marked")
        for chunk in chunks(batch):
            self._doom({cid: batch[cid] for cid in chunk}, than)

    def _live(self) -> Iterator[Iterator[str]]:
        yield _waiting_letters(self.site)
        yield _open_entries(self.site)
        yield _pending(self.site)
        for _ in range(2):  # one that moved from a place not yet walked to one already walked is found there
            yield live_cids(self.site.b, passing=_OURS)

    def _doom(self, chunk: dict[str, int], than: int) -> None:
        while chunk:
            state = msgspec.structs.replace(self.state, doomed=chunk, than=than)
            expected: list[Expectation] = [ExpectKey(segment_key(cid), ABSENT) for cid in chunk]
            named = self.commit(state, expected, [Put(segment_key(cid), DEAD) for cid in chunk])
            if named is None:
                reach("sweep.stray_doomed")
                self._destroy()
                return
            chunk.pop(named.removeprefix(segment_key("")))  # an append was first: it is live

    def _destroy(self) -> None:
        state, gone = self.state, self.strayed
        for cid, size in state.doomed.items():
            if self.site.content.remove_older(cid, _time(state.than)):
                gone = replace(gone, blobs=gone.blobs + 1, bytes=gone.bytes + size)
            reach("sweep.stray_bytes")
        grave = _Grave(self.site.clock.now_us(), list(state.doomed))
        self.commit(msgspec.structs.replace(state, doomed={}, graves=[*state.graves, grave]))
        self.strayed = gone

    def commit(
        self, state: _State, expected: list[Expectation] | None = None, writes: list[Write] | None = None
    ) -> str | None:
        """None; or the key of a segment that an append has named meanwhile, and then nothing is written."""
        value = msgspec.to_builtins(state)
        seen = ExpectKey(_KEY, ABSENT if self._stored is None else self._stored)
        outcome = self.site.b.commit(
            [self._lease.guard, seen, *(expected or ())], [Put(_KEY, value), *(writes or ())]
        )
        if isinstance(outcome, Conflict):
            if outcome.name.startswith(segment_key("")):
                return outcome.name
            raise LeaseLost(self._lease.scope)
        self._stored, self.state = value, state
        return None


def _segment_keys(site: Site) -> Iterator[str]:
    prefix, after = segment_key(""), ""
    while page := site.b.kv_scan(prefix, after=after, limit=_PAGE):
        yield from (key.removeprefix(prefix) for key, _ in page)
        after = page[-1][0]


def _open_entries(site: Site) -> Iterator[str]:
    for dataset in site.standing.datasets():
        yield from (each.rows.cid for each in entries(site.b, dataset))


def _waiting_letters(site: Site) -> Iterator[str]:
    lines = site.standing.lines()
    for name in lines.instances():
        for strand, line in lines.of(name).items():
            stream = sink_stream(name, strand.dataset, strand.source)
            for seq in line.letters:
                event: Any = site.b.event_at(stream, seq)
                if event is None:
                    raise ControlUnreadable(stream, seq, "it is gone")
                with readable(stream, seq):
                    yield event.data["body"].cid


def _pending(site: Site) -> Iterator[str]:
    """Rows that are acknowledged and have not landed never lose their bytes, whatever became of a key."""
    for dataset in site.standing.datasets():
        for source, strand_state in site.standing.pending(dataset).items():
            yield from (
                each.entry.segment.cid for each in pending(site.b, Strand(dataset, source), strand_state)
            )


def _time(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
