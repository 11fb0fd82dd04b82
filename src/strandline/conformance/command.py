"""What `strandline conformance run` does: certify, show, write the scoreboard, and end with its status."""

import importlib
import json as json_module
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from strandline.conformance.case import Suite
from strandline.conformance.fixture import FixtureFactory
from strandline.conformance.runner import certify
from strandline.conformance.scoreboard import OUTCOMES, CaseResult, Scoreboard
from strandline.conformance.suites import ALL
from strandline.errors import UsageError


def run_cli(
    store_url: str | None = None,
    fixture: str | None = None,
    out_dir: Path | None = None,
    suites: Sequence[str] = (),
    json: bool = False,
) -> int:
    """Certify a store of this URL, or what `module:name` makes. 0 only if every case ran and passed."""
    if (store_url is None) is (fixture is None):
        raise UsageError("give a store or a fixture", hint="--store URL, or --fixture module:name")
    factory = fixture_for(store_url) if store_url is not None else load_fixture(str(fixture))
    chosen = choose_suites(suites)
    with _progress(sum(len(suite.cases) for suite in chosen)) as progress:
        board = certify(factory, chosen, progress=progress)
    if out_dir is not None:
        board.write(out_dir)
    if json:
        print(json_module.dumps(board.as_json(), ensure_ascii=False))
    else:
        _show(board)
    return board.exit_code


def choose_suites(names: Sequence[str]) -> list[Suite]:
    """The named suites in their declared order; all of them where none is named."""
    known = {suite.name for suite in ALL}
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no suite {name!r}", hint=f"there are {', '.join(suite.name for suite in ALL)}"
            )
    return [suite for suite in ALL if not names or suite.name in names]


def load_fixture(name: str) -> FixtureFactory:
    """The fixture factory that `module:name` names."""
    module, separator, attribute = name.partition(":")
    if not (module and separator and attribute):
        raise UsageError(
            f"fixture {name!r} is no module:name", hint="such as mypackage.conformance:MyFixture"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"fixture {name!r} is not there: {error}", hint="check the module and the name"
        ) from error
    if not callable(found):
        raise UsageError(
            f"fixture {name!r} cannot be called", hint="it is a class, or a function that makes one"
        )
    factory: FixtureFactory = found
    return factory


def fixture_for(url: str) -> FixtureFactory:
    """A factory that certifies in stores of its own making, beside what is there and never in it."""
    from strandline.conformance import shipped_fixtures

    scheme, separator, _ = url.partition(":")
    if not separator or "/" in scheme or len(scheme) == 1:
        return _in_folder(Path(url))
    match scheme:
        case "memory":
            return shipped_fixtures.MemoryFixture
        case "sqlite":
            return _in_folder(Path(unquote(url.removeprefix("sqlite:///"))))
        case "postgresql" | "postgres":
            return partial(shipped_fixtures.PostgresFixture, url)
        case "http" | "https":
            return partial(shipped_fixtures.RemoteFixture, url, token=_token())
    raise UsageError(
        f"store {url!r} has the unknown scheme {scheme!r}",
        hint="a folder for SQLite files, postgresql://…, http(s)://… of a scratch host, or memory:",
    )


def _in_folder(folder: Path) -> FixtureFactory:
    from strandline.conformance.shipped_fixtures import SqliteFixture

    if not str(folder) or str(folder) == ".":
        raise UsageError("the store names no folder", hint="such as sqlite:///conformance")
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder} is a file, and what is there is never touched",
            hint="name a folder, which is made if need be",
        )
    return partial(SqliteFixture, str(folder))


def _token() -> str | None:
    import os

    return os.environ.get("STRANDLINE_TOKEN") or None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[CaseResult], object]]:
    """A bar on a terminal; elsewhere nothing but what went wrong, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def tell(result: CaseResult) -> None:
            bar.update(task, advance=1, description=result.id.partition("/")[0])
            if result.outcome not in ("pass", "skipped"):
                console.print(f"{result.outcome}: {result.id}", markup=False, highlight=False)

        yield tell


def _show(board: Scoreboard) -> None:
    """The table on stdout, then what was not as it should be."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("suite", box=None, pad_edge=False)
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    table.add_column("expected", justify="right")
    for suite in board.suites:
        table.add_row(suite.name, *(str(suite.count(outcome)) for outcome in OUTCOMES), str(suite.expected))
    expected = sum(suite.expected for suite in board.suites)
    table.add_row("total", *(str(board.count(outcome)) for outcome in OUTCOMES), str(expected), style="bold")
    console.print(table)
    for case in board.cases:
        if case.outcome not in ("pass", "skipped"):
            text = f"expected {case.expected}\n  got {case.actual}" if case.expected else case.detail.strip()
            console.print(f"\n{case.outcome}: {case.id}\n  {text}", markup=False, highlight=False)
    note = f" ({board.level_note})" if board.level_note else ""
    console.print(f"\n{board.backend}: level {board.level or 'none'}{note}", markup=False, highlight=False)
    for shortfall in board.shortfalls:
        console.print(shortfall, markup=False, highlight=False)
