"""What a run found, in three forms: JSON, a table for the terminal, a page in Markdown."""

import json
import os
import platform
import sqlite3
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import apsw
import rich.table

from benchmarks.aims import PEER, Standing, standings
from benchmarks.plots import plot, plot_aims, short

_PACKAGES: Final = (
    "strandline",
    "apsw",
    "orjson",
    "psycopg",
    "urllib3",
    "starlette",
    "uvicorn",
    "eventsourcing",
    "pyarrow",
    "pyspark",
    "pyiceberg",
)
_PREFACE: Final = """\
# Benchmarks

Made by `make bench`, which writes this page and `results.json` beside it; nothing here is typed by hand.

The machine is shared and noisy: figures per second change from hour to hour, so compare ratios. Contenders
take turns within each round, a ratio is taken within a round, and shown are the median and, in brackets, the
quartiles over the rounds. *fdatasync* is how often a 4 KiB page could be overwritten and synced on the same
disk just before and after each round; "/ fdatasync" is a contender's rate by that rate. All who write are as
durable as those beside them: SQLite with a write-ahead log and `synchronous=FULL`, Postgres with `fsync` and
`synchronous_commit` on; where that is not so, a note says it. Events have about 300 bytes; they are made, and
the garbage of making them is collected, before a clock starts. Rows are those of a log: a time, a level, a
number, and a message of 200 characters. Tables are Iceberg's, on the same disk, and Spark runs on all cores
of the machine.
"""


_AIMS: Final = """\
What each figure is to reach, where we would stop, and where it stands, by the median. The picture has each
as a share of its aim: what ends right of the line has reached it; a diamond is the peer, which checks and
keeps less with an append than ours does. What a missed one is bound by stands below, at the question that is
named.
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
    note: str = ""
    date: str = ""


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


def publish(report: Report, folder: Path, *, asked: Collection[str] | None = None) -> None:
    """Write the results; where only the `asked` questions were, those of the others stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    if asked is not None and results.exists():
        report = _joined(report_of(json.loads(results.read_text("utf-8"))), report, asked)
    results.write_text(json.dumps(_plain(report), indent=2, ensure_ascii=False) + "\n", "utf-8")
    report = report_of(json.loads(results.read_text("utf-8")))  # shown as it will be next time
    _plot(report, folder)
    (folder / "README.md").write_text(as_markdown(report), "utf-8")


def _plot(report: Report, folder: Path) -> None:
    """A picture of each question, and one of the aims."""
    questions: dict[str, list[Table]] = {}
    for table in report.tables:
        questions.setdefault(table.question, []).append(table)
    for old in folder.glob("*.svg"):
        old.unlink()
    plot_aims(standings(report.tables), folder / "aims.svg")
    for question, tables in questions.items():
        plot(tables, folder / picture_name(question))


def picture_name(question: str) -> str:
    return f"{'-'.join(question.lower().strip('?').split())}.svg"


def _joined(old: Report, new: Report, asked: Collection[str]) -> Report:
    """What is new goes where the old was, and what was not there before to the end."""
    tables: dict[str, list[Table]] = {}
    for table in old.tables:
        tables.setdefault(table.question, []).append(table)
    tables |= {question: [] for question in asked}
    for table in new.tables:
        tables[table.question].append(table)
    missing = [line for line in old.missing if not line.startswith(tuple(asked))]
    return Report(
        {**old.surroundings, **new.surroundings},
        [table for each in tables.values() for table in each],
        missing + new.missing,
    )


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


def report_of(data: dict[str, Any]) -> Report:
    """What results.json holds."""
    date = data["surroundings"]["date"]
    tables = [
        Table(
            **{
                **table,
                "syncs_per_s": Spread(**table["syncs_per_s"]),
                "rows": [_row_of(row) for row in table["rows"]],
                "date": table.get("date", date),
            }
        )
        for table in data["tables"]
    ]
    return Report(data["surroundings"], tables, data["missing"])


def _row_of(data: dict[str, Any]) -> Row:
    ratios = {name: Spread(**spread) for name, spread in data["ratios"].items()}
    return Row(
        data["name"], Spread(**data["measure"]), ratios, data["per_sync"] and Spread(**data["per_sync"])
    )


def _named(spread: Spread) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in spread._asdict().items()}


def rich_table(table: Table) -> rich.table.Table:
    shown = rich.table.Table(title=f"{table.title} ({_rounds(table)}; {_probe(table)})", title_justify="left")
    header, *lines = _cells(table)
    for index, name in enumerate(header):
        shown.add_column(name, justify="left" if index == 0 else "right")
    for line in lines:
        shown.add_row(*line)
    return shown


def as_markdown(report: Report) -> str:
    parts = [_PREFACE, _aims(standings(report.tables))]
    question = None
    for table in report.tables:
        if table.question != question:
            question = table.question
            parts.append(f"## {question}\n\n![{question}]({picture_name(question)})\n")
        header, *lines = _cells(table)
        rule = ["---", *["---:"] * (len(header) - 1)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))
        date = "" if table.date == report.surroundings["date"] else f"; measured on {table.date}"
        parts.append(f"**{table.title}**, {_rounds(table)}; {_probe(table)}{date}\n\n{rows}\n")
        if table.note:
            parts.append(f"{table.note}\n")
    if report.missing:
        parts.append("## Not measured\n\n" + _bullets(report.missing))
    parts.append(
        "## Measured with\n\n" + _bullets(f"{name} {what}" for name, what in report.surroundings.items())
    )
    return "\n".join(parts)


def _aims(found: Sequence[Standing]) -> str:
    """Each aim beside what was measured."""
    lines = [["", "aim", "better", "measured", PEER, ""], ["---", *["---:"] * 4, "---"]]
    for each in found:
        aim = each.aim
        sign, shown = "≤" if aim.is_most else "≥", _ratio if aim.against else _number
        unit = "x" if aim.against else f" {each.unit}"
        lines.append(
            [
                f"{aim.text}; *{aim.question}*",
                f"{sign} {aim.reach:,.4g}{unit}",
                "" if aim.better is None else f"{sign} {aim.better:.4g}{unit}",
                "" if each.ours is None else shown(each.ours) + ("" if aim.against else unit),
                "" if each.peer is None else shown(each.peer),
                each.verdict,
            ]
        )
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"## Aims\n\n![Aims](aims.svg)\n\n{_AIMS}\n{rows}\n"


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


def _rounds(table: Table) -> str:
    return "measured once" if table.rounds == 1 else f"{table.rounds} rounds"


def _number(spread: Spread) -> str:
    if spread.low == spread.high:
        return short(spread.median)
    return f"{short(spread.median)} [{short(spread.low)}–{short(spread.high)}]"


def _ratio(spread: Spread) -> str:
    if spread.low == spread.high:
        return f"{spread.median:.2f}x"
    return f"{spread.median:.2f}x [{spread.low:.2f}–{spread.high:.2f}]"


def _probe(table: Table) -> str:
    return f"fdatasync {_number(table.syncs_per_s)}/s"
