"""`strandline sql`: what a query over the datasets gives."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import print_json
from strandline.cli.show_rows import format_options, row_output
from strandline.cli.verbs.read import age_facts, refresh_option
from strandline.daemon.presence import desk_of
from strandline.daemon.query_server import asked_at
from strandline.node.query import Query, QueryResult, ask

if TYPE_CHECKING:
    from strandline.node.node import Refresh


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
    with _found(home, Query(text, refresh, limit), wants_schema=format_ == "parquet") as found:
        rows = 0
        with row_output(format_, out, found.columns, found.arrow_schema, as_json=as_json) as output:
            for page in found.pages:
                output.write(page)
                rows += len(page)
    if as_json:
        told = {dataset: age_facts(age) for dataset, age in found.ages.items()}
        print_json({"end": {"rows": rows, "datasets": told}})
        return
    for dataset, age in found.ages.items():
        if age.pending_rows:
            note(f"{dataset}: {age}; --refresh always flushes first")


@contextmanager
def _found(home: Home, query: Query, *, wants_schema: bool) -> Iterator[QueryResult]:
    """By the node's daemon, if one runs; else in a Spark of this command."""
    socket = desk_of(home.config().home)
    found = None if socket is None else asked_at(socket, query, wants_schema=wants_schema)
    if found is not None:
        yield found
        return
    with home.node() as node:
        yield ask(node, query)
