"""What a sink is: a plain value that delivers units of rows to one destination.

A sink is pickled and sent to where the rows are. It knows neither Spark nor the store; what it did it tells
by outcomes, and whoever drives it records them. The same unit may be delivered twice, at once even, so a
destination must be able to tell a repeat: by its range, or by the name of its object.

    sink.opened() ──▶ delivery.deliver(unit, rows) ──▶ outcomes      once for each unit, in order in a strand
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, Self, TypeAlias

from strandline.base.ranges import Range
from strandline.errors import HeldError, UnavailableError
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

Status: TypeAlias = Literal[
    "stored",  # the destination has it, for good
    "known",  # it had it already
    "bad_rows",  # it will never take these rows; those around them it took
    "poison",  # it will never take this unit as it is
    "pace",  # it asks to wait: `wait_s`, or as usual if that is None
    "failed",  # it may work later
    "refused",  # it may work later, but only if someone repairs what is between us: held after some tries
    "denied",  # the credential must be read anew
    "held",  # it goes on when someone has changed something: see `scope`
    "put_off",  # not tried, since a unit of the strand before it did not get through
]
Scope: TypeAlias = Literal["strand", "instance"]

DONE: Final = frozenset({"stored", "known"})
GOES_ON: Final = DONE | {"bad_rows"}


@dataclass(frozen=True, slots=True)
class Limits:
    """How an intent is cut into units, and what they are made of: fixed before the first one leaves."""

    unit_rows: int
    unit_bytes: int = 0  # a unit that encodes to more is halved; 0: units are never halved
    encoder: str = ""


@dataclass(frozen=True, slots=True)
class Shipment:
    """What all units of one job have in common. `dataset` is in the version that the intents name."""

    instance: str
    origin: str
    node: str
    dataset: Dataset
    signal: str
    traceparent: str = ""  # of the run, for destinations that go on with the trace


@dataclass(frozen=True, slots=True)
class Unit:
    """One request or object: the rows of `(lo, hi]` of a strand that are there, and not withheld.

    `after` is where the unit before it in the chain ended; an object's name begins there.
    """

    shipment: Shipment
    intent: str
    epoch: int
    source: str
    lo: int
    hi: int
    after: int
    limits: Limits
    through: int = 0  # up to here the destination may hold rows of earlier intents

    @property
    def range(self) -> Range:
        return Range(self.lo, self.hi)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a unit, or of a part of it. A unit's outcomes are disjoint and in order; ranges between
    them had no row."""

    lo: int
    hi: int
    status: Status
    rows: int = 0
    bytes: int = 0
    digest: str = ""  # hex SHA-256 of what was delivered
    target: str = ""  # where it is: an object's key, or the id of a request
    requests: int = 0
    kind: str = ""  # of the error, in snake_case
    text: str = ""
    http_status: int = 0
    wait_s: float | None = None
    scope: Scope = "strand"

    @property
    def goes_on(self) -> bool:
        """Whether the next unit of the strand may be tried."""
        return self.status in GOES_ON


@dataclass(frozen=True, slots=True)
class Stored:
    """What a destination says it holds of a strand. What it does not tell is None."""

    lo: int
    hi: int
    rows: int | None = None
    digest: str | None = None
    target: str = ""


@dataclass(frozen=True, slots=True)
class Holdings:
    """All that a destination holds of one strand in one epoch; `strangers` are things there that no unit
    has the name of."""

    stored: tuple[Stored, ...] = ()
    strangers: tuple[str, ...] = field(default=())
    newest: tuple[int, str] | None = None  # the highest seq that this sink brought, and its intent, if told


class OtherLife(HeldError):
    """The destination holds rows that this node has not sent, under numbers that this node gives out now."""

    def __init__(self, instance: str, dataset: str, source: str, *, newest: int, through: int) -> None:
        verb = f"strandline sink {{}} {instance} {dataset} --to"
        super().__init__(
            f"the destination of sink {instance!r} holds {dataset!r}, source {source!r}, through seq "
            f"{newest:,}, and this node has sent none above {through:,}: it was put back from a copy, or is "
            "a copy",
            hint="a copy needs an id of its own: `strandline init --new-origin`. A node that was put back "
            f"sends its new rows with `{verb.format('rewind')} {through} --resend`. Rows that are there "
            f"already are passed with `{verb.format('skip')} {newest}`",
        )
        self.instance, self.dataset, self.source = instance, dataset, source
        self.newest, self.through = newest, through

    @property
    def text(self) -> str:
        """What a hold records: the remedy depends on the strand, so it is kept beside the reason."""
        return f"{self.message}; {self.hint}"


