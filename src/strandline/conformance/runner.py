"""Certification: every suite in a process of its own, every case on a store of its own, every outcome named.

A case that hangs takes its suite's process with it and is reported as a timeout, one that kills the process
as an error, and the suite goes on with the next case. What the process wrote to stderr is kept. Nothing of
this is green.

`certify` starts processes that import the module of `fixture_factory`, so it pickles: a function or a class
of a module, or a functools.partial of one.
"""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeAlias

from strandline.conformance.case import Case, Suite
from strandline.conformance.check import CaseFailed, shown
from strandline.conformance.fixture import BackendFixture, FixtureFactory
from strandline.conformance.forked_processes import nursery
from strandline.conformance.scoreboard import (
    CaseResult,
    Scoreboard,
    SuiteResult,
    fingerprint,
    library_version,
)
from strandline.conformance.suites import ALL
from strandline.errors import UsageError

Progress: TypeAlias = Callable[[CaseResult], object]

_JOIN_S = 20.0
_NOTE_CHARS = 4_000


def certify(
    fixture_factory: FixtureFactory,
    suites: Iterable[Suite] = ALL,
    *,
    timeout_s: float = 300,
    progress: Progress | None = None,
) -> Scoreboard:
    """Run the suites one after the other. `timeout_s` is for each of those that have none of their own."""
    chosen = list(suites)
    _check(fixture_factory, chosen)
    run = _Run(progress or (lambda _: None))
    results = [
        run.suite(suite, suite.fixture_factory or fixture_factory, suite.timeout_s or timeout_s)
        for suite in chosen
    ]
    return Scoreboard(
        backend=run.backend or getattr(fixture_factory, "name", None) or "unknown",
        suites=tuple(results),
        fingerprint=fingerprint(chosen),
        version=library_version(),
        is_whole={suite.name for suite in chosen} >= {suite.name for suite in ALL},
    )


def run_case(case: Case, fixture: BackendFixture) -> CaseResult:
    """One case, here and now. A store that cannot be made is an error, all else that goes wrong a failure."""
    if (reason := case.reason_against(fixture)) is not None:
        return CaseResult(case.id, "skipped", case.level, detail=reason)
    before = time.monotonic()

    def result(outcome: Any, expected: str = "", actual: str = "", detail: str = "") -> CaseResult:
        return CaseResult(case.id, outcome, case.level, time.monotonic() - before, expected, actual, detail)

    try:
        case.run(fixture)
    except CaseFailed as failed:
        return result("fail", failed.expected, failed.actual, failed.note)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
        trace = "".join(traceback.format_exception(error, limit=-6))
        if not _is_from_body(error, case):
            return result("error", detail=trace)
        return result("fail", "no such error", shown(error), trace)
    return result("pass")


def _is_from_body(error: Exception, case: Case) -> bool:
    """Whether the case itself was running, rather than the making of its store."""
    code = case.body.__code__ if hasattr(case.body, "__code__") else None
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def _check(fixture_factory: FixtureFactory, suites: Sequence[Suite]) -> None:
    if len({suite.name for suite in suites}) != len(suites):
        raise UsageError("two suites have one name", hint="a suite is named once")
    for factory in (fixture_factory, *(suite.fixture_factory for suite in suites)):
        try:
            pickle.dumps(factory)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"the fixture factory {factory!r:.80} cannot be sent to another process: {error}",
                hint="give a function or class of a module, or a functools.partial of one",
            ) from error


class _Run:
    """One certification under way."""

    def __init__(self, progress: Progress) -> None:
        self.backend: str | None = None
        self._progress = progress

    def suite(self, suite: Suite, factory: FixtureFactory, timeout_s: float) -> SuiteResult:
        """Every case of a suite: in one process, and in one more after each case that ended its process."""
        deadline = time.monotonic() + timeout_s
        waiting, results, notes = list(suite.cases), [], ""
        while waiting:
            done, note = self._in_a_process(factory, waiting, deadline, timeout_s)
            results += done
            waiting = waiting[len(done) :]
            notes += note
        return SuiteResult(suite.name, suite.expected, tuple(results), notes[-_NOTE_CHARS:])

    def _in_a_process(
        self, factory: FixtureFactory, cases: list[Case], deadline: float, timeout_s: float
    ) -> tuple[list[CaseResult], str]:
        """The outcomes of the first cases, at least one; and what the process said, if it ended badly."""
        context = nursery()
        ours, theirs = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="slconf-") as folder:
            said = Path(folder) / "stderr"
            process = context.Process(
                target=_run_cases, args=(factory, cases, theirs, str(said), dict(os.environ))
            )
            process.start()
            theirs.close()
            results: list[CaseResult] = []
            try:
                fault = self._collect(ours, cases, results, deadline)
            finally:
                _end(process, at_once=len(results) < len(cases))
                ours.close()
            note = said.read_text(errors="replace") if said.exists() else ""
        if fault is None:
            return results, ""
        waiting = cases[len(results) :]
        if fault == "timeout":
            why = f"the suite's {timeout_s:g} s were up"
            lost = [CaseResult(case.id, "timeout", case.level, detail=why) for case in waiting]
        else:
            # Without a fixture no case can run; with one, the process ended in the first one not reported.
            ended = waiting if fault == "no fixture" else waiting[:1]
            why = f"the suite's process ended with {process.exitcode}: {note[-1000:]}"
            lost = [CaseResult(case.id, "error", case.level, detail=why) for case in ended]
        for result in lost:
            self._progress(result)
        return [*results, *lost], note

    def _collect(
        self, ours: Connection, cases: list[Case], results: list[CaseResult], deadline: float
    ) -> Literal["timeout", "no fixture", "ended"] | None:
        """Take in results until all are there; else what happened."""
        has_fixture = False
        while len(results) < len(cases):
            if not ours.poll(max(deadline - time.monotonic(), 0)):
                return "timeout"
            try:
                message = ours.recv()
            except EOFError:
                return "ended" if has_fixture else "no fixture"
            if isinstance(message, str):
                has_fixture, self.backend = True, self.backend or message
            else:
                results.append(message)
                self._progress(message)
        return None


def _run_cases(
    factory: FixtureFactory,
    cases: list[Case],
    results: Connection,
    said: str,
    environment: dict[str, str],
) -> None:
    """The process of a suite: a process group of its own, so that what it starts ends with it."""
    os.setpgrp()
    os.environ.clear()
    os.environ.update(environment)
    # Through the descriptor, so that what C code and child processes write is kept as well.
    with open(said, "ab", buffering=0) as kept:  # noqa: PTH123  # as a descriptor
        os.dup2(kept.fileno(), 2)
        os.dup2(kept.fileno(), 1)
    fixture: BackendFixture | None = None
    try:
        fixture = factory()
        results.send(fixture.name)
        for case in cases:
            results.send(run_case(case, fixture))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
        traceback.print_exception(error)
        sys.exit(1)
    finally:
        if fixture is not None:
            fixture.close()


def _end(process: BaseProcess, *, at_once: bool) -> None:
    """Let the process finish, or not; one that does not is killed with whatever it has started."""
    if not at_once:
        process.join(_JOIN_S)
        if not process.is_alive():
            return
    assert process.pid is not None, "it was started"
    # Its number is that of its group, and nobody else's as long as one of the group is there.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(_JOIN_S)
