"""examples/notebook.ipynb: its cells on the Spark of the run, and all of it in a kernel, as a user has it."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from tests.examples.nodes import home_in

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
CELL_ENDS_S = 300


@pytest.fixture
def client(tmp_path: Path) -> NotebookClient:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]  # theirs
    return NotebookClient(notebook, timeout=CELL_ENDS_S, resources={"metadata": {"path": str(tmp_path)}})


def code_cells(client: NotebookClient) -> list[tuple[int, Any]]:
    return [(place, cell) for place, cell in enumerate(client.nb.cells) if cell.cell_type == "code"]


def run_all(client: NotebookClient) -> dict[str, str]:
    """What each cell showed, by its id."""
    for place, cell in code_cells(client):
        client.execute_cell(cell, place)
    return {
        cell.id: "".join(each.get("text", "") or each.data["text/plain"] for each in cell.outputs)
        for _, cell in code_cells(client)
    }


def test_the_notebook_is_kept_without_what_it_showed(client: NotebookClient) -> None:
    kept = [(cell.outputs, cell.execution_count) for _, cell in code_cells(client)]

    assert kept == [([], None)] * len(kept)


def test_the_cells_of_the_notebook_do_what_they_say_however_often_they_are_run(
    client: NotebookClient, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SPOOL-5, L-READ-3
    home_in(tmp_path / "notebook-node")
    monkeypatch.chdir(tmp_path)
    first, second = dict[str, Any](), dict[str, Any]()

    for names in (first, second):
        for _, cell in code_cells(client):
            exec(compile(cell.source, cell.id, "exec"), names)

    assert (first["receipt"].rows, first["receipt"].is_repeat) == (72, False)
    assert first["by_page"].values.tolist() == [["/", 996], ["/search", 564], ["/about", 396]]
    assert first["news"] == [(2, 0, 100), (2, 1, 101), (2, 2, 102)]
    assert second["receipt"].is_repeat
    assert second["by_page"].equals(first["by_page"])
    assert second["news"] == []


@pytest.mark.slow  # the kernel starts a Spark of its own
@pytest.mark.xdist_group("spark")
def test_the_notebook_runs_in_a_kernel_from_top_to_bottom(client: NotebookClient) -> None:  # L-READ-3
    with client.setup_kernel():
        shown = run_all(client)

    assert shown["append"] == "(72, Range(lo=0, hi=72))"
    assert (shown["flush"], shown["more"]) == ("72", "3")
    assert " ".join(shown["sql"].split()) == "page views 0 / 996 1 /search 564 2 /about 396"
    assert shown["follow"] == "[(2, 0, 100), (2, 1, 101), (2, 2, 102)]"
