"""The frame that every question is asked in: interleaved rounds, and ratios within a round.

Each round runs every contender once, in an order that rotates, between two probes of the disk. A ratio is
taken between two contenders of one round, so that what slows the whole machine falls out of it; reported are
the median and the quartiles over the rounds. A first round warms up and is not counted.

    def ask(bench: Bench) -> None:
        bench.run(Case("SQLite", "appends/s", {"ours": …, "raw": …}, against=["raw"]))
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import strandline
from benchmarks.report import Report, Row, Spread, Table, publish, rich_table, surroundings
from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import UnavailableError
from strandline.lake.spark.session import stop_spark
from strandline.node.node import Node

ROUNDS: Final = 7
QUICK_ROUNDS: Final = 3
PROBE_SYNCS: Final = 40
NODE_SETTINGS: Final = """\
version = 1

[spark.conf]
"spark.driver.memory" = "1g"
"""

Measure: TypeAlias = "float | Mapping[str, float]"
Contender: TypeAlias = Callable[[], Measure]
Place: TypeAlias = tuple[str, str]  # a contender, and which of its measures


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared. A contender runs its share of one round and gives its measure, or several by name.

    `against` names the contenders to which ratios are taken. A measure that waits for the disk `is_durable`,
    and is set against the fdatasync rate too. `note` says what a reader of the figures must know.
    """

    title: str
    unit: str
    contenders: Mapping[str, Contender]
    against: Sequence[str] = ()
    is_durable: bool = False
    note: str = ""


