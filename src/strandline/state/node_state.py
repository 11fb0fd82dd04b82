"""How everything stands: ledgers, flushes and sinks folded along the global order, caught up when asked.

A process reads only what is new since it last looked. A fresh one starts at the kept snapshot `standing`,
which is written anew whenever more events have come than it has strands, so keeping it costs O(1) an event.
It is a cache: without it the same comes out of the whole order, or, where old events were folded, out of the
base that the fold has kept (`standing/base`) and what came since. The base is no cache: a version that keeps
another shape of it must read the older one.
"""

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from strandline.base.ranges import RangeSet, pairs_of, ranges_of
from strandline.errors import EventCorrupt, HistoryGap, NotStorable, UnavailableError
from strandline.persist import (
    AtomicBackend,
    Event,
    ProjectionState,
    global_events,
    global_pos,
    snapshot_load,
    snapshot_save,
)
from strandline.rows.dataset import Strand, decode_source
from strandline.state.compaction_events import Rewrites
from strandline.state.flush_plan import Numbers, with_event
from strandline.state.lifetime_counts import LifetimeCounts
from strandline.state.retention_events import Prunings
from strandline.state.sink_progress_fold import Lines
from strandline.state.strand_entries import ControlUnreadable, entry_of
from strandline.state.strand_state import DamagedRange, Pruned, StrandState, with_entry

_SNAPSHOT: Final = "standing"
_BASE: Final = "standing/base"
_VERSION: Final = "7"
# Of a base. In 5 nothing is counted, so that counts begin where it ends. Before 7 no raise is told.
_READABLE: Final = ("5", "6", _VERSION)
_LEAST_EVENTS: Final = 2_000


class KeptUnreadable(UserWarning):
    """The kept snapshot was damaged; nothing is lost, and the next one that is kept replaces it."""


class _Gone(Exception):
    """An event that has a place in the order and is not there."""

    def __init__(self, stream: str, seq: int) -> None:
        super().__init__(stream, seq)
        self.stream, self.seq = stream, seq


