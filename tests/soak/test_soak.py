"""Half an hour of everything at once, with kills (L-ACC, G-1)."""

import json
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.show import Sample, publish
from tests.soak.soak import DATASET, Soaked, growth, soak, undone

MINUTES = float(os.environ.get("STRANDLINE_SOAK_MINUTES", "30"))
PUBLISHED = Path(__file__).parents[2] / "docs/soak/results.json"
LEVEL = [
    Sample(5.0 * n, 100 * n, 5_000_000 + n % 7 * 400_000, 900 + n % 5 * 40, 1_000_000) for n in range(90)
]


def test_a_run_is_published_with_its_figures_and_its_plot(tmp_path: Path) -> None:
    samples = [Sample(60.0 * n, 1_000 * n, 5_000_000, 40, 1_000_000) for n in range(3)]
    kills = Counter({"edge": 2, "centre": 1})

    publish(Soaked(7, 2.0, 2_000, 20, 1, kills, [30.0, 60.0, 90.0], samples), tmp_path)

    assert json.loads((tmp_path / "results.json").read_text())["kills"] == {"edge": 2, "centre": 1}
    assert "1 of the centre, 2 of the edge" in (tmp_path / "README.md").read_text()
    assert "<svg" in (tmp_path / "soak.svg").read_text()


@pytest.mark.parametrize("name", ["bytes", "files", "store_bytes"])
def test_a_run_in_which_something_grows_evenly_is_at_fault(name: str) -> None:
    assert growth(LEVEL) == []

    growing = [replace(each, **{name: getattr(each, name) * (n + 1) // 90}) for n, each in enumerate(LEVEL)]

    (fault,) = growth(growing)
    assert fault.startswith(f"{name} grew from ")


@pytest.mark.parametrize("name", ["bytes", "files"])
def test_a_run_in_which_a_level_node_begins_to_grow_is_at_fault(name: str) -> None:
    slow = [replace(each, **{name: getattr(each, name) * (270 + n) // 270}) for n, each in enumerate(LEVEL)]
    assert growth(slow) == []

    steady = [replace(each, **{name: getattr(each, name) * (90 + n) // 90}) for n, each in enumerate(LEVEL)]

    assert len(growth(steady)) == 1


def test_the_published_run_did_not_grow() -> None:
    samples = [Sample(**each) for each in json.loads(PUBLISHED.read_text())["samples"]]

    assert growth(samples) == []


@pytest.mark.parametrize(
    ("compactions", "pruned", "faults"),
    [
        (3, 200, []),
        (0, 200, ["the daemon has not compacted anything by itself"]),
        (3, 0, ["the daemon has not pruned anything by itself"]),
    ],
)
def test_a_daemon_that_left_something_to_the_commands_at_the_end_is_at_fault(
    compactions: int, pruned: int, faults: list[str]
) -> None:  # L-RET-1, L-CMP-1
    stood = {"dataset": DATASET, "compaction": {"compactions": compactions}, "retention": {"rows": pruned}}

    assert undone({"datasets": [stood]}) == faults


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 1_800)
def test_a_node_that_is_killed_again_and_again_loses_nothing_and_stays_small(tmp_path: Path) -> None:
    """G-1, L-CTL-5, L-CTL-6, L-RET-1, L-RET-3, L-CMP-1: F-43 too, as old files go."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"the seed is {seed}")

    result = soak(tmp_path, MINUTES, seed)

    print(f"{result.rows:,} rows, {result.kills}, {result.retries} repeats")
    assert result.faults == []
    assert result.rows > 0
    assert result.kills.total() > 0
