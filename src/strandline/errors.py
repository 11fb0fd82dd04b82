"""Every error Strandline raises, one tree, grouped by what the caller does next.

Each class has a `kind` (its name in snake case), which is what the wire, the command line and logs carry,
and a `hint` that says what to do. Facts are attributes, so nobody has to parse a message. All of them
survive pickling.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

KINDS: dict[str, type["StrandlineError"]] = {}


class StrandlineError(Exception):
    """What every error of Strandline is."""

    kind: ClassVar[str] = "strandline"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower().removesuffix("_error")
        KINDS[cls.kind] = cls

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_error, (type(self), self.args, self.__dict__)

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def facts(self) -> dict[str, Any]:
        """The attributes beside the message: what a program may want to know."""
        return dict(self.__dict__)


def rebuild_error(
    cls: type[StrandlineError], args: Sequence[Any], facts: Mapping[str, Any]
) -> StrandlineError:
    """The error as it was raised elsewhere: in another process, or behind a wire."""
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    error.__dict__.update({"hint": None, **facts})
    return error


class UsageError(StrandlineError, ValueError):
    """The call is wrong: fix the call."""


class NotFoundError(StrandlineError):
    """What was asked for is not here."""


class UnavailableError(StrandlineError):
    """Something outside failed: the same call may work later."""


class HeldError(StrandlineError):
    """A person or a time releases it."""


class CorruptionError(StrandlineError):
    """Stored data breaks a promise: stop and look."""


class PersistError(StrandlineError):
    """The errors that the event store's specification names."""


class UnknownOp(PersistError):
    """A host was asked for an operation that it does not have."""

    def __init__(self, op: object) -> None:
        super().__init__(
            f"unknown operation {op!r}",
            hint="the host may be older than the client; compare their versions",
        )
        self.op = op


class ProtocolError(PersistError):
    """The other side answered with something that is no answer."""


class SequenceError(PersistError):
    """An event was handed to a backend with a seq that is not the next one."""

    def __init__(self, stream: str, *, seq: int, last_seq: int) -> None:
        super().__init__(
            f"event for stream {stream!r} has seq {seq}, but the next one is {last_seq + 1}",
            hint="append through the log facet, which has the store give out the seq",
        )
        self.stream, self.seq, self.last_seq = stream, seq, last_seq


class ReservedName(PersistError, UsageError):
    """An application wrote to a name that starts with `$`."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"{what} {name!r} is reserved: names that start with '$' belong to the store",
            hint="choose a name that does not start with '$'",
        )
        self.what, self.name = what, name


class NotStorable(PersistError, UsageError):
    """A value that the store cannot give back as it was; nothing was written."""


class HistoryGap(PersistError):
    """A fold or a cursor would skip events that are gone."""

    def __init__(self, stream: str, *, prior_seq: int, truncated_through: int) -> None:
        super().__init__(
            f"events of {stream!r} up to seq {truncated_through} are gone, and the reader is at {prior_seq}",
            hint="replay from a snapshot of the stream, or pass allow_gap=True to fold what is left",
        )
        self.stream, self.prior_seq, self.truncated_through = stream, prior_seq, truncated_through


class SnapshotMismatch(PersistError):
    """A snapshot belongs to another stream, another version of the fold, or another history."""


class BlobCorrupt(PersistError, CorruptionError):
    """The bytes of a blob do not have the digest or the size that their reference names."""

    def __init__(self, cid: str, found: str) -> None:
        super().__init__(
            f"blob {cid} is damaged: {found}",
            hint="put the bytes back from a copy; storing them anew repairs it",
        )
        self.cid = cid


class EventCorrupt(PersistError, CorruptionError):
    """A stored event or value does not match its checksum, or an event is missing. A read raises it, and
    returns nothing of it. Reads of SQLite check the page that holds a row, `verify` checks the row too."""

    def __init__(self, stream: str, seq: int | None, found: str) -> None:
        where = f"key {stream!r}" if seq is None else f"event {seq} of stream {stream!r}"
        super().__init__(
            f"{where} is damaged: {found}",
            hint="`strandline persist verify` lists all damage; --quarantine sets it aside",
        )
        self.stream, self.seq = stream, seq


class LineageMismatch(PersistError, HeldError):
    """A cursor was made on a store whose history may not be this one's."""

    def __init__(self, consumer: str, *, cursor: str, store: str) -> None:
        super().__init__(
            f"consumer {consumer!r} was made on lineage {cursor}, this store is {store}: it was restored "
            "from a backup, so events that the consumer has seen may be gone and their seqs given out anew",
            hint="compare what it holds with the store, then say where to go on: consumer(..., start=seq)",
        )
        self.consumer, self.cursor, self.store = consumer, cursor, store


class UnsupportedFormat(PersistError):
    """The store was written by a newer version of Strandline."""


class StoreUnavailable(PersistError, UnavailableError):
    """The store could not be reached or could not write; nothing was written."""


class OutcomeUnknown(PersistError, UnavailableError):
    """A write was sent and its answer was lost: it may or may not have been applied."""

    def __init__(self, message: str, *, once: Sequence[str] | None) -> None:
        super().__init__(
            message,
            hint="repeat the same write under the same idempotency key: it then has one effect"
            if once
            else "read what is stored before you write again",
        )
        self.once = tuple(once) if once else None


class SubscriberErrors(ExceptionGroup[Exception], PersistError):
    """Callbacks raised after the event was stored; it is stored, and every other callback ran."""

    event: Any

    def __new__(cls, message: str, errors: Sequence[Exception], event: Any = None) -> Self:
        self: Self = super().__new__(cls, message, list(errors))
        self.event, self.hint = (
            event,
            "the event is stored: do not append it again; look at the errors inside",
        )
        return self

    def __init__(self, message: str, errors: Sequence[Exception], event: Any = None) -> None:
        """All is set in __new__, as exception groups do."""

    def derive(self, excs: Sequence[Exception]) -> "SubscriberErrors":  # type: ignore[override]  # narrower is right
        return SubscriberErrors(self.message, excs, self.event)