class FoundAhead(NamedTuple):
    """The highest seq that a destination holds and this node has not sent, if any, and what asking took."""

    seq: int | None = None
    requests: int = 0


class RangesUnavailable(UnavailableError):
    """The receiver did not tell what it holds. `http_status` is 0 where there was no answer."""

    def __init__(
        self,
        url: str,
        found: str,
        *,
        status: Status = "failed",
        http_status: int = 0,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(
            f"{url} did not tell which rows it holds: {found}",
            hint="it is asked again later; nothing is lost or sent twice meanwhile",
        )
        self.url, self.status, self.http_status, self.wait_s = url, status, http_status, wait_s


class Delivery(Protocol):
    """A sink at work in one task: it may keep a connection open from unit to unit."""

    def deliver(self, unit: Unit, rows: "Iterator[pa.RecordBatch]") -> Iterator[Outcome]:
        """Deliver the rows of one unit: there is at least one, in order of `_sl_seq`, which stands behind the
        dataset's columns and `source`. It never sleeps, and what goes wrong is an outcome, not an error."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """What a destination is put up with, and for how long."""

    inline_wait_s: float = 300  # a run waits for a unit in all, at most
    poison_attempts: int = 3
    on_poison: Literal["dead_letter", "hold"] = "dead_letter"
    min_bytes: int = 0  # less than this waits for more,
    max_delay_s: float = 0  # but not longer than this
    refused_attempts: int = 20  # of one unit; with the waits between them this takes about an hour


class Sink(Protocol):
    """A configured destination. Frozen, picklable, and silent about its secrets when printed.

    Derive from it: then only `fingerprint`, `limits` and `opened` have to be written.
    """

    @property
    def is_ordered(self) -> bool:
        """Whether a strand's units must be delivered one after another, by one task."""
        return False

    @property
    def asks_first(self) -> bool:
        """Whether `holdings` is to be asked before an intent is taken up again."""
        return False

    @property
    def wants_row_id(self) -> bool:
        """Whether rows come with `_sl_row_id` behind `_sl_seq`."""
        return False

    @property
    def parallel(self) -> int | None:
        """How many tasks may deliver at once, None for as many as there are."""
        return None

    @property
    def patience(self) -> Patience:
        return Patience()

    @property
    def fingerprint(self) -> str:
        """The destination, without secrets: another one is another destination."""
        ...

    def is_at(self, fingerprint: str) -> bool:
        """Whether a destination that was recorded as this is the one of now."""
        return fingerprint == self.fingerprint

    def cannot_take(self, dataset: Dataset) -> str | None:  # noqa: ARG002
        """Why no row of a dataset can be delivered here, None if it can."""
        return None

    def limits(self, mean_row_bytes: float) -> Limits:
        """How to cut an intent of rows of about this size (0: not known)."""
        ...

    @property
    def prepares(self) -> bool:
        """Whether `prepared` does anything."""
        return False

    def prepared(self, dataset: Dataset, rows: "pa.RecordBatch") -> "pa.RecordBatch":  # noqa: ARG002
        """Rows with what can be made of them before their turn comes, in columns more. It is called in
        another thread, while a unit before them is under way; not all of them need leave."""
        return rows

    def opened(self) -> AbstractContextManager[Delivery]: ...

    def holdings(self, shipment: Shipment, source: str, epoch: int) -> Holdings | None:  # noqa: ARG002
        """What the destination has of a strand; None where it cannot tell. Its errors are StrandlineErrors;
        RangesUnavailable says as an outcome does when to ask again."""
        return None

    def ahead(self, shipment: Shipment, source: str, epoch: int, after: int, through: int) -> FoundAhead:  # noqa: ARG002
        """Return the highest seq above `through` that the destination holds of a strand, and what that took.

        `after` is where the newest unit of this node ends. Answer it if the destination does not refuse units
        of a node that was put back from a copy. It is asked before a process delivers new rows, and its
        errors are StrandlineErrors.
        """
        return FoundAhead()

    def renewed(self) -> Self:
        """The same sink, its credentials read anew."""
        return self
