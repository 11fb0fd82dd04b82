"""The suites that show "exactly once" stand on real parts: whatever they import of the tests is read too."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.page import ROOT

SUITES = ("test_acceptance", "test_acceptance_remote", "test_acceptance_maintenance")
SIMULATED = {"tests.simulation", "tests.delivery.destinations", "tests.sinks.scripted"}
STUBS = re.compile(r"\bmem_backend\b|\bMemoryBackend\b|\bMemoryObjects\b|\bmonkeypatch\b|unittest|\bMock\b")
REAL = {
    "strandline.lake.jobs.deliver.SparkCourier",
    "strandline.lake.jobs.stage.IcebergTables",
    "strandline.maintenance.retention.prune.prune",
    "strandline.maintenance.table_upkeep.maintain",
    "strandline.sinks.forward.forward_sink.ForwardSink",
    "strandline.sinks.blob.blob_sink.BlobSink",
    "tests.server.receivers.receiving",
    "tests.storage.places.s3_options",
}


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Each module that a file imports, and the name that it takes of it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def reached(first: list[Path]) -> dict[str, Path]:
    """These files, and all modules of the tests that they import, by name."""
    found: dict[str, Path] = {}
    waiting = list(first)
    while waiting:
        path = waiting.pop()
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name not in found:
            found[name] = path
            modules = {each for module, of in imports_of(path) for each in (module, f"{module}.{of}")}
            places = [ROOT.joinpath(*module.split(".")).with_suffix(".py") for module in modules]
            waiting += [each for each in places if ROOT / "tests" in each.parents and each.exists()]
    return found


def arguments_of(path: Path) -> set[str]:
    """The fixtures that the tests and fixtures of a file take."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return {argument.arg for function in functions for argument in function.args.args}


def test_the_suites_of_exactly_once_stand_on_real_parts_and_on_no_stub() -> None:  # L-ACC-1
    suites = [ROOT / "tests" / "delivery" / f"{name}.py" for name in SUITES]

    files = reached(suites)
    names = {f"{module}.{name}" for path in files.values() for module, name in imports_of(path)}
    parts = [files[f"tests.{name}"] for name in ("delivery.rig", "delivery.wire", "server.receivers")]
    stubs = {path.name: STUBS.findall(path.read_text(encoding="utf-8")) for path in [*suites, *parts]}
    taken = {name for suite in suites for name in arguments_of(suite)}

    assert SIMULATED & files.keys() == set()
    assert {name: found for name, found in stubs.items() if found} == {}
    assert taken & {"world", "server", "monkeypatch"} == set()
    assert REAL - names == set()
