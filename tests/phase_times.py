"""Prints at the end of a run how long each room of tests took, and its slowest test."""

from pathlib import PurePosixPath

import pytest


class Times:
    """Seconds of each test, by room."""

    def __init__(self) -> None:
        self._rooms: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path, _, name = report.nodeid.partition("::")
        folders = PurePosixPath(path).parts[1:-1]
        room = self._rooms.setdefault(folders[0] if folders else "other", {})
        test = f"{PurePosixPath(path).name}::{name}"
        room[test] = room.get(test, 0) + report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._rooms:
            return
        terminalreporter.section("time of each room")
        for room, tests in sorted(self._rooms.items(), key=lambda item: -sum(item[1].values())):
            slowest = max(tests, key=tests.__getitem__)
            took = f"{room:<12} {sum(tests.values()):7.1f} s {len(tests):6,} tests"
            terminalreporter.write_line(f"{took}, slowest {tests[slowest]:5.1f} s: {slowest[:80]}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of xdist: those report to the one who prints
        config.pluginmanager.register(Times(), "strandline-times")
