"""What a run found, in three forms: JSON, a table for the terminal, a page in Markdown."""

import json
import os
import platform
import sqlite3
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple, Self

import apsw
import rich.table

_PACKAGES: Final = (
    "strandline",
    "apsw",
    "orjson",
    "psycopg",
    "urllib3",
    "starlette",
    "uvicorn",
    "eventsourcing",
)
_PREFACE: Final = """\
# Benchmarks

Made by `make bench`, which writes this page and `results.json` beside it; nothing here is typed by hand.

The machine is shared and noisy: figures per second change from hour to hour, so compare ratios. Contenders
take turns within each round, a ratio is taken within a round, and shown are the median and, in brackets, the
quartiles over the rounds. *fdatasync* is how often a 4 KiB page could be overwritten and synced on the same
disk just before and after each round; "/ fdatasync" is a contender's rate by that rate. All who write are as
durable as those beside them: SQLite with a write-ahead log and `synchronous=FULL`, Postgres with `fsync` and
`synchronous_commit` on. Events have about 300 bytes.
"""


class Spread(NamedTuple):
    """The median over the rounds, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender: its measure, its ratio to each that it is set against, and to the fdatasync rate."""

    name: str
    measure: Spread
    ratios: dict[str, Spread]
    per_sync: Spread | None


@dataclass(frozen=True, slots=True)
class Table:
    question: str
    title: str
    unit: str
    rounds: int
    syncs_per_s: Spread
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Report:
    surroundings: dict[str, str]
    tables: list[Table]
    missing: list[str]


def surroundings(folder: Path, postgres_url: str | None) -> dict[str, str]:
    """What the figures depend on, without a name or a path of the machine."""
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "file system": _file_system(folder),
        "Python": platform.python_version(),
        "SQLite in apsw": apsw.sqlite_lib_version(),
        "SQLite in Python": sqlite3.sqlite_version,
    }
    if postgres_url is not None:
        found["Postgres"] = _postgres_version(postgres_url)
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _file_system(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return max(
        (mount for mount in mounts if folder.is_relative_to(mount[0])), key=lambda mount: len(mount[0])
    )[1]


def _postgres_version(url: str) -> str:
    import psycopg

    with psycopg.connect(url) as connection:
        number = connection.info.server_version
    return f"{number // 10000}.{number % 10000}"


def publish(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(
        json.dumps(_plain(report), indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    (folder / "README.md").write_text(as_markdown(report), "utf-8")


def _plain(report: Report) -> dict[str, object]:
    return {
        "surroundings": report.surroundings,
        "missing": report.missing,
        "tables": [
            {
                **asdict(table),
                "syncs_per_s": _named(table.syncs_per_s),
                "rows": [_row(row) for row in table.rows],
            }
            for table in report.tables
        ],
    }


def _row(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "measure": _named(row.measure),
        "ratios": {name: _named(spread) for name, spread in row.ratios.items()},
        "per_sync": row.per_sync and _named(row.per_sync),
    }


def _named(spread: Spread) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in spread._asdict().items()}


def rich_table(table: Table) -> rich.table.Table:
    shown = rich.table.Table(
        title=f"{table.title} ({table.rounds} rounds; {_probe(table)})", title_justify="left"
    )
    header, *lines = _cells(table)
    for index, name in enumerate(header):
        shown.add_column(name, justify="left" if index == 0 else "right")
    for line in lines:
        shown.add_row(*line)
    return shown


def as_markdown(report: Report) -> str:
    parts = [_PREFACE]
    question = None
    for table in report.tables:
        if table.question != question:
            question = table.question
            parts.append(f"## {question}\n")
        header, *lines = _cells(table)
        rule = ["---", *["---:"] * (len(header) - 1)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))
        parts.append(f"**{table.title}**, {table.rounds} rounds; {_probe(table)}\n\n{rows}\n")
    if report.missing:
        parts.append("## Not measured\n\n" + _bullets(report.missing))
    parts.append(
        "## Measured with\n\n" + _bullets(f"{name} {what}" for name, what in report.surroundings.items())
    )
    return "\n".join(parts)


def _bullets(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _cells(table: Table) -> list[list[str]]:
    ratios = list(table.rows[0].ratios)
    is_durable = table.rows[0].per_sync is not None
    lines = [["", table.unit, *(f"/ {name}" for name in ratios), *(["/ fdatasync"] if is_durable else [])]]
    for row in table.rows:
        shown = [row.ratios[name] for name in ratios] + ([row.per_sync] if row.per_sync else [])
        lines.append([row.name, _number(row.measure), *map(_ratio, shown)])
    return lines


def _number(spread: Spread) -> str:
    return f"{_short(spread.median)} [{_short(spread.low)}–{_short(spread.high)}]"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f}x [{spread.low:.2f}–{spread.high:.2f}]"


def _probe(table: Table) -> str:
    return f"fdatasync {_number(table.syncs_per_s)}/s"
