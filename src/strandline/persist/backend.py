"""The contract of a backend, in words: what a store must do, whatever it keeps its bytes in.

`Backend` is the minimum, ten operations for one writer. `AtomicBackend` decides and writes in one step and
is what every facet works on; a plain `Backend` is lifted to one by `core/lift.py`. `Inspectable` and
`Portable` are what upkeep asks for beside it, `Gathering` what a host has use for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from strandline.persist.event import Absent, Compacted, Conflict, Event, Scalar, Storable


@dataclass(frozen=True, slots=True)
class ExpectSeq:
    """Holds while the last seq of `stream` is `seq`; 0 means never written."""

    stream: str
    seq: int


@dataclass(frozen=True, slots=True)
class ExpectKey:
    """Holds while `key` has `value`, compared on the canonical encoding; ABSENT means that it is not
    there."""

    key: str
    value: Storable | Absent


class Append(NamedTuple):
    """An event for `stream`; `globally` puts it into the global order as well.

    A tuple, unlike the other writes: batches are made of thousands, and a frozen dataclass takes thrice as
    long to make.
    """

    stream: str
    type: str
    at: Scalar
    data: Storable
    globally: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: Storable


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """Hides and removes the events of `stream` up to `n`; its last seq stays."""

    stream: str
    n: int


@dataclass(frozen=True, slots=True)
class Redact:
    """Puts None in place of the value at `path` (keys and indexes) in the data of a stored event."""

    stream: str
    seq: int
    path: Sequence[str | int]


Expectation: TypeAlias = ExpectSeq | ExpectKey
Write: TypeAlias = Append | Put | Delete | Truncate | Redact
Once: TypeAlias = tuple[str, str]
Outcome: TypeAlias = list[Event] | Conflict
Commit: TypeAlias = tuple[Sequence[Expectation], Sequence[Write], Once | None]


class StreamHead(NamedTuple):
    """What a store knows of a stream without its events."""

    name: str
    last_seq: int
    truncated_through: int


class Damage(NamedTuple):
    """One finding of `verify`. `what` is event, mark, key, marker, pointer or quarantined; `seq` 0 where
    there is none."""

    what: str
    name: str
    seq: int
    found: str


class Backend(Protocol):
    """Ten operations for one writer. The last seq of a stream is kept apart from its rows and never goes
    back."""

    def append(self, stream: str, event: Event) -> int:
        """Store `event` under the seq that it carries, which must be the next one, else SequenceError."""

    def read(self, stream: str) -> list[Event]:
        """The stored events, oldest first."""

    def last_seq(self, stream: str) -> int:
        """The highest seq ever given out, 0 if none."""

    def streams(self) -> list[str]:
        """Every stream ever appended to, in order of code points."""

    def truncate_through(self, stream: str, n: int) -> None:
        """Remove the events up to `n`."""

    def kv_get(self, key: str) -> Storable:
        """The value, None if the key is absent."""

    def kv_put(self, key: str, value: Storable) -> None:
        """Insert or overwrite."""

    def kv_delete(self, key: str) -> None:
        """Remove; an absent key is no error."""

    def kv_has(self, key: str) -> bool:
        """Whether the key is there."""

    def kv_keys(self) -> list[str]:
        """Every key, in order of code points."""


@runtime_checkable
class AtomicBackend(Backend, Protocol):
    """A Backend that decides and writes in one step, serves many threads, and reads by pages."""

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        """Apply every write, in order, or none; seqs are given out inside; durable once this returns.

        The first precondition not met, against the state before, comes back as a Conflict. Under a `once`
        that is known nothing is written and the first result comes back, whatever the preconditions; if the
        writes differ it is KEY_REUSED. Raises StoreUnavailable if nothing was written, OutcomeUnknown if
        the answer is lost.
        """

    def read_range(
        self,
        stream: str,
        first: int,
        last: int,
        *,
        limit: int,
        type: str | None = None,
        start: Scalar | None = None,
        end: Scalar | None = None,
    ) -> Iterator[Event]:
        """At most `limit` stored events with first <= seq <= last, ascending. It seeks, it never scans.

        A page may be shorter than its limit; only an empty one is the end.
        """

    def event_at(self, stream: str, seq: int) -> Event | None:
        """That very event, None if it is not stored."""

    def truncated_through(self, stream: str) -> int:
        """The highest seq ever truncated, never above the last seq."""

    def global_range(self, first: int, *, limit: int) -> Iterator[tuple[int, Event | Compacted]]:
        """At most `limit` positions from `first` on, dense and ascending, each with its event."""

    def stream_scan(self, prefix: str, *, after: str, limit: int) -> list[StreamHead]:
        """At most `limit` streams that start with `prefix` and come after `after`, in order of code
        points."""

    def kv_scan(self, prefix: str, *, after: str, limit: int) -> list[tuple[str, Storable]]:
        """At most `limit` keys that start with `prefix` and come after `after`, with their values."""

    def wait(self, stream: str, after: int, *, timeout_s: float) -> int:
        """The last seq of `stream`, as soon as it exceeds `after` or the time is up."""

    def info(self) -> dict[str, Any]:
        """backend, lineage, format, streams and events (P-CAT-3, P-CAT-5), bytes, commits and conflicts of
        this object."""

    def scrub(self, *, rewrite: bool = False) -> None:
        """Make the bytes of what was removed leave the files."""

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine; using it afterwards is a UsageError."""


@runtime_checkable
class Gathering(Protocol):
    """A backend that stores the commits of many callers at once, though one thread brings them all."""

    def commit_each(self, commits: Sequence[Commit]) -> list[Outcome | Exception]:
        """As `commit` of each in turn; what it would raise stands in its place."""


@runtime_checkable
class Inspectable(Protocol):
    """A backend that can look at its own rows as they are, damaged ones included."""

    def verify(self) -> list[Damage]:
        """Everything that is damaged or missing, reading all there is."""

    def quarantine(self, stream: str, seq: int, at: Scalar) -> None:
        """Move the raw bytes of one event aside, in one commit, leaving a recorded gap.

        Of an event that is missing there are none. NotFoundError if it was never given out, was truncated, or
        was set aside before.
        """


@runtime_checkable
class Spendable(Protocol):
    """A backend that may come to refuse all further use, though the store can be used, opened again."""

    @property
    def spent(self) -> str | None:
        """Why it does, None as long as it does not."""


def why_spent(b: Backend) -> str | None:
    """What whoever keeps a store open for long asks, to open it again or to end."""
    return b.spent if isinstance(b, Spendable) else None


class Record(NamedTuple):
    """One thing of a whole store, as verify, backup and restore hand it on. `body` is positional:

    meta     (name, value)                        lineage, format, backend
    key      (key, text, sum)                     text is the canonical encoding
    stream   (name, last_seq, truncated_through)
    event    (stream, seq, type, at, text, sum)   after its stream, ascending
    pointer  (position, stream, seq, at, sum)     after every event; `$global` itself is a stream without
    events

    in this order of kinds, but that each stream is followed by its events.
    """

    kind: str
    body: tuple[Any, ...]


@runtime_checkable
class Portable(Protocol):
    """A backend that stands beside its data, so that the whole of it can be taken out and put in."""

    def dump(self, *, raw: bool = False) -> Iterator[Record]:
        """Everything as of one instant, while the store is in use; `raw` looks past what the storage itself
        refuses.

        Checksums are handed on, not looked at: see audit.py.
        """

    def load(self, records: Iterable[Record]) -> Mapping[str, int]:
        """Fill this store, which must be empty, all or nothing; how many of each kind. The lineage stays
        this store's."""
