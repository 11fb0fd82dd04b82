"""Anything that Spark reads, by format and options: a database over JDBC, another lake, files of any kind.

    [backfill.shop]
    type = "spark"
    format = "jdbc"
    options = { url = "jdbc:postgresql://db.example/shop", dbtable = "orders", password = "env:SHOP_KEY" }
    dataset = "orders"
    time_column = "created_at"

With a `time_column` each day (UTC) is an item, which does not change once it is over; without one all rows
are one item.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Final

from strandline.base.secret import is_reference
from strandline.errors import UsageError
from strandline.sources.provider import Chunk, Item, ProviderOptions, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SparkSource:
    """One source of Spark."""

    name: str
    format: str
    load: str
    options: Mapping[str, str]
    select: tuple[str, ...]
    time_column: str
    dataset: str
    source: str | None

    def items(self, window: Window) -> Iterator[Item]:
        if not self.time_column:
            yield Item(self.name, self.dataset, self.source, is_frame=True)
            return
        if window.since is None:
            raise UsageError(
                f"provider {self.name!r} is cut into days, and nothing says from which on",
                hint="name --since, or window_days of the provider",
            )
        day, last = window.since.date(), (window.until or datetime.now(UTC)).date()
        while day <= last:
            over = datetime.combine(day + _DAY, time(), UTC)
            yield Item(f"{self.name}/{day}", self.dataset, self.source, modified=over, is_frame=True)
            day += _DAY

    def rows(self, item: Item) -> Iterator[Chunk]:
        raise UsageError(f"{item.id!r} goes through Spark whole", hint="ask for its frame")

    def frame(self, item: Item, spark: "SparkSession") -> "DataFrame":
        reader = spark.read.format(self.format).options(**self.options)
        rows = reader.load(self.load) if self.load else reader.load()
        if self.time_column:
            rows = rows.where(self._day_sql(rows, date.fromisoformat(item.id.rpartition("/")[2])))
        return rows.selectExpr(*self.select) if self.select else rows

    def _day_sql(self, rows: "DataFrame", day: date) -> str:
        column = "`" + self.time_column.replace("`", "``") + "`"
        types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        if types.get(self.time_column) == "date":
            return f"{column} = date'{day}'"
        return (
            f"{column} >= timestamp'{day} 00:00:00 UTC' and {column} < timestamp'{day + _DAY} 00:00:00 UTC'"
        )


def configure(options: ProviderOptions) -> SparkSource:
    keys = options.keys
    given = {
        name: options.secret(value) if is_reference(value) else _text(value)
        for name, value in keys["options"].items()
    }
    return SparkSource(
        options.instance,
        keys["format"],
        keys["load"],
        given,
        tuple(keys["select"]),
        keys["time_column"],
        keys["dataset"],
        keys["source"] or None,
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
