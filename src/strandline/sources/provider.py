"""Who brings rows from before: the protocol of a provider. It yields rows and keeps nothing.

A provider tells its items (files, days of a table, conversations) and gives the rows of each, in an order
that stays. What has been written of an item is in the store, not with the provider, so an item that grew is
yielded whole again: what was there comes out as it did, and the new rows behind it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from strandline.base.secret import is_reference, look_up
from strandline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.rows.dataset import Dataset

Chunk: TypeAlias = list[dict[str, Any]] | Any  # Any: a pyarrow Table or RecordBatch, which have no types


@dataclass(frozen=True, slots=True)
class Window:
    """What is asked for, both ends included; None is open."""

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since > self.until:
            raise UsageError(
                f"the window begins at {self.since.isoformat()}, after it ends, {self.until.isoformat()}",
                hint="name a --since that is not after --until",
            )

    def has(self, instant: datetime | None) -> bool:
        """One that is not known is in every window."""
        if instant is None:
            return True
        return not (
            (self.since is not None and instant < self.since)
            or (self.until is not None and instant > self.until)
        )


@dataclass(frozen=True, slots=True)
class Item:
    """Something with rows of one dataset, by an id that is the same in every run.

    `source` is that of all its rows, None where they have their own. `version` is different whenever its
    rows are, None where that is not known. Rows of a frame go through Spark and are never held here.
    """

    id: str
    dataset: str
    source: str | None = None
    modified: datetime | None = None
    size: int | None = None
    version: str | None = None
    is_frame: bool = False


class Provider(Protocol):
    """What every provider does. Anything may be raised: the item, or the listing, fails and is reported."""

    def items(self, window: Window) -> Iterator[Item]:
        """Those that may have rows of the window, in an order that stays."""

    def rows(self, item: Item) -> Iterator[Chunk]:
        """The rows in order, in chunks that fit in memory, of mappings or of tables, the same in every run.
        Nothing in them is changed later."""


@runtime_checkable
class FrameProvider(Provider, Protocol):
    """One that gives items of any size as DataFrames too: those that say `is_frame`."""

    def frame(self, item: Item, spark: "SparkSession") -> "DataFrame":
        """The rows. Computed again it gives the same."""


@runtime_checkable
class SkippingProvider(Provider, Protocol):
    """One that passes over some of what it reads, and tells how often, by what it was."""

    @property
    def skipped(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What the configuration says of one provider: `keys` are those that not all have."""

    instance: str
    keys: Mapping[str, Any]
    home: Path
    schema: "Callable[[str], Dataset | None]" = lambda _: None  # a dataset as it is, to read texts by type

    def secret(self, text: str) -> str:
        """What `env:NAME` or `file:PATH` stands for. Raises UsageError, SecretMissing."""
        if not is_reference(text):
            raise UsageError(
                f"provider {self.instance!r}: a secret stands in the file",
                hint="name it: env:NAME or file:PATH",
            )
        return look_up(text, self.home)