class Standing:
    """Safe for threads. Every look catches up first; what it tells was so at some instant within the call."""

    def __init__(self, b: AtomicBackend, *, until: int | None = None) -> None:
        self._b, self._until = b, until  # a position of the global order: as it stood there, never later
        self._lock = threading.Lock()
        self._strands: dict[str, dict[str, StrandState]] = {}  # by dataset, then source
        self._pending: dict[str, dict[str, None]] = {}  # the sources with pending rows, in a steady order
        self._numbers: dict[str, Numbers] = {}
        self._schemas: dict[str, int] = {}  # the newest event of dataset/<name>
        self._lines = Lines()
        self._prunings = Prunings()
        self._rewrites = Rewrites()
        self._counts = LifetimeCounts()
        self._position = 0
        self._kept = 0
        self._is_loaded = False
        self._pending_bytes = 0

    def catch_up(self) -> None:
        with self._lock:
            if not self._is_loaded:
                self._load()
            try:
                self._read_on()
            except (_Gone, HistoryGap):
                # Events were folded that this process had not seen: it begins anew at what the fold kept.
                self._clear()
                self._load()
                self._read_on_at_last()

    def _read_on_at_last(self) -> None:
        try:
            self._read_on()
        except _Gone as gone:
            raise ControlUnreadable(gone.stream, gone.seq, "it is gone and nothing has folded it") from gone

    def _read_on(self) -> None:
        last = global_pos(self._b)
        if self._until is not None:
            last = min(last, self._until)
        if last <= self._position:
            return  # nothing is new: what most looks find, at the price of one number
        for position, event in global_events(self._b, first=self._position + 1):
            if not isinstance(event, Event):
                raise _Gone(event.stream, event.seq)
            self._take(event)
            self._position = position
            if position == last:
                break  # what came since is for the next look

    def keep_if_due(self) -> None:
        """Called by writers, after what they came for is done: looking never writes."""
        with self._lock:
            is_due = self._position - self._kept > max(_LEAST_EVENTS, self._strand_count())
            if is_due and self._until is None:
                # It is a cache, and the rows are stored: neither a store that does not answer now, nor a fold
                # too large for one value, may fail who came to append.
                with suppress(UnavailableError, NotStorable):
                    self._keep()
                self._kept = self._position

    # What can be asked. Each catches up.

    def datasets(self) -> list[str]:
        self.catch_up()
        return sorted(self._schemas)

    def schema_event(self, dataset: str) -> int:
        self.catch_up()
        return self._schemas.get(dataset, 0)

    def strand_state(self, strand: Strand) -> StrandState:
        self.catch_up()
        return self._strands.get(strand.dataset, {}).get(strand.source, StrandState())

    def strand_states(self, dataset: str) -> Mapping[str, StrandState]:
        """By source. Do not keep it: it changes with the next look."""
        self.catch_up()
        with self._lock:
            return dict(self._strands.get(dataset, {}))

    def pending(self, dataset: str) -> dict[str, StrandState]:
        """Those with pending rows, by source; it costs as many as there are."""
        self.catch_up()
        with self._lock:
            strands = self._strands.get(dataset, {})
            return {source: strands[source] for source in self._pending.get(dataset, ())}

    def numbers(self, dataset: str) -> Numbers:
        self.catch_up()
        return self._numbers.get(dataset, Numbers())

    def pending_bytes(self) -> int:
        """Of all datasets."""
        self.catch_up()
        return self._pending_bytes

    def lines(self) -> Lines:
        """How far each sink has got. Do not keep it: it changes with the next look."""
        self.catch_up()
        return self._lines

    def prunings(self) -> Prunings:
        """What retention and purge have done, by dataset. Do not keep it."""
        self.catch_up()
        return self._prunings

    def rewrites(self) -> Rewrites:
        """What compaction has done, by dataset. Do not keep it."""
        self.catch_up()
        return self._rewrites

    def counts(self) -> LifetimeCounts:
        """What was ever done, in numbers that only grow. Do not keep it."""
        self.catch_up()
        return self._counts

    def position(self) -> int:
        return self._position

    # Folding

    def _take(self, event: Event) -> None:
        self._fold(event)
        self._counts.take(event)

    def _fold(self, event: Event) -> None:
        kind, _, rest = event.stream.partition("/")
        if kind == "strand":
            dataset, _, source = rest.partition("/")
            name = decode_source(source)
            before = self._strands.get(dataset, {}).get(name, StrandState())
            after = with_entry(before, entry_of(event), int(event.at))
            self._set(dataset, name, after)
            self._pending_bytes += after.pending_bytes - before.pending_bytes
        elif kind == "flush":
            self._numbers[rest] = with_event(self._numbers.get(rest, Numbers()), event)
        elif kind == "dataset":
            self._schemas[rest] = event.seq
        elif kind == "sink":
            self._lines.take(event)
        elif kind == "retention":
            self._prunings.take(rest, event)
        elif kind == "maintain":
            self._rewrites.take(rest, event)

    def _set(self, dataset: str, source: str, strand_state: StrandState) -> None:
        self._strands.setdefault(dataset, {})[source] = strand_state
        waiting = self._pending.setdefault(dataset, {})
        if strand_state.pending_rows:
            waiting[source] = None
        else:
            waiting.pop(source, None)

    def _strand_count(self) -> int:
        return sum(map(len, self._strands.values())) + self._lines.count()

    # The kept snapshot

    def _load(self) -> None:
        _ = self._load_kept(_SNAPSHOT) or self._load_kept(_BASE)
        self._is_loaded = True

    def _load_kept(self, name: str) -> bool:
        """Begin there, if it serves; whether it does."""
        try:
            kept = snapshot_load(self._b, name, None)
            is_after = self._until is not None and kept.seq > self._until
            versions = _READABLE if name == _BASE else (_VERSION,)
            if kept.value is None or kept.value["version"] not in versions or is_after:
                return False
            self._take_kept(kept)
        except (EventCorrupt, AttributeError, KeyError, TypeError, ValueError) as error:
            # The events say the same. Where they are gone catching up says so, and stops.
            warnings.warn(
                f"the kept snapshot {name!r} cannot be read ({error!r:.200}); all events are read anew",
                KeptUnreadable,
                stacklevel=2,
            )
            self._clear()
            return False
        return True

    def _take_kept(self, kept: ProjectionState) -> None:
        for dataset, source, *strand_state in kept.value["strands"]:
            self._set(dataset, source, _strand_state(strand_state))
        for dataset, last, open_, flushed_at, has_landed in kept.value["numbers"]:
            self._numbers[dataset] = Numbers(last, dict(open_), flushed_at, has_landed)
        self._schemas = dict(kept.value["schemas"])
        self._lines.load(kept.value["sinks"])
        self._prunings.load(kept.value["prunings"])
        self._rewrites.load(kept.value["rewrites"])
        self._counts.load(kept.value.get("counts", {}))
        self._position = self._kept = kept.seq
        self._pending_bytes = sum(each.pending_bytes for each in self._all_tallies())

    def _clear(self) -> None:
        self._strands, self._pending, self._numbers, self._schemas = {}, {}, {}, {}
        self._lines, self._prunings, self._rewrites = Lines(), Prunings(), Rewrites()
        self._counts = LifetimeCounts()
        self._position = self._kept = self._pending_bytes = 0

    def _keep(self, name: str = _SNAPSHOT) -> None:
        value = {
            "version": _VERSION,
            "strands": [
                [dataset, source, *_strand_state_data(strand_state)]
                for dataset, strands in self._strands.items()
                for source, strand_state in strands.items()
            ],
            "numbers": [
                [
                    dataset,
                    each.last,
                    [[number, event] for number, event in each.open.items()],
                    each.flushed_at,
                    each.has_landed,
                ]
                for dataset, each in self._numbers.items()
            ],
            "schemas": dict(self._schemas),
            "sinks": self._lines.data(),
            "prunings": self._prunings.data(),
            "rewrites": self._rewrites.data(),
            "counts": self._counts.data(),
        }
        snapshot_save(self._b, name, ProjectionState(value, self._position))

    def _all_tallies(self) -> Iterator[StrandState]:
        for strands in self._strands.values():
            yield from strands.values()


