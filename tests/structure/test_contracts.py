"""The linter's contracts about protected modules go red where they must, in a room that is new too."""

import tomllib
from copy import deepcopy
from typing import Any

import grimp
import pytest
from importlinter.contracts.protected import ProtectedContract

from tests.docs.page import ROOT

NEW_ROOM = "strandline.new_room.module"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "strandline", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def broken(graph: grimp.ImportGraph) -> list[str]:
    """Each import that a contract about protected modules refuses, as `importer -> imported`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found = []
    for each in settings["contracts"]:
        if each["type"] == "protected":
            contract: Any = ProtectedContract(each["name"], {"root_packages": ["strandline"]}, each)
            outcome = contract.check(deepcopy(graph), verbose=False)
            links = [link for part in outcome.metadata["illegal_imports"] for link in part.illegal_links]
            found += [f"{link['importer']} -> {link['imported']}" for link in links]
    return found


def test_only_who_may_reads_segments_or_asks_for_known_rows(graph: grimp.ImportGraph) -> None:
    """F-26, L-FLUSH-8, L-BF-7."""
    assert broken(graph) == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("strandline.flush.recover", "strandline.lake.ports.lookup"),
        ("strandline.flush.choose_rows", "strandline.lake.jobs.lookup"),
        ("strandline.flush.publish", "strandline.lake.jobs.lookup_frame"),
        ("strandline.flush.flush", "strandline.storage.segment_reader"),
        ("strandline.flush.recover", "strandline.lake.jobs.segment_batches"),
        ("strandline.lake.jobs.stage", "strandline.lake.ports.lookup"),
        ("strandline.lake.jobs.stage", "strandline.storage.segment_reader"),
        ("strandline.ingest.load", "strandline.ingest.spool"),
        (NEW_ROOM, "strandline.lake.ports.lookup"),
        (NEW_ROOM, "strandline.storage.segment_reader"),
    ],
)
def test_a_flush_that_looked_into_the_spool_of_others_would_break_a_contract(
    graph: grimp.ImportGraph, importer: str, imported: str
) -> None:  # F-26, L-FLUSH-8, L-BF-7
    tried = deepcopy(graph)
    tried.add_import(importer=importer, imported=imported, line_number=1, line_contents="import it")

    assert broken(tried) == [f"{importer} -> {imported}"]
