"""`strandline sql`: what a query over the datasets gives."""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.group import command
from strandline.cli.home import Home, home_options, note
from strandline.cli.output import print_json
from strandline.cli.read import age_facts, refresh_option
from strandline.cli.row_output import Row, format_options, row_output
from strandline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.node import Node, Refresh

PAGE_ROWS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class QueryRefused(UsageError):
    """A query that Spark does not understand, or that names what is not there."""


@command("sql")
@click.argument("query")
@format_options
@refresh_option
@home_options
def sql_(
    home: Home,
    as_json: bool,
    query: str,
    format_: str | None,
    out: Path | None,
    limit: int | None,
    refresh: "Refresh",
) -> None:
    """Run QUERY, in Spark's SQL, in which each dataset is a table of its visible rows; - reads it from stdin.

    For example: strandline sql 'SELECT source, count(*) FROM logs GROUP BY source'

    With --json each row is a line {"row": …}, and the last line is {"end": {"rows", "datasets"}}; what has
    not landed yet of each dataset is not read, so it has pending_rows and age_s, as with `strandline read`.
    """
    text = sys.stdin.read() if query == "-" else query
    with home.node() as node:
        found = _asked(node, text, refresh)
        ages = {dataset: node.age(dataset) for dataset in node.named_in(text)}
        names = found.columns
        _check_names(names)
        given = found if limit is None else found.limit(limit)
        rows = 0
        with row_output(format_, out, names, lambda: _schema(given), as_json=as_json) as output:
            for page in _pages(given, names):
                output.write(page)
                rows += len(page)
    if as_json:
        told = {dataset: age_facts(age) for dataset, age in ages.items()}
        print_json({"end": {"rows": rows, "datasets": told}})
        return
    for dataset, age in ages.items():
        if age.pending_rows:
            note(f"{dataset}: {age}; --refresh always flushes first")


def _asked(node: "Node", text: str, refresh: "Refresh") -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    from strandline.lake.spark import quiet_pyspark

    quiet_pyspark()  # the command tells the error itself
    try:
        found = node.sql(text, refresh=refresh)
        _ = found.schema  # on Connect nothing is looked up until someone asks
    except (AnalysisException, ParseException) as error:
        known = ", ".join(node.datasets()[:10]) or "none yet"
        raise QueryRefused(_first_line(error), hint=f"the datasets are: {known}") from error
    return found


def _check_names(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"the query gives {', '.join(twice)} twice", hint="name one of them anew, with AS")


def _pages(rows: "DataFrame", names: Sequence[str]) -> Iterator[list[Row]]:
    """In bounded memory: one partition of the result at a time is here."""
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
