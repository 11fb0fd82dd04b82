"""A soak as a page: figures, and a plot of what the node took on disk."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.soak.soak import Soaked


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since the start, rows acknowledged, and what the node has on disk."""

    at: float
    rows: int
    bytes: int
    files: int
    store_bytes: int


def publish(result: "Soaked", folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = asdict(result) | {"kills": dict(result.kills)}  # asdict makes another thing of a Counter
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    plot(result, folder / "soak.svg")
    (folder / "README.md").write_text(_page(result), encoding="utf-8")


def _page(result: "Soaked") -> str:
    last = result.samples[-1]
    kills = ", ".join(f"{count} of the {name}" for name, count in sorted(result.kills.items()))
    on_disk = f"{last.bytes / 1e6:,.1f} MB in {last.files:,} files"
    facts = {
        "minutes": f"{result.minutes:g}",
        "seed": result.seed,
        "rows acknowledged": f"{result.rows:,} in {result.batches:,} batches",
        "requests that had to be repeated": f"{result.retries:,}",
        "kills": kills,
        "rows missing, doubled or strange at either destination": 0,
        "on disk at the end": f"{on_disk}, {last.store_bytes / 1e6:,.1f} MB of it the store",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""\
# A node that runs and is killed

Rows come in over HTTP from two producers. One `strandline up` flushes them, delivers them to a folder of
Parquet and to another node, keeps the newest 20,000, compacts, sweeps, and folds its history. Both nodes
are killed with SIGKILL at random and started again. This page is made by
`python -m tests.soak.soak --minutes {result.minutes:g} --out docs/soak`, and only where nothing was wrong.

| | |
|---|---|
{table}

![what the node took on disk](soak.svg)

The dotted lines are kills. The row count goes on; what the node keeps does not. Bytes and files were on
average at most 1.15 times in the last third of the run what they were in the middle one. The store grows a
little while it runs: it remembers each request for 24 hours, so that a repeat is known.
"""


def plot(result: "Soaked", path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "strandline"
    from matplotlib import pyplot as plt

    minutes = [each.at / 60 for each in result.samples]
    panels: list[tuple[str, list[float]]] = [
        ("rows in, thousands", [each.rows / 1e3 for each in result.samples]),
        ("on disk, MB", [each.bytes / 1e6 for each in result.samples]),
        ("files", [float(each.files) for each in result.samples]),
        ("store, MB", [each.store_bytes / 1e6 for each in result.samples]),
    ]
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 8), sharex=True)
    for axis, (title, values) in zip(axes, panels, strict=True):
        axis.plot(minutes, values, linewidth=1.2)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(bottom=0)
        for at in result.killed_at:
            axis.axvline(at / 60, color="tab:red", linewidth=0.6, linestyle=":")
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    meta: dict[str, Any] = {"Date": None}
    figure.savefig(path, metadata=meta)
    plt.close(figure)
