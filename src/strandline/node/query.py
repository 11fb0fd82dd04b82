"""A query over the datasets, and what it gives: columns, how old the data is, and rows page by page.

Rows are plain values, so that they may come from another process: times with a zone, decimals, bytes, and
dicts and lists for what is nested.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from strandline.errors import UsageError
from strandline.read.visible import DataAge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.node.node import Node, Refresh

Row = Mapping[str, Any]
PAGE_ROWS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class QueryRefused(UsageError):
    """A query that Spark does not understand, or that names what is not there."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked."""

    text: str
    refresh: "Refresh" = "auto"
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gives; `pages` once, in bounded memory. `ages` is of each dataset that it may mean."""

    columns: list[str]
    ages: dict[str, DataAge]
    pages: Iterator[list[Row]]
    arrow_schema: Callable[[], Any]


def ask(node: "Node", query: Query, *, session: "SparkSession | None" = None) -> QueryResult:
    """Run it, in the node's session or in one of its Spark that is given."""
    rows = _asked(node, query, session)
    ages = {dataset: node.age(dataset) for dataset in node.named_in(query.text)}
    columns = rows.columns
    _check_names(columns)
    given = rows if query.limit is None else rows.limit(query.limit)
    return QueryResult(columns, ages, _pages(given, columns), lambda: _schema(given))


def _asked(node: "Node", query: Query, session: "SparkSession | None") -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    from strandline.lake.spark.session import quiet_pyspark

    quiet_pyspark()  # who asks is told the error itself
    try:
        found = node.sql(query.text, refresh=query.refresh, session=session)
        _ = found.schema  # on Connect nothing is looked up until someone asks
    except (AnalysisException, ParseException) as error:
        known = ", ".join(node.datasets()[:10]) or "none yet"
        raise QueryRefused(_first_line(error), hint=f"the datasets are: {known}") from error
    return found


def _check_names(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"the query gives {', '.join(twice)} twice", hint="name one of them anew, with AS")


def _pages(rows: "DataFrame", names: Sequence[str]) -> Iterator[list[Row]]:
    """One partition of the result at a time is here."""
    from pyspark.sql.types import TimestampType

    times = [isinstance(field.dataType, TimestampType) for field in rows.schema.fields]
    places = [f"c{place}" for place in range(len(names))]
    # As numbers: pyspark gives times without a zone, in that of this machine.
    exact = [
        f"unix_micros({place}) AS {place}" if is_time else place
        for place, is_time in zip(places, times, strict=True)
    ]
    page: list[Row] = []
    for found in rows.toDF(*places).selectExpr(*exact).toLocalIterator():
        values = found.asDict(recursive=True).values()
        page.append(
            {
                name: _time(value) if is_time else value
                for name, value, is_time in zip(names, values, times, strict=True)
            }
        )
        if len(page) == PAGE_ROWS:
            yield page
            page = []
    if page:
        yield page


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _schema(rows: "DataFrame") -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:1000]
