"""`strandline load`: rows of any Spark source land in a table, without going through the spool."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.base.secret import is_reference
from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options
from strandline.cli.show import print_facts, print_json
from strandline.config.toml_file import is_secret_name, look_up
from strandline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.ingest.load import LoadResult

_FORMATS: Final = {
    ".avro": "avro",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
    ".parquet": "parquet",
}
_PACKED: Final = (".gz", ".zst", ".bz2", ".snappy")


class InputUnreadable(UsageError):
    """Spark cannot read what a load was told to."""


@command("load")
@click.argument("dataset")
@click.argument("paths", nargs=-1, metavar="[PATH]…")
@click.option("--format", "format_", metavar="NAME", help="Any of Spark's: parquet, csv, json, orc, jdbc, …")
@click.option("--option", "options", multiple=True, metavar="K=V", help="Of that format; may be repeated.")
@click.option("--source", metavar="SOURCE", help="The source of all rows.")
@click.option("--request-id", metavar="ID", help="Has one effect however often it is repeated.")
@home_options
def load_(
    home: Home,
    as_json: bool,
    dataset: str,
    paths: tuple[str, ...],
    format_: str | None,
    options: tuple[str, ...],
    source: str | None,
    request_id: str | None,
) -> None:
    """Land what Spark reads at PATH…, files, folders or URLs, in the table of DATASET, as one flush.

    For inputs too large for append: it takes any number of rows, and Spark does the work. --format, or else
    the ending of the first PATH, tells the format; some, such as jdbc, take options and no PATH. A CSV file
    has a header unless --option header=false says otherwise. A secret among the options is given as env:NAME
    or file:PATH.

    An interrupted load is finished by the next flush or load of the dataset. Repeat it with its --request-id,
    else its rows are loaded twice; the same id with other columns, another source or another number of rows
    is refused.

    With --json: dataset, load, number, rows, bytes, files, duplicates, repeat, ranges ([lo, hi] by source).

    For example: strandline load orders orders.csv --format csv --option header=true
    """
    kind = format_ or _format_of(paths)
    given = _options(kind, options)
    with home.node() as node:
        rows = _rows(node.spark, kind, given, paths)
        result = node.load(dataset, rows, source=source, request_id=request_id)
    print_load(result, as_json)


def print_load(result: "LoadResult", as_json: bool) -> None:
    facts: dict[str, Any] = {
        "dataset": result.dataset,
        "load": result.load,
        "number": result.number,
        "rows": result.rows,
        "bytes": result.bytes,
        "files": result.files,
        "duplicates": result.duplicates,
        "repeat": result.is_repeat,
    }
    ranges = {name: [each.lo, each.hi] for name, each in result.ranges.items()}
    if as_json:
        print_json({**facts, "ranges": ranges})
    else:
        print_facts({**facts, "sources": len(ranges)})


def _format_of(paths: tuple[str, ...]) -> str:
    for ending in reversed(Path(paths[0]).suffixes if paths else []):
        if found := _FORMATS.get(ending.lower()):
            return found
        if ending.lower() not in _PACKED:
            break
    raise UsageError(
        "nothing tells the format of the input", hint="--format parquet, csv, json, orc, jdbc, …"
    )


def _options(kind: str, given: tuple[str, ...]) -> dict[str, str]:
    # Spark's default takes a line that it cannot read for one of nulls, and drops what is too much in it.
    options = {"mode": "FAILFAST"} if kind in ("csv", "json") else {}
    if kind == "csv":
        options["header"] = "true"
    for each in given:
        name, separator, value = each.partition("=")
        if not (name and separator):
            raise UsageError(
                f"--option {each!r:.80} has not the form K=V", hint="such as --option header=false"
            )
        options[name] = _secret(name, value) if is_secret_name(name) else value
    return options


def _secret(name: str, value: str) -> str:
    """Others on the machine can read a command line."""
    if not is_reference(value):
        raise UsageError(f"--option {name} holds a secret", hint=f"{name}=env:NAME or {name}=file:PATH")
    return look_up(value, f"--option {name}", file="the command line", folder=Path.cwd())


def _rows(spark: "SparkSession", kind: str, options: dict[str, str], paths: tuple[str, ...]) -> "DataFrame":
    from pyspark.errors import PySparkException

    reader = spark.read.format(kind).options(**options)
    try:
        rows = reader.load(list(paths)) if paths else reader.load()
        _ = rows.schema  # on Connect nothing is looked up until someone asks
    except PySparkException as error:
        raise InputUnreadable(
            f"Spark cannot read {', '.join(paths[:3]) or kind} as {kind}: {_first_line(error)}",
            hint="look at the paths, --format and --option",
        ) from error
    return rows


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]
