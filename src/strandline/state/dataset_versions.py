"""The schema of record: `dataset/<dataset>`, one event a version, each of them the whole dataset.

    declared  {columns: [[name, type, required], …], version, source_columns, identity, collapse, …}

Growth and the rows that need it are one transaction, which expects this stream where it was read.
"""

from dataclasses import asdict, dataclass
from typing import Any

from strandline.errors import NotFoundError
from strandline.persist import Append, AtomicBackend, Event
from strandline.rows.dataset import Column, Dataset, Identity
from strandline.state.strand_entries import ControlUnreadable


class DatasetUnknown(NotFoundError):
    """A dataset that nobody declared and that has no row."""

    def __init__(self, name: str, known: list[str]) -> None:
        shown = ", ".join(known[:10]) or "none"
        super().__init__(
            f"there is no dataset {name!r}; known are: {shown}",
            hint=f"append a row to it, or declare it as [datasets.{name}] in strandline.toml",
        )
        self.name, self.known = name, known


@dataclass(frozen=True, slots=True)
class Recorded:
    """A dataset as it is recorded, and the event that says so; 0 where there is none yet."""

    dataset: Dataset
    event: int


def dataset_stream(name: str) -> str:
    return f"dataset/{name}"


def recorded(b: AtomicBackend, name: str) -> Recorded | None:
    """The newest version, None if there is none. One small read."""
    stream = dataset_stream(name)
    last = b.last_seq(stream)
    return None if last == 0 else Recorded(_dataset_at(b, stream, last), last)


def recorded_version(b: AtomicBackend, name: str, version: int) -> Dataset:
    """The dataset as it was at a version: each event is one."""
    return _dataset_at(b, dataset_stream(name), version)


def declared(dataset: Dataset, at: int) -> Append:
    data = asdict(dataset)
    data["columns"] = [[column.name, column.type, column.required] for column in dataset.columns]
    data["source_columns"] = list(dataset.source_columns)
    if dataset.identity is not None:
        data["identity"] = {**asdict(dataset.identity), "legacy": list(dataset.identity.legacy)}
    return Append(dataset_stream(dataset.name), "declared", at, data, globally=True)


def _dataset_at(b: AtomicBackend, stream: str, seq: int) -> Dataset:
    event = b.event_at(stream, seq)
    if event is None:
        raise ControlUnreadable(stream, seq, "it is gone")
    return dataset_of(event)


def dataset_of(event: Event) -> Dataset:
    try:
        data: dict[str, Any] = dict(event.data)
        data["columns"] = tuple(Column(*column) for column in data["columns"])
        data["source_columns"] = tuple(data["source_columns"])
        if data["identity"] is not None:
            identity = data["identity"]
            data["identity"] = Identity(**{**identity, "legacy": tuple(identity["legacy"])})
        return Dataset(**data)
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, str(error)) from error
