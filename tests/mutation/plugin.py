"""A plugin of pytest for the run of mutants: tests that need a server or Spark are left out, and where
`STRANDLINE_HITS` names a file, it is told what each test took and which functions it ran."""

import builtins
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

HEAVY: Final = (
    "spark",
    "spark_lake",
    "spark_settings",
    "connect_server",
    "connect_spark",
    "each_spark",
    "each_spark_lake",
    "postgres_url",
    "s3_endpoint",
)
SERVED: Final = ("postgres", "remote", "s3", "host")
_ran: set[str] = set()


def pytest_configure() -> None:
    builtins.strandline_ran = _ran.add  # type: ignore[attr-defined]  # what instrumented functions call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _is_heavy(item)]


def _is_heavy(item: pytest.Item) -> bool:
    names: Sequence[str] = getattr(item, "fixturenames", ())
    case = item.nodeid.rpartition("[")[2] if item.nodeid.endswith("]") else ""
    return any(name in HEAVY for name in names) or any(each in case for each in SERVED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _ran.clear()
    yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _took[report.nodeid] = _took.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_logfinish(nodeid: str, location: Any) -> Iterator[None]:
    yield
    if path := os.environ.get("STRANDLINE_HITS"):
        fact = {
            "test": nodeid,
            "s": round(_took[nodeid], 3),
            "ok": nodeid not in _failed,
            "ran": sorted(_ran),
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fact) + "\n")


_took: Final[dict[str, float]] = {}
_failed: Final[set[str]] = set()
