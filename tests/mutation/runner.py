"""Runs mutants: each in a copy of the package, against the tests that run the mutated function.

The working tree is never changed. Each worker has a copy of `src` in a folder of its own, which stands first
on PYTHONPATH; a mutant is written into it, tried, and taken back. A worker has the large libraries loaded and
forks for each run, so that a run takes about as long as its tests.

A first run finds out which tests there are to choose from: those that pass without Spark and without a
server, each in less than MOST_S, with how long they take and which functions they run.
"""

import ast
import importlib
import json
import os
import py_compile
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from tests.mutation.mutants import KINDS, Mutant, mutants_of

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "src" / "strandline"
ROOMS: Final = ("ingest", "flush", "delivery", "maintenance", "persist/core")
TESTS: Final = (
    "tests/ingest",
    "tests/flush",
    "tests/delivery",
    "tests/maintenance",
    "tests/state",
    "tests/read",
    "tests/storage/test_blob_sweep.py",
    "tests/daemon/test_due_syncs.py",
    "tests/persist/test_api.py",
    "tests/persist/test_commit.py",
    "tests/persist/test_facets_edges.py",
    "tests/persist/test_interrupts.py",
    "tests/persist/test_value.py",
    "tests/persist/backends/sqlite",
    "tests/server/event_store",
)
MOST_S: Final = 8.0  # that a test may take
BUDGET_S: Final = 10.0  # of tests for one mutant, as they took without it
FILE_S: Final = 100.0  # for the first run of a file of tests
OPTIONS: Final = (
    *("-q", "-x", "-n", "0", "--no-header", "--hypothesis-seed=0", "-p", "no:cacheprovider"),
    *("-p", "tests.mutation.plugin", "-m", "not slow"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the libraries are loaded before
)
LIBRARIES: Final = (
    *(
        "numpy",
        "pandas",
        "pyarrow.parquet",
        "pyarrow.compute",
        "pyspark.sql",
        "pyiceberg.catalog.sql",
        "pytest",
    ),
    *(
        "hypothesis.stateful",
        "psycopg",
        "msgspec",
        "orjson",
        "click",
        "rich.live",
        "apsw",
        "obstore",
        "urllib3",
    ),
    *("starlette.applications", "uvicorn", "httptools", "xdist", "pytest_timeout"),
)
Verdict = tuple[str, str]  # "caught" by a test, "caught" by the time, "survived", or "not run"


@dataclass(frozen=True, slots=True)
class Known:
    """A test of the first run."""

    name: str
    seconds: float
    ran: frozenset[str]


# Copies, and processes in them


@contextmanager
def copied() -> Iterator[Path]:
    """A folder with a copy of the package, compiled once and for all."""
    with tempfile.TemporaryDirectory(prefix="strandline-mutants-") as folder:
        copy = Path(folder) / "src" / "strandline"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for path in copy.rglob("*.py"):
            _compile(path)
        yield copy


def _compile(path: Path) -> None:
    """Nobody looks whether the source has changed since: two edits within a second would look alike."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(path), doraise=True, invalidation_mode=mode)


def forked(copy: Path, work: Callable[[], int], timeout_s: float) -> int | None:
    """The exit code of `work` in a process whose package is `copy`; None if it had to be ended."""
    pid = os.fork()
    if pid == 0:
        _become(copy, work)
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _end_group(pid)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    _end_group(pid)
    os.waitpid(pid, 0)
    return None


def _end_group(pid: int) -> None:
    """The process with those that its tests have started: it leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _become(copy: Path, work: Callable[[], int]) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        sys.path.insert(0, str(copy.parent))
        os.environ["PYTHONPATH"] = str(copy.parent)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(copy.parent / "hypothesis")
        sys.dont_write_bytecode = True
        out = os.open(copy.parent / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = work()
    except BaseException:  # noqa: BLE001  # this process must not go on as the one that it was forked from
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_tests(names: Sequence[str], more: Sequence[str] = ()) -> int:
    import pytest

    return int(pytest.main([*OPTIONS, *more, *names]))


def load_libraries() -> None:
    """What is large and not ours. A package of ours that was loaded here would be taken for its mutant."""
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT)]
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    ours = [name for name in sys.modules if name == "strandline" or name.startswith("strandline.")]
    assert not ours, f"these are loaded: {ours[:3]}"


# The first run


def files_of_tests() -> list[str]:
    places = [ROOT / name for name in TESTS]
    found = [each for place in places for each in ([place] if place.suffix else _below(place))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def _below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("test_*.py"))