def keep_base(b: AtomicBackend, until: int) -> Standing:
    """Keep how everything stood at a position, so that no event up to it is needed to know; this is it.
    NotStorable where that is too large for one value: then nothing may be folded."""
    standing = Standing(b, until=until)
    standing.catch_up()
    # The newer of the two first: one that is behind the base could not read on from where it is.
    for name in (_SNAPSHOT, _BASE):
        standing._keep(name)  # noqa: SLF001  # of this room
    return standing


def _strand_state_data(strand_state: StrandState) -> list[Any]:
    return [
        strand_state.hi,
        pairs_of(strand_state.settled.ranges),
        strand_state.pending_rows,
        strand_state.pending_bytes,
        strand_state.next,
        [[each.segment, each.lo, each.hi, each.reason] for each in strand_state.holds],
        strand_state.changed_at,
        pairs_of(strand_state.empty.ranges),
        strand_state.bare,
        strand_state.removed_rows,
        [list(each) for each in strand_state.pruned],
        strand_state.raised,
    ]


def _strand_state(data: Iterable[Any]) -> StrandState:
    hi, settled, rows, bytes_, next_, holds, changed_at, empty, bare, removed_rows, pruned, *later = data
    (raised,) = later or [0]
    _check_integers(hi, rows, bytes_, next_, changed_at, bare, removed_rows, raised)
    return StrandState(
        hi,
        RangeSet(ranges_of(settled)),
        rows,
        bytes_,
        next_,
        tuple(DamagedRange(*each) for each in holds),
        changed_at,
        RangeSet(ranges_of(empty)),
        bare,
        removed_rows,
        tuple(Pruned(*each) for each in pruned),
        raised,
    )


def _check_integers(*values: Any) -> None:
    if wrong := [value for value in values if type(value) is not int]:
        raise TypeError(f"{wrong[0]!r:.80} is no integer")
