"""What is configured of the retention of one dataset, in one value. Times are microseconds; 0 is no limit."""

from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from strandline.config.config import Config
from strandline.config.keys import RetentionTable
from strandline.config.sinks import SinkConfig
from strandline.lake.ports.prune import Condition, TableFiles, TimeColumn
from strandline.state.context import Site

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_NUMBERS: Final = ("int", "bigint", "float", "double")


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """`sinks` are those that are configured to take the dataset, whether they are enabled or not."""

    keep_us: int
    max_rows: int = 0
    max_bytes: int = 0
    residence_us: int = 0
    wait_for: Literal["all", "none"] | tuple[str, ...] = "all"
    hold_us: int = 0
    hold_bytes: int = 0
    is_evicting: bool = False  # rows that wait for sinks go once a limit of that is reached
    times: tuple[TimeColumn, ...] = ()
    sinks: tuple[SinkConfig, ...] = ()

    @property
    def is_limited(self) -> bool:
        return bool(self.keep_us or self.max_rows or self.max_bytes)

    def awaits(self, sink: str) -> bool:
        if isinstance(self.wait_for, str):
            return self.wait_for == "all"
        return sink in self.wait_for

    def cutoff(self, now: int) -> int | None:
        """Rows from before it are too old; None where age does not count."""
        return now - self.keep_us if self.keep_us else None

    def excess(self, files: TableFiles) -> int:
        """How many rows are too many; of bytes by what a row takes on average."""
        rows = files.rows - self.max_rows if self.max_rows else 0
        if self.max_bytes and files.bytes > self.max_bytes:
            rows = max(rows, -(-(files.bytes - self.max_bytes) * files.rows // files.bytes))
        return max(rows, 0)

    def held_for_long(self, condition: Condition) -> Condition:
        """Those of the condition that could have gone so long ago that they need not wait any longer."""
        older = condition.older_than
        return replace(
            condition,
            taken_before=condition.taken_before - self.hold_us,
            older_than=None if older is None else older - self.hold_us,
        )

    def text(self) -> str:
        """Return a text that differs for other rules, because a look by other rules says nothing.

        It is kept in the store, so it must not change with the name of this class.
        """
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "sinks")
        names = tuple((sink.instance, sink.start) for sink in self.sinks)
        return f"Rules({values}, sinks=()){names!r}"


def rules_of(config: Config, site: Site, dataset: str) -> RetentionRules:
    retention, settings = config.retention, config.settings_of(dataset)
    own = retention.datasets.get(dataset) or RetentionTable()
    types = {column.name: column.type for column in site.known(dataset).dataset.columns}
    named = [name for name in (settings.timestamp, *settings.timestamp_fallbacks) if name in types]
    days = retention.default_days if own.days is None else own.days
    return RetentionRules(
        keep_us=int(days * _DAY_US),
        max_rows=own.max_rows,
        max_bytes=own.max_bytes,
        residence_us=int(retention.min_residence_h * _HOUR_US),
        wait_for=retention.wait_for_sinks,
        hold_us=int(retention.max_hold_days * _DAY_US),
        hold_bytes=retention.max_hold_bytes,
        is_evicting=retention.on_hold_limit == "evict",
        times=tuple(
            TimeColumn(name, types[name], settings.timestamp_unit if types[name] in _NUMBERS else None)
            for name in named
            if name is not None
        ),
        sinks=tuple(each for _, each in sorted(config.sinks.items()) if each.takes(dataset)),
    )