def instrument(copy: Path) -> None:
    """Have each function of the mutated rooms tell that it runs."""
    for room in ROOMS:
        for path in sorted((copy / room).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            module = path.relative_to(copy).as_posix()
            _instrument(tree, module, "")
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
            _compile(path)


def _instrument(node: ast.AST, module: str, function: str) -> None:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".lstrip(".")
        _instrument(child, module, inner)
        if isinstance(child, ast.FunctionDef):
            call = f"getattr(__import__('builtins'), 'strandline_ran', str)({f'{module} {inner}'!r})"
            first = 1 if ast.get_docstring(child, clean=False) is not None else 0
            child.body.insert(first, ast.parse(call).body[0])


def _first_run(job: tuple[Path, str]) -> list[Known]:
    copy, name = job
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as hits:
        os.environ["STRANDLINE_HITS"] = hits.name
        forked(copy, lambda: run_tests([name], ["--maxfail=1000", "--timeout=15"]), FILE_S)
        facts = [json.loads(line) for line in hits.read().splitlines()]
    del os.environ["STRANDLINE_HITS"]
    return [
        Known(each["test"], each["s"], frozenset(each["ran"]))
        for each in facts
        if each["ok"] and each["s"] <= MOST_S
    ]


def first_run(files: Sequence[str], workers: int) -> list[Known]:
    with copied() as copy:
        instrument(copy)
        jobs = [(copy, name) for name in files]
        found: list[Known] = []
        with get_context("fork").Pool(workers, initializer=load_libraries) as pool:
            for known in pool.imap_unordered(_first_run, jobs):
                found += known
                print(f"{len(found)} tests", file=sys.stderr, end="\r")
    return sorted(found, key=lambda each: (each.seconds, each.name))


# The mutants


def chosen(seed: int, count: int) -> list[Mutant]:
    """As many of each room, and in a room as many of each kind, as far as there are. The rooms take turns, so
    that the first mutants are of all rooms."""
    draw = random.Random(seed)
    by_room = [_of_room(room, draw) for room in ROOMS]
    turns = [each for turn in zip_longest(*by_room) for each in turn if each is not None]
    return turns[:count]


def _of_room(room: str, draw: random.Random) -> list[Mutant]:
    """All mutants of a room, the kinds by turns."""
    kinds: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path in sorted((PACKAGE / room).rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for mutant in mutants_of(module, path.read_text(encoding="utf-8")):
            kinds[mutant.kind].append(mutant)
    for each in kinds.values():
        draw.shuffle(each)
    return [each for turn in zip_longest(*kinds.values()) for each in turn if each is not None]


def choose_tests(mutant: Mutant, known: Sequence[Known]) -> list[Known]:
    """Those that run its function, or any of its module if it is in none; the fastest first."""
    place = f"{mutant.module} {mutant.function}"
    is_in_class_or_module = not any(place in each.ran for each in known)
    if is_in_class_or_module and not _is_in_function(mutant):
        fitting = [each for each in known if any(ran.startswith(f"{mutant.module} ") for ran in each.ran)]
    else:
        fitting = [each for each in known if place in each.ran]
    taken: list[Known] = []
    spent = 0.0
    for each in fitting:
        spent += each.seconds
        if taken and spent > BUDGET_S:
            break
        taken.append(each)
    return taken


def _is_in_function(mutant: Mutant) -> bool:
    text = (PACKAGE / mutant.module).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for name in filter(None, mutant.function.split(".")):
        node = next(
            each
            for each in ast.walk(node)
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name
        )
    return isinstance(node, ast.FunctionDef)


_copy: list[Path] = []


def _start(folder: str) -> None:
    load_libraries()
    copy = Path(folder) / str(os.getpid()) / "src" / "strandline"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        _compile(path)
    _copy.append(copy)


def _try(job: tuple[Mutant, Sequence[Known]]) -> tuple[Mutant, Verdict]:
    mutant, tests = job
    if not tests:
        return mutant, ("not run", "")
    (copy,) = _copy
    path = copy / mutant.module
    text = path.read_text(encoding="utf-8")
    compiled = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
    try:
        path.write_text(mutant.applied(text), encoding="utf-8")
        compiled.unlink(missing_ok=True)
        names = copy.parent / "names"
        names.write_text("\n".join(each.name for each in tests), encoding="utf-8")
        allowed_s = 20 + 3 * sum(each.seconds for each in tests)
        code = forked(copy, lambda: run_tests([f"@{names}"], ["--timeout=15"]), allowed_s)
        said = (copy.parent / "out").read_text(encoding="utf-8", errors="replace")
    finally:
        path.write_text(text, encoding="utf-8")
        _compile(path)
    return mutant, _verdict(code, said)


def _verdict(code: int | None, said: str) -> Verdict:
    if code is None:
        return "caught", "the time"
    if code == 0:
        return "survived", ""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return "caught", lines[0].split(" - ")[0].split(" ", 1)[1] if lines else f"the end of its process, {code}"


def tried(
    mutants: Sequence[Mutant], known: Sequence[Known], workers: int, within_s: float = 1e9
) -> dict[Mutant, Verdict]:
    """What became of each, or of those that were tried in the time that there is."""
    found: dict[Mutant, Verdict] = {}
    until = time.monotonic() + within_s
    with (
        tempfile.TemporaryDirectory(prefix="strandline-mutants-") as folder,
        get_context("fork").Pool(workers, initializer=_start, initargs=(folder,)) as pool,
    ):
        jobs = ((mutant, choose_tests(mutant, known)) for mutant in mutants)
        for mutant, verdict in pool.imap_unordered(_try, jobs):
            found[mutant] = verdict
            print(f"{len(found)} of {len(mutants)}: {verdict[0]} {mutant.id}", file=sys.stderr, flush=True)
            if time.monotonic() > until:
                break
    return found
