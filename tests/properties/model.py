"""What a store must do, on plain lists and dicts: the model that every backend is compared with."""

from dataclasses import dataclass, field
from typing import Any, Final

from strandline.errors import HistoryGap
from strandline.persist import Compacted, Conflict, Event, ProjectionState

GLOBAL: Final = "$global"


@dataclass
class Stream:
    rows: dict[int, Event] = field(default_factory=dict)
    mark: int = 0
    truncated: int = 0


@dataclass
class Marker:
    """What an idempotency key remembers; `said` goes when the data must be forgotten."""

    event: Event
    said: tuple[str, Any, bool] | None
    asked: tuple[str, Any, bool]  # what the test asked for at first, to ask for it again


class Model:
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.positions: list[tuple[str, int]] = []
        self.trimmed = 0
        self.keys: dict[str, Any] = {}
        self.markers: dict[tuple[str, str], Marker] = {}
        self.snapshots: dict[str, ProjectionState] = {}  # by stream, whose one snapshot it is
        self.holds: dict[tuple[str, str], int] = {}
        self.cursors: dict[str, int] = {}  # by stream, whose one consumer it is
        self.erasures = 0

    def of(self, stream: str) -> Stream:
        """The stream to look at; one that is not there is empty."""
        return self.streams.get(stream, Stream())

    def append(self, stream: str, type_: str, at: Any, data: Any, *, globally: bool = False) -> Event:
        target = self.streams.setdefault(stream, Stream())
        target.mark += 1
        event = Event(stream, target.mark, type_, at, data)
        target.rows[event.seq] = event
        if globally:
            self.positions.append((stream, event.seq))
        return event

    def append_once(
        self, stream: str, key: str, type_: str, at: Any, data: Any, *, globally: bool
    ) -> Event | Conflict:
        known = self.markers.get((stream, key))
        if known is None:
            event = self.append(stream, type_, at, data, globally=globally)
            said = (type_, data, globally)
            self.markers[stream, key] = Marker(event, said, said)
            return event
        first = known.event
        if known.said == (type_, data, globally):
            return Event(stream, first.seq, type_, first.at, data)
        return Conflict(key, self.stored(stream, first.seq), "KEY_REUSED")

    def stored(self, stream: str, seq: int) -> Event | Compacted:
        return self.of(stream).rows.get(seq) or Compacted(stream, seq)

    def truncate(self, stream: str, n: int) -> None:
        target = self.of(stream)
        target.truncated = max(target.truncated, min(n, target.mark))
        target.rows = {seq: event for seq, event in target.rows.items() if seq > target.truncated}

    def read(self, stream: str) -> list[Event]:
        return [event for _, event in sorted(self.of(stream).rows.items())]

    def global_order(self) -> list[tuple[int, Event | Compacted]]:
        """Positions from the first that is not trimmed."""
        everything = [(place, self.stored(*entry)) for place, entry in enumerate(self.positions, 1)]
        return everything[self.trimmed :]

    def fold(self, stream: str, prior: ProjectionState) -> ProjectionState | type[HistoryGap]:
        if prior.seq < self.of(stream).truncated:
            return HistoryGap
        tail = [event for event in self.read(stream) if event.seq > prior.seq]
        return ProjectionState(prior.value + sum(e.data["n"] for e in tail), tail[-1].seq) if tail else prior

    def replay(self, stream: str) -> ProjectionState | type[HistoryGap]:
        return self.fold(stream, self.snapshots.get(stream, ProjectionState(0, 0)))

    def compact(self, stream: str) -> ProjectionState | type[HistoryGap]:
        state = self.replay(stream)
        if isinstance(state, ProjectionState):
            self.snapshots[stream] = state
            self.truncate(stream, self.floor(stream, state.seq))
        return state

    def floor(self, stream: str, covered: int) -> int:
        """The highest seq up to `covered` that nobody needs."""
        needed = [covered, *(seq for (name, _), seq in self.holds.items() if name == stream)]
        if stream in self.cursors:
            needed.append(self.cursors[stream])
        floor = min(needed)
        if GLOBAL in self.cursors and floor > 0:
            ahead = self.positions[max(self.cursors[GLOBAL], self.trimmed) :]
            pointed_at = [seq for name, seq in ahead if name == stream and seq <= floor]
            floor = min([floor, *(seq - 1 for seq in pointed_at[:1])])
        return floor

    def trim(self, through: int) -> int:
        through = min(
            [through, len(self.positions), *([self.cursors[GLOBAL]] if GLOBAL in self.cursors else [])]
        )
        self.trimmed = max(self.trimmed, through)
        return self.trimmed

    def poll(self, stream: str) -> list[Any] | type[HistoryGap]:
        """What follows the cursor, up to what is gone; if that comes first, HistoryGap."""
        cursor = self.cursors[stream]
        if stream == GLOBAL:
            if cursor < self.trimmed:  # it began after that
                return HistoryGap
            ahead = [
                (place, self.stored(*entry))
                for place, entry in enumerate(self.positions, 1)
                if place > cursor
            ]
            if ahead and isinstance(ahead[0][1], Compacted):
                return HistoryGap
            gone = next((i for i, (_, event) in enumerate(ahead) if isinstance(event, Compacted)), None)
            return ahead[:gone]
        if self.of(stream).truncated > cursor:
            return HistoryGap
        return [event for event in self.read(stream) if event.seq > cursor]

    def last(self, stream: str) -> int:
        return len(self.positions) if stream == GLOBAL else self.of(stream).mark

    def erase(self, stream: str) -> None:
        self.truncate(stream, self.of(stream).mark)
        self.snapshots.pop(stream, None)
        for (name, _), marker in self.markers.items():
            if name == stream:
                marker.said = None
        self.erasures += 1

    def redact(self, stream: str, seq: int, key: str) -> bool:
        """Whether there was something to redact."""
        event = self.of(stream).rows.get(seq)
        if event is None:
            return False
        self.streams[stream].rows[seq] = Event(stream, seq, event.type, event.at, {**event.data, key: None})
        for marker in self.markers.values():
            if (marker.event.stream, marker.event.seq) == (stream, seq):
                marker.said = None
        self.erasures += 1
        return True