@dataclass(slots=True)
class Bench:
    """What a question is given: a folder on the disk that is measured, its size, and where answers go."""

    folder: Path
    rounds: int
    is_quick: bool
    open: ExitStack
    console: Console = field(default_factory=lambda: Console(stderr=True))
    question: str = ""
    tables: list[Table] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    server: ScratchPostgres | None = None
    shared_node: Node | None = None

    def scaled(self, count: int) -> int:
        """`count`, or a tenth of it when in a hurry."""
        return max(count // 10, 1) if self.is_quick else count

    def postgres(self) -> str | None:
        """The URL of one server for the whole run, `fsync` on; None, said aloud, where there is none."""
        if self.server is None:
            try:
                self.server = self.open.enter_context(ScratchPostgres())
            except UnavailableError as error:
                self.skip("Postgres", str(error))
                return None
        return self.server.url

    def node(self) -> Node | None:
        """One node for the whole run, since a process has one Spark; None, said aloud, where none starts."""
        if self.shared_node is None:
            home = self.folder / "node"
            home.mkdir()
            (home / "strandline.toml").write_text(NODE_SETTINGS, encoding="utf-8")
            node = self.open.enter_context(strandline.open(home))
            try:
                self.open.callback(stop_spark, node.spark)
            except UnavailableError as error:
                self.skip("Spark", str(error))
                return None
            self.shared_node = node
        return self.shared_node

    def skip(self, what: str, why: str) -> None:
        """Say what is not measured; the results say it too."""
        self.missing.append(f"{self.question} {what}: {why}")
        self.console.print(f"not measured: {what}: {why}", style="yellow")

    def run(self, case: Case, *, is_once: bool = False, at_most: int = ROUNDS) -> None:
        """Measure one case, print its table, and keep it for the results.

        What comes out the same every time, or takes too long for rounds, is measured once, without a round
        to warm up; what takes long, in `at_most` so many rounds.
        """
        rounds: list[dict[Place, float]] = []
        probes: list[float] = []
        count, warming = (1, 0) if is_once else (min(self.rounds, at_most) + 1, 1)
        with self._progress(case, count) as advance:
            for number in range(count):
                before = syncs_per_s(self.folder)
                rounds.append(_run_round(case.contenders, number, advance))
                probes.append((before + syncs_per_s(self.folder)) / 2)
        table = summed_up(self.question, case, rounds[warming:], probes[warming:])
        self.tables.append(table)
        self.console.print(rich_table(table))

    @contextmanager
    def _progress(self, case: Case, rounds: int) -> Iterator[Callable[[], None]]:
        """It is drawn between contenders only, so that it takes nobody's time."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, auto_refresh=False) as progress:
            task = progress.add_task(case.title, total=rounds * len(case.contenders))
            yield lambda: progress.update(task, advance=1, refresh=True)


def _run_round(
    contenders: Mapping[str, Contender], number: int, advance: Callable[[], None]
) -> dict[Place, float]:
    names = list(contenders)
    first = number % len(names)
    measured: dict[Place, float] = {}
    for name in names[first:] + names[:first]:
        gc.collect()  # so that nobody pays for the garbage of the one before
        measure = contenders[name]()
        parts = measure if isinstance(measure, Mapping) else {"": measure}
        measured |= {(name, part): value for part, value in parts.items()}
        advance()
    return measured


def summed_up(
    question: str, case: Case, rounds: Sequence[Mapping[Place, float]], probes: Sequence[float]
) -> Table:
    """The table of a case: medians and quartiles over rounds, of values and of ratios within a round."""
    samples = {place: [measured[place] for measured in rounds] for place in rounds[0]}
    order = list(case.contenders)
    rows = [
        Row(
            f"{name}, {part}" if part else name,
            Spread.of(samples[name, part]),
            {other: _ratios(samples[name, part], samples[other, part]) for other in case.against},
            _ratios(samples[name, part], probes) if case.is_durable else None,
        )
        for name, part in sorted(samples, key=lambda place: order.index(place[0]))
    ]
    return Table(
        question,
        case.title,
        case.unit,
        len(probes),
        Spread.of(probes),
        rows,
        case.note,
        datetime.now(UTC).date().isoformat(),
    )


def _ratios(left: Sequence[float], right: Sequence[float]) -> Spread:
    return Spread.of([mine / theirs for mine, theirs in zip(left, right, strict=True)])


def rate(act: Callable[[], object], units: int) -> Contender:
    """A contender that does `act` once a round, which is `units` things, and measures them per second."""

    def run() -> float:
        began = time.perf_counter()
        act()
        return units / (time.perf_counter() - began)

    return run


def syncs_per_s(folder: Path) -> float:
    """How often a page can be overwritten and synced in this folder now."""
    path, page = folder / "probe", os.urandom(4096)
    if not path.exists():
        path.write_bytes(page * 16)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        began = time.perf_counter()
        for number in range(PROBE_SYNCS):
            os.pwrite(descriptor, page, number % 16 * 4096)
            os.fdatasync(descriptor)
        return PROBE_SYNCS / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main(
    questions: Mapping[str, Callable[[Bench], None]], groups: Mapping[str, Collection[str]] | None = None
) -> None:
    """Ask the questions as the command line says; `questions` maps each one's words to its `ask`, `groups` a
    name to the questions it stands for."""
    options = _parse(groups or {})
    asked = _chosen(questions, groups or {}, options.only)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="slbench-")))
        bench = Bench(folder, rounds, options.quick, open_)
        answered: list[str] = []
        for question, ask in asked.items():
            bench.question = question
            bench.console.rule(question)
            ask(bench)
            answered.append(question)
            if options.out is not None:  # at once: what comes later may fail
                url = bench.server.url if bench.server is not None else None
                report = Report(surroundings(folder, url), bench.tables, bench.missing)
                is_all = len(answered) == len(questions)
                publish(report, options.out, asked=None if is_all else answered)


def _chosen(
    questions: Mapping[str, Callable[[Bench], None]], groups: Mapping[str, Collection[str]], only: str | None
) -> dict[str, Callable[[Bench], None]]:
    if only is None:
        return dict(questions)
    group = groups.get(only, ())
    chosen = {
        question: ask
        for question, ask in questions.items()
        if question in group or only.lower() in question.lower()
    }
    if not chosen:
        raise SystemExit(f"no question has {only!r} in it: {', '.join([*groups, *questions])}")
    return chosen


def _parse(groups: Collection[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure. The folder for temporary files (TMPDIR) is on the disk that is measured."
    )
    parser.add_argument("--rounds", type=int, help=f"counted rounds ({ROUNDS}; {QUICK_ROUNDS} with --quick)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: does it run at all?")
    parser.add_argument(
        "--only",
        metavar="WORDS",
        help=" ".join(
            [
                "ask the questions with these words in them; what --out has of others stays",
                *([f"(or one of these for many: {', '.join(groups)})"] if groups else []),
            ]
        ),
    )
    parser.add_argument("--out", type=Path, help="write results.json and README.md into this folder")
    return parser.parse_args()
